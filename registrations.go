package verbena

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/verbena-data/verbena/internal/usermem"
	"github.com/verbena-data/verbena/rdma"
)

// maxRegistrations is how much memory of the application a group has registered on a
// device at most, by number. What of it nobody uses gives way; who finds all of it in use
// waits.
const maxRegistrations = 1024

// registrations are memory of the application that a group has registered on a device;
// or, without a device, that endpoints over TCP use. What is registered for this side's
// own use stays so when nobody uses it, until it has to give way: the least recently
// used goes first. What a peer may have a key to goes with its last use, since a key is
// good for as long as the region.
type registrations struct {
	domain rdma.Domain // nil: none
	room   *lending    // bytes
	places *lending    // of all

	mu     sync.Mutex
	all    map[*registration]struct{}
	idle   list.List // of *registration, the least recently used first
	wanted int       // calls that wait for room or a place
	closed bool
}

// A registration is memory of the application that is registered, or is being.
type registration struct {
	of     *registrations
	memory []byte
	access rdma.Access
	alone  bool // it is shared by nobody, and goes with its use

	ready  chan struct{} // closed when region and err are set
	region rdma.Region   // nil without a device
	err    error

	// Guarded by of.mu.
	users int
	place *list.Element // in idle, or nil
}

// registered are all registrations of the process, for Forget.
var registered struct {
	mu  sync.Mutex
	all map[*registrations]struct{}
}

func newRegistrations(domain rdma.Domain, limit int64) *registrations {
	r := &registrations{domain: domain, room: newLending(limit, "bytes"), places: newLending(maxRegistrations, "registrations"), all: map[*registration]struct{}{}}
	registered.mu.Lock()
	defer registered.mu.Unlock()
	if registered.all == nil {
		registered.all = map[*registrations]struct{}{}
	}
	registered.all[r] = struct{}{}
	return r
}

// extent is where memory lies.
func extent(memory []byte) (start, length uintptr) {
	return uintptr(unsafe.Pointer(unsafe.SliceData(memory))), uintptr(len(memory))
}

func overlap(a, b []byte) bool {
	from, n := extent(a)
	start, m := extent(b)
	return from < start+m && start < from+n
}

// within tells whether all of a lies in b.
func within(a, b []byte) bool {
	from, n := extent(a)
	start, m := extent(b)
	return from >= start && from+n <= start+m
}

// access judges memory of the application and tells what this side may do with it. need
// is what the peer may do.
func (r *registrations) access(memory []byte, need Rights) (rdma.Access, error) {
	if m, _ := mappings.find(memory); m == nil && usermem.Owned(memory) {
		return 0, fmt.Errorf("%w: %w", ErrMemory, usermem.ErrOwned)
	}
	return r.accessToAny(memory, need)
}

// accessToAny is access for memory that may be the runtime's.
func (r *registrations) accessToAny(memory []byte, need Rights) (rdma.Access, error) {
	var writable bool
	if m, _ := mappings.find(memory); m != nil {
		writable = m.writable
	} else {
		facts, err := usermem.Look(memory)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrMemory, err)
		}
		user, registers := r.domain.(rdma.RegisteringDomain)
		if facts.File != "" && !(registers && user.Pins()) {
			return 0, fmt.Errorf("%w: %w (%s)", ErrMemory, usermem.ErrTruncatable, facts.File)
		}
		writable = facts.Writable
	}
	if need&(MayWrite|MayAtomic) != 0 && !writable {
		return 0, fmt.Errorf("%w: %w: it is mapped for reading only", ErrMemory, ErrRights)
	}
	if !writable {
		return 0, nil
	}
	return rdma.AccessLocalWrite, nil
}

// Errors of memory of the application.
var (
	// ErrMemory: it cannot be registered. The error tells why.
	ErrMemory = errors.New("verbena: the memory cannot be used")
	// ErrInUse: it is exposed, or in use as a buffer.
	ErrInUse = errors.New("verbena: the memory is in use")
)

// take registers memory, or finds it registered. The caller calls put. Alone, it is
// registered for this use only.
func (r *registrations) take(ctx context.Context, memory []byte, access rdma.Access, alone bool) (*registration, error) {
	for {
		g, first, err := r.find(ctx, memory, access, alone)
		if err != nil {
			return nil, err
		}
		if first {
			r.register(ctx, g)
		}
		select {
		case <-g.ready:
		case <-ctx.Done():
			r.put(g)
			return nil, context.Cause(ctx)
		}
		if g.err == nil {
			return g, nil
		}
		err = g.err
		r.put(g)
		// The one who registered may have given up; this caller has not.
		if first || ctx.Err() != nil || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
	}
}

// find returns a registration in which memory lies, or a new one, which the caller has
// to register. For that one it waits for a place.
func (r *registrations) find(ctx context.Context, memory []byte, access rdma.Access, alone bool) (g *registration, first bool, err error) {
	if g, err := r.join(memory, access, alone); g != nil || err != nil {
		return g, false, err
	}
	if err := r.reserve(ctx, r.places, 1); err != nil {
		return nil, false, err
	}
	// Others may have registered the memory during the wait.
	r.mu.Lock()
	defer r.mu.Unlock()
	if g, err := r.joinLocked(memory, access, alone); g != nil || err != nil {
		r.places.give(1)
		return g, false, err
	}
	g = &registration{of: r, memory: memory, access: access, alone: alone, users: 1, ready: make(chan struct{})}
	r.all[g] = struct{}{}
	return g, true, nil
}

