package slab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/internal/usermem"
	"github.com/verbena-data/verbena/rdma"
)

// ErrTooLarge says that the pool could not hold the slab even if it were empty.
var ErrTooLarge = errors.New("slab: larger than the pool")

// ErrClosed says that the pool, or the owner of private memory, has been closed.
var ErrClosed = errors.New("slab: pool closed")

// ErrExhausted says that there is no memory for a request now. The text around
// it tells how much others have. There is more when they put it back.
var ErrExhausted = errors.New("slab: memory exhausted")

// A Pool hands out slabs of one kind of access. Its methods may be called
// concurrently.
type Pool struct {
	domain rdma.Domain
	access rdma.Access
	steady bool
	limit  int64

	shelves [shelved]shelf
	opened  atomic.Uint32            // which shelves take slabs
	table   atomic.Pointer[[]*arena] // by number

	used       atomic.Int64 // handed out or on shelves
	registered atomic.Int64 // with the domain, or about to be

	mu      sync.Mutex
	quiet   sync.Cond // of mu, when nobody is busy any more
	busy    int       // calls that register or close regions just now
	closed  bool
	failure error // of the first region that could not be closed

	all     []*arena
	numbers []uint32 // of arenas that are gone
	scratch []uint32

	classes [classCount]class
	spare   list // idle arenas for any class
	large   list // idle regions for large requests
	owners  owners
	drained list // arenas that only the head gets slabs from

	// The bytes of regions by what they are used for. What else is registered is
	// being closed.
	idle       int64
	smallUse   int64 // arenas and private regions, and those being registered
	largeUse   int64 // likewise, for large requests
	drainedUse int64
	lost       int64 // could not be closed

	doomed  []*arena // evicted, and to be closed by reap
	leaving int64    // bytes of the regions that it has yet to close
	reaping bool     // it runs

	line    line
	trim    trimmer
	squeeze squeeze
}

// A class has slabs of one size.
type class struct {
	partial list // arenas with some slabs out and some free
	kept    list // one idle arena at most, so that a slab that comes and goes does not cut it anew
	filling bool // somebody registers an arena for it
}

// New makes a pool that registers at most limit bytes with domain.
func New(domain rdma.Domain, access rdma.Access, limit int64) *Pool {
	p := &Pool{domain: domain, access: access, limit: limit}
	p.quiet.L = &p.mu
	p.table.Store(&[]*arena{nil}) // 0 is no number
	p.trim.patience = minPatience
	p.squeeze.allowed = limit
	return p
}

// Steady promises that no byte of a slab changes while a peer reads it ([rdma.SteadyRegion]).
// It is called before the first slab is asked for, and returns the pool.
func (p *Pool) Steady() *Pool {
	p.steady = true
	return p
}

// allocate registers a region.
func (p *Pool) allocate(size int) (rdma.Region, error) {
	region, err := p.domain.Allocate(size, p.access)
	if still, ok := region.(rdma.SteadyRegion); ok && p.steady && err == nil {
		still.Steady()
	}
	return region, err
}

// TryGet returns a slab of at least size bytes if there is one without waiting
// for anybody. It may take as long as the device needs to register a region, or
// to close one that is free. An error other than [ErrTooLarge] and [ErrClosed]
// is the device's.
func (p *Pool) TryGet(size int) (s Slab, ok bool, err error) {
	if s := p.fromShelf(size); !s.None() {
		return s, true, nil
	}
	return p.try(size, nil, manner{})
}

// TryQuick is TryGet for a caller that holds locks which others want: it may register
// a region, but closes none, and does without memory that could be had only so.
func (p *Pool) TryQuick(size int) (s Slab, ok bool, err error) {
	if s := p.fromShelf(size); !s.None() {
		return s, true, nil
	}
	return p.try(size, nil, manner{quick: true})
}

// TryNow is TryQuick for what [Pool.GetNow] is for: it is not held back while memory is
// short.
func (p *Pool) TryNow(size int) (s Slab, ok bool, err error) {
	if s := p.fromShelf(size); !s.None() {
		return s, true, nil
	}
	return p.try(size, nil, manner{quick: true, now: true})
}

// Get waits for a slab of at least size bytes.
func (p *Pool) Get(ctx context.Context, size int) (Slab, error) {
	if s := p.fromShelf(size); !s.None() {
		return s, nil
	}
	return p.get(ctx, size, nil, false)
}

// GetNow is for setting something up that can do without: it returns a slab of
// at least size bytes, or [ErrExhausted] at once. It waits for others only while
// they register or close regions, after which there may be room.
func (p *Pool) GetNow(ctx context.Context, size int) (Slab, error) {
	if s := p.fromShelf(size); !s.None() {
		return s, nil
	}
	return p.get(ctx, size, nil, true)
}

