package verbena

import (
	"context"

	"github.com/verbena-data/verbena/internal/call"
)

// CallJoined is [Caller.Call] with a payload in two pieces, which the peer gets as one:
// head, and then body. It is for a long body that lies in memory of the program. On a
// device the runtime copies it to registered memory piece by piece, and the peer reads one
// while the next is copied. Over TCP the system takes it from where it lies; the runtime
// copies what the system does not take at once. The head is copied once more. Both may be
// used again when it returns.
func (c *Caller) CallJoined(ctx context.Context, method uint32, head, body []byte) (*Message, error) {
	if !c.joins(head, body) {
		j := join(head, body)
		defer j.free()
		return c.Call(ctx, method, j.bytes())
	}
	w, err := c.begin(ctx, false)
	if err == nil {
		err = c.requestJoined(ctx, w, method, head, body)
	}
	return c.answerTo(ctx, w, err)
}

// requestJoined is request for a payload in two pieces.
func (c *Caller) requestJoined(ctx context.Context, w *pendingCall, method uint32, head, body []byte) error {
	h := call.Header{Kind: call.Request, ID: w.id}
	h.Put(w.header[:])
	j := join(w.header[:], head)
	defer j.free()
	return c.requestInTurn(ctx, w, parcel{tag: method, header: j.bytes(), body: body})
}

// ReplyJoined is [Request.Reply] with a payload in two pieces, which the peer gets as one:
// head, and then body. It is for long answers: see [Caller.CallJoined]. It waits as Send
// does, so it is not for short handlers. Both may be used again when it returns, and may
// lie in the request's payload.
func (q Request) ReplyJoined(head, body []byte) error {
	r := q.r
	c := r.c
	if r.notifies || !c.joins(head, body) || call.HeaderSize+len(head)+len(body) > c.e.MaxMessage() {
		j := join(head, body)
		defer j.free()
		return q.Reply(j.bytes())
	}
	j := join(noHeader[:], head) // replyParcel fills it in
	defer j.free()
	return q.replyParcel(parcel{header: j.bytes(), body: body})
}

// noHeader is where a header will be.
var noHeader [call.HeaderSize]byte

// joins tells whether two pieces go out as they are: what is short costs less in one.
func (c *Caller) joins(head, body []byte) bool {
	return call.HeaderSize+len(head)+len(body) > max(c.e.Eager(), coalesceLimit)
}

// joined is memory in which pieces are together while they are sent.
type joined struct {
	pooled *heapBuffer // nil: there is none so long
	own    []byte
}

func (j *joined) bytes() []byte {
	if j.pooled != nil {
		return j.pooled.data
	}
	return j.own
}

func (j *joined) free() {
	if j.pooled != nil {
		j.pooled.data = j.pooled.data[:0]
		j.pooled.free()
	}
}

func join(pieces ...[]byte) (j joined) {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	if class := classOf(size); class != nil {
		j.pooled = class.take()
		j.own = j.pooled.data
	} else {
		j.own = make([]byte, 0, size)
	}
	for _, p := range pieces {
		j.own = append(j.own, p...)
	}
	if j.pooled != nil {
		j.pooled.data = j.own
	}
	return j
}
