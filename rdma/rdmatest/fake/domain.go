package fake

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/verbena-data/verbena/rdma"
	"golang.org/x/sys/unix"
)

type domain struct {
	device  *Device
	network *Network
	onEvent func(rdma.Event)
	running sync.WaitGroup // of deliver
	quit    chan struct{}
	notify  chan struct{} // has one element while events may be there

	// Under mu.
	events     []rdma.Event
	regions    map[*region]struct{}
	queues     map[*completionQueue]struct{}
	shared     map[*sharedReceiveQueue]struct{}
	queuePairs map[*queuePair]struct{}
	closed     bool
}

func (d *domain) Device() rdma.Device { return d.device }

// raise queues an event; it needs mu.
func (d *domain) raise(e rdma.Event) {
	if d.onEvent == nil || d.closed {
		return
	}
	d.events = append(d.events, e)
	select {
	case d.notify <- struct{}{}:
	default:
	}
}

func (d *domain) deliver() {
	for {
		select {
		case <-d.quit:
			return
		case <-d.notify:
		}
		d.network.mu.Lock()
		events := d.events
		d.events = nil
		d.network.mu.Unlock()
		for _, e := range events {
			d.onEvent(e)
		}
	}
}

// usable fails if the domain is closed; it needs mu.
func (d *domain) usable(what string) error {
	if d.closed {
		return fmt.Errorf("fake: %s: domain: %w", what, rdma.ErrClosed)
	}
	return nil
}

func (d *domain) Close() error {
	n := d.network
	n.mu.Lock()
	if d.closed {
		n.mu.Unlock()
		return nil
	}
	d.closed = true
	delete(d.device.domains, d)
	var pairs []*queuePair
	for q := range d.queuePairs {
		pairs = append(pairs, q)
	}
	n.mu.Unlock()
	for _, q := range pairs {
		q.Close()
	}
	close(d.quit)
	d.running.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range d.shared {
		s.closed = true
	}
	for c := range d.queues {
		c.close()
	}
	var errs []error
	for r := range d.regions {
		errs = append(errs, r.close())
	}
	return errors.Join(errs...)
}

type region struct {
	domain  *domain
	memory  []byte // nil once closed
	bytes   []byte
	mapped  []byte // what to unmap
	key     uint32
	address uint64
	access  rdma.Access
	revoked bool // a peer has invalidated the key
	lent    bool // memory is the program's
}

