package verbena

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/link"
)

// errSendClosed says that CloseSend was before.
var errSendClosed = fmt.Errorf("verbena: the stream's sending side is closed: %w", io.ErrClosedPipe)

// Send sends bytes, in one piece or several. They may be used again when it returns. It
// waits while the peer has not released what it was sent before. If ctx ends, a part of
// them may have been sent, and the stream goes on: see Write for how much.
//
// An error wraps [ErrAnswered] when the call has succeeded without what is sent here. It
// is a [*CallError] when the call has failed.
func (s *Stream) Send(ctx context.Context, b []byte) error {
	_, err := s.send(ctx, parcel{body: b})
	return err
}

// SendBuffer sends what b holds, as [Endpoint.SendBuffer] does: without a copy where the
// transport reaches it. If it returns nil the caller's reference is gone; on an error it
// stays the caller's. [Endpoint.Settled] waits until the bytes may be changed.
func (s *Stream) SendBuffer(ctx context.Context, b *Buffer) error {
	return s.SendRange(ctx, b, 0, len(b.data))
}

// SendRange is SendBuffer for the bytes of b from from to to. If b does not hold all of
// those, the error wraps [ErrBounds].
func (s *Stream) SendRange(ctx context.Context, b *Buffer, from, to int) error {
	if checksBuffers {
		b.check("SendBuffer")
	}
	if !b.holds(from, to) {
		return s.failure("send on a stream to", b.lacks(from, to))
	}
	if _, err := s.send(ctx, parcel{body: b.data[from:to:to], buffer: b, from: b.front + from}); err != nil {
		return err
	}
	b.Release() // what is under way has references of its own
	return nil
}

// Write is Send for an [io.Writer]. It tells how much has been sent.
func (s *Stream) Write(b []byte) (int, error) {
	return s.send(context.Background(), parcel{body: b})
}

