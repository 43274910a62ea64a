package verbena

import (
	"bytes"
	"context"
	"fmt"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/longcopy"
)

// MaxHeader is how many bytes SendBuffer takes in front of a buffer.
const MaxHeader = link.Small

// A parcel is a message that is to be sent: header, and then body.
type parcel struct {
	tag          uint32
	header, body []byte
	buffer       *Buffer // that body lies in, or nil
	from         int     // where in the buffer
	expires      bool    // a request, which tells how long its caller waits
}

func (p *parcel) size() int { return len(p.header) + len(p.body) }

// copyTo copies the message to the beginning of b.
func (p *parcel) copyTo(b []byte) {
	n := copy(b, p.header)
	longcopy.Fill(b[n:][:len(p.body)], p.body)
}

// tellTime puts what ctx leaves into a request that is about to go out, which may have
// waited since it was made. It fails if nothing is left.
func (p *parcel) tellTime(ctx context.Context) error {
	if !p.expires {
		return nil
	}
	p.expires = false // the other parts of the message have no header
	left, late := call.LeftOf(ctx)
	if late {
		return context.DeadlineExceeded
	}
	front := p.header
	if len(front) == 0 {
		front = p.body
	}
	call.PutValue(front, left)
	return nil
}

// own copies what lies in the memory of another endpoint's peer, and then looks whether that
// was the message. What does not lie there stays where it is.
func (p *parcel) own() error {
	if p.buffer == nil || viewed(p.buffer.owner) == nil {
		return nil
	}
	body := bytes.Clone(p.body)
	if !intact(p.buffer.owner) {
		return errNotIntact
	}
	p.body, p.buffer, p.from = body, nil, 0
	return nil
}

// part cuts up to n bytes off the front of the message.
func (p *parcel) part(n int) parcel {
	part := *p
	p.expires = false
	if len(p.header) > n {
		part.header, part.body, p.header = p.header[:n], nil, p.header[n:]
		return part
	}
	part.body = p.body[:min(len(p.body), n-len(p.header))]
	p.header, p.body, p.from = nil, p.body[len(part.body):], p.from+len(part.body)
	return part
}

// Buffer returns size bytes of memory for what is to be sent on the endpoint, 0 to
// [Endpoint.MaxMessage] of them; other sizes fail with [ErrTooLong]. The
// caller has one reference to it. What it holds at first is left over from earlier
// messages, also of other endpoints: write all that is sent.
//
// The memory is registered, so [Endpoint.SendBuffer] sends it from where it lies.
// Over TCP it is not. It counts for SendMemory: Buffer waits while that is used up,
// until ctx or the endpoint ends. Buffers that an application keeps are missing to
// others, and to Send.
func (e *Endpoint) Buffer(ctx context.Context, size int) (*Buffer, error) {
	return e.bufferBehind(ctx, 0, size)
}

// bufferBehind is Buffer for what a header of front bytes will go before.
func (e *Endpoint) bufferBehind(ctx context.Context, front, size int) (*Buffer, error) {
	if most := e.carrier.maxMessage() - front; size < 0 || size > most {
		return nil, e.failure("get a buffer for", fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, size, most))
	}
	b, err := e.carrier.buffer(ctx, front, size)
	if err != nil {
		return nil, e.failure("get a buffer for", err)
	}
	return checkedBuffer(e, b), nil
}

// SendBuffer sends one message: header, of at most [MaxHeader] bytes, and then what
// b holds, which may be a received message. If it returns nil the caller's reference
// to b is gone; the runtime drops it when it has sent the bytes, or the peer has read
// them. Whoever wants to use b again, or to send it on other endpoints too, calls
// Retain before. On an error the reference stays the caller's. Nobody may change the
// bytes before the message has gone, nor after an error before [Endpoint.Settled] has
// returned: the peer may be reading a part of them, and over iwarp bytes that change
// meanwhile have a wrong checksum, which ends the endpoint.
//
// The bytes are sent from where they lie, without a copy, if the transport reaches
// them: memory of endpoints of the same group on the same device. What is longer than
// [Endpoint.Eager] is read by the peer, who needs a key for that. So it must lie in
// a buffer of this endpoint's [Endpoint.Buffer] or, if this side trusts the peer
// (see [GroupConfig].Relay), in any long message or buffer of the group. Anything
// else is copied as by [Endpoint.Send]. A message that lies in a peer's memory (see
// [DialConfig].InPlace) and may have changed before it was copied is not sent: SendBuffer
// fails, and [Buffer.Intact] reports false.
//
// Waiting, order and ctx are as in Send.
func (e *Endpoint) SendBuffer(ctx context.Context, tag uint32, header []byte, b *Buffer) error {
	return e.SendRange(ctx, tag, header, b, 0, len(b.data))
}

// SendRange is SendBuffer for the bytes of b from from to to. If b does not hold all of
// those, the error wraps [ErrBounds].
func (e *Endpoint) SendRange(ctx context.Context, tag uint32, header []byte, b *Buffer, from, to int) error {
	if checksBuffers {
		b.check("SendBuffer")
	}
	if len(header) > MaxHeader {
		return e.failure("send to", fmt.Errorf("%w: a header of %d bytes, at most %d", ErrTooLong, len(header), MaxHeader))
	}
	if !b.holds(from, to) {
		return e.failure("send to", b.lacks(from, to))
	}
	p := parcel{tag: tag, header: header, body: b.data[from:to:to], buffer: b, from: b.front + from}
	if !(ctx.Err() == nil && p.size() <= e.carrier.maxMessage() && e.carrier.sendBufferNow(p)) {
		if _, err := e.sendInTurn(ctx, p); err != nil {
			return err
		}
	}
	b.Release() // what is under way has references of its own
	return nil
}

// holds tells whether from and to are within the buffer, in order. To slice its bytes is no
// check: they may go on behind what the buffer holds, with what somebody else has left.
func (b *Buffer) holds(from, to int) bool {
	return uint(from) <= uint(to) && uint(to) <= uint(len(b.data))
}

// lacks is the error where holds reports false.
func (b *Buffer) lacks(from, to int) error {
	return fmt.Errorf("%w: bytes from %d to %d of a buffer of %d", ErrBounds, from, to, len(b.data))
}

// Settled waits until the endpoint does not use b any more: all messages that were
// sent from it have gone, or the peer has read them, and no one-sided operation on it
// is under way. Then its bytes may be changed.
// An endpoint that has ended lets its buffers go when it is closed; until then
// Settled returns why it ended.
func (e *Endpoint) Settled(ctx context.Context, b *Buffer) error {
	if checksBuffers {
		b.check("Settled")
	}
	if err := e.carrier.settle(ctx, b); err != nil {
		return e.failure("wait until a buffer has gone to", err)
	}
	return nil
}
