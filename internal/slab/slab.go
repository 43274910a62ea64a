// Package slab hands out registered memory by size class.
//
// A [Pool] registers arenas with a protection domain as the load needs them, up
// to a limit, and cuts them into slabs of one size each. An arena whose slabs
// are all free serves other classes, or is given back when the limit presses.
// What is longer than the largest class gets a region of its own, which is kept
// for the next of its kind while the limit allows.
package slab

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/verbena-data/verbena/rdma"
)

// Sizes in bytes. A class holds a power of two and room for a header beside it.
const (
	minClass  = 256
	maxClass  = 1 << 20
	extra     = 64
	arenaSize = 2*(maxClass+extra) + (4096 - 2*extra)
	bigUnit   = 1 << 20
)

var classCount = bits.Len(maxClass / minClass)

// ErrTooLarge says that the pool could not hold the slab even if it were empty.
var ErrTooLarge = errors.New("slab: larger than the pool")

// ErrClosed says that the pool has been closed.
var ErrClosed = errors.New("slab: pool closed")

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

// Remote is the slab as a peer addresses it.
func (s Slab) Remote() rdma.Remote {
	return rdma.Remote{Address: s.arena.region.Address() + uint64(s.Offset()), Key: s.arena.region.Key()}
}

type arena struct {
	region rdma.Region
	memory []byte
	class  int // classBig, classNone or an index
	stride int
	count  int
	free   []int32
}

const (
	classNone = -1
	classBig  = -2
)

type class struct {
	arenas []*arena // those with something free
}

// A Pool hands out slabs of one kind of access. Its methods may be called
// concurrently.
type Pool struct {
	domain rdma.Domain
	access rdma.Access
	limit  int64

	mu         sync.Mutex
	closed     bool
	all        map[*arena]struct{}
	classes    []class
	spare      []*arena // cut for no class
	spareBig   []*arena
	registered int64
	used       int64
	waiting    list.List // of chan struct{}, in order of arrival
}

// New makes a pool that registers at most limit bytes with domain.
func New(domain rdma.Domain, access rdma.Access, limit int64) *Pool {
	return &Pool{domain: domain, access: access, limit: limit, all: map[*arena]struct{}{}, classes: make([]class, classCount)}
}

// TryGet returns a slab of at least size bytes if there is one without waiting.
// An error other than [ErrTooLarge] and [ErrClosed] is the device's.
func (p *Pool) TryGet(size int) (s Slab, ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting.Len() > 0 {
		return Slab{}, false, nil // they were here first
	}
	return p.get(size)
}

// Get waits for a slab of at least size bytes.
func (p *Pool) Get(ctx context.Context, size int) (Slab, error) {
	p.mu.Lock()
	if p.waiting.Len() == 0 {
		if s, ok, err := p.get(size); ok || err != nil {
			p.mu.Unlock()
			return s, err
		}
	}
	turn := make(chan struct{}, 1)
	place := p.waiting.PushBack(turn)
	first := p.waiting.Front() == place
	for {
		if first {
			s, ok, err := p.get(size)
			if ok || err != nil {
				p.leave(place)
				p.mu.Unlock()
				return s, err
			}
		}
		p.mu.Unlock()
		select {
		case <-turn:
		case <-ctx.Done():
			p.mu.Lock()
			p.leave(place)
			p.mu.Unlock()
			return Slab{}, fmt.Errorf("slab: waiting for %d bytes with %d of %d in use: %w", size, p.Used(), p.limit, context.Cause(ctx))
		}
		p.mu.Lock()
		first = p.waiting.Front() == place
	}
}

// leave takes a waiter out and lets the next one try. p.mu is held.
func (p *Pool) leave(place *list.Element) {
	p.waiting.Remove(place)
	p.wakeFirst()
}

func (p *Pool) wakeFirst() {
	if e := p.waiting.Front(); e != nil {
		select {
		case e.Value.(chan struct{}) <- struct{}{}:
		default:
		}
	}
}

// Put gives a slab back.
func (p *Pool) Put(s Slab) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := s.arena
	p.used -= int64(a.stride)
	a.free = append(a.free, s.index)
	if p.closed {
		if len(a.free) == a.count {
			// The domain has the last word, and the error if there is one.
			_ = p.giveBack(a)
		}
		return
	}
	switch {
	case a.class == classBig:
		p.spareBig = append(p.spareBig, a)
	default:
		c := &p.classes[a.class]
		if len(a.free) == 1 {
			c.arenas = append(c.arenas, a)
		}
		// One arena stays with its class, so that a slab that comes and goes does
		// not cut it anew each time.
		if len(a.free) == a.count && len(c.arenas) > 1 {
			p.uncut(a)
			p.spare = append(p.spare, a)
		}
	}
	p.wakeFirst()
}

// Used is how many bytes are handed out.
func (p *Pool) Used() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Registered is how many bytes are registered with the domain.
func (p *Pool) Registered() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.registered
}

// Limit is how many bytes may be registered.
func (p *Pool) Limit() int64 { return p.limit }