// join begins a use of a registration in which memory lies, if there is one.
func (r *registrations) join(memory []byte, access rdma.Access, alone bool) (*registration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.joinLocked(memory, access, alone)
}

// joinLocked is join for who holds mu.
func (r *registrations) joinLocked(memory []byte, access rdma.Access, alone bool) (*registration, error) {
	if r.closed {
		return nil, ErrClosed
	}
	if alone {
		return nil, nil
	}
	for g := range r.all {
		if !g.alone && g.err == nil && g.access == access && within(memory, g.memory) {
			g.users++
			if g.place != nil {
				r.idle.Remove(g.place)
				g.place = nil
			}
			return g, nil
		}
	}
	return nil, nil
}

// evict drops the registration that nobody has used for longest. mu is held.
func (r *registrations) evict() bool {
	oldest := r.idle.Front()
	if oldest == nil {
		return false
	}
	r.drop(oldest.Value.(*registration))
	return true
}

// drop ends a registration that nobody uses. mu is held.
func (r *registrations) drop(g *registration) {
	if g.place != nil {
		r.idle.Remove(g.place)
		g.place = nil
	}
	delete(r.all, g)
	r.places.give(1)
	if g.err != nil {
		return
	}
	if g.region != nil {
		g.err = g.region.Close() // an error leaves it to the domain's Close
	}
	if g.err == nil {
		r.room.give(int64(len(g.memory)))
	}
}

// register makes room for a registration, and makes it.
func (r *registrations) register(ctx context.Context, g *registration) {
	region, err := r.make(ctx, g)
	r.mu.Lock()
	g.region, g.err = region, err
	r.mu.Unlock()
	close(g.ready)
}

func (r *registrations) make(ctx context.Context, g *registration) (rdma.Region, error) {
	n := int64(len(g.memory))
	if err := r.reserve(ctx, r.room, n); err != nil {
		return nil, err
	}
	if r.domain == nil {
		return nil, nil
	}
	region, err := r.ofDevice(g)
	if err != nil {
		r.room.give(n)
		return nil, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	return region, nil
}

// reserve waits for n of what l lends, for which what is idle gives way.
func (r *registrations) reserve(ctx context.Context, l *lending, n int64) error {
	for {
		if ok, err := l.tryTake(n); ok || err != nil {
			return err
		}
		r.mu.Lock()
		gave := r.evict()
		if !gave {
			r.wanted++ // from here on nothing becomes idle
		}
		r.mu.Unlock()
		if !gave {
			err := l.take(ctx, n)
			r.mu.Lock()
			r.wanted--
			r.mu.Unlock()
			return err
		}
	}
}

func (r *registrations) ofDevice(g *registration) (rdma.Region, error) {
	d, ok := r.domain.(rdma.RegisteringDomain)
	if !ok {
		return nil, fmt.Errorf("%w: the provider registers no memory of applications", rdma.ErrUnsupported)
	}
	memory := rdma.UserMemory{Bytes: g.memory, Access: g.access}
	if m, offset := mappings.find(g.memory); m != nil && m.fd >= 0 {
		memory.File = &rdma.MemoryFile{FD: m.fd, Size: int64(len(m.bytes)), Offset: int64(offset)}
	}
	return d.Register(memory)
}

// put ends a use.
func (r *registrations) put(g *registration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g.users--; g.users > 0 {
		return
	}
	select {
	case <-g.ready:
	default:
		// Whoever registers it has a use of its own.
		return
	}
	if g.alone || r.closed || g.err != nil || r.wanted > 0 {
		r.drop(g)
		return
	}
	g.place = r.idle.PushBack(g)
}

// failure is why a registration that has been dropped may still be the device's.
func (g *registration) failure() error {
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	return g.err
}

// relax drops what nobody uses.
func (r *registrations) relax() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.evict() {
	}
}

// forget drops what overlaps memory, and tells whether some of it is in use.
func (r *registrations) forget(memory []byte) (used bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for g := range r.all {
		switch {
		case !overlap(g.memory, memory):
		case g.users > 0:
			used = true
		default:
			r.drop(g)
		}
	}
	return used
}

// close drops what nobody uses; the rest goes with its last use.
func (r *registrations) close() {
	registered.mu.Lock()
	delete(registered.all, r)
	registered.mu.Unlock()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.relax()
}

// Forget ends what is left of the use of memory that the caller is about to unmap: its
// registrations with devices, which are kept for later uses of the same memory. It
// fails with [ErrInUse] while part of it is exposed or in use as a [Buffer]. Whoever
// unmaps memory without it, and maps something else there, may send what was there
// before. A [Mapping] does it by itself.
func Forget(memory []byte) error {
	if len(memory) == 0 {
		return nil
	}
	registered.mu.Lock()
	defer registered.mu.Unlock()
	used := false
	for r := range registered.all {
		used = r.forget(memory) || used
	}
	if used {
		return ErrInUse
	}
	return nil
}

// stats are those of the purpose.
func (r *registrations) stats() PoolStats {
	used, waiting := r.room.inUse()
	_, more := r.places.inUse()
	return PoolStats{Name: "user", Used: used, Limit: r.room.limit, Waiting: waiting + more}
}
