package slab

import "time"

const (
	// tick is how often the trimmer looks at what is idle, while there is some.
	tick = time.Second
	// A region goes back when it has been idle at so many ticks.
	minPatience, maxPatience = 4, 32
	// regretful is in how many times its patience the pool registers again what
	// it should have kept.
	regretful = 8
)

// A trimmer gives back what nobody uses.
type trimmer struct {
	timer    *time.Timer
	armed    bool // the timer runs, or what it started does
	patience int
	trimmed  time.Time // when something went back last, until the pool registers again
}

// Trim gives back at once all that is free, also what owners keep. It returns
// when the regions are closed.
func (p *Pool) Trim() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shutShelves()
	return p.giveBack(p.evictAll())
}

// Denser returns a slab of the same size as s from a region with less room, if there is
// one: one that is fuller, or smaller, be it idle. Where all that is used of the region of
// s has room in one of two thirds of its size, it registers that, if that can be had
// without closing another. Whoever keeps a slab for long moves there, puts s back, and
// what is used here and there comes together, so that the rest can go back.
func (p *Pool) Denser(s Slab) (Slab, bool) {
	p.mu.Lock()
	a := s.arena
	if p.closed || a.class == noClass {
		p.mu.Unlock()
		return Slab{}, false
	}
	p.shutShelves() // what lies there counts as used
	best := p.denser(a)
	if best != nil {
		defer p.mu.Unlock()
		return p.handOut(best), true
	}
	var pl *plan
	r, err := p.newRequest(a.stride, nil)
	r.quick = true
	if err == nil && !p.classes[r.class].filling && p.line.head == nil {
		if size := sizeFor(a, r.bytes); int(a.size()) >= size*3/2 && p.fits(&r, size, false, false) {
			pl = p.newPlan(&r, size, false)
		}
	}
	p.mu.Unlock()
	if pl == nil {
		return Slab{}, false
	}
	s, again, err := p.carryOut(pl)
	return s, !again && err == nil
}

// The methods below are called with p.mu held, unless they say otherwise.

// denser is the region with less room than a that has a slab of its class and least
// room; an idle one if no other.
func (p *Pool) denser(a *arena) (best *arena) {
	class := &p.classes[a.class]
	for b := class.partial.top; b != nil; b = b.prev {
		if b != a && b.room() <= a.room() && (best == nil || b.room() < best.room()) {
			best = b
		}
	}
	if idle := class.kept.top; best == nil && idle != nil && idle.room() < a.room() {
		best = idle
	}
	for b := p.spare.top; best == nil && b != nil; b = b.prev {
		if b.class == a.class && b.room() < a.room() {
			best = b
		}
	}
	return best
}

// sizeFor is the size of the smallest arena, of least bytes or more, that holds as many
// slabs as are out of a.
func sizeFor(a *arena, least int) int {
	size := least
	for size < int(a.size()) && size/a.stride < a.out {
		size = (size-arenaExtra)*2 + arenaExtra
	}
	return size
}

// room is how many slabs an arena has that are not out.
func (a *arena) room() int { return a.count - a.out }

// arm sees to it that the trimmer looks soon.
func (p *Pool) arm() { p.armAfter(tick) }

func (p *Pool) armAfter(d time.Duration) {
	t := &p.trim
	switch {
	case t.armed || p.closed:
		return
	case t.timer == nil:
		t.timer = time.AfterFunc(d, p.ticked)
	default:
		t.timer.Reset(d)
	}
	t.armed = true
}

func (p *Pool) disarm() {
	if t := &p.trim; t.armed && t.timer.Stop() {
		t.armed = false
	}
}

// ticked is called without p.mu.
func (p *Pool) ticked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.trimIdle()
	}
	p.trim.armed = false
	p.passTheHead()
	if p.idle > 0 || p.opened.Load() != 0 || p.Squeezed() && p.line.head != nil { // a shelf may have been opened meanwhile
		p.arm()
	}
	p.quiet.Broadcast()
}

// trimIdle gives back what has been idle for long enough.
func (p *Pool) trimIdle() {
	p.shutShelves() // or what lies there would never be idle
	var victims []*arena
	for i := len(p.all) - 1; i >= 0; i-- { // evict moves the last one
		a := p.all[i]
		if a.out > 0 {
			continue
		}
		if a.ticks++; a.ticks >= p.trim.patience || p.Squeezed() {
			p.evict(a)
			victims = append(victims, a)
		}
	}
	if len(victims) == 0 {
		return
	}
	_ = p.giveBack(victims) // it is in failure
	if !p.Squeezed() {
		p.trim.trimmed = time.Now()
	}
}

// registering learns from a need for what went back not long ago.
func (p *Pool) registering() {
	t := &p.trim
	if t.trimmed.IsZero() {
		return
	}
	if time.Since(t.trimmed) < time.Duration(regretful*t.patience)*tick {
		t.patience = min(2*t.patience, maxPatience)
	} else {
		t.patience = minPatience
	}
	t.trimmed = time.Time{}
}
