package shuffle

import (
	"sync/atomic"
	"time"
)

// lazy is how long something may wait that nobody has asked for: an open block to which
// nothing is added, and a notification that is not urgent. Blocks wait twice that at most.
const lazy = time.Millisecond

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
	timer := time.NewTimer(lazy)
	defer timer.Stop()
	for {
		select {
		case <-x.idle.work:
		case <-x.ctx.Done():
			return
		}
		timer.Reset(lazy)
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
