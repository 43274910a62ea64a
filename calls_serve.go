package verbena

import (
	"context"
	"fmt"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/patience"
)

// answer sends an answer.
func (c *Caller) answer(r *request, kind call.Kind, tag uint32, payload []byte) error {
	h := call.Header{Kind: kind, ID: r.id}
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return c.e.failure("answer", c.e.err)
	}
	// The peer may use the slot again as soon as it hears.
	c.side.Answered(r.id)
	c.mu.Unlock()
	if c.e.carrier.sendPair(tag, h, payload) {
		return nil
	}
	m := outgoing{header: h, tag: tag, answers: true}
	mayWait := r.handler != nil && r.handler.long
	waits := mayWait && c.unreadBytes()+len(payload) > waitingBytes
	if !waits {
		m.carry(payload)
		c.mu.Lock()
		// Other handlers may have filled the outbox meanwhile. What waits there still
		// counts: it is bounded.
		waits = mayWait && c.out.bytes+len(payload) > waitingBytes
		over := c.ended || c.out.closed
		if waits || over || !c.side.Reopen(r.id, Request{r, r.age.Load() - 1}) {
			m.free()
		} else {
			c.postLater(m)
		}
		c.mu.Unlock()
		if over && !waits {
			return c.e.failure("answer", ErrClosed)
		}
	}
	if waits {
		h.Put(r.header[:])
		_, err := c.sendBehind(c.ctx, parcel{tag: tag, header: r.header[:], body: payload})
		return err
	}
	return nil
}

// unreadBytes is how many bytes of answers wait to be sent.
func (c *Caller) unreadBytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.bytes
}

// handled counts a notification that has been handled.
func (c *Caller) handled() {
	c.mu.Lock()
	tell := uint32(0)
	if !c.ended {
		tell = c.side.Handled()
	}
	c.mu.Unlock()
	if tell > 0 {
		c.post(outgoing{header: call.Header{Kind: call.Handled}, tag: tell})
	}
}

// recycle frees what an answered request has.
func (c *Caller) recycle(r *request) {
	if r.message != nil {
		r.message.Release()
	}
	// One that was dropped is under way for the side still: until its stream is finished,
	// what comes for it is taken.
	if r.stream != nil {
		r.stream.finish()
	}
	c.mu.Lock()
	end := r.end
	r.message, r.stream, r.handler, r.ctx, r.end, r.canceled, r.expires = nil, nil, nil, nil, nil, false, 0
	if len(c.requests) < mostSpare {
		c.requests = append(c.requests, r)
	}
	c.mu.Unlock()
	if end != nil {
		end(errAnswered)
	}
}

// drop ends a request that nobody will handle: the endpoint has ended, or is about to and
// still takes what comes.
func (c *Caller) drop(r *request) {
	r.age.Add(1)
	c.recycle(r)
}

// serves implements sink.
func (c *Caller) serves() bool { return c.mux != nil }

// arrived implements sink.
func (c *Caller) arrived(m *Message) (v disposal, err error) {
	h, err := call.Parse(m.data)
	if err != nil {
		return v, err
	}
	m.cut(call.HeaderSize)
	var end context.CancelCauseFunc
	c.mu.Lock()
	switch {
	case c.ended:
	case !c.side.IsGreeted() && h.Kind != call.Greeting:
		err = fmt.Errorf("%w: a message of kind %d on an endpoint for calls, before a greeting", ErrProtocol, h.Kind)
	default:
		switch h.Kind {
		case call.Greeting:
			if err = c.side.Greeted(h, m.Tag); err == nil {
				c.advance()
			}
		case call.Reply, call.Failure:
			v.kept, err = c.heard(h, m)
		case call.Request, call.Notification:
			v, err = c.requested(h, m)
		case call.Cancel:
			if q, ok := c.side.Served(h.ID); ok && q.r.age.Load() == q.age {
				q.r.canceled, end = true, q.r.end
			}
		case call.Handled:
			if err = c.side.Credited(m.Tag); err == nil {
				c.advance()
			}
		case call.Data, call.End, call.Grant:
			v, err = c.streamed(h, m)
		}
	}
	c.mu.Unlock()
	if end != nil {
		end(errCanceled)
	}
	return v, err
}

