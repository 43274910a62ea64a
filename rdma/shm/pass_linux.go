package shm

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

// Memory of a peer that this side passes on. Three processes take part: the owner of the
// memory, which is asked for descriptors for reading, this one, which has a region in its
// table for it, and a peer that reads there.
//
// The reader cannot see whether the owner still keeps the memory for this side, so the
// owner promises it in its table, which the reader gets, too. The entry is shut before
// anything else when the owner's end of the connection ends. The reader looks at it behind
// each read, and at the gate of this side, which is shut before this side lets go of what
// the reader may be reading. Whatever is written to the memory afterwards is written behind
// one of the two, so whoever has read any of it finds one shut. A process that has died
// writes nothing any more, and shuts nothing: its memory stays as it was.

// How many regions are passed on at most, of a connection and of a domain. Each takes two
// descriptors.
const (
	maxPassed         = 16
	maxPassedOfDomain = 128
)

// passes tells whether peers pass regions on to each other. Those of different users do
// not: a reader would map memory of a third process, which it knows nothing of.
func (qp *queuePair) passes() bool {
	return qp.remote.greatest >= versionPassed && !qp.conn.foreign
}

var _ rdma.PassingQueuePair = (*queuePair)(nil)

// ReadsPassed implements [rdma.PassingQueuePair].
func (qp *queuePair) ReadsPassed() bool { return qp.State() == rdma.StateConnected && qp.passes() }

// passing are the regions of the peer that are passed on, or that it has been asked for.
type passing struct {
	mu     sync.Mutex
	all    map[*peerRegion]*passedOn
	closed bool
}

// A passedOn is a region of a peer that this side passes on.
type passedOn struct {
	by     *queuePair
	of     *peerRegion // which it uses
	region *region     // nil: the peer was asked for it, or has refused
	table  *memfd.File // the owner's, with region
	kept   promise     // with region

	// By passing.mu:
	uses int
	over bool // it goes with its last use
}

// PassOn implements [rdma.PassingQueuePair].
func (qp *queuePair) PassOn(pin rdma.Pin) (rdma.Region, rdma.Pin, bool) {
	r, ok := pin.(*peerRegion)
	if !ok || !qp.ReadsPassed() {
		return nil, nil, false
	}
	s := &qp.passing
	s.mu.Lock()
	if p := s.all[r]; p != nil {
		defer s.mu.Unlock()
		if p.region == nil {
			return nil, nil, false
		}
		p.uses++
		return p.region, p, true
	}
	p := s.begin(qp, r)
	s.mu.Unlock()
	if p != nil && !qp.askPass(r.key) {
		s.drop(p) // the socket is full for a moment, or too many questions are open
	}
	return nil, nil, false
}

// begin makes an entry for what the peer is to be asked for, unless there are too many.
// mu is held.
func (s *passing) begin(qp *queuePair, r *peerRegion) *passedOn {
	if s.closed || len(s.all) >= maxPassed {
		return nil
	}
	if qp.domain.passed.Add(1) > maxPassedOfDomain {
		qp.domain.passed.Add(-1)
		return nil
	}
	if s.all == nil {
		s.all = map[*peerRegion]*passedOn{}
	}
	r.users.Add(1)
	p := &passedOn{by: qp, of: r}
	s.all[r] = p
	return p
}

// askPass sends the question. One goroutine asks at a time, so that the answers come in the
// order of the questions.
func (qp *queuePair) askPass(key uint32) bool {
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	return qp.ReadsPassed() && qp.conn.want(want{pass: true, value: key})
}

// Release implements [rdma.Pin]: it ends one use.
func (p *passedOn) Release() {
	s := &p.by.passing
	s.mu.Lock()
	p.uses--
	last := p.over && p.uses == 0
	s.mu.Unlock()
	if last {
		p.close()
	}
}

// drop takes an entry out, which is closed by the last of its uses.
func (s *passing) drop(p *passedOn) {
	s.mu.Lock()
	first := s.dropLocked(p)
	s.mu.Unlock()
	if first {
		p.close()
	}
}

// dropLocked is drop for who holds mu, and reports true if the caller has to close the
// entry when it has let go of that.
func (s *passing) dropLocked(p *passedOn) bool {
	if p.over {
		return false
	}
	p.over = true
	delete(s.all, p.of)
	return p.uses == 0
}

// dropIf drops what is to go.
func (s *passing) dropIf(goes func(*passedOn) bool) {
	s.mu.Lock()
	var idle []*passedOn
	for _, p := range s.all {
		if goes(p) && s.dropLocked(p) {
			idle = append(idle, p)
		}
	}
	s.mu.Unlock()
	for _, p := range idle {
		p.close()
	}
}

// revoked drops a region that its owner has closed.
func (s *passing) revoked(handle uint32) {
	s.dropIf(func(p *passedOn) bool { return p.of.handle == handle && !p.of.open() })
}

// close drops all, for good.
func (s *passing) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.dropIf(func(*passedOn) bool { return true })
}

// close lets go of what an entry has. Nobody uses it or finds it any more. It waits for no
// reader: one that is inside an access has a mapping of its own.
func (p *passedOn) close() {
	if p.region != nil {
		_ = p.region.Close() // nothing was written
	}
	p.by.domain.passed.Add(-1)
	p.of.Release()
}

