package verbena

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
)

// Buffers of a stream. They are not registered: what the socket takes at once is
// written from where it lies, and the rest waits there, with a reference of its own,
// until the socket takes it.

// A lease is memory of Endpoint.Buffer over TCP. It is used once, so that it can
// tell a second Release from the first.
type lease struct {
	Buffer
	s        *stream
	memory   *heapBuffer // nil: data lies in pages, or there is none
	pages    []byte
	charged  int64
	released atomic.Bool
}

func (s *stream) buffer(ctx context.Context, _, size int) (*Buffer, error) {
	if err := s.e.Err(); err != nil {
		return nil, err
	}
	l := &lease{s: s, charged: int64(size)}
	class := classOf(size)
	if class != nil {
		l.charged = int64(class.size)
	}
	if err := s.charge(ctx, l.charged); err != nil {
		return nil, err
	}
	if class != nil {
		l.memory = class.take()
		l.data = l.memory.data[:size:size]
	} else {
		pages, err := takePages(size)
		if err != nil {
			s.e.env.lent.give(l.charged)
			return nil, fmt.Errorf("no memory for a buffer of %d bytes: %w", size, err)
		}
		l.pages, l.data = pages, pages[:size:size]
	}
	l.owner = l
	return &l.Buffer, nil
}

// charge waits until so many bytes may be lent.
func (s *stream) charge(ctx context.Context, n int64) error {
	if ok, err := s.e.env.lent.tryTake(n); ok || err != nil {
		return err
	}
	ctx, stop := untilOver(ctx, s.e)
	defer stop()
	return s.e.env.lent.take(ctx, n)
}

func (l *lease) location() location { return location{} }

func (l *lease) release() {
	if l.released.Swap(true) {
		e := l.s.e
		e.env.log.Error("a buffer was released twice; the second Release did nothing", "service", e.service, "peer", e.remote)
		return
	}
	l.data = nil
	if l.memory != nil {
		l.memory.free()
	}
	if l.pages != nil {
		freePages(l.pages)
	}
	l.memory, l.pages = nil, nil
	l.s.e.env.lent.give(l.charged)
}

// A piece is a part of a buffer that the socket has not taken yet.
type piece struct {
	at     int // bytes of the backlog that go before it
	data   []byte
	buffer *Buffer
}

func (s *stream) sendBufferNow(parcel) bool { return false }

// writeOut writes the backlog and the pieces between. Only flush calls it.
func (s *stream) writeOut(backlog []byte, pieces []piece) error {
	if len(pieces) == 0 {
		_, err := s.conn.Write(backlog)
		return err
	}
	all, at := s.vector[:0], 0
	for i := range pieces {
		if p := &pieces[i]; p.at > at {
			all = append(all, backlog[at:p.at])
			at = p.at
		}
		all = append(all, pieces[i].data)
	}
	if at < len(backlog) {
		all = append(all, backlog[at:])
	}
	s.vector, s.rest = all, all
	_, err := (*net.Buffers)(&s.rest).WriteTo(s.conn)
	clear(s.vector)
	return err
}

// letGo drops the references of pieces that nobody writes any more, without mu: a
// buffer may belong to an endpoint that has a lock of its own. The caller holds mu.
func (s *stream) letGo(pieces []piece) {
	for i := range pieces {
		if b := pieces[i].buffer; len(s.settling.waiters) > 0 && !s.uses(b) {
			s.settling.settled(b)
		}
	}
	s.mu.Unlock()
	for i := range pieces {
		pieces[i].buffer.Release()
	}
	clear(pieces)
	s.mu.Lock()
}

// uses tells whether b has still to be written. mu is held.
func (s *stream) uses(b *Buffer) bool {
	for _, list := range [][]piece{s.pieces, s.writing} {
		for i := range list {
			if list[i].buffer == b {
				return true
			}
		}
	}
	return false
}

func (s *stream) settle(ctx context.Context, b *Buffer) error {
	return s.settling.wait(ctx, &s.mu, s.uses, b, s.e.Err, func(w *settler) { w.sleep(ctx, s.e.done) })
}