// ReadFrom sends what r has, until io.EOF. It reads into buffers of the endpoint, so that
// nothing else copies the bytes.
func (s *Stream) ReadFrom(r io.Reader) (n int64, err error) {
	ctx := context.Background() // the stream's own ends all waits
	for {
		b, err := s.c.e.Buffer(ctx, s.longestPiece())
		if err != nil {
			return n, err
		}
		got, err := r.Read(b.Bytes())
		if got > 0 {
			if sent := s.SendRange(ctx, b, 0, got); sent != nil {
				b.Release()
				return n, sent
			}
			n += int64(got)
		} else {
			b.Release()
		}
		switch {
		case err == io.EOF:
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// CloseSend tells the peer that nothing more will be sent: its Recv returns [io.EOF] when
// it has received everything. The other direction goes on. A second call does nothing.
func (s *Stream) CloseSend() error {
	c := s.c
	c.mu.Lock()
	if s.over {
		err := s.sendErr
		c.mu.Unlock()
		return s.failure("end a stream to", err)
	}
	ends := s.flows.Finish()
	c.mu.Unlock()
	if ends {
		c.post(outgoing{header: s.head(call.End)})
	}
	return nil
}

func (s *Stream) head(kind call.Kind) call.Header {
	h := call.Header{Kind: kind, ID: s.id}
	if s.caller {
		h.Flags = call.FromCaller
	}
	return h
}

// failure adds the endpoint to an error unless it is what the peer has said.
func (s *Stream) failure(op string, err error) error {
	var told *CallError
	if errors.As(err, &told) {
		return err
	}
	return s.c.e.failure(op, err)
}

// send sends all of p in pieces, and tells how much it has sent.
func (s *Stream) send(ctx context.Context, p parcel) (sent int, err error) {
	for all := len(p.body); ; {
		n, err := s.credit(ctx, s.pieceOf(len(p.body), p.buffer != nil), len(p.body) == 0)
		if err != nil {
			return sent, s.failure("send on a stream to", err)
		}
		if n > 0 {
			if err := s.sendPiece(ctx, p.part(n)); err != nil {
				return sent, err
			}
			sent += n
		}
		if sent == all {
			return sent, nil
		}
	}
}

// longestPiece is what goes in one message at most.
func (s *Stream) longestPiece() int {
	return max(min(s.c.e.tuning.Stream, s.c.e.MaxMessage()-call.HeaderSize), 1)
}

// pieceOf is how much of n bytes the next message takes.
func (s *Stream) pieceOf(n int, inPlace bool) int {
	e := s.c.e
	if eager := e.Eager() - call.HeaderSize; eager > 0 && n <= e.tuning.Pieces*eager && !(inPlace && n > eager) {
		return min(n, eager)
	}
	return min(n, s.longestPiece())
}

// credit waits until a piece of at most n bytes may be sent, and takes that. With none it
// only looks whether the stream goes on.
func (s *Stream) credit(ctx context.Context, n int, none bool) (int, error) {
	c := s.c
	for {
		c.mu.Lock()
		var err error
		switch {
		case s.over:
			err = s.sendErr
		case s.flows.Finished():
			err = errSendClosed
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		}
		if err != nil || none {
			c.mu.Unlock()
			return 0, err
		}
		// A quarter of the first credit is always there in the end.
		if took := s.flows.Take(n, max(c.side.PeerStream()/4, 1)); took > 0 {
			c.mu.Unlock()
			return took, nil
		}
		s.toSend.ready.Clear()
		c.mu.Unlock()
		if err := s.wait(ctx, &s.toSend, (*Stream).lacksCredit); err != nil {
			return 0, err
		}
	}
}

// lacksCredit needs the caller's mu.
func (s *Stream) lacksCredit() bool { return !s.toSend.ready.Load() }

// sendPiece sends a piece for which there is credit.
func (s *Stream) sendPiece(ctx context.Context, p parcel) error {
	c := s.c
	h, n := s.head(call.Data), len(p.body)
	if p.buffer == nil {
		if c.e.carrier.sendPair(0, h, p.body) {
			return nil
		}
		if call.HeaderSize+n <= link.Small {
			h.Put(s.scratch[:])
			copy(s.scratch[call.HeaderSize:], p.body)
			p.body = s.scratch[:call.HeaderSize+n]
			return s.sendWaiting(ctx, p, n)
		}
	}
	h.Put(s.scratch[:])
	p.header = s.scratch[:call.HeaderSize]
	if p.buffer != nil && c.e.carrier.sendBufferNow(p) {
		return nil
	}
	return s.sendWaiting(ctx, p, n)
}

// sendWaiting sends a message with a piece of n bytes and waits as long as that takes.
func (s *Stream) sendWaiting(ctx context.Context, p parcel, n int) error {
	c := s.c
	ctx, err := s.whileOpen(ctx)
	if err == nil {
		if _, err = c.e.sendInTurn(ctx, p); err == nil {
			return nil
		}
	}
	c.mu.Lock()
	over, ended := s.over, s.sendErr
	s.flows.Return(n) // it has not been sent, not even in part, unless the endpoint is over
	c.mu.Unlock()
	switch {
	case over:
		return s.failure("send on a stream to", ended)
	case s.caller && (c.e.over() || errors.Is(err, ErrPeerClosed)): // the peer's goodbye is here first
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return err
}

// whileOpen returns a context that ends with ctx, and when the stream is given up.
func (s *Stream) whileOpen(ctx context.Context) (context.Context, error) {
	c := s.c
	same := reflect.TypeOf(ctx).Comparable()
	c.mu.Lock()
	if on := s.waitOn; on != nil && same && s.waitFor == ctx {
		c.mu.Unlock()
		return on, nil
	}
	c.mu.Unlock()
	on, end := context.WithCancelCause(ctx)
	c.mu.Lock()
	before, err := s.endWait, error(nil)
	if s.over {
		before, err = end, s.sendErr
	} else {
		s.waitFor, s.waitOn, s.endWait = ctx, on, end
	}
	c.mu.Unlock()
	if before != nil {
		before(nil)
	}
	return on, err
}
