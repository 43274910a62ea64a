package namenode

import (
	"log/slog"
	"sync"
	"time"
)

const (
	// maxLeap is by how much the computer's clock may differ from the time that has
	// passed since it was read last, for its time to be written into the log.
	maxLeap = time.Minute
	// leapPatience is how long it must have differed to be believed.
	leapPatience = 10 * time.Minute
)

// logClock is the time of log entries, and of what they change: the computer's, but
// for the minutes after a leap. Until a clock that was set stays so, time goes on as
// if it had not been, because a wrong one is often set right again soon.
type logClock struct {
	mu      sync.Mutex
	begun   time.Time     // the first reading, to which the others are compared
	at      time.Duration // steady time of the last reading, since begun
	wall    time.Duration // what the log had then
	leapAt  time.Duration // since when the clock has leapt
	leaping bool
}

// millis returns the Unix time for an entry that is made now.
func (c *logClock) millis(now time.Time, log *slog.Logger) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun.IsZero() {
		c.begun = now
	}
	// Sub uses the monotonic clock; without its readings Round leaves the wall clock.
	at := c.reading(now.Sub(c.begun), now.Round(0).Sub(c.begun.Round(0)), log)
	return c.begun.UnixMilli() + at.Milliseconds()
}

// reading takes what the steady clock and the computer's say, both since begun, and
// returns what the log is to have.
func (c *logClock) reading(steady, wall time.Duration, log *slog.Logger) time.Duration {
	expected := c.wall + steady - c.at
	leap := wall - expected
	far := leap > maxLeap || leap < -maxLeap
	switch {
	case far && !c.leaping:
		c.leaping, c.leapAt = true, steady
		log.Error("namenode: the clock of this computer was set by far; the log goes on with the time before, until the clock has stayed so for a while", "by", leap, "for", leapPatience)
	case far && steady-c.leapAt >= leapPatience:
		log.Error("namenode: the log takes over the time that the clock of this computer was set to", "by", leap)
		far = false
	}
	if far {
		wall = expected
	} else {
		c.leaping = false
	}
	c.at, c.wall = steady, wall
	return wall
}
