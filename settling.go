package verbena

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/patience"
)

// settling are the callers of Settled on an endpoint. It is guarded by the lock of
// what the buffers are used by.
type settling struct {
	waiters []*settler
	spin    patience.Spinner // what the last one has learnt; zero: they do not poll
}

// A settler waits until a buffer is not used any more.
type settler struct {
	buffer *Buffer
	done   atomic.Bool
	token  chan struct{} // one when done is set
	spin   patience.Spinner
	ready  func() bool
}

var settlers = sync.Pool{New: func() any {
	w := &settler{token: make(chan struct{}, 1)}
	w.ready = w.done.Load
	return w
}}

func (s *settling) add(b *Buffer) *settler {
	w := settlers.Get().(*settler)
	w.buffer, w.spin = b, s.spin
	s.waiters = append(s.waiters, w)
	return w
}

func (s *settling) remove(w *settler) {
	s.spin = w.spin
	for i, other := range s.waiters {
		if other == w {
			last := len(s.waiters) - 1
			s.waiters[i], s.waiters[last] = s.waiters[last], nil
			s.waiters = s.waiters[:last]
			break
		}
	}
	select {
	case <-w.token:
	default:
	}
	w.buffer = nil
	w.done.Store(false)
	settlers.Put(w)
}

// any tells whether somebody waits.
func (s *settling) any() bool { return len(s.waiters) > 0 }

// settled tells those who wait for b, which is not used any more.
func (s *settling) settled(b *Buffer) {
	for _, w := range s.waiters {
		if w.buffer == b {
			w.done.Store(true)
			notify(w.token)
		}
	}
}

// sleep waits for the token, the end of ctx, or that of the endpoint.
func (w *settler) sleep(ctx context.Context, over <-chan struct{}) {
	select {
	case <-w.token:
	case <-ctx.Done():
	case <-over:
	}
}

// wait waits until b is not used any more, ctx ends, or ended has an error. mu guards
// the carrier's part, and pause waits a little.
func (s *settling) wait(ctx context.Context, mu sync.Locker, uses func(*Buffer) bool, b *Buffer, ended func() error, pause func(*settler)) error {
	mu.Lock()
	if !uses(b) {
		mu.Unlock()
		return nil
	}
	w := s.add(b)
	mu.Unlock()
	defer func() {
		mu.Lock()
		s.remove(w)
		mu.Unlock()
	}()
	for {
		if w.done.Load() {
			return nil
		}
		if err := ended(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause(w)
	}
}