// receivePass takes the answer to askPass. g.found is false where the owner has refused:
// the entry stays then, so that it is not asked for each message.
func (qp *queuePair) receivePass(g grant, kept promise, packet *packet) error {
	if err := qp.conn.answered(g.want); err != nil {
		return err
	}
	if !g.found {
		return nil
	}
	if len(packet.descriptors) != 2 {
		return fmt.Errorf("%w: a region to pass on with %d descriptors", errPacket, len(packet.descriptors))
	}
	s, peer := &qp.passing, qp.peer.Load()
	s.mu.Lock()
	var p *passedOn
	for _, other := range s.all {
		if other.of.key == g.key && other.region == nil {
			p = other
		}
	}
	s.mu.Unlock()
	if p == nil {
		return nil // it has been closed meanwhile
	}
	// A reader would take it amiss if it got anything but what is mapped here.
	file, err := memfd.Identify(packet.descriptors[0])
	if err != nil {
		return err
	}
	table, err := memfd.Identify(packet.descriptors[1])
	if err != nil {
		return err
	}
	if p.of.handle != g.handle || p.of.state != g.state || p.of.length != g.length || p.of.file != file || peer.identity.table != table {
		return fmt.Errorf("%w: a region to pass on that is not the one that is known", errPacket)
	}
	if peer.table.state(kept.handle).Load() != kept.state {
		return nil // the peer is ending the connection
	}
	r := &region{domain: qp.domain, size: g.length, access: rdma.AccessRemoteRead, aside: true, passed: p}
	r.file = memfd.Own(packet.take(0))
	p.table, p.kept = memfd.Own(packet.take(1)), kept
	if qp.domain.register(r) != nil {
		_, _ = r.file.Close(), p.table.Close()
		return nil //nolint:nilerr // the domain is full, or closing: messages are copied
	}
	s.mu.Lock()
	if !p.over {
		p.region, r = r, nil
	}
	s.mu.Unlock()
	if r != nil {
		_ = r.Close()
	}
	return nil
}

// givePassed grants a region that this side passes on to a peer.
func (qp *queuePair) givePassed(w want, r *region) error {
	memory, table, ok := r.passedFiles()
	if !ok {
		return qp.giveNothing(w)
	}
	defer unix.Close(memory)
	defer unix.Close(table)
	qp.granted.Store(r.handle, struct{}{})
	g := grant{want: w, found: true, handle: r.handle, key: r.key, access: uint8(r.access), address: r.base(), length: r.size, state: r.state}
	return qp.conn.write(appendPassed(nil, g, r.passed.kept), memory, table)
}

// passedFiles returns descriptors of the memory and of its owner's table. The caller closes
// them. fileMu is not held while they are sent: who closes the region would wait for a peer
// that does not read.
func (r *region) passedFiles() (memory, table int, ok bool) {
	r.fileMu.Lock()
	defer r.fileMu.Unlock()
	if r.closed.Load() {
		return -1, -1, false
	}
	memory, err := r.file.Duplicate()
	if err != nil {
		return -1, -1, false // for want of descriptors, say: the peer copies
	}
	if table, err = r.passed.table.Duplicate(); err != nil {
		_ = unix.Close(memory)
		return -1, -1, false
	}
	return memory, table, true
}

// givePass answers a peer that wants to pass a region of this side on. What this side
// passes on itself it may not: it could not tell the reader who has promised to keep it.
func (qp *queuePair) givePass(w want) error {
	r, access, ok := qp.domain.grantFor(want{value: w.value}, qp, qp.conn.foreign)
	if !ok || !qp.passes() || r.passed != nil || access&rdma.AccessRemoteRead == 0 {
		return qp.giveNothing(w)
	}
	kept := qp.promiseViews()
	if kept == nil {
		return qp.giveNothing(w)
	}
	memory, err := r.descriptor(false)
	if err != nil {
		return qp.giveNothing(w) // it is closed, or for want of descriptors: the peer copies
	}
	defer unix.Close(memory)
	qp.granted.Store(r.handle, struct{}{})
	g := grant{want: w, found: true, handle: r.handle, key: r.key, access: uint8(rdma.AccessRemoteRead), address: r.base(), length: r.size, state: r.state}
	return qp.conn.write(appendPassed(nil, g, promise{handle: kept.handle, state: kept.state}), memory, qp.domain.tableFile.FD())
}

// promiseViews returns the promise to the peer, or nil if the connection is ending or the
// table is full. The connection's reader calls it.
func (qp *queuePair) promiseViews() *region {
	kept := qp.views.Load()
	if kept == nil {
		kept = &region{domain: qp.domain, aside: true}
		if qp.domain.register(kept) != nil {
			return nil
		}
		qp.views.Store(kept)
	}
	// Whoever ends the connection changes its state first and looks for a promise then.
	if qp.State() != rdma.StateConnected {
		kept.breakPromise()
		return nil
	}
	return kept
}

// breakPromise tells those who have read memory of this side that it may have been written
// to meanwhile.
func (r *region) breakPromise() { r.domain.table.state(r.index).Store(r.state &^ 1) }

// wasKept tells whether what was read just now of a region that the peer passes on was as
// it is to be: neither had the owner of the memory begun to end its connection to the peer,
// nor the peer that to this side.
func (qp *queuePair) wasKept(r *peerRegion) bool {
	keepOrder()
	return r.kept.Load() == r.promise.state && qp.out.gate().Load()&gateClosed == 0
}
