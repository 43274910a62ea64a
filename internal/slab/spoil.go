package slab

import "github.com/verbena-data/verbena/internal/race"

// Spoil is Put for a slab that a device or a peer may still use: nobody gets it again.
// Its region lends nothing new, and is closed when what else is out of it has come
// back. Then gone, if it is not nil, is called on another goroutine. A region that
// cannot be closed stays counted; gone is not called for it.
func (p *Pool) Spoil(s Slab, gone func()) {
	a := s.arena
	if race.Enabled && !a.held[s.index].Swap(false) {
		panic("slab: put back twice")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.leave()
	if a.spoilt = append(a.spoilt, gone); a.out == len(a.spoilt) {
		p.retire(a)
	} else {
		p.shutShelves() // or what lies there would be handed out
	}
}

// retire takes a region out of which only spoilt slabs are. p.mu is held.
func (p *Pool) retire(a *arena) {
	p.used.Store(p.used.Load() - int64(a.used()))
	*p.use(a) -= a.size()
	p.idle += a.size()
	a.drains = false
	p.evict(a)
	p.doom(a)
}
