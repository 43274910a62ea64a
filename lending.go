package verbena

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// A lending bounds what is lent to applications and no pool counts: memory, in bytes, which
// is buffers of endpoints over TCP and what is exposed to peers; and registrations. Who
// waits is served in the order of coming.
type lending struct {
	limit int64
	unit  string // of what is lent, as errors call it

	mu    sync.Mutex
	used  int64
	queue []*borrower
}

type borrower struct {
	n   int64
	got chan struct{} // closed when they are counted
}

func newLending(limit int64, unit string) *lending { return &lending{limit: limit, unit: unit} }

// tryTake takes n if they are free and nobody waits. An error says that they
// never are.
func (l *lending) tryTake(n int64) (bool, error) {
	if n > l.limit {
		return false, fmt.Errorf("%w: %d bytes of memory, and SendMemory is %d", ErrTooLong, n, l.limit)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 || l.used+n > l.limit {
		return false, nil
	}
	l.used += n
	return true, nil
}

// take waits for n, which are not more than the limit.
func (l *lending) take(ctx context.Context, n int64) error {
	w := &borrower{n: n, got: make(chan struct{})}
	l.mu.Lock()
	l.queue = append(l.queue, w)
	l.serve()
	l.mu.Unlock()
	select {
	case <-w.got:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.queue, w)
	if i < 0 {
		return nil // it got them just before
	}
	l.queue = slices.Delete(l.queue, i, i+1)
	l.serve()
	return fmt.Errorf("waiting for %d %s with %d of %d in use: %w", n, l.unit, l.used, l.limit, context.Cause(ctx))
}

func (l *lending) give(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used -= n
	l.serve()
}

// serve gives those who wait what is free. mu is held.
func (l *lending) serve() {
	for len(l.queue) > 0 && l.used+l.queue[0].n <= l.limit {
		w := l.queue[0]
		l.queue = slices.Delete(l.queue, 0, 1)
		l.used += w.n
		close(w.got)
	}
}

// inUse tells how much is lent, and how many wait for some.
func (l *lending) inUse() (used int64, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used, len(l.queue)
}
