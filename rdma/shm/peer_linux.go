package shm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

// peerIdentity tells domains of other processes apart. The process and the file
// come from the kernel, the rest from the peer.
type peerIdentity struct {
	domain  [16]byte
	process int32
	table   memfd.Identity
}

// A peerDomain is what this process has mapped of a domain elsewhere. All
// connections to it share it.
type peerDomain struct {
	device   *device
	identity peerIdentity
	users    int // guarded by device.mu

	tableMemory, bellMemory []byte
	table                   table
	bell                    doorbell

	mu       sync.RWMutex
	byHandle map[uint32]*peerRegion
	byKey    map[uint32]*peerRegion
	pairs    map[*queuePair]struct{}
}

// A peerRegion is a region of a peer, mapped here.
type peerRegion struct {
	grant
	memory []byte         // exactly length bytes usable
	now    *atomic.Uint64 // the state in the owner's table
	owner  *peerDomain
}

// open tells whether the region's owner has not closed it. Only inside an access
// does the answer last.
func (r *peerRegion) open() bool { return r.now.Load() == r.state }

func (r *peerRegion) has(access rdma.Access) bool { return rdma.Access(r.access)&access == access }

// at returns the length bytes at a remote address, or nil.
func (r *peerRegion) at(address uint64, length int) []byte {
	offset := address - r.address
	if address < r.address || offset > r.length || uint64(length) > r.length-offset {
		return nil
	}
	return r.memory[offset : offset+uint64(length) : offset+uint64(length)]
}

func (p *peerDomain) find(w want) *peerRegion {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if w.byHandle {
		return p.byHandle[w.value]
	}
	return p.byKey[w.value]
}

// mayWrite tells whether a peer of a region ever writes into it.
func mayWrite(access rdma.Access) bool {
	return access&(rdma.AccessRemoteWrite|rdma.AccessRemoteAtomic|rdma.AccessLocalWrite) != 0
}

// add maps a region that the peer has granted and takes fd over.
func (p *peerDomain) add(g grant, fd int) error {
	known := p.find(want{byHandle: true, value: g.handle})
	if known != nil && known.grant.state == g.state && known.key == g.key && known.open() {
		return unix.Close(fd)
	}
	memory, err := memfd.Adopt(fd, int(g.length), mayWrite(rdma.Access(g.access)), true)
	if err != nil {
		return fmt.Errorf("region %#x of the peer: %w", g.handle, err)
	}
	r := &peerRegion{grant: g, memory: memory, now: p.table.state(g.handle), owner: p}
	err = p.drop(g.handle)
	p.mu.Lock()
	var stale []uint32
	for handle, old := range p.byHandle {
		if !old.open() {
			stale = append(stale, handle)
		}
	}
	var lost []byte
	if other := p.byHandle[g.handle]; other != nil || p.byKey[g.key] != nil {
		lost = memory // another connection was faster
	} else {
		p.byHandle[g.handle] = r
		p.byKey[g.key] = r
	}
	p.mu.Unlock()
	errs := []error{err, memfd.Unmap(lost)}
	for _, handle := range stale {
		errs = append(errs, p.drop(handle))
	}
	return errors.Join(errs...)
}

// drop unmaps a region once no queue pair is using it.
func (p *peerDomain) drop(handle uint32) error {
	p.mu.Lock()
	r := p.byHandle[handle]
	if r == nil || r.open() {
		p.mu.Unlock()
		return nil
	}
	delete(p.byHandle, handle)
	if p.byKey[r.key] == r {
		delete(p.byKey, r.key)
	}
	pairs := make([]*queuePair, 0, len(p.pairs))
	for qp := range p.pairs {
		pairs = append(pairs, qp)
	}
	p.mu.Unlock()
	for _, qp := range pairs {
		qp.forget(r)
	}
	// A queue pair that joined since found the region gone.
	return memfd.Unmap(r.memory)
}

func (p *peerDomain) join(qp *queuePair) {
	p.mu.Lock()
	p.pairs[qp] = struct{}{}
	p.mu.Unlock()
}

func (p *peerDomain) leave(qp *queuePair) {
	p.mu.Lock()
	delete(p.pairs, qp)
	p.mu.Unlock()
}
