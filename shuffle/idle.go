package shuffle

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/nap"
	"github.com/verbena-data/verbena/shuffle/internal/rest"
)

// lazy is how long something may wait that is not urgent: an open block to which nothing is
// added, and a notification; of large slabs, and less of small ones, which are soon full.
// Blocks wait twice that at most. At once costs more: of all notifications for which a
// sender or receiver waits, most are soon followed by others to the same peer.
const (
	lazy       = time.Millisecond
	leastLazy  = 50 * time.Microsecond
	largeShare = 193 << 10 // of a stream, in bytes
	// looks is how often boards are looked at meanwhile. After leastLooks such times without
	// traffic the process rests.
	looks, leastLooks = 4, 8
)

func (c *Config) lazy() time.Duration {
	return max(leastLazy, lazy*time.Duration(min(c.share(), largeShare))/largeShare)
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

// lookAfter lets go out what has waited, and looks at the boards while there is traffic.
func (x *Exchange) lookAfter() {
	wait, direct := x.c.lazy(), false
	for _, p := range x.peers {
		direct = direct || p.direct
	}
	watch := rest.Watch{Looks: 1, Calm: 1}
	if direct {
		wait /= looks
		watch = rest.Watch{Looks: looks, Calm: looks * leastLooks}
	}
	few := x.c.neighbours()*x.c.Threads <= runtime.GOMAXPROCS(0) // others do not look for this one then
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var some bool
	for action := rest.Wait; x.ctx.Err() == nil; action = watch.Next(some) {
		some = false
		switch action {
		case rest.Wait:
			select {
			case <-x.idle.work:
			case <-x.ctx.Done():
			}
		case rest.Tell:
			x.rests(watch.Word())
		case rest.Pause:
			if direct && (few || x.long.Load()) {
				nap.For(wait)
				continue
			}
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-x.ctx.Done():
			}
		case rest.Turn:
			some = x.turn()
		case rest.Look:
			x.long.Store(false)
			some = x.look()
		case rest.Disarm:
			x.idle.armed.Store(false)
		case rest.Arm:
			x.idle.arm()
		}
	}
}

// look lets go out what has waited, and tells whether something still does.
func (x *Exchange) look() (some bool) {
	for _, p := range x.peers {
		for _, o := range p.out {
			open, err := o.look()
			if err != nil {
				_ = p.undone(err)
				return false
			}
			some = some || open
		}
		if p.waits() {
			p.urge()
			some = true
		}
		if p.direct && p.unread() {
			p.ring()
			some = true
		}
	}
	return some
}
