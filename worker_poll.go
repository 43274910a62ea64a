package verbena

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/patience"
	"github.com/verbena-data/verbena/internal/release"
)

// callers counts the goroutines that poll a worker's queue until something has come.
// Whoever holds the worker's lock, as nearly all do when they come and go, counts by
// a plain store; an atomic addition would wait for all stores before it.
type callers struct {
	locked atomic.Uint64 // only changed by holders of the worker's mu
	others atomic.Int64
}

// comes counts one more. The worker's mu is held.
func (c *callers) comes() { release.Store(&c.locked, c.locked.Load()+1) }

// goes counts one less. The worker's mu is held.
func (c *callers) goes() { release.Store(&c.locked, c.locked.Load()-1) }

// any tells whether there are some.
func (c *callers) any() bool { return int64(c.locked.Load())+c.others.Load() > 0 }

// drive polls for as long as the spinner has it, until ready says that the
// caller's wait is over. It tells whether it is.
func (w *worker) drive(s *patience.Spinner, ready func() bool) bool {
	budget := s.Next()
	if budget <= 0 || w.crowd.Dense() {
		w.pollNow() // what has come already need not wait for the worker
		return ready()
	}
	ok, waited := w.spin(budget, ready, false)
	if w.sleepers.Load() > 0 && !w.callers.any() {
		w.watch()
	}
	if !ok {
		s.Vain(budget)
		return false
	}
	s.Helped(waited)
	return true
}

// hold is followed by settle: what is posted between the two and completes at once, as a Put does
// that a socket takes, wakes no worker.
func (w *worker) hold() {
	if w.events != nil {
		w.events.Hold()
	}
}

// settle handles what has completed, if the worker sleeps. If nothing is left then, it sleeps on; if
// another one polls just now, what he leaves wakes it. The caller holds no lock.
func (w *worker) settle() {
	if w.events == nil {
		return
	}
	if w.events.Held() {
		w.pollNow()
	}
	w.events.Release()
}

// pollNow handles what has completed, and lets a helper handle the requests among it.
func (w *worker) pollNow() {
	w.poll()
	if w.runs.any() {
		w.runs.kick(w.look)
	}
}

// spin polls until ready, for about budget. It tells how long it has polled: 0 if that
// ended before the first look at the clock. own says that the caller is the worker's
// goroutine, which handles requests itself; for others a helper does. The budget begins
// anew whenever something has come: the next piece of a long message is about to follow.
func (w *worker) spin(budget time.Duration, ready func() bool, own bool) (ok bool, waited time.Duration) {
	var start time.Duration
	var last time.Duration // of the look at the clock before; 0: much has been done since
	var yielded time.Duration
	var quiet time.Duration // when something last came, or the caller rested
	counted, came := false, false
	for batch := 1; ; batch++ {
		woke := false // others, who go on first
		if w.mu.TryLock() {
			if !counted {
				counted = true
				w.callers.comes()
			}
			for range spinBatch {
				if w.pollLocked() > 0 {
					last, came = 0, own
					woke = w.sleepers.Load() > 0
					if ok = ready(); ok {
						counted = false
						w.callers.goes()
						break
					}
				}
			}
			if own {
				w.payLocked() // what else comes may keep the worker here for long
			}
			w.mu.Unlock()
		}
		if !own && w.runs.any() {
			w.runs.kick(w.look)
			woke = true
		}
		ok = ok || ready()
		if ok && start == 0 {
			break
		}
		if !ok && !woke && batch%clockBatches != 0 {
			continue
		}
		now := w.crowd.Now()
		if start == 0 {
			start, yielded = now, now
		}
		if came {
			start, came = now, false
		}
		waited = now - start
		if last == 0 {
			quiet = now
		}
		// 32 polls in vain take some microseconds. If 300 have passed, something else
		// ran on this processor.
		if last != 0 && now-last > patience.Preempted {
			w.crowd.Pushed(now)
			break
		}
		if !ok && w.crowd.Pressed(now) {
			break
		}
		if last = now; ok || waited > budget {
			break
		}
		if woke || now-yielded > patience.YieldEvery {
			yielded = now
			if now-quiet > restEvery {
				rest()
				last = 0
			} else {
				runtime.Gosched()
			}
		}
	}
	if counted {
		w.callers.others.Add(-1)
	}
	return ok, waited
}

// watch makes the worker's own goroutine watch the queue.
func (w *worker) watch() {
	if w.deferred.Load() {
		notify(w.wake)
	}
}

// serveOn has the worker's own goroutine look for requests again at once, if there may be
// some: whoever has polled to send an answer will not poll for the next request.
func (w *worker) serveOn() {
	if w.serving.Load() > 0 && !w.callers.any() {
		w.recalled.Store(true)
		w.watch()
	}
}

// sleep announces a caller that waits without polling, until awake.
func (w *worker) sleep() {
	w.sleepers.Add(1)
	w.watch()
}

// sleepBeside is sleep for a caller who needs the worker only if no other caller polls.
func (w *worker) sleepBeside() {
	w.sleepers.Add(1)
	if !w.callers.any() {
		w.watch()
	}
}

func (w *worker) awake() { w.sleepers.Add(-1) }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