func (d *domain) Allocate(size int, access rdma.Access) (rdma.Region, error) {
	if size <= 0 || int64(size) > d.device.config.MaxRegion {
		return nil, fmt.Errorf("fake: allocate %d bytes: must be 1 to %d: %w", size, d.device.config.MaxRegion, rdma.ErrInvalid)
	}
	if access&rdma.AccessRemoteAtomic != 0 && !d.device.config.Has(rdma.CapAtomics) {
		return nil, fmt.Errorf("fake: allocate for atomics: %w", rdma.ErrUnsupported)
	}
	if access&rdma.AccessRemoteInvalidate != 0 && !d.device.config.Has(rdma.CapSendInvalidate) {
		return nil, fmt.Errorf("fake: allocate for Sends with invalidate: %w", rdma.ErrUnsupported)
	}
	n := d.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := d.usable("allocate"); err != nil {
		return nil, err
	}
	r := &region{domain: d, access: access}
	if free := n.free[size]; len(free) > 0 {
		r.memory = free[0]
		n.free[size] = free[1:]
		clear(r.memory)
	} else if d.device.config.HeapMemory {
		memory := make([]byte, size+pageSize)
		skip := -int(uintptr(unsafe.Pointer(&memory[0]))) & (pageSize - 1)
		r.memory = memory[skip : skip+size : skip+size]
	} else {
		mapped, err := unix.Mmap(-1, 0, (size+pageSize-1)&^(pageSize-1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return nil, fmt.Errorf("fake: allocate %d bytes: %w", size, err)
		}
		r.mapped = mapped
		r.memory = mapped[:size:size]
	}
	if d.device.has(BugDirtyMemory) {
		r.memory[size/2] = 1
	}
	d.add(r)
	return r, nil
}

// Register implements [rdma.RegisteringDomain].
func (d *domain) Register(memory rdma.UserMemory) (rdma.Region, error) {
	if size := len(memory.Bytes); size == 0 || int64(size) > d.device.config.MaxRegion {
		return nil, fmt.Errorf("fake: register %d bytes: must be 1 to %d: %w", size, d.device.config.MaxRegion, rdma.ErrInvalid)
	}
	if memory.Access&rdma.AccessRemoteAtomic != 0 && !d.device.config.Has(rdma.CapAtomics) {
		return nil, fmt.Errorf("fake: register for atomics: %w", rdma.ErrUnsupported)
	}
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if err := d.usable("register"); err != nil {
		return nil, err
	}
	r := &region{domain: d, access: memory.Access, memory: memory.Bytes, lent: true}
	d.add(r)
	return r, nil
}

// Pins implements [rdma.RegisteringDomain].
func (d *domain) Pins() bool { return false }

// add gives a region a key. It needs mu.
func (d *domain) add(r *region) {
	n := d.network
	r.bytes = r.memory
	if d.device.has(BugSequentialKeys) {
		for r.key = 1; n.regions[r.key] != nil; {
			r.key++
		}
	} else {
		r.key = n.randomKey()
	}
	var b [8]byte
	rand.Read(b[:])
	r.address = binary.NativeEndian.Uint64(b[:])>>16&^(pageSize-1) + pageSize
	n.regions[r.key] = r
	d.regions[r] = struct{}{}
}

func (r *region) Bytes() []byte       { return r.bytes }
func (r *region) Key() uint32         { return r.key }
func (r *region) Address() uint64     { return r.address }
func (r *region) Access() rdma.Access { return r.access }

func (r *region) Close() error {
	r.domain.network.mu.Lock()
	defer r.domain.network.mu.Unlock()
	return r.close()
}

// Withdraw implements [rdma.WithdrawableRegion].
func (r *region) Withdraw() error {
	n := r.domain.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.memory != nil && !r.domain.device.has(BugStaleKey) {
		delete(n.regions, r.key)
	}
	return nil
}

// close needs mu, under which every access happens: none is under way.
func (r *region) close() error {
	if r.memory == nil {
		return nil
	}
	n := r.domain.network
	delete(r.domain.regions, r)
	if r.domain.device.has(BugStaleKey) && !r.lent {
		n.free[len(r.memory)] = append(n.free[len(r.memory)], r.memory)
		return nil
	}
	if n.regions[r.key] == r { // it may be another one's since it was withdrawn
		delete(n.regions, r.key)
	}
	r.memory, r.bytes = nil, nil
	if r.mapped != nil && !r.domain.device.has(BugLeaksMemory) {
		return unix.Munmap(r.mapped)
	}
	return nil
}

// invalidate revokes a key for a peer of a queue pair of domain d; it needs mu.
func (d *domain) invalidate(key uint32) bool {
	r := d.network.regions[key]
	switch {
	case r == nil || r.domain != d || r.revoked:
		return false
	case r.access&rdma.AccessRemoteInvalidate == 0 && !d.device.has(BugAllRevocable):
		return false
	}
	r.revoked = !d.device.has(BugNoRevocation)
	return true
}

// remote finds the memory that a peer of a queue pair of domain d names; it
// needs mu.
func (d *domain) remote(remote rdma.Remote, length int, access rdma.Access) []byte {
	r := d.network.regions[remote.Key]
	if d.device.has(BugAnyKey) {
		for each := range d.regions {
			if remote.Address-each.address < uint64(len(each.memory)) {
				r = each
			}
		}
	}
	if r == nil || r.revoked {
		return nil
	}
	if r.domain != d && !d.device.has(BugForeignDomain) {
		return nil
	}
	ignored := rdma.Access(0)
	for _, each := range [...]struct {
		bug   Bugs
		right rdma.Access
	}{
		{BugAllReadable, rdma.AccessRemoteRead},
		{BugAllWritable, rdma.AccessRemoteWrite},
		{BugAllAtomic, rdma.AccessRemoteAtomic},
	} {
		if d.device.has(each.bug) {
			ignored |= each.right
		}
	}
	if access&^ignored&^r.access != 0 {
		return nil
	}
	size := uint64(len(r.memory))
	if remote.Address < r.address {
		switch {
		case d.device.has(BugBefore) && r.address-remote.Address <= size:
			return make([]byte, length)
		case d.device.has(BugWrap) && remote.Address+uint64(length) < r.address+size:
			return make([]byte, length)
		}
		return nil
	}
	offset := remote.Address - r.address
	if offset > size || uint64(length) > size-offset {
		if d.device.has(BugBounds) || d.device.has(BugWrap) && remote.Address+uint64(length) < remote.Address {
			return make([]byte, length)
		}
		return nil
	}
	return r.memory[offset:][:length:length]
}
