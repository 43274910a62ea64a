package shm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

// peerIdentity tells domains of other processes apart. The domain is the peer's word,
// and whoever has been a peer of a domain can present it, and its table. The kernel tells
// the rest.
type peerIdentity struct {
	domain  [16]byte
	process int32
	user    uint32
	foreign bool
	table   memfd.Identity
	alone   *conn // of a peer that shares nothing; nil: it does
}

// identify returns who presents a domain over a connection. To the kernel all processes
// of other process namespaces are process 0 here. Those of another user could then pass
// for each other, so each of their connections stands alone.
func (c *conn) identify(domain [16]byte) peerIdentity {
	identity := peerIdentity{domain: domain, process: c.peer.Pid, user: c.peer.Uid, foreign: c.foreign}
	if c.foreign && c.peer.Pid == 0 {
		identity.alone = c
	}
	return identity
}

// A peerDomain is what this process has mapped of a domain elsewhere. All
// connections to it share it, if that is safe.
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
	alarms   map[uint32]*peerAlarm // by queue
}

// A peerRegion is a region of a peer, mapped here.
type peerRegion struct {
	grant
	memory []byte         // exactly length bytes usable
	now    *atomic.Uint64 // the state in the owner's table
	owner  *peerDomain
	file   memfd.Identity
	users  atomic.Int64 // the domain, until it has unmapped the region, pins, and what is passed on

	// Of a region that the peer passes on. Its owner keeps it as it is for as long as
	// kept has the state of promise.
	promise     promise
	kept        *atomic.Uint64 // nil: the region is the peer's own
	tableMemory []byte         // of the owner, around kept
}

// bytes is all of the region.
func (r *peerRegion) bytes() []byte { return r.memory[:r.length:r.length] }

// Release implements [rdma.Pin]. If the kernel can't unmap the region, which may take it
// memory, it stays mapped, and harms nobody.
func (r *peerRegion) Release() { _ = r.unmap() }

// unmap ends one use of the region, and unmaps it after the last.
func (r *peerRegion) unmap() error {
	if r.users.Add(-1) > 0 {
		return nil
	}
	return errors.Join(memfd.Unmap(r.memory), memfd.Unmap(r.tableMemory))
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

// answers tells whether the region is the one that is wanted. One that was granted
// for its key may lack the right to be received into, and is asked for again then.
func (r *peerRegion) answers(w want) bool {
	if w.byHandle {
		return r.handle == w.value && r.has(rdma.AccessLocalWrite)
	}
	return r.key == w.value
}

func (p *peerDomain) find(w want) *peerRegion {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !w.byHandle {
		return p.byKey[w.value]
	}
	if r := p.byHandle[w.value]; r != nil && r.answers(w) {
		return r
	}
	return nil
}

// mayWrite tells whether a peer of a region ever writes into it.
func mayWrite(access rdma.Access) bool {
	return access&(rdma.AccessRemoteWrite|rdma.AccessRemoteAtomic|rdma.AccessLocalWrite) != 0
}

// How many regions of a peer are mapped at most. When one more comes, any of them
// is unmapped, and asked for again when a request names it.
const (
	maxRegions        = 4096
	maxRegionsForeign = 256
)

// knows tells whether a region that the peer has granted is mapped already.
func (p *peerDomain) knows(g *grant) bool {
	p.mu.RLock()
	known := p.byHandle[g.handle]
	p.mu.RUnlock()
	return known != nil && known.grant.state == g.state && known.key == g.key && known.open() && known.has(rdma.Access(g.access))
}

// add maps a region that the peer has granted and takes fd over.
func (p *peerDomain) add(g grant, fd int) error {
	if p.knows(&g) {
		return unix.Close(fd)
	}
	r, err := p.adopt(g, fd)
	if err != nil {
		return err
	}
	return p.enter(r)
}

// addPassed is add for a region that the peer passes on. It takes tableFD over, too: that of
// the table in which the region's owner keeps its promise.
func (p *peerDomain) addPassed(g grant, kept promise, fd, tableFD int) error {
	if p.knows(&g) {
		return errors.Join(unix.Close(fd), unix.Close(tableFD))
	}
	r, err := p.adopt(g, fd)
	if err != nil {
		return errors.Join(err, unix.Close(tableFD))
	}
	if r.tableMemory, err = memfd.Adopt(tableFD, tableBytes, memfd.Terms{Foreign: p.identity.foreign}); err != nil {
		return errors.Join(fmt.Errorf("the table of the owner of region %#x: %w", g.handle, err), r.unmap())
	}
	r.promise, r.kept = kept, viewTable(r.tableMemory).state(kept.handle)
	return p.enter(r)
}

// adopt maps a region, with one user. It takes fd over.
func (p *peerDomain) adopt(g grant, fd int) (*peerRegion, error) {
	file, err := memfd.Identify(fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	// Not populated: arenas are large, and a peer that idles touches little of them.
	memory, err := memfd.Adopt(fd, int(g.length), memfd.Terms{Writable: mayWrite(rdma.Access(g.access)), Foreign: p.identity.foreign})
	if err != nil {
		return nil, fmt.Errorf("region %#x of the peer: %w", g.handle, err)
	}
	r := &peerRegion{grant: g, memory: memory, now: p.table.state(g.handle), owner: p, file: file}
	r.users.Store(1)
	return r, nil
}

// enter makes a region known, and unmaps those that give way to it.
func (p *peerDomain) enter(r *peerRegion) error {
	most := maxRegions
	if p.identity.foreign {
		most = maxRegionsForeign
	}
	p.mu.Lock()
	var gone []*peerRegion
	for _, old := range p.byHandle {
		// One of the same handle or key is stale, or was granted with fewer rights.
		if !old.open() || old.handle == r.handle || old.key == r.key {
			gone = append(gone, old)
			p.take(old)
		}
	}
	for _, old := range p.byHandle {
		if len(p.byHandle) < most {
			break
		}
		gone = append(gone, old)
		p.take(old)
	}
	p.byHandle[r.handle] = r
	p.byKey[r.key] = r
	pairs := slices.Collect(maps.Keys(p.pairs))
	p.mu.Unlock()
	return unmapAll(gone, pairs)
}

// drop unmaps a region that its owner has closed.
func (p *peerDomain) drop(handle uint32) error {
	p.mu.Lock()
	r := p.byHandle[handle]
	if r == nil || r.open() {
		p.mu.Unlock()
		return nil
	}
	p.take(r)
	pairs := slices.Collect(maps.Keys(p.pairs))
	p.mu.Unlock()
	return unmapAll([]*peerRegion{r}, pairs)
}

// take takes a region out, so that nobody finds it any more. mu is held.
func (p *peerDomain) take(r *peerRegion) {
	delete(p.byHandle, r.handle)
	if p.byKey[r.key] == r {
		delete(p.byKey, r.key)
	}
}

// unmapAll unmaps regions that were taken out, once none of the queue pairs that
// may have found them is using them.
func unmapAll(regions []*peerRegion, pairs []*queuePair) error {
	var errs []error
	for _, r := range regions {
		for _, qp := range pairs {
			qp.forget(r)
		}
		errs = append(errs, r.unmap())
	}
	return errors.Join(errs...)
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
