package verbena

import (
	"sync/atomic"
	"time"
)

const (
	// A wait in which polling stops is one that was in vain with the last eighth
	// of the limit. It is tried again after so many waits, at first and at most.
	spinPause, maxSpinPause = 8, 256

	// Somebody who polls and is not run for so long shares its processor with
	// others who want it: a scheduler gives each a few milliseconds.
	preempted = 300 * time.Microsecond
	// Nobody polls for so long then, at first and at most.
	crowdPause, maxCrowdPause = 10 * time.Millisecond, 100 * time.Millisecond
)

// A spinner decides how long the next wait polls before it sleeps. It belongs to
// one waiter at a time.
type spinner struct {
	limit  time.Duration
	budget time.Duration // 0: only now and then
	pause  int           // waits between two tries
	skip   int           // of them to come
}

func newSpinner(limit int) spinner {
	return spinner{limit: time.Duration(limit), budget: time.Duration(limit)}
}

// next is how long to poll.
func (s *spinner) next() time.Duration {
	if s.budget > 0 {
		return s.budget
	}
	if s.skip > 0 {
		s.skip--
		return 0
	}
	return s.limit
}

// helped notes that polling ended the wait in time.
func (s *spinner) helped(waited time.Duration) {
	if s.budget == 0 || waited < s.limit/2 {
		s.budget = s.limit
	}
	s.pause = 0
}

// vain notes that polling for spent did not.
func (s *spinner) vain(spent time.Duration) {
	switch {
	case spent <= 0:
	case s.budget == 0:
		s.pause = min(2*s.pause, maxSpinPause)
		s.skip = s.pause
	case s.budget <= s.limit/8:
		s.budget = 0
		s.pause, s.skip = spinPause, spinPause
	default:
		s.budget /= 2
	}
}

// A crowd tells whether more want to run than there are processors. Then
// polling, even if it is answered soon, takes the time from those who would
// answer, and a scheduler prefers those who sleep.
type crowd struct {
	start time.Time
	until atomic.Int64 // since start: nobody polls before
	pause atomic.Int64
}

// processors are those of this process.
var processors = crowd{start: time.Now()}

func (c *crowd) now() time.Duration { return time.Since(c.start) }

// dense tells that polling is of no use now.
func (c *crowd) dense(now time.Duration) bool { return int64(now) < c.until.Load() }

// pushed notes that somebody who polled was not run for a while, until now. The
// pause doubles each time that happens soon after the last one.
func (c *crowd) pushed(now time.Duration) {
	until := c.until.Load()
	if int64(now) < until {
		return // another one has noted the same
	}
	pause := time.Duration(c.pause.Load())
	if since := now - time.Duration(until); pause == 0 || since > 4*pause {
		pause = crowdPause
	} else {
		pause = min(2*pause, maxCrowdPause)
	}
	if c.until.CompareAndSwap(until, int64(now+pause)) {
		c.pause.Store(int64(pause))
	}
}
