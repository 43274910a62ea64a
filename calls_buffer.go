package verbena

import (
	"context"
	"fmt"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/patience"
)

// Buffer is [Endpoint.Buffer] for the payload of a call or of an answer. It lies behind
// room for the header of either, so that a long one goes out in one piece. So size is at
// most [Endpoint.MaxMessage] less 16; beyond it the error is [ErrTooLong].
func (c *Caller) Buffer(ctx context.Context, size int) (*Buffer, error) {
	return c.e.bufferBehind(ctx, call.HeaderSize, size)
}

// CallBuffer is [Caller.Call] with a payload that lies in a buffer, which is sent from
// where it lies if the transport reaches it: see [Endpoint.SendBuffer]. The caller's
// reference to b is gone when CallBuffer returns, whatever it returns: Retain before to
// make the call again. To change the bytes before that, wait for [Endpoint.Settled].
func (c *Caller) CallBuffer(ctx context.Context, method uint32, b *Buffer) (*Message, error) {
	if checksBuffers {
		b.check("CallBuffer")
	}
	defer b.Release() // what is under way has references of its own
	w, err := c.begin(ctx, false)
	if err == nil {
		err = c.requestBuffer(ctx, w, method, call.Header{Kind: call.Request, ID: w.id}, b)
	}
	return c.answerTo(ctx, w, err)
}

// requestBuffer is request for a payload in a buffer.
func (c *Caller) requestBuffer(ctx context.Context, w *pendingCall, method uint32, h call.Header, b *Buffer) error {
	p := b.parcel(method, w.header[:])
	if p.size() > c.e.Eager() {
		h.Put(w.header[:])
		return c.requestInTurn(ctx, w, p)
	}
	left, late := call.LeftOf(ctx)
	if h.Value = left; late {
		return c.unsent(w, context.DeadlineExceeded)
	}
	h.Put(w.header[:])
	if c.e.carrier.sendBufferNow(p) {
		return nil
	}
	return c.requestInTurn(ctx, w, p)
}

// requestInTurn sends a request that may have to wait. Its header needs no Value yet. If it
// fails the call has ended.
func (c *Caller) requestInTurn(ctx context.Context, w *pendingCall, p parcel) error {
	p.expires = true
	begun, err := c.e.sendInTurn(ctx, p)
	return c.sentOrNot(w, begun, err)
}

// sentOrNot is what becomes of a request that sendInTurn has sent, or not. If it fails the
// call has ended.
func (c *Caller) sentOrNot(w *pendingCall, begun bool, err error) error {
	switch {
	case err == nil:
		return nil
	case begun && c.e.over():
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err) // it may have been posted
	}
	return c.unsent(w, err)
}

// parcel is the buffer behind a header.
func (b *Buffer) parcel(tag uint32, header []byte) parcel {
	return parcel{tag: tag, header: header, body: b.data, buffer: b, from: b.front}
}

// ReplyBuffer is [Request.Reply] with a payload that lies in a buffer, such as one of
// [Endpoint.Buffer], or what Keep has returned. It is sent from where it lies if the
// transport reaches it: see [Endpoint.SendBuffer]. It waits as Send does, so it is not
// for short handlers. The reference to b is gone when it returns, whatever it returns.
// Its errors are those of Reply.
func (q Request) ReplyBuffer(b *Buffer) error {
	if checksBuffers {
		b.check("ReplyBuffer")
	}
	defer b.Release() // what is under way has references of its own
	r := q.r
	c := r.c
	if r.notifies || len(b.data) > c.e.MaxMessage()-call.HeaderSize {
		return q.Reply(b.data)
	}
	return q.replyParcel(b.parcel(0, r.header[:]))
}

// replyParcel answers with a message that may have to wait. Its header gets the id.
func (q Request) replyParcel(p parcel) error {
	r := q.r
	c := r.c
	if !r.age.CompareAndSwap(q.age, q.age+1) {
		return c.e.failure("answer", ErrAnswered)
	}
	h := call.Header{Kind: call.Reply, ID: r.id}
	h.Put(p.header)
	err := c.answerParcel(r, p)
	c.recycle(r)
	return err
}

func (c *Caller) answerParcel(r *request, p parcel) error {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return c.e.failure("answer", c.e.err)
	}
	// The peer may use the slot again as soon as it hears.
	c.side.Answered(r.id)
	c.mu.Unlock()
	if p.buffer != nil && c.e.carrier.sendBufferNow(p) {
		return nil
	}
	_, err := c.e.sendInTurn(c.ctx, p)
	return err
}

// Over tells whether nobody waits for the answer any more, as the end of Context does,
// but costs nothing. It may be called at any time.
func (q Request) Over() bool {
	r := q.r
	r.c.mu.Lock()
	over := r.age.Load() != q.age || r.canceled || r.c.ended
	expires := r.expires
	r.c.mu.Unlock()
	return over || expires != 0 && patience.Processors.Now() > expires
}