// Put gives a slab back, also one of a [Private]. Nobody uses it any more, no
// peer and no request that is under way. It closes no region: what has to go goes
// on another goroutine.
func (p *Pool) Put(s Slab) {
	a := s.arena
	if race.Enabled && !a.held[s.index].Swap(false) {
		panic("slab: put back twice")
	}
	if uint(a.class) < shelved && a.tag != 0 && p.shelves[a.class].put(a.tag|uint32(s.index)) {
		return
	}
	p.put(a, s.index)
}

// Used is how many bytes are handed out. It takes no lock.
func (p *Pool) Used() int64 {
	n := p.used.Load()
	for m := p.opened.Load(); m != 0; m &= m - 1 {
		k := bits.TrailingZeros32(m)
		n -= int64(p.shelves[k].count() * strides[k])
	}
	return max(n, 0) // one may have come to a shelf since
}

// Registered is how many bytes are registered with the domain, or are about to
// be. It takes no lock.
func (p *Pool) Registered() int64 { return p.registered.Load() }

// Limit is how many bytes may be registered.
func (p *Pool) Limit() int64 { return p.limit }

// Settle waits until no region is being registered or closed. After Close and the
// last Put, the domain may be closed then.
func (p *Pool) Settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.busy > 0 {
		p.quiet.Wait()
	}
}

// Close ends waits and gives back the memory of which nothing is handed out. The
// rest follows as it is Put, or with the domain. The error is of a region that
// could not be closed, now or earlier.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.shutShelves()
	p.refuse(func(*waiter) bool { return true }, ErrClosed)
	p.disarm()
	for p.busy > 0 || p.trim.armed {
		p.quiet.Wait()
	}
	_ = p.giveBack(p.evictAll()) // it is in failure
	return p.failure
}

func (p *Pool) fromShelf(size int) Slab {
	if size > 32<<10+extra {
		return Slab{}
	}
	e := p.shelves[classOf(size)].take()
	if e == 0 {
		return Slab{}
	}
	// The table is loaded after the slab was taken, so it has its arena.
	return (*p.table.Load())[e>>indexBits].lend(int32(e & indexMask))
}

// shutShelves puts what lies on shelves back where requests of all kinds find
// it, and tells whether there was any. p.mu is held.
func (p *Pool) shutShelves() bool {
	found := false
	table := *p.table.Load()
	for m := p.opened.Swap(0); m != 0; m &= m - 1 {
		p.scratch = p.shelves[bits.TrailingZeros32(m)].shut(p.scratch[:0])
		for _, e := range p.scratch {
			p.takeBack(table[e>>indexBits], int32(e&indexMask))
			found = true
		}
	}
	return found
}

func (p *Pool) put(a *arena, index int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := a.class
	p.takeBack(a, index)
	switch {
	case a.out == 0 && (p.closed || a.owner != nil && a.owner.closed || p.registered.Load()-p.leaving > p.squeeze.allowed):
		p.evict(a)
		p.doom(a)
	case p.line.lanes != 0:
		p.serve()
	case !p.closed && uint(k) < shelved && p.opened.Load()&(1<<k) == 0:
		p.shelves[k].open()
		p.opened.Store(p.opened.Load() | 1<<k)
		p.arm() // who comes to the shelf later does not look
	}
}

// The methods below are called with p.mu held, unless they say otherwise.

// use is where an arena's bytes are counted while something of it is out.
func (p *Pool) use(a *arena) *int64 {
	switch {
	case a.drains:
		return &p.drainedUse
	case a.large:
		return &p.largeUse
	}
	return &p.smallUse
}

// handOut takes a slab from an arena that has one.
func (p *Pool) handOut(a *arena) Slab {
	if a.out == 0 {
		a.leave()
		a.ticks = 0
		p.idle -= a.size()
		*p.use(a) += a.size()
		if a.owner != nil {
			p.touch(a.owner)
		}
	}
	return p.lend(a)
}

// lend is handOut for an arena that counts as in use.
func (p *Pool) lend(a *arena) Slab {
	i := a.take()
	switch {
	case a.drains || a.class == noClass:
	case a.out == a.count:
		a.leave()
	case a.list == nil:
		p.classes[a.class].partial.push(a)
	}
	p.used.Store(p.used.Load() + int64(a.stride))
	return a.lend(i)
}

