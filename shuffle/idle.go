package shuffle

import (
	"sync/atomic"
	"time"
)

// lazy is how long something may wait that is not urgent: an open block to which nothing is
// added, and a notification; of a large ring, and less of a small one, which is soon full.
// Blocks wait twice that at most. At once costs more: of all notifications for which a
// sender or receiver waits, most are soon followed by others to the same peer.
const (
	lazy      = time.Millisecond
	leastLazy = 50 * time.Microsecond
)

func (c *Config) lazy() time.Duration {
	return max(leastLazy, lazy*time.Duration(c.ring)/largestRing)
}

// idle looks after what waits, while there is some.
type idle struct {
	armed atomic.Bool
	work  chan struct{}
}

func newIdle() idle { return idle{work: make(chan struct{}, 1)} }

// arm says that something waits.
func (i *idle) arm() {
	if !i.armed.Load() && !i.armed.Swap(true) {
		i.work <- struct{}{}
	}
}

// lookAfter lets go out what has waited.
func (x *Exchange) lookAfter() {
	wait := x.c.lazy()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-x.idle.work:
		case <-x.ctx.Done():
			return
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-x.ctx.Done():
			return
		}
		x.idle.armed.Store(false)
		for _, p := range x.peers {
			for _, o := range p.out {
				open, err := o.look()
				if err != nil {
					_ = p.undone(err)
					return
				}
				if open {
					x.idle.arm()
				}
			}
			if p.waits() {
				p.urge()
			}
		}
	}
}
