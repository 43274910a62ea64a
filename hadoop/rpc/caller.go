package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

// caller is the client's side of a session, whatever carries it: it sends
// calls, any number at once, and hands each answer to who waits for it.
type caller struct {
	out     carrier.Sender
	id      ClientID
	session *wire.Session
	timeout time.Duration // of each call; 0 for none
	// watch polls for the answer of the only call under way before its caller sleeps; nil: the
	// carrier does, or nobody.
	watch func(answered func() bool)

	mu      sync.Mutex
	waiting map[int32]*waiter
	free    []*waiter
	failed  error
	alone   int       // calls since the last that began while others were under way
	used    time.Time // when a call began last
	heard   time.Time // when something came last
	pinged  time.Time
}

// waiter is a call that waits for its answer. It is used again, so that done has
// to be empty when it is given back.
type waiter struct {
	done    chan struct{} // of one element
	resp    proto.Message
	expires time.Time
	answer  carrier.Message // one that the waiter decodes itself
	body    []byte          // of answer
	err     error

	answered func() bool // done has something; made once
}

// severalAlone is how many calls have to have been the only one under way, one after the
// other, before callers poll. Where several call, one that polls takes the processor from
// who gathers their calls and answers.
const severalAlone = 4

// mostFree is how many waiters a connection keeps for later calls.
const mostFree = 1024

// take returns a waiter. The caller holds mu.
func (c *caller) take() *waiter {
	if n := len(c.free); n > 0 {
		w := c.free[n-1]
		c.free = c.free[:n-1]
		return w
	}
	w := &waiter{done: make(chan struct{}, 1)}
	w.answered = func() bool { return len(w.done) > 0 }
	return w
}

func (c *caller) giveBack(w *waiter) {
	w.resp, w.body, w.err = nil, nil, nil
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.free) < mostFree {
		c.free = append(c.free, w)
	}
}

func newCaller(out carrier.Sender, id ClientID, target *Target, timeout time.Duration) *caller {
	now := time.Now()
	return &caller{
		out: out, id: id, session: wire.NewSession(id[:], target.Protocol, target.Version), timeout: timeout,
		waiting: map[int32]*waiter{}, used: now, heard: now,
	}
}

// call makes one call and decodes its answer into resp. The error is an
// [*unsent], a [*lost], the context's, or what the server said.
func (c *caller) call(ctx context.Context, id, retry int32, method string, req, resp proto.Message) error {
	m, err := c.encode(id, retry, method, req)
	if err != nil {
		return err
	}
	now := time.Now()
	c.mu.Lock()
	if c.failed != nil {
		err := c.failed
		c.mu.Unlock()
		m.Release()
		return &unsent{err}
	}
	w := c.take()
	w.resp, w.expires = resp, now.Add(c.timeout)
	c.waiting[id] = w
	c.used = now
	urgency := carrier.Now
	c.alone++
	if len(c.waiting) > 1 {
		urgency, c.alone = carrier.Soon, 0
	}
	watches := c.watch != nil && c.alone > severalAlone
	c.mu.Unlock()
	if err := c.out.SendWait(ctx, m, urgency); err != nil {
		if !c.forget(id, w) {
			<-w.done // the connection has failed, too
		}
		c.giveBack(w)
		return &unsent{err}
	}
	if watches {
		c.watch(w.answered)
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if c.forget(id, w) {
			c.giveBack(w)
			return context.Cause(ctx)
		}
		<-w.done // the answer is there, and may be half decoded
	}
	return c.result(w)
}

// forget takes a call back. It reports false if the call has been answered.
func (c *caller) forget(id int32, w *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[id] != w {
		return false
	}
	delete(c.waiting, id)
	return true
}

// result takes the result of a waiter after done.
func (c *caller) result(w *waiter) error {
	err := w.err
	if w.answer.Owner != nil {
		err = unmarshalAnswer(&w.answer, w.body, w.resp)
	}
	c.giveBack(w)
	return err
}

func (c *caller) encode(id, retry int32, method string, req proto.Message) (carrier.Message, error) {
	n := proto.Size(req)
	m := c.out.Alloc(c.session.Size(id, retry, method, n))
	m.Bytes = c.session.Append(m.Bytes, id, retry, method, n)
	err := appendRequest(&m, req)
	return m, err
}

// appendRequest appends a request whose size has just been asked for. If that
// fails, it releases m.
func appendRequest(m *carrier.Message, req proto.Message) (err error) {
	if m.Bytes, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(m.Bytes, req); err != nil {
		m.Release()
		return fmt.Errorf("encode the request: %w", err)
	}
	return nil
}