// takeBack is the reverse of handOut.
func (p *Pool) takeBack(a *arena, index int32) {
	a.putBack(index)
	p.used.Store(p.used.Load() - int64(a.stride))
	if n := len(a.spoilt); n > 0 {
		if a.out == n {
			p.retire(a)
		}
		return
	}
	if a.out > 0 {
		if a.out == a.count-1 && !a.drains {
			p.classes[a.class].partial.push(a)
		}
		return
	}
	a.leave()
	*p.use(a) -= a.size()
	p.idle += a.size()
	p.arm()
	switch {
	case a.owner != nil:
		a.owner.idle.push(a)
		p.touch(a.owner)
	case a.class == noClass:
		p.large.push(a)
	case !a.drains && p.classes[a.class].kept.top == nil:
		p.classes[a.class].kept.push(a)
	default:
		p.spare.push(a)
	}
	a.drains = false
}

// evict takes an idle arena out of the pool. It stays registered.
func (p *Pool) evict(a *arena) {
	a.leave()
	if o := a.owner; o != nil && o.idle.top == nil {
		p.touch(o)
	}
	p.idle -= a.size()
	last := p.all[len(p.all)-1]
	p.all[a.place], last.place = last, a.place
	p.all[len(p.all)-1] = nil
	p.all = p.all[:len(p.all)-1]
	if a.tag != 0 {
		(*p.table.Load())[a.tag>>indexBits] = nil
		p.numbers = append(p.numbers, a.tag>>indexBits)
	}
}

// evictOne evicts what will be missed least. There is something idle.
func (p *Pool) evictOne() *arena {
	a := p.large.bottom
	if a == nil {
		a = p.spare.bottom
	}
	for k := 0; a == nil && k < classCount; k++ {
		a = p.classes[k].kept.bottom
	}
	if a == nil {
		a = p.owners.first.idle.bottom
	}
	p.evict(a)
	return a
}

func (p *Pool) evictAll() []*arena {
	var victims []*arena
	for p.idle > 0 {
		victims = append(victims, p.evictOne())
	}
	return victims
}

// add takes a new arena into the pool.
func (p *Pool) add(region rdma.Region, size int) *arena {
	a := &arena{region: region, memory: region.Bytes()[:size:size], place: len(p.all)}
	usermem.Own(a.memory)
	p.all = append(p.all, a)
	return a
}

// number gives an arena a number for the shelves, while there are any.
func (p *Pool) number(a *arena) {
	table := *p.table.Load()
	if n := len(p.numbers); n > 0 {
		a.tag = p.numbers[n-1] << indexBits
		p.numbers = p.numbers[:n-1]
		table[a.tag>>indexBits] = a
	} else if n := len(table); n <= maxNumber {
		a.tag = uint32(n) << indexBits
		table = append(table, a)
		p.table.Store(&table)
	}
}

// giveBack closes regions that have been evicted, without the lock, and then
// serves those who wait for the room.
func (p *Pool) giveBack(victims []*arena) error {
	if len(victims) == 0 {
		return nil
	}
	p.busy++
	p.mu.Unlock()
	closed, err := p.closeRegions(victims)
	p.mu.Lock()
	p.registered.Add(-closed)
	p.done()
	return err
}

// doom has a region that has been evicted closed, on another goroutine: the caller may
// hold locks that others want.
func (p *Pool) doom(a *arena) {
	p.doomed = append(p.doomed, a)
	p.leaving += a.size()
	if !p.reaping {
		p.reaping = true
		p.busy++
		go p.reap()
	}
}

// reap closes what is doomed. It is called without p.mu.
func (p *Pool) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.doomed) > 0 {
		victims := p.doomed
		p.doomed = nil
		p.mu.Unlock()
		closed, _ := p.closeRegions(victims) // the domain has the last word; Close tells of it
		p.mu.Lock()
		for _, a := range victims {
			p.leaving -= a.size()
		}
		p.registered.Add(-closed)
		p.serve()
	}
	p.reaping = false
	p.done()
}

// closeRegions returns how many bytes are closed. It is called without p.mu.
func (p *Pool) closeRegions(victims []*arena) (closed int64, err error) {
	var errs []error
	var lost int64
	for _, a := range victims {
		usermem.Disown(a.memory)
		if err := a.region.Close(); err != nil {
			errs = append(errs, fmt.Errorf("slab: give back %d bytes: %w", len(a.memory), err))
			lost += a.size()
			continue
		}
		closed += a.size()
		for _, gone := range a.spoilt {
			if gone != nil {
				gone()
			}
		}
	}
	if errs == nil {
		return closed, nil
	}
	err = errors.Join(errs...)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost += lost
	p.failure = cmp.Or(p.failure, err)
	return closed, err
}

// done ends what began with busy++.
func (p *Pool) done() {
	p.busy--
	p.serve()
	if p.busy == 0 {
		p.expire()
	}
	if p.busy == 0 {
		p.quiet.Broadcast()
	}
}
