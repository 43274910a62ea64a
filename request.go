package verbena

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/patience"
)

// Causes of the end of a request's context, beside the end of the endpoint.
var (
	errCanceled = errors.New("verbena: the caller has given up")
	errAnswered = errors.New("verbena: the call has been answered")
)

// ErrAnswered says that a call was answered a second time, by a handler or by the
// runtime. Nothing was sent.
var ErrAnswered = errors.New("verbena: the call has ended already")

// A Request is a call of the peer, or a notification, that a handler was given. It is
// valid until it has been answered, by one goroutine at a time.
//
// A call gets exactly one answer: Reply or Fail. A handler that returns without one
// has passed the request on to somebody who will give it. Until then it counts among
// the requests that the peer may have here.
type Request struct {
	r   *request
	age uint64
}

// A request is used again for others, with another age.
type request struct {
	c        *Caller
	age      atomic.Uint64 // one more when it is answered
	id       call.ID
	method   uint32
	notifies bool
	handler  *handler
	message  *Message
	stream   *Stream               // nil: it has none
	expires  time.Duration         // by processors.now; 0: never
	header   [call.HeaderSize]byte // of an answer in a buffer, while it is sent

	// Guarded by the caller's mu:
	ctx      context.Context // nil until somebody asks
	end      context.CancelCauseFunc
	canceled bool
}

// Method is what the caller asked for.
func (q Request) Method() uint32 { return q.r.method }

// Payload is what the caller sent. It may be read and changed until the request has been
// answered. It is nil after Keep.
func (q Request) Payload() []byte {
	if m := q.r.message; m != nil {
		return m.Bytes()
	}
	return nil
}

// Keep takes the payload's memory over: it stays valid, whatever becomes of the
// request, until the message is released. Payload is nil then, and Keep returns nil the
// next time.
func (q Request) Keep() *Message {
	m := q.r.message
	q.r.message = nil
	return checkedMessage(q.r.c.e, m)
}

// Notification tells that there is no answer: Reply and Fail only say that the request
// has been handled, and send nothing. The end of the handler says it, too.
func (q Request) Notification() bool { return q.r.notifies }

// Caller is this end of the endpoint, for calls in the other direction. A handler on
// the worker must not wait for one.
func (q Request) Caller() *Caller { return q.r.c }

// Deadline is until when the caller waits, by this side's clock.
func (q Request) Deadline() (time.Time, bool) {
	if q.r.expires == 0 {
		return time.Time{}, false
	}
	return q.r.deadline(), true
}

func (r *request) deadline() time.Time { return patience.Epoch.Add(r.expires) }

// late tells whether the deadline has passed. To read the clock takes as long as to post
// an answer, and [time.Now] reads two.
func (r *request) late() bool { return r.expires != 0 && patience.Processors.Now() > r.expires }

// Context ends when the caller has given up, at its deadline, with the endpoint, and
// when the request has been answered. Asking for it costs some allocations.
func (q Request) Context() context.Context {
	r := q.r
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.ctx != nil && r.age.Load() == q.age {
		return r.ctx
	}
	if r.age.Load() != q.age {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errAnswered)
		return ctx
	}
	r.ctx, r.end = context.WithCancelCause(c.ctx)
	if r.expires != 0 {
		ctx, cancel := context.WithDeadline(r.ctx, r.deadline())
		end := r.end
		r.ctx, r.end = ctx, func(cause error) {
			end(cause)
			cancel()
		}
	}
	if r.canceled {
		r.end(errCanceled)
	}
	return r.ctx
}

// Reply answers the call. The payload may be used again when it returns, and may be
// the request's own. What finds no room is copied and sent later. In a short handler it
// never waits; in a long one it waits as [Endpoint.Send] does while 16 MiB of answers
// have not been sent.
//
// A payload of more than [Endpoint.MaxMessage] less 16 bytes is not sent: Reply returns
// [ErrTooLong] and the caller gets [CodeTooLong], so the call has been answered. A call that
// has been answered before gives [ErrAnswered], whatever the payload. Otherwise an error is
// that of the endpoint, which has ended. That a caller has given up is none. ReplyBuffer
// and ReplyJoined have the same errors.
func (q Request) Reply(payload []byte) error { return q.answer(call.Reply, 0, payload) }

// Fail answers the call with a [CallError] of this code and text. Codes below
// [CodeApplication] are the runtime's: in their place the caller gets CodeApplication.
// Errors are those of Reply, and a text that is too long is one.
func (q Request) Fail(code uint32, text string) error {
	return q.answer(call.Failure, max(code, CodeApplication), []byte(text))
}

// answer ends the request.
func (q Request) answer(kind call.Kind, tag uint32, payload []byte) error {
	r := q.r
	c := r.c
	if !r.age.CompareAndSwap(q.age, q.age+1) {
		return c.e.failure("answer", ErrAnswered)
	}
	var err error
	if r.notifies {
		c.handled()
	} else {
		if len(payload) > c.e.MaxMessage()-call.HeaderSize {
			err = c.e.failure("answer", fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, len(payload), c.e.MaxMessage()-call.HeaderSize))
			kind, tag, payload = call.Failure, CodeTooLong, []byte("the answer is too long")
		}
		if sent := c.answer(r, kind, tag, payload); err == nil {
			err = sent
		}
	}
	c.recycle(r)
	return err
}

// refuse answers for the runtime.
func (q Request) refuse(code uint32, text string) {
	_ = q.answer(call.Failure, code, []byte(text)) // the endpoint's end tells
}

// finish ends a notification whose handler has returned.
func (q Request) finish() {
	if q.r.age.Load() == q.age {
		_ = q.answer(call.Reply, 0, nil) // is not sent
	}
}

// recover makes a panic of a handler the failure of its call.
func (q Request) recover(method uint32) {
	p := recover()
	if p == nil {
		return
	}
	c := q.r.c
	c.logPanic(method, p)
	if q.r.age.Load() == q.age {
		q.refuse(CodePanic, "the handler failed; the server's log tells more")
	}
}
