package rpc

import (
	"context"
	"sync/atomic"
)

// A turnstile counts what is under way, and can be shut. The zero value is open.
type turnstile struct {
	inside atomic.Int64
	closed atomic.Bool
	empty  atomic.Pointer[chan struct{}] // of one element; set before closed
}

// enter reports false if it is shut.
func (t *turnstile) enter() bool {
	t.inside.Add(1)
	if t.closed.Load() {
		t.leave()
		return false
	}
	return true
}

func (t *turnstile) leave() {
	if t.inside.Add(-1) == 0 && t.closed.Load() {
		select {
		case *t.empty.Load() <- struct{}{}:
		default:
		}
	}
}

// shut lets nobody enter any more, and waits until nobody is inside, or ctx has ended.
func (t *turnstile) shut(ctx context.Context) error {
	empty := make(chan struct{}, 1)
	t.empty.CompareAndSwap(nil, &empty)
	t.closed.Store(true)
	for t.inside.Load() > 0 {
		select {
		case <-*t.empty.Load():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
