// Package patience decides whether who waits polls, and for how long, before it sleeps.
//
// A [Spinner] learns by waiter whether polling ends the wait. A [Crowd] tells by process
// whether polling takes the processor from those who would bring what is waited for.
package patience

import (
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/patience/contention"
)

// Preempted is for how long a poller is not run who shares its processor with somebody
// else: a scheduler's turns last a few milliseconds.
const Preempted = 300 * time.Microsecond

// YieldEvery is how long a caller polls before it lets other goroutines run. Where a
// processor is idle, each yield costs two processors 5 us: Go wakes a thread there, and that
// thread fetches the caller.
const YieldEvery = 10 * time.Microsecond

const (
	// Polling stops after limit/8 without a completion. It is tried again after 8 waits, and
	// then after 16 each time; where polls are costly the pause doubles up to 256. Two who wait
	// for each other and sleep do so until a try of one succeeds: a fifth of a second with 256
	// (decision 0115).
	spinPause, maxSpinPause, maxCostlyPause = 8, 16, 256

	// After that nobody in the process polls for 1 ms: somebody had something to do, and
	// has done it.
	passingPause = time.Millisecond
	// If it comes again within 40 ms, there is a crowd: nobody polls for 10 ms, doubling
	// up to 100 ms while it goes on.
	crowdPause, maxCrowdPause = 10 * time.Millisecond, 100 * time.Millisecond
	// 1 s after the last pause the clock is no longer read to see whether one goes on.
	crowdMemory = time.Second
	// Every millisecond a waiter looks how long threads have had to wait for processors since
	// the last look. If that was more than half of the time, there is a crowd, and who polls
	// stops. If it was less than a 32nd, the crowd has gone, and so does the pause. Looks more
	// than 20 ms apart say too little about now.
	crowdLook, staleLook   = time.Millisecond, 20 * time.Millisecond
	crowdShare, quietShare = 2, 32
)

// A Spinner decides how long the next wait polls before it sleeps. One that was in vain
// halves it; one that polling ended in less than half of the limit restores it. It belongs
// to one waiter at a time. The zero value never polls.
type Spinner struct {
	limit  time.Duration // the longest poll; 0 or less: never poll
	budget time.Duration // of the next wait; 0: polling has stopped
	most   int           // the longest pause
	pause  int           // waits between two tries, once it has
	skip   int           // of them, those to come
}

// NewSpinner returns a spinner that polls for at most limit; 0 or less: never.
func NewSpinner(limit time.Duration) Spinner {
	return Spinner{limit: limit, budget: limit, most: maxSpinPause}
}

// NewCostlySpinner is NewSpinner for polls that make system calls: it tries again less often.
func NewCostlySpinner(limit time.Duration) Spinner {
	s := NewSpinner(limit)
	s.most = maxCostlyPause
	return s
}

// Limit is the longest poll.
func (s *Spinner) Limit() time.Duration { return s.limit }

// Next is how long to poll.
func (s *Spinner) Next() time.Duration {
	if s.budget > 0 {
		return s.budget
	}
	if s.skip > 0 {
		s.skip--
		return 0
	}
	return s.limit
}

// Helped notes that polling ended the wait after waited.
func (s *Spinner) Helped(waited time.Duration) {
	if s.budget == 0 || waited < s.limit/2 {
		s.budget = s.limit
	}
	s.pause = 0
}

// Vain notes that polling for spent did not end the wait.
func (s *Spinner) Vain(spent time.Duration) {
	switch {
	case spent <= 0:
	case s.budget == 0:
		s.pause = min(2*s.pause, s.most)
		s.skip = s.pause
	case s.budget <= s.limit/8:
		s.budget = 0
		s.pause, s.skip = spinPause, spinPause
	default:
		s.budget /= 2
	}
}

// A Crowd tells whether more threads want to run than there are processors. Polling then
// takes processor time from those who would answer, and a scheduler prefers those who
// sleep to those who poll.
type Crowd struct {
	now     func() time.Duration         // the clock
	account func() (time.Duration, bool) // for how long some thread has waited for a processor

	until atomic.Int64 // nanoseconds of the clock: nobody polls before
	pause atomic.Int64 // nanoseconds

	looked atomic.Int64 // nanoseconds of the clock: the last look at what threads have waited
	waited atomic.Int64 // nanoseconds that they had, then
}

// Processors are those of this process. Their clock begins at [Epoch].
var Processors = NewCrowd(func() time.Duration { return time.Since(Epoch) }, contention.Waited)

// Epoch is when the process began.
var Epoch = time.Now()

// NewCrowd returns a crowd by a clock, and by an account of how long some thread has waited
// for a processor since the machine came up, which reports false if it does not know.
func NewCrowd(now func() time.Duration, account func() (time.Duration, bool)) *Crowd {
	return &Crowd{now: now, account: account}
}

// Now is the time by the crowd's clock.
func (c *Crowd) Now() time.Duration { return c.now() }

// Dense tells that nobody should poll now. It reads the clock only within 1 s of the last
// pause.
func (c *Crowd) Dense() bool {
	if c.until.Load() == 0 {
		return false
	}
	now := c.now()
	return c.denseAt(now) && !c.gone(now)
}

func (c *Crowd) denseAt(now time.Duration) bool {
	until := c.until.Load()
	if peace := now - time.Duration(until); until != 0 && peace > crowdMemory {
		c.until.CompareAndSwap(until, 0)
	}
	return int64(now) < until
}

// gone tells whether a look says that the crowd has gone, and ends the pause then.
func (c *Crowd) gone(now time.Duration) bool {
	waited, since, ok := c.look(now)
	if !ok || waited > since/quietShare {
		return false
	}
	if until := c.until.Load(); int64(now) < until {
		c.until.CompareAndSwap(until, int64(now))
	}
	return true
}

// Pressed tells whether a look says that there is a crowd, and begins a pause then. Who
// polls asks: where all others sleep soon, the scheduler gives him his turns, and he never
// finds that he was not run.
func (c *Crowd) Pressed(now time.Duration) bool {
	waited, since, ok := c.look(now)
	if !ok || waited <= since/crowdShare {
		return false
	}
	c.Pushed(now)
	return true
}

// look tells for how long some thread has waited for a processor since the look before. It
// reports false if it is too early for a look, if there is no account, or if the one
// before was too long ago or none.
func (c *Crowd) look(now time.Duration) (waited, since time.Duration, ok bool) {
	looked := c.looked.Load()
	since = now - time.Duration(looked)
	if since < crowdLook || !c.looked.CompareAndSwap(looked, int64(now)) {
		return 0, 0, false
	}
	total, ok := c.account()
	waited = total - time.Duration(c.waited.Swap(int64(total)))
	return waited, since, ok && looked > 0 && since <= staleLook
}

// Pushed notes that a poller was not run for a while, until now. The pause grows each
// time that this comes within 4 pauses of the last one, or within 40 ms.
func (c *Crowd) Pushed(now time.Duration) {
	until := c.until.Load()
	if int64(now) < until {
		return // somebody else has noted the same
	}
	pause := time.Duration(c.pause.Load())
	if since := now - time.Duration(until); pause == 0 || since > 4*max(pause, crowdPause) {
		pause = passingPause
	} else {
		pause = min(max(2*pause, crowdPause), maxCrowdPause)
	}
	if c.until.CompareAndSwap(until, int64(now+pause)) {
		c.pause.Store(int64(pause))
	}
}