// header is that of a message that is no call.
func (c *caller) header(id int32) wire.Request {
	return wire.Request{CallID: id, ClientID: c.id[:], RetryCount: -1}
}

// control sends a message that is no call.
func (c *caller) control(ctx context.Context, id int32, body proto.Message) error {
	h := c.header(id)
	m, err := encodeControl(c.out.Alloc(h.Size()+wire.SizeDelimited(proto.Size(body))), &h, body)
	if err != nil {
		return err
	}
	return c.out.SendWait(ctx, m, carrier.Now)
}

// encodeControl puts a message that is no call into m, which it releases if that fails.
func encodeControl(m carrier.Message, h *wire.Request, body proto.Message) (_ carrier.Message, err error) {
	m.Bytes = wire.AppendLength(h.Append(m.Bytes), proto.Size(body))
	if m.Bytes, err = (proto.MarshalOptions{}).MarshalAppend(m.Bytes, body); err != nil {
		m.Release()
	}
	return m, err
}

// deliver hands an answer to who waits for it. The error ends the connection.
func (c *caller) deliver(m carrier.Message) error {
	defer func() { m.Release() }() // unless the waiter has taken it
	h, rest, err := wire.ParseResponse(m.Bytes)
	if err != nil {
		return fmt.Errorf("response header: %w", err)
	}
	var body []byte
	if h.Status == wire.StatusSuccess {
		if body, _, err = wire.Next(rest); err != nil {
			return fmt.Errorf("response: %w", err)
		}
	} else {
		err = &exception.Error{Class: exception.Class(h.Exception), Message: h.Message}
	}
	last := h.Status > wire.StatusError || h.Status < 0
	c.mu.Lock()
	w := c.waiting[h.CallID]
	delete(c.waiting, h.CallID)
	if last && c.failed == nil {
		c.failed = err // before anybody hears of it: no call begins from here on
	}
	c.mu.Unlock()
	if w != nil { // else its caller has given up
		switch {
		case err != nil:
			w.err = err
		case m.Owner != nil:
			w.answer, w.body = m, body
			m = carrier.Message{}
		default:
			w.err = unmarshalAnswer(&m, body, w.resp)
		}
		w.done <- struct{}{}
	}
	if last {
		return err
	}
	return nil
}

// fail ends all calls.
func (c *caller) fail(err error) {
	c.mu.Lock()
	if c.failed == nil {
		c.failed = err
	}
	ended := c.waiting
	c.waiting = map[int32]*waiter{}
	err = c.failed
	c.mu.Unlock()
	c.out.Abort(err)
	for _, w := range ended {
		w.err = &lost{err}
		w.done <- struct{}{}
	}
}

// reason tells why the session has ended, or is nil.
func (c *caller) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

var errUnused = errors.New("rpc: closed because it was not used")

// upkeep ends calls that take too long, and with them a connection on which
// nothing has come meanwhile, as Hadoop's client does. It pings a server that has been silent for
// long while calls are under way, and ends a connection without calls.
func (c *caller) upkeep(ping, idle time.Duration) {
	now := time.Now()
	var late []*waiter
	deaf := false // nothing has come since a call began that is late now
	c.mu.Lock()
	for id, w := range c.waiting {
		if c.timeout > 0 && now.After(w.expires) {
			delete(c.waiting, id)
			late = append(late, w)
			deaf = deaf || !c.heard.After(w.expires.Add(-c.timeout))
		}
	}
	calls := len(c.waiting)
	unused := calls == 0 && now.Sub(c.used) >= idle && c.failed == nil
	if unused {
		c.failed = errUnused // no call begins from here on
	}
	silent := calls > 0 && now.Sub(c.heard) >= ping && now.Sub(c.pinged) >= ping && now.Sub(c.used) >= ping
	if silent {
		c.pinged = now
	}
	c.mu.Unlock()
	for _, w := range late {
		w.err = ErrTimeout
		w.done <- struct{}{}
	}
	switch {
	case deaf:
		c.fail(ErrTimeout)
	case unused:
		c.fail(errUnused)
	case silent:
		h := c.header(wire.CallIDPing)
		m := c.out.Alloc(h.Size())
		m.Bytes = h.Append(m.Bytes)
		_ = c.out.Send(m, carrier.Now) // the reader sees the end of the connection
	}
}

// received tells that something came.
func (c *caller) received() {
	now := time.Now()
	c.mu.Lock()
	c.heard = now
	c.mu.Unlock()
}