// heard takes an answer of the peer. mu is held.
func (c *Caller) heard(h call.Header, m *Message) (kept bool, err error) {
	w, wanted, err := c.side.Answer(h.ID)
	if err != nil {
		return false, err
	}
	if wanted {
		s := w.stream
		var failed error
		if kept = h.Kind == call.Reply; kept {
			c.finish(w, m, nil)
		} else {
			failed = &CallError{Code: m.Tag, Text: string(m.data)}
			c.finish(w, nil, failed)
		}
		if s != nil {
			s.answered(failed)
		}
	}
	if c.line.Len() > 0 {
		c.advance()
	}
	if c.draining {
		c.lookDrained()
	}
	return kept, nil
}

// requested takes a request of the peer. mu is held.
func (c *Caller) requested(h call.Header, m *Message) (v disposal, err error) {
	var r *request
	if n := len(c.requests); n > 0 {
		r = c.requests[n-1]
		c.requests = c.requests[:n-1]
	} else {
		r = &request{c: c}
	}
	r.id, r.method, r.notifies, r.message = h.ID, m.Tag, h.Kind == call.Notification, m
	if h.Value > 0 {
		r.expires = patience.Processors.Now() + call.Wait(h.Value)
	}
	if r.notifies {
		err = c.side.Notified()
	} else {
		var flows *call.Flows
		if h.Flags&call.Streams != 0 {
			r.stream = c.newStream(false)
			r.stream.id = h.ID
			flows = &r.stream.flows
		}
		err = c.side.Requested(h.ID, Request{r, r.age.Load()}, flows)
	}
	if err != nil {
		r.message, r.stream = nil, nil
		return v, err
	}
	c.bytes += len(m.data)
	c.queue.Push(r)
	v = disposal{kept: true, run: !c.queued}
	c.queued = true
	return v, nil
}

// run implements sink: it handles requests.
func (c *Caller) run(budget int) (handed bool) {
	for last := false; budget > 0 && !last; budget-- {
		c.mu.Lock()
		if c.queue.Len() == 0 {
			c.mu.Unlock()
			return handed
		}
		r := c.queue.Pop()
		last = c.queue.Len() == 0
		canceled := r.canceled
		// A long one counts until its handler begins.
		full, unread := c.bytes > waitingBytes, c.out.bytes > waitingBytes
		closing := c.closing
		c.mu.Unlock()
		if closing {
			c.drop(r)
			continue
		}
		if c.handle(r, canceled, full, unread) {
			handed = true
		}
	}
	return handed
}

// waits implements sink.
func (c *Caller) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.Len() > 0
}

// more implements sink.
func (c *Caller) more() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queued = c.queue.Len() > 0
	return c.queued
}

// handle hands a request to its handler, and tells whether another goroutine may have it
// now, or news of it.
func (c *Caller) handle(r *request, canceled, full, unread bool) (handed bool) {
	q, notifies := Request{r, r.age.Load()}, r.notifies
	h := c.mux.handler(r.method)
	switch {
	case h == nil:
		c.begun(r)
		q.refuse(CodeUnknownMethod, fmt.Sprintf("no handler of method %d", r.method))
	case canceled:
		c.begun(r)
		q.refuse(CodeCanceled, "given up")
	case unread && !r.notifies:
		c.begun(r)
		q.refuse(CodeBusy, "too many bytes of answers wait until they are received")
	case (h.stream != nil) != (r.stream != nil):
		c.begun(r)
		q.refuse(CodeStreams, fmt.Sprintf("method %d takes streams: %t", r.method, h.stream != nil))
	case h.long && full && !r.notifies:
		c.begun(r)
		q.refuse(CodeBusy, "too many bytes of requests wait for handlers")
	case h.long:
		r.handler = h
		c.mux.enqueue(r)
		return true
	default:
		r.handler = h
		c.serve(q)
		return notifies || r.age.Load() == q.age
	}
	return false
}

// begun notes that a request does not wait any more.
func (c *Caller) begun(r *request) {
	c.mu.Lock()
	c.bytes -= len(r.message.data)
	c.mu.Unlock()
	r.message.begun()
}

// serve calls the handler.
func (c *Caller) serve(q Request) {
	c.begun(q.r)
	r := q.r
	method, h := r.method, r.handler
	if r.late() {
		q.refuse(CodeLate, "the deadline passed before a handler was free")
		return
	}
	if r.notifies {
		defer q.finish()
	}
	defer q.recover(method)
	if s := r.stream; s != nil {
		s.begin(q)
		h.stream(q, s)
		return
	}
	h.f(q)
}
