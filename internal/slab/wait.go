package slab

import (
	"cmp"
	stdlist "container/list"
	"context"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

const (
	lanePrivate = classCount + iota
	laneLarge
	laneCount
)

const (
	// smallShare is the part of the limit that large requests leave to small
	// ones.
	smallShare = 8
	// patientPasses is how many requests pass the head before arenas are closed
	// to them.
	patientPasses = 64
)

// A line is who waits: each class in a lane of its own, private regions and
// large ones in one each.
type line struct {
	lane  [laneCount]stdlist.List // of *waiter
	lanes uint32                  // that are not empty
	last  uint64
	nows  int

	head   *waiter
	passed int   // requests that were met before it
	open   int64 // how far smallUse may grow meanwhile
}

type waiter struct {
	request
	arrival uint64
	element *stdlist.Element
	ready   chan struct{} // closed when one of these is set

	slab Slab
	plan *plan
	err  error
}

func (p *Pool) get(ctx context.Context, size int, owner *Private, now bool) (Slab, error) {
	r, err := p.newRequest(size, owner)
	if err != nil {
		return Slab{}, err
	}
	r.now = now
	for {
		s, pl, err := p.await(ctx, &r)
		if pl == nil || err != nil {
			return s, err
		}
		s, again, err := p.carryOut(pl)
		if !again {
			return s, err
		}
	}
}

// await is attempt for who waits.
func (p *Pool) await(ctx context.Context, r *request) (Slab, *plan, error) {
	p.mu.Lock()
	if p.isClosed(r.owner) {
		p.mu.Unlock()
		return Slab{}, nil, ErrClosed
	}
	s, pl := p.attempt(r)
	if pl != nil || !s.None() {
		p.mu.Unlock()
		return s, pl, nil
	}
	if r.now && p.busy == 0 {
		defer p.mu.Unlock()
		return Slab{}, nil, p.exhausted(r)
	}
	w := &waiter{request: *r, ready: make(chan struct{})}
	p.join(w)
	p.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		if w.element != nil {
			p.depart(w)
			p.serve()
			return Slab{}, nil, fmt.Errorf("slab: waiting for %d bytes with %d of %d in use: %w", r.size, p.Used(), p.limit, context.Cause(ctx))
		}
		// It got some just before.
	}
	return w.slab, w.plan, w.err
}

// The methods below are called with p.mu held.

func (p *Pool) exhausted(r *request) error {
	return fmt.Errorf("%w: no %d bytes now: of %d bytes %d are in use and %d registered, and %d requests wait",
		ErrExhausted, r.size, p.limit, p.Used(), p.Registered(), p.waiting())
}

func (p *Pool) waiting() (n int) {
	for i := range p.line.lane {
		n += p.line.lane[i].Len()
	}
	return n
}

func (p *Pool) join(w *waiter) {
	l := &p.line
	l.last++
	w.arrival = l.last
	w.element = l.lane[w.lane].PushBack(w)
	l.lanes |= 1 << w.lane
	if w.now {
		l.nows++
	}
	p.serve()
	if p.Squeezed() { // a tick after the head has come
		p.arm()
	}
}

func (p *Pool) depart(w *waiter) {
	l := &p.line
	l.lane[w.lane].Remove(w.element)
	w.element = nil
	if l.lane[w.lane].Len() == 0 {
		l.lanes &^= 1 << w.lane
	}
	if w.now {
		l.nows--
	}
}

// refuse ends the waits of some.
func (p *Pool) refuse(whose func(*waiter) bool, err error) {
	for i := range p.line.lane {
		for e := p.line.lane[i].Front(); e != nil; {
			w := e.Value.(*waiter)
			e = e.Next()
			if whose(w) {
				p.depart(w)
				w.err = err
				close(w.ready)
			}
		}
	}
	p.serve()
}

