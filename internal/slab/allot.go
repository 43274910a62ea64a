package slab

import (
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// A request is what somebody wants of the pool.
type request struct {
	size  int      // asked for
	class int      // or noClass, for a region of its own
	bytes int      // of the region if one has to be registered, at least
	lane  int      // where it waits
	owner *Private // of a private region
	manner
}

// A manner is how a request is met.
type manner struct {
	now   bool // not held back while memory is short, and refused when nobody is busy
	quick bool // closes no region
}

func (p *Pool) newRequest(size int, owner *Private) (request, error) {
	r := request{size: size, class: noClass, owner: owner}
	switch {
	case int64(size) > p.limit:
		r.bytes = size
	case size > largest+extra:
		r.bytes, r.lane = int(min(int64(RegionFor(size)), p.limit)), laneLarge
	case owner != nil:
		r.bytes, r.lane = (strides[classOf(size)]+page-1)&^(page-1), lanePrivate
	default:
		r.class = classOf(size)
		r.bytes, r.lane = leasts[r.class], r.class
		// In a pool that is so small waste is better than nothing.
		for half := (r.bytes-arenaExtra)/2 + arenaExtra; int64(r.bytes) > p.limit && half >= strides[r.class]; half = (half-arenaExtra)/2 + arenaExtra {
			r.bytes = half
		}
	}
	if int64(r.bytes) > p.limit {
		return r, fmt.Errorf("%w: %d bytes take %d, and the limit is %d", ErrTooLarge, size, r.bytes, p.limit)
	}
	return r, nil
}

// A plan is a region that somebody will register for a request. Its room is
// taken, and its victims are out of the pool.
type plan struct {
	request
	size    int
	victims []*arena
	held    int64 // of registered, until the victims are closed
	forced  bool  // not held back while memory is short
}

func (p *Pool) try(size int, owner *Private, how manner) (Slab, bool, error) {
	r, err := p.newRequest(size, owner)
	if err != nil {
		return Slab{}, false, err
	}
	r.manner = how
	for {
		p.mu.Lock()
		if p.isClosed(owner) {
			p.mu.Unlock()
			return Slab{}, false, ErrClosed
		}
		s, pl := p.attempt(&r)
		p.mu.Unlock()
		if pl == nil {
			return s, !s.None(), nil
		}
		s, again, err := p.carryOut(pl)
		if !again {
			return s, err == nil, err
		}
	}
}

// The methods below are called with p.mu held, unless they say otherwise.

func (p *Pool) isClosed(owner *Private) bool { return p.closed || owner != nil && owner.closed }

// attempt is allot for who has not waited yet.
func (p *Pool) attempt(r *request) (Slab, *plan) {
	s, pl := p.allotNew(r)
	if s.None() && pl == nil && p.shutShelves() {
		s, pl = p.allotNew(r)
	}
	if p.line.head != nil && (pl != nil || !s.None()) {
		p.passed()
	}
	return s, pl
}

func (p *Pool) allotNew(r *request) (Slab, *plan) {
	if p.line.lanes&(1<<r.lane) == 0 || r.now && p.Squeezed() {
		return p.allot(r, false)
	}
	if r.owner != nil {
		return p.reuse(r, false), nil
	}
	return Slab{}, nil
}

// allot meets a request with a slab or with a plan for one, or not at all.
func (p *Pool) allot(r *request, head bool) (Slab, *plan) {
	if r.class == noClass {
		if s := p.reuse(r, head); !s.None() {
			return s, nil
		}
		if p.fits(r, r.bytes, head, false) || p.fits(r, r.bytes, head, true) {
			return Slab{}, p.newPlan(r, r.bytes, head)
		}
		return Slab{}, nil
	}
	c := &p.classes[r.class]
	if a := c.partial.top; a != nil {
		return p.handOut(a), nil
	}
	if head {
		for a := p.drained.top; a != nil; a = a.prev {
			if a.class == r.class && a.out < a.count {
				return p.handOut(a), nil
			}
		}
	}
	if a := c.kept.top; a != nil && p.mayUse(r, a.size(), head) {
		return p.handOut(a), nil
	}
	for a := p.spare.top; a != nil; a = a.prev {
		if p.recut(a, r, head) {
			return p.handOut(a), nil
		}
	}
	if c.filling {
		return Slab{}, nil
	}
	if pl := p.planArena(r, head, false); pl != nil {
		return Slab{}, pl
	}
	for k := range p.classes {
		if a := p.classes[k].kept.top; a != nil && p.recut(a, r, head) {
			return p.handOut(a), nil
		}
	}
	return Slab{}, p.planArena(r, head, true)
}

// reuse meets a request with an idle region of its kind.
func (p *Pool) reuse(r *request, head bool) Slab {
	from := &p.large
	if r.owner != nil {
		from = &r.owner.idle
	}
	var best *arena
	for a := from.top; a != nil; a = a.prev {
		if a.stride >= r.size && a.stride <= 2*r.bytes && (best == nil || a.stride < best.stride) && p.mayUse(r, a.size(), head) {
			best = a
		}
	}
	if best == nil {
		return Slab{}
	}
	return p.handOut(best)
}

// recut makes an idle arena serve the class of a request, if it can.
func (p *Pool) recut(a *arena, r *request, head bool) bool {
	if !suits(len(a.memory), strides[r.class]) || !p.mayUse(r, a.size(), head) {
		return false
	}
	a.cut(r.class)
	return true
}

// planArena plans an arena for the class of a request: the largest that is
// fitting for the pool, or the least that will do.
func (p *Pool) planArena(r *request, head, evict bool) *plan {
	for size := arenaFor(r.class, p.registered.Load()); size >= r.bytes; size = (size-arenaExtra)/2 + arenaExtra {
		if p.fits(r, size, head, evict) {
			return p.newPlan(r, size, head)
		}
	}
	return nil
}

// fits tells whether a region of size bytes can be registered, after evicting
// what is idle or without.
func (p *Pool) fits(r *request, size int, head, evict bool) bool {
	total := p.registered.Load() + int64(size)
	if evict && r.quick {
		return false
	} else if evict {
		total -= p.idle
	}
	return total <= p.ceiling(r, head) && p.mayUse(r, int64(size), head)
}

func (p *Pool) newPlan(r *request, size int, head bool) *plan {
	ceiling := p.ceiling(r, head)
	pl := &plan{request: *r, size: size, forced: ceiling != p.squeeze.allowed}
	var freed int64
	for p.registered.Load()+int64(size)-freed > ceiling {
		a := p.evictOne()
		freed += a.size()
		pl.victims = append(pl.victims, a)
	}
	// Until they are closed the victims are registered, all of them.
	pl.held = max(freed, int64(size))
	p.registered.Add(pl.held - freed)
	p.squeeze.untold += int64(size)
	*p.useOf(r) += int64(size)
	if r.class != noClass {
		p.classes[r.class].filling = true
	}
	p.registering()
	p.busy++
	return pl
}

// carryOut registers the region of a plan and takes the slab. It is called
// without p.mu. If victims could not be closed it may have to be tried again.
func (p *Pool) carryOut(pl *plan) (s Slab, again bool, err error) {
	if len(pl.victims) > 0 {
		var total int64
		for _, a := range pl.victims {
			total += a.size()
		}
		closed, _ := p.closeRegions(pl.victims) // it is in failure
		p.mu.Lock()
		p.registered.Add(int64(pl.size) - pl.held + total - closed)
		if p.registered.Load() > p.limit {
			p.squeeze.untold -= int64(pl.size)
			p.giveUp(pl)
			p.mu.Unlock()
			return Slab{}, true, nil
		}
		p.mu.Unlock()
	}
	if p.foretold(pl) {
		return Slab{}, true, nil
	}
	region, err := p.allocate(pl.size)
	if err != nil {
		region, err = p.allocateAgain(pl, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.giveUp(pl)
		return Slab{}, false, err
	}
	a := p.add(region, pl.size)
	if pl.class == noClass {
		a.whole(pl.owner, pl.lane == laneLarge)
	} else {
		a.cut(pl.class)
		p.number(a)
		p.classes[pl.class].filling = false
	}
	s = p.lend(a)
	if p.isClosed(pl.owner) {
		// Nobody else has a slab of it yet.
		if race.Enabled {
			a.held[s.index].Store(false)
		}
		p.takeBack(a, s.index)
		p.evict(a)
		s, err = Slab{}, ErrClosed
		p.doom(a)
	}
	p.done()
	return s, false, err
}

// allocateAgain asks a device that has refused once more, for less and after
// giving it back what is free. It is called without p.mu.
func (p *Pool) allocateAgain(pl *plan, refusal error) (rdma.Region, error) {
	refusal = fmt.Errorf("slab: register %d bytes beside %d: %w", pl.size, p.Registered()-int64(pl.size), refusal)
	p.mu.Lock()
	p.shutShelves()
	if pl.quick || p.closed || errors.Is(refusal, rdma.ErrClosed) || p.idle == 0 && pl.size == pl.bytes {
		p.mu.Unlock()
		return nil, refusal
	}
	*p.useOf(&pl.request) -= int64(pl.size - pl.bytes)
	p.registered.Add(-int64(pl.size - pl.bytes))
	pl.size = pl.bytes
	_ = p.giveBack(p.evictAll()) // it is in failure
	p.mu.Unlock()
	region, err := p.allocate(pl.size)
	if err != nil {
		return nil, refusal
	}
	return region, nil
}

// giveUp ends a plan whose victims are closed.
func (p *Pool) giveUp(pl *plan) {
	*p.useOf(&pl.request) -= int64(pl.size)
	p.registered.Add(-int64(pl.size))
	if pl.class != noClass {
		p.classes[pl.class].filling = false
	}
	p.done()
}

// useOf is where the region of a request is counted while it is used.
func (p *Pool) useOf(r *request) *int64 {
	if r.lane == laneLarge {
		return &p.largeUse
	}
	return &p.smallUse
}
