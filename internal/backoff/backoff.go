// Package backoff tells how long to pause before something that has failed is tried
// again.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// A Policy is pauses that grow. Their mean is First after the first failure in a
// row, twice as long after each further one, and Most at most. Each pause is drawn
// evenly from half to one and a half of its mean, so that those who failed together
// do not come back together.
type Policy struct{ First, Most time.Duration }

// Pause is the pause after so many failures in a row, 1 or more.
func (p Policy) Pause(failures int) time.Duration {
	mean := p.First
	for ; failures > 1 && mean < p.Most; failures-- {
		mean *= 2
	}
	mean = min(mean, p.Most)
	return mean/2 + rand.N(mean+1)
}

// Sleep waits for d. It reports false if ctx ended first, or stop, which may be nil,
// was closed.
func Sleep(ctx context.Context, d time.Duration, stop <-chan struct{}) bool {
	if ctx.Err() != nil {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
	case <-stop:
	}
	return false
}
