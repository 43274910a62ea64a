//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
	"github.com/verbena-data/verbena/rdma/internal/domains"
)

var pageSize = os.Getpagesize()

const hugePage = 2 << 20

// region implements [rdma.Region]: mapped memory, registered as a whole.
type region struct {
	domain   *domain
	bytes    []byte
	mapped   []byte
	address  uint64
	access   rdma.Access
	lkey     uint32
	rkey     uint32
	closed   atomic.Bool
	borrowed bool // the program has mapped the bytes, and unmaps them

	mu sync.Mutex
	mr registration // nil once it is deregistered
}

// A registration is a [verbs.MR].
type registration interface{ Deregister() error }

func (r *region) Bytes() []byte       { return r.bytes }
func (r *region) Key() uint32         { return r.rkey }
func (r *region) Address() uint64     { return r.address }
func (r *region) Access() rdma.Access { return r.access }

// verbsAccess adds what the verbs want beside a right of the peer's.
func verbsAccess(a rdma.Access) verbs.Access {
	var v verbs.Access
	for _, right := range []struct {
		has  rdma.Access
		give verbs.Access
	}{
		{rdma.AccessLocalWrite, verbs.AccessLocalWrite},
		{rdma.AccessRemoteRead, verbs.AccessRemoteRead},
		{rdma.AccessRemoteWrite, verbs.AccessRemoteWrite | verbs.AccessLocalWrite},
		{rdma.AccessRemoteAtomic, verbs.AccessRemoteAtomic | verbs.AccessLocalWrite},
	} {
		if a&right.has != 0 {
			v |= right.give
		}
	}
	return v
}

func (m *domain) Allocate(size int, access rdma.Access) (rdma.Region, error) {
	a := &m.device.attributes
	if err := domains.Region(size, access, a); err != nil {
		return nil, fmt.Errorf("ibverbs: allocate on %s: %w", a.Name, err)
	}
	r := &region{domain: m, access: access}
	if err := r.allocate(size); err != nil {
		return nil, fmt.Errorf("ibverbs: allocate %d bytes on %s: %w", size, a.Name, err)
	}
	return r, nil
}

func (r *region) allocate(size int) (err error) {
	if r.mapped, err = mapMemory(size, r.domain.device.provider.config.HugePages); err != nil {
		return err
	}
	r.bytes = r.mapped[:size:size]
	r.address = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.mapped))))
	defer func() {
		if err != nil {
			_ = unix.Munmap(r.mapped)
		}
	}()
	return r.register()
}

// Register implements [rdma.RegisteringDomain].
func (m *domain) Register(memory rdma.UserMemory) (rdma.Region, error) {
	a := &m.device.attributes
	size := len(memory.Bytes)
	if err := domains.Region(size, memory.Access, a); err != nil {
		return nil, fmt.Errorf("ibverbs: register on %s: %w", a.Name, err)
	}
	r := &region{domain: m, access: memory.Access, borrowed: true, bytes: memory.Bytes[:size:size]}
	r.address = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.bytes))))
	if err := r.register(); err != nil {
		return nil, fmt.Errorf("ibverbs: register %d bytes on %s: %w", size, a.Name, err)
	}
	return r, nil
}

// Pins implements [rdma.RegisteringDomain]. The kernel pins the pages of a region.
func (m *domain) Pins() bool { return true }

// register tells the device of the bytes.
func (r *region) register() error {
	m := r.domain
	m.members.Lock()
	defer m.members.Unlock()
	if err := m.members.Usable(); err != nil {
		return err
	}
	// Registering the bytes alone, not the rest of their last page, so that the
	// device holds the bounds.
	mr, err := m.pd.RegisterMR(r.bytes, verbsAccess(r.access))
	if err != nil {
		if errors.Is(err, verbs.ErrUnavailable) {
			err = unavailable(err)
		}
		return err
	}
	r.mr, r.lkey, r.rkey = mr, mr.LKey(), mr.RKey()
	m.members.Regions.Add(r)
	m.device.provider.counters.registered.Add(uint64(len(r.bytes)))
	return nil
}

// mapMemory maps zeroed memory that a child process does not share: a page that
// the child has written to first would no longer be the device's.
func mapMemory(size int, huge bool) ([]byte, error) {
	const protection, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if huge && size >= hugePage && size%hugePage == 0 {
		if b, err := unix.Mmap(-1, 0, size, protection, flags|unix.MAP_HUGETLB); err == nil {
			_ = unix.Madvise(b, unix.MADV_DONTFORK)
			return b, nil
		}
		// The pool is empty: ordinary pages do as well.
	}
	length := (size + pageSize - 1) &^ (pageSize - 1)
	b, err := unix.Mmap(-1, 0, length, protection, flags)
	if err != nil {
		return nil, fmt.Errorf("mapping memory: %w", err)
	}
	_ = unix.Madvise(b, unix.MADV_DONTFORK)
	return b, nil
}

// deregister ends all access by the device.
func (r *region) deregister() error {
	r.closed.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mr == nil {
		return nil
	}
	m := r.domain
	m.members.Lock()
	freed := m.pd == nil
	m.members.Unlock()
	if freed {
		return fmt.Errorf("%w: the domain, before the region could be", rdma.ErrClosed)
	}
	if err := r.mr.Deregister(); err != nil {
		return err // the device still has it, and a later Close must not unmap it
	}
	r.mr = nil
	r.domain.device.provider.counters.deregistered.Add(uint64(len(r.bytes)))
	return nil
}

// Withdraw implements [rdma.WithdrawableRegion].
func (r *region) Withdraw() error {
	if err := r.deregister(); err != nil {
		return fmt.Errorf("ibverbs: withdraw a region on %s: %w", r.domain.device.attributes.Name, err)
	}
	return nil
}

func (r *region) Close() error {
	m := r.domain
	if err := r.deregister(); err != nil {
		// The memory stays mapped: the device may still reach it. The region stays a
		// member, so that the next Close, or the domain's, tries again.
		return fmt.Errorf("ibverbs: close a region on %s: %w", m.device.attributes.Name, err)
	}
	m.members.Lock()
	first, _ := m.members.Regions.Remove(r)
	m.members.Unlock()
	if !first || r.borrowed {
		return nil
	}
	if err := unix.Munmap(r.mapped); err != nil {
		return fmt.Errorf("ibverbs: close a region on %s: unmapping it: %w", m.device.attributes.Name, err)
	}
	return nil
}
