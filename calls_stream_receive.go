package verbena

import (
	"context"
	"io"

	"github.com/verbena-data/verbena/internal/call"
)

// Recv returns the next piece of what the peer has sent, which the caller releases. The
// peer may send as much again when it is released. Where a piece ends says nothing: Send
// cuts what is long or exceeds the peer's credit.
//
// Behind the last piece it returns [io.EOF] itself, if the peer has ended its stream or
// the call has succeeded; otherwise what has ended it. Ctx ends the wait, and the
// stream goes on.
func (s *Stream) Recv(ctx context.Context) (*Buffer, error) {
	c := s.c
	for {
		c.mu.Lock()
		if s.pieces.Len() > 0 && !s.dropped {
			b := c.lend(s, s.pieces.Pop())
			c.mu.Unlock()
			return checkedBuffer(c.e, b), nil
		}
		var err error
		switch {
		case s.over:
			err = s.recvErr
		case s.flows.Ended():
			err = io.EOF
		}
		if err != nil {
			c.mu.Unlock()
			if err == io.EOF {
				return nil, err
			}
			return nil, s.failure("receive on a stream from", err)
		}
		s.toRead.ready.Clear()
		c.mu.Unlock()
		if err := s.wait(ctx, &s.toRead, (*Stream).lacksPiece); err != nil {
			return nil, s.failure("receive on a stream from", err)
		}
	}
}

// lacksPiece needs the caller's mu.
func (s *Stream) lacksPiece() bool { return !s.toRead.ready.Load() }

// Read is Recv for an [io.Reader]: it copies the bytes, and releases a piece that has been
// read to its end.
func (s *Stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b, err := s.next()
	if err != nil {
		return 0, err
	}
	n := copy(p, b.data)
	b.cut(n)
	c := s.c
	c.mu.Lock()
	if len(b.data) > 0 && !s.dropped {
		s.rest, b = b, nil
	}
	c.mu.Unlock()
	if b != nil {
		b.Release()
	}
	return n, nil
}

// next is what Read has left of a piece, or the next one.
func (s *Stream) next() (*Buffer, error) {
	s.c.mu.Lock()
	b := s.rest
	s.rest = nil
	s.c.mu.Unlock()
	if b != nil {
		return b, nil
	}
	return s.Recv(context.Background()) // the stream's own context ends the wait
}

// WriteTo writes what is received to w, from where it lies, until io.EOF.
func (s *Stream) WriteTo(w io.Writer) (n int64, err error) {
	for {
		b, err := s.next()
		if err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		wrote, err := w.Write(b.data)
		b.Release()
		n += int64(wrote)
		if err != nil {
			return n, err
		}
	}
}

// A loan is a piece that the application has. It is the owner of the piece's memory until
// that is released, to give the peer its credit again.
type loan struct {
	s     *Stream
	m     *Message
	owner bufferOwner
	bytes int
}

// lend gives the application a piece. mu is held.
func (c *Caller) lend(s *Stream, m *Message) *Buffer {
	var l *loan
	if n := len(c.loans); n > 0 {
		l = c.loans[n-1]
		c.loans = c.loans[:n-1]
	} else {
		l = &loan{}
	}
	*l = loan{s: s, m: m, owner: m.owner, bytes: len(m.data)}
	m.owner = l
	return &m.Buffer
}

// location implements bufferOwner.
func (l *loan) location() location { return l.owner.location() }

func (l *loan) intact() bool { return intact(l.owner) }

func (l *loan) viewed() *longMessage { return viewed(l.owner) }

// release implements bufferOwner.
func (l *loan) release() {
	s, m, n := l.s, l.m, l.bytes
	c := s.c
	_, long := l.owner.(*longMessage)
	m.owner = l.owner
	m.owner.release()
	*l = loan{}
	c.mu.Lock()
	grant := c.consumed(s, n, long)
	if len(c.loans) < mostSpare {
		c.loans = append(c.loans, l)
	}
	c.mu.Unlock()
	if grant > 0 {
		c.post(outgoing{header: s.head(call.Grant), tag: grant})
	}
}

// consumed counts a piece that nobody has any more. mu is held.
func (c *Caller) consumed(s *Stream, n int, long bool) (grant uint32) {
	if long {
		c.longPieces -= n
	}
	if c.ended {
		return 0
	}
	return c.side.Consumed(&s.flows, n)
}

// forget is consumed for a piece that the application has never had. mu is held.
func (c *Caller) forget(s *Stream, m *Message) {
	_, long := m.owner.(*longMessage)
	c.consumed(s, len(m.data), long)
}

// streamed takes a message for the stream of a call. mu is held.
func (c *Caller) streamed(h call.Header, m *Message) (v disposal, err error) {
	var late bool
	switch h.Kind {
	case call.Data:
		late, err = c.side.Piece(h, len(m.data))
	case call.End:
		late, err = c.side.Ended(h)
	case call.Grant:
		late, err = c.side.Granted(h, m.Tag)
	}
	if err != nil || late {
		return v, err
	}
	s := c.streamOf(h)
	switch h.Kind {
	case call.Data:
		if long, ok := m.owner.(*longMessage); ok {
			if c.longPieces+len(m.data) > long.share.of.endpointShare()/2 {
				// The rest is for messages that must not wait until pieces are read.
				own := c.e.copied(m)
				if !intact(m.owner) {
					own.Release()
					return v, errNotIntact
				}
				s.pieces.Push(own)
				break
			}
			c.longPieces += len(m.data)
		}
		s.pieces.Push(m)
		v.kept = true
	case call.Grant:
		s.toSend.goOn()
		return v, nil
	}
	s.toRead.goOn()
	return v, nil
}

// streamOf is the stream of a call that is under way. mu is held.
func (c *Caller) streamOf(h call.Header) *Stream {
	if h.Flags&call.FromCaller != 0 {
		q, _ := c.side.Served(h.ID)
		return q.r.stream
	}
	w, _ := c.side.Made(h.ID)
	return w.stream
}
