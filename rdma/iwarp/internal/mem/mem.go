// Package mem holds the registered memory of a device: regions outside the Go
// heap, the table that finds them by key, and the pins that keep a region mapped
// while bytes of it move.
//
// Whoever touches a region's bytes holds a pin for just that time and never
// while it waits for a peer, except where it can be interrupted: closing a
// region waits for the pins, and asks the domain to break those that stay.
package mem

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

// patience is how long Close lets pins end by themselves.
const patience = 100 * time.Millisecond

// Owner is the protection domain of regions.
type Owner interface {
	// BreakPins makes those who hold pins of the region give them up: it fails
	// the connections they work for. It is called until no pin is left.
	BreakPins(*Region)
	// Forget drops the owner's own reference.
	Forget(*Region)
}

// Table finds the regions of a device by key. It may be used concurrently.
type Table struct {
	mu      sync.RWMutex
	regions map[uint32]*Region
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{regions: make(map[uint32]*Region)} }

// Lookup returns the region with the key, or nil.
func (t *Table) Lookup(key uint32) *Region {
	t.mu.RLock()
	r := t.regions[key]
	t.mu.RUnlock()
	return r
}

// remove drops a region. Its key may have been given to another one since it
// was revoked.
func (t *Table) remove(r *Region) {
	t.mu.Lock()
	if t.regions[r.key] == r {
		delete(t.regions, r.key)
	}
	t.mu.Unlock()
}

// Len tells how many regions are registered.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.regions)
}

// Region implements [rdma.Region].
type Region struct {
	table  *Table
	owner  Owner
	bytes  []byte
	size   int
	key    uint32
	base   uint64
	access rdma.Access
	lent   bool // the program has mapped the bytes, and unmaps them
	steady atomic.Bool

	pins     atomic.Int64 // and closing
	idle     chan struct{}
	idleOnce sync.Once
	closing  atomic.Bool
	revoked  atomic.Bool
	left     chan struct{} // closed when no pin is left, nor will be
	unmap    sync.Once
	err      error // of unmapping
}

// closing is the bit of pins that lets no further ones in.
const closing = 1 << 62

// Allocate maps and registers a region.
func (t *Table) Allocate(owner Owner, size int, access rdma.Access) (*Region, error) {
	bytes, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	r, err := t.add(owner, bytes, access)
	if err != nil {
		_ = unix.Munmap(bytes)
	}
	return r, err
}

// Register makes a region of memory that the program has mapped. Close leaves it
// mapped.
func (t *Table) Register(owner Owner, bytes []byte, access rdma.Access) (*Region, error) {
	r, err := t.add(owner, bytes, access)
	if err == nil {
		r.lent = true // nobody knows the region yet
	}
	return r, err
}

// add gives memory a key.
func (t *Table) add(owner Owner, bytes []byte, access rdma.Access) (*Region, error) {
	r := &Region{
		table: t, owner: owner, bytes: bytes, size: len(bytes), access: access,
		idle: make(chan struct{}), left: make(chan struct{}),
	}
	var random [8]byte
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		if _, err := rand.Read(random[:]); err != nil {
			return nil, fmt.Errorf("draw a key: %w", err)
		}
		r.key = binary.LittleEndian.Uint32(random[:])
		if _, taken := t.regions[r.key]; !taken && r.key != 0 {
			break
		}
	}
	// The offset of the first byte is nobody's business but has to be some
	// number; one that tells nothing of this process and, unlike zero, shows who
	// forgets to add it. It is aligned to 8 as the memory is, so that atomic operations
	// on offsets which are never fault.
	r.base = uint64(binary.LittleEndian.Uint32(random[4:]))<<12 | uint64(uintptr(unsafe.Pointer(unsafe.SliceData(bytes)))%8)
	t.regions[r.key] = r
	return r, nil
}

// Owner is the domain that the region belongs to.
func (r *Region) Owner() Owner { return r.owner }

// Bytes implements [rdma.Region].
func (r *Region) Bytes() []byte { return r.bytes }

// Key implements [rdma.Region].
func (r *Region) Key() uint32 { return r.key }

// Address implements [rdma.Region].
func (r *Region) Address() uint64 { return r.base }

// Access implements [rdma.Region].
func (r *Region) Access() rdma.Access { return r.access }

// Steady implements [rdma.SteadyRegion].
func (r *Region) Steady() { r.steady.Store(true) }

// KeepsStill tells whether no byte changes while a peer reads it.
func (r *Region) KeepsStill() bool { return r.steady.Load() }

// Size is the length of the region in bytes; it may be asked after Close.
func (r *Region) Size() int { return r.size }

// Closed tells whether Close, or Withdraw, has begun.
func (r *Region) Closed() bool { return r.closing.Load() }

// Revoke closes the region to peers: its key names nothing any more, and no
// access by it is admitted. One that has pinned the region may end. The region
// itself stays as it is.
func (r *Region) Revoke() {
	r.revoked.Store(true)
	r.table.remove(r)
}

// Revoked tells whether Revoke was called.
func (r *Region) Revoked() bool { return r.revoked.Load() }

// Reachable tells whether peers may still name the region.
func (r *Region) Reachable() bool { return !r.closing.Load() && !r.revoked.Load() }

// Pin keeps the region mapped until Unpin. It fails once Close has begun.
func (r *Region) Pin() bool {
	if r.pins.Add(1)&closing != 0 {
		r.Unpin()
		return false
	}
	return true
}

// Unpin ends a Pin.
func (r *Region) Unpin() {
	if r.pins.Add(-1) == closing {
		r.idleOnce.Do(func() { close(r.idle) })
	}
}

// Close implements [rdma.Region].
func (r *Region) Close() error {
	r.unmap.Do(func() {
		_ = r.Withdraw() // cannot fail
		r.owner.Forget(r)
		if !r.lent {
			r.err = unix.Munmap(r.bytes)
		}
		r.bytes = nil
	})
	return r.err
}

// Withdraw implements [rdma.WithdrawableRegion].
func (r *Region) Withdraw() error {
	if r.closing.Swap(true) {
		<-r.left
		return nil
	}
	defer close(r.left)
	r.table.remove(r)
	if r.pins.Add(closing) == closing {
		return nil
	}
	timer := time.NewTicker(patience)
	defer timer.Stop()
	for {
		select {
		case <-r.idle:
			return nil
		case <-timer.C:
			r.owner.BreakPins(r)
		}
	}
}