// expire refuses those who wait no longer than somebody is busy.
func (p *Pool) expire() {
	if p.line.nows == 0 {
		return
	}
	for i := range p.line.lane {
		for e := p.line.lane[i].Front(); e != nil; {
			w := e.Value.(*waiter)
			if e = e.Next(); w.now {
				w.err = p.exhausted(&w.request)
				p.depart(w)
				close(w.ready)
			}
		}
	}
	p.serve()
}

// serve gives those who wait what they can have.
func (p *Pool) serve() {
	l := &p.line
	for {
		if h := l.oldest(); h != l.head {
			p.setHead(h)
		}
		if l.head == nil || !p.give(l.head) {
			break
		}
	}
	for m := l.lanes; m != 0; m &= m - 1 {
		lane := &l.lane[bits.TrailingZeros32(m)]
		for e := lane.Front(); e != nil && e.Value != l.head && p.give(e.Value.(*waiter)); e = lane.Front() {
			p.passed()
		}
	}
}

func (l *line) oldest() *waiter {
	var first *waiter
	for m := l.lanes; m != 0; m &= m - 1 {
		w := l.lane[bits.TrailingZeros32(m)].Front().Value.(*waiter)
		if first == nil || w.arrival < first.arrival {
			first = w
		}
	}
	return first
}

// give ends a wait if there is memory.
func (p *Pool) give(w *waiter) bool {
	w.slab, w.plan = p.allot(&w.request, w == p.line.head)
	if w.slab.None() && w.plan == nil {
		return false
	}
	p.depart(w)
	close(w.ready)
	return true
}

// setHead begins the wait of another head, or of none.
func (p *Pool) setHead(w *waiter) {
	for a := p.drained.top; a != nil; a = p.drained.top {
		a.leave()
		p.drainedUse -= a.size()
		p.smallUse += a.size()
		a.drains = false
		if a.out < a.count {
			p.classes[a.class].partial.push(a)
		}
	}
	l := &p.line
	l.head, l.passed = w, 0
	p.squeeze.waited, p.squeeze.due = 0, false
	if w != nil {
		p.squeeze.counted = time.Now()
		l.open = min(max(p.smallUse, p.limit/smallShare), p.besides(w))
	}
}

// besides is how much others may use for the head to fit.
func (p *Pool) besides(head *waiter) int64 { return p.limit - p.lost - int64(head.bytes) }

// LargeLimit is how many bytes the regions of large requests may have together,
// unless there is only one.
func (p *Pool) LargeLimit() int64 { return p.limit - p.limit/smallShare }

// mayUse tells whether a request may bring a region of n bytes into use. Large
// requests need no rule to let the head go first: they wait in its lane, or it
// is a small one, which fits wherever they do. While memory is short the head waits
// although there is room, so those that are not held back need leave it no more than
// what it asks for.
func (p *Pool) mayUse(r *request, n int64, head bool) bool {
	switch {
	case r.lane == laneLarge:
		return p.largeUse == 0 || p.largeUse+n <= p.LargeLimit()
	case head || p.line.head == nil:
		return true
	case r.now && p.Squeezed():
		return p.smallUse+n <= max(p.line.open, p.besides(p.line.head))
	}
	return p.smallUse+n <= p.line.open
}

// passed counts a request that was met although another has waited for longer.
func (p *Pool) passed() {
	l := &p.line
	if l.passed++; l.passed == patientPasses {
		p.drain()
	}
}

// drain closes the emptiest arenas to all but the head, as many as it needs.
func (p *Pool) drain() {
	most := p.besides(p.line.head)
	if p.smallUse <= most {
		return
	}
	var arenas []*arena
	for _, a := range p.all {
		if a.class != noClass && a.out > 0 && !a.drains && len(a.spoilt) == 0 {
			arenas = append(arenas, a)
		}
	}
	slices.SortFunc(arenas, func(a, b *arena) int {
		return cmp.Or(cmp.Compare(a.used(), b.used()), cmp.Compare(a.place, b.place))
	})
	for _, a := range arenas {
		if p.smallUse <= most {
			return
		}
		a.leave()
		p.smallUse -= a.size()
		p.drainedUse += a.size()
		a.drains = true
		p.drained.push(a)
	}
}
