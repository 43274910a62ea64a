package slab

import (
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// A Slab is a piece of a region. It belongs to whoever got it until Put.
type Slab struct {
	arena *arena
	index int32
}

// None tells that s is the zero Slab.
func (s Slab) None() bool { return s.arena == nil }

// Region is the registered region that holds the slab.
func (s Slab) Region() rdma.Region { return s.arena.region }

// Offset is the slab's place in its region.
func (s Slab) Offset() int { return int(s.index) * s.arena.stride }

// Size is how many bytes the slab has, at least what was asked for.
func (s Slab) Size() int { return s.arena.stride }

// Bytes is the slab's memory.
func (s Slab) Bytes() []byte {
	o := s.Offset()
	return s.arena.memory[o : o+s.arena.stride : o+s.arena.stride]
}

// Remote is the slab as a peer addresses it. The key opens the whole region.
func (s Slab) Remote() rdma.Remote {
	return rdma.Remote{Address: s.arena.region.Address() + uint64(s.Offset()), Key: s.arena.region.Key()}
}

// An arena is a registered region and the slabs that it is cut into. While a
// slab is handed out, what its methods above read does not change; the rest is
// guarded by the pool's lock.
type arena struct {
	region rdma.Region
	memory []byte
	class  int      // noClass if it is one slab
	stride int      // bytes of a slab
	owner  *Private // of a private region
	large  bool     // for large requests

	tag   uint32 // its number for the shelves, 0 if it has none
	place int    // in the pool's all

	count int // slabs
	out   int // slabs that are handed out or on a shelf
	fresh int // slabs from this one on have not been handed out since it was cut
	free  []int32

	drains bool     // closed to all but the head
	spoilt []func() // closed to all, because of so many slabs that stay out: to be called when it is gone
	ticks  int      // of the trimmer, since it was last in use

	list       *list
	prev, next *arena

	held []atomic.Bool // with the race detector: which slabs are handed out
}

func (a *arena) size() int64 { return int64(len(a.memory)) }

// used is how many bytes its users hold.
func (a *arena) used() int { return a.out * a.stride }

// cut makes an arena one of slabs of a class. Nothing is handed out.
func (a *arena) cut(class int) {
	a.class, a.stride = class, strides[class]
	a.count, a.fresh, a.free = len(a.memory)/a.stride, 0, a.free[:0]
	if race.Enabled {
		a.held = make([]atomic.Bool, a.count)
	}
}

// whole makes an arena one slab.
func (a *arena) whole(owner *Private, large bool) {
	a.class, a.stride, a.owner, a.large = noClass, len(a.memory), owner, large
	a.count = 1
	if race.Enabled {
		a.held = make([]atomic.Bool, 1)
	}
}

// take hands out a slab. There is one.
func (a *arena) take() int32 {
	a.out++
	if n := len(a.free); n > 0 {
		i := a.free[n-1]
		a.free = a.free[:n-1]
		return i
	}
	a.fresh++
	return int32(a.fresh - 1)
}

func (a *arena) putBack(index int32) {
	a.out--
	a.free = append(a.free, index)
}

// lend makes the Slab of what was taken.
func (a *arena) lend(index int32) Slab {
	if race.Enabled && a.held[index].Swap(true) {
		panic("slab: handed out twice")
	}
	return Slab{arena: a, index: index}
}

// A list holds arenas in the order in which they were pushed. An arena is in one
// list at most.
type list struct {
	top, bottom *arena
}

func (l *list) push(a *arena) {
	a.list, a.prev, a.next = l, l.top, nil
	if l.top != nil {
		l.top.next = a
	} else {
		l.bottom = a
	}
	l.top = a
}

// leave takes an arena out of its list, if it is in one.
func (a *arena) leave() {
	l := a.list
	if l == nil {
		return
	}
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		l.bottom = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		l.top = a.prev
	}
	a.list, a.prev, a.next = nil, nil, nil
}
