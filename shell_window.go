package verbena

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-data/verbena/internal/slab"
)

// widen lets a peer that had to wait use more receives. mu is held.
func (s *queuePair) widen() {
	if n := s.window.widen(s.m.Window()); n > 0 {
		s.m.Grant(n)
	}
}

// lend gives a peer that has used all its credits others, if some of what it was
// promised sleep. The caller flushes. mu is held.
func (s *queuePair) lend() {
	if s.window.asleep > 0 && s.m.Stopped() {
		s.lendNow()
	}
}

func (s *queuePair) lendNow() {
	if n := s.window.lend(s.m.Window()); n > 0 {
		s.m.Grant(n)
	} else if !s.window.lendDue {
		s.window.lendDue = true
		time.AfterFunc(lendAgain, s.lendLate)
	}
}

// lendLate is lend after there was no memory.
func (s *queuePair) lendLate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window.lendDue = false
	if !s.life.reached(stageClosed) && !s.life.breach {
		s.lend()
		s.flush()
	}
}

// expect posts n receives more for answers to what this side is about to send.
func (s *queuePair) expect(ctx context.Context, n int) error {
	recv := s.window.recv
	for {
		s.mu.Lock()
		n, err := s.window.expect(n)
		if err == nil {
			s.m.Expect(n)
		}
		s.mu.Unlock()
		if !errors.Is(err, slab.ErrExhausted) {
			return err
		}
		// What is promised has room in the pool, but for messages that applications
		// hold of endpoints that are closed.
		memory, err := s.take(ctx, recv.pool, recv.size)
		if err != nil {
			return err
		}
		recv.pool.Put(memory)
	}
}