// Close ends waits and gives back the memory of which nothing is handed out. The
// rest follows as it is Put, or with the domain.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var errs []error
	for a := range p.all {
		if len(a.free) == a.count {
			errs = append(errs, p.giveBack(a))
		}
	}
	p.classes, p.spare, p.spareBig = nil, nil, nil
	p.wakeFirst()
	return errors.Join(errs...)
}

// giveBack closes the region of an arena with no users. p.mu is held.
func (p *Pool) giveBack(a *arena) error {
	delete(p.all, a)
	p.registered -= int64(len(a.memory))
	return a.region.Close()
}

// get is TryGet with p.mu held.
func (p *Pool) get(size int) (Slab, bool, error) {
	switch {
	case p.closed:
		return Slab{}, false, ErrClosed
	case size > maxClass+extra:
		return p.getBig(size)
	}
	k := 0
	if size > minClass+extra {
		k = bits.Len(uint(size-extra-1) / minClass)
	}
	c := &p.classes[k]
	if len(c.arenas) == 0 {
		a, err := p.takeArena()
		if a == nil {
			return Slab{}, false, err
		}
		a.class, a.stride = k, minClass<<k+extra
		a.count = len(a.memory) / a.stride
		if cap(a.free) < a.count {
			a.free = make([]int32, 0, a.count)
		}
		a.free = a.free[:0]
		for i := a.count - 1; i >= 0; i-- {
			a.free = append(a.free, int32(i))
		}
		c.arenas = append(c.arenas, a)
	}
	a := c.arenas[len(c.arenas)-1]
	index := a.free[len(a.free)-1]
	a.free = a.free[:len(a.free)-1]
	if len(a.free) == 0 {
		c.arenas = c.arenas[:len(c.arenas)-1]
	}
	p.used += int64(a.stride)
	return Slab{arena: a, index: index}, true, nil
}

func (p *Pool) getBig(size int) (Slab, bool, error) {
	size = (size + bigUnit - 1) / bigUnit * bigUnit
	if int64(size) > p.limit {
		return Slab{}, false, fmt.Errorf("%w: %d bytes of %d", ErrTooLarge, size, p.limit)
	}
	best := -1
	for i, a := range p.spareBig {
		if a.stride >= size && a.stride <= 2*size && (best < 0 || a.stride < p.spareBig[best].stride) {
			best = i
		}
	}
	var a *arena
	if best >= 0 {
		a = p.spareBig[best]
		p.spareBig = slices.Delete(p.spareBig, best, best+1)
	} else {
		var err error
		if a, err = p.register(size); a == nil {
			return Slab{}, false, err
		}
		a.class, a.stride, a.count = classBig, len(a.memory), 1
	}
	a.free = a.free[:0]
	p.used += int64(a.stride)
	return Slab{arena: a}, true, nil
}

func (p *Pool) takeArena() (*arena, error) {
	if n := len(p.spare); n > 0 {
		a := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return a, nil
	}
	if a, err := p.register(arenaSize); a != nil || err != nil {
		return a, err
	}
	// Another class may have an arena that it does not use.
	for k := range p.classes {
		for _, a := range p.classes[k].arenas {
			if len(a.free) == a.count {
				p.uncut(a)
				return a, nil
			}
		}
	}
	return nil, nil
}

// uncut takes an arena without users from its class.
func (p *Pool) uncut(a *arena) {
	c := &p.classes[a.class]
	c.arenas = slices.DeleteFunc(c.arenas, func(b *arena) bool { return a == b })
	a.class = classNone
}

// register makes an arena. It returns none if the limit does not allow it, even
// after giving back what nobody uses.
func (p *Pool) register(size int) (*arena, error) {
	if int64(size) > p.limit {
		return nil, fmt.Errorf("%w: %d bytes of %d", ErrTooLarge, size, p.limit)
	}
	if p.registered+int64(size) > p.limit {
		if err := p.shrink(int64(size)); err != nil {
			return nil, err
		}
		if p.registered+int64(size) > p.limit {
			return nil, nil
		}
	}
	region, err := p.domain.Allocate(size, p.access)
	if err != nil {
		return nil, fmt.Errorf("slab: register %d bytes: %w", size, err)
	}
	a := &arena{region: region, memory: region.Bytes()[:size:size]}
	p.all[a] = struct{}{}
	p.registered += int64(size)
	return a, nil
}

// shrink gives free regions back until size more bytes fit.
func (p *Pool) shrink(size int64) error {
	if size != arenaSize { // otherwise one can be taken over as it is
		for k := range p.classes {
			for _, a := range slices.Clone(p.classes[k].arenas) {
				if len(a.free) == a.count {
					p.uncut(a)
					p.spare = append(p.spare, a)
				}
			}
		}
	}
	for _, spare := range []*[]*arena{&p.spareBig, &p.spare} {
		for len(*spare) > 0 && p.registered+size > p.limit {
			a := (*spare)[0]
			*spare = (*spare)[1:]
			p.registered -= int64(len(a.memory))
			delete(p.all, a)
			if err := a.region.Close(); err != nil {
				return fmt.Errorf("slab: give back %d bytes: %w", len(a.memory), err)
			}
		}
	}
	return nil
}
