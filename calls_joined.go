package verbena

import (
	"context"

	"github.com/verbena-data/verbena/internal/call"
)

// CallJoined is [Caller.Call] with a payload in two pieces, which the peer gets as one:
// head, and then body. It is for a long body that lies in memory of the program: the
// runtime copies it to registered memory piece by piece, and the peer reads one while the
// next is copied. Both may be used again when it returns.
func (c *Caller) CallJoined(ctx context.Context, method uint32, head, body []byte) (*Message, error) {
	if !c.joins(head, body) {
		return c.Call(ctx, method, join(head, body))
	}
	w, err := c.begin(ctx, false)
	if err == nil {
		err = c.requestJoined(ctx, w, method, head, body)
	}
	return c.answerTo(ctx, w, err)
}

// requestJoined is request for a payload in two pieces.
func (c *Caller) requestJoined(ctx context.Context, w *pendingCall, method uint32, head, body []byte) error {
	left, late := timeLeft(ctx)
	if late {
		return c.unsent(w, context.DeadlineExceeded)
	}
	return c.requestInTurn(ctx, w, joined(method, call.Header{Kind: call.Request, ID: w.id, Value: left}, head, body))
}

// ReplyJoined is [Request.Reply] with a payload in two pieces, which the peer gets as one:
// head, and then body. It is for long answers: see [Caller.CallJoined]. It waits as Send
// does, so it is not for short handlers. Both may be used again when it returns, and may
// lie in the request's payload.
func (q Request) ReplyJoined(head, body []byte) error {
	r := q.r
	c := r.c
	if r.notifies || !c.joins(head, body) || call.HeaderSize+len(head)+len(body) > c.e.MaxMessage() {
		return q.Reply(join(head, body))
	}
	return q.replyParcel(joined(0, call.Header{Kind: call.Reply}, head, body))
}

// mostHead is the longest first piece in bytes that is not copied before it is sent.
const mostHead = 4 << 10

// joins tells whether two pieces go out as they are.
func (c *Caller) joins(head, body []byte) bool {
	eager := c.e.Eager() // 0 over TCP, where frames are gathered from two pieces
	return eager > 0 && len(head) <= mostHead && call.HeaderSize+len(head)+len(body) > eager
}

// joined is a message whose payload has two pieces.
func joined(tag uint32, h call.Header, head, body []byte) parcel {
	header := h.Append(make([]byte, 0, call.HeaderSize+len(head)))
	return parcel{tag: tag, header: append(header, head...), body: body}
}

func join(head, body []byte) []byte {
	return append(append(make([]byte, 0, len(head)+len(body)), head...), body...)
}
