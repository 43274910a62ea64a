package shuffle

import "sync/atomic"

// A sleeper is a goroutine that sleeps until something may have changed. It looks after
// sleeps says that it is about to; who changes something calls wake afterwards.
type sleeper struct {
	asleep atomic.Bool
	token  chan struct{}
}

func newSleeper() sleeper { return sleeper{token: make(chan struct{}, 1)} }

// wake wakes the goroutine, if it sleeps or is about to.
func (s *sleeper) wake() {
	if s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
		select {
		case s.token <- struct{}{}:
		default:
		}
	}
}

// sleeps says that the goroutine is about to sleep until token has one.
func (s *sleeper) sleeps() { s.asleep.Store(true) }

// stays takes that back.
func (s *sleeper) stays() {
	if !s.asleep.CompareAndSwap(true, false) {
		select { // it was woken
		case <-s.token:
		default:
		}
	}
}
