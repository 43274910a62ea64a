package shm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-data/verbena/internal/futex"
	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

// healInterval is how long a wake-up can stay lost after a faulty peer has
// scribbled over the doorbell that it shares with others.
const healInterval = 5 * time.Second

// maxSleepers is how many waiters of a domain sleep on a thread of their own.
// The others share that of the agent.
const maxSleepers = 4

type domain struct {
	device    *device
	id        [16]byte
	tableFile *memfd.File
	bellFile  *memfd.File
	table     table
	bell      doorbell
	events    *eventQueue

	workers  sync.WaitGroup
	stop     chan struct{}
	sleepers atomic.Int32

	mu         sync.Mutex
	closed     bool
	regions    map[uint32]*region // by table index
	keys       map[uint32]*region
	nextIndex  uint32
	pairs      map[uint32]*queuePair
	queues     map[uint32]*completionQueue // by doorbell block
	nextQueue  uint32
	shared     map[*sharedReceiveQueue]struct{}
	retryPairs [bellBits][]*queuePair
	waiters    map[*completionQueue]struct{} // that the agent wakes
}

func errClosed(what string) error { return fmt.Errorf("shm: %s: %w", what, rdma.ErrClosed) }

func (d *domain) Device() rdma.Device { return d.device }

type region struct {
	domain  *domain
	file    *memfd.File
	bytes   []byte
	index   uint32
	handle  uint32
	key     uint32
	state   uint64
	access  rdma.Access
	closed  atomic.Bool
	closing sync.Once
	err     error
	fileMu  sync.Mutex // held while the descriptor is used or closed
}

const allAccess = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteAtomic

func (d *domain) Allocate(size int, access rdma.Access) (rdma.Region, error) {
	if size <= 0 || size > maxRegion {
		return nil, fmt.Errorf("shm: allocate %d bytes: %w: a region has 1 to %d bytes", size, rdma.ErrInvalid, int64(maxRegion))
	}
	if access&^allAccess != 0 {
		return nil, fmt.Errorf("shm: allocate %d bytes: %w: access %#x", size, rdma.ErrInvalid, access)
	}
	var file *memfd.File
	err := errors.ErrUnsupported
	if d.device.config.HugePages && size >= 1<<20 {
		file, err = memfd.Create("verbena-region", size, memfd.Huge)
	}
	if err != nil {
		if file, err = memfd.Create("verbena-region", size, memfd.Reserved); err != nil {
			return nil, fmt.Errorf("shm: allocate: %w", err)
		}
	}
	r := &region{domain: d, file: file, bytes: file.Bytes()[:size:size], access: access}
	if err := d.register(r); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: allocate %d bytes: %w", size, err), file.Close())
	}
	return r, nil
}

// register gives the region an index, a generation and a key.
func (d *domain) register(r *region) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return rdma.ErrClosed
	}
	if len(d.regions) == tableEntries {
		return fmt.Errorf("the domain has %d regions already: %w", tableEntries, rdma.ErrQueueFull)
	}
	// Going round the table keeps a stale handle invalid for as long as possible.
	for d.regions[d.nextIndex%tableEntries] != nil {
		d.nextIndex++
	}
	r.index = d.nextIndex % tableEntries
	d.nextIndex++
	generation := uint32(d.table.state(r.index).Load()>>1) + 1
	r.handle = makeHandle(r.index, generation)
	r.state = regionState(generation, true)
	for r.key == 0 || d.keys[r.key] != nil {
		var b [4]byte
		if _, err := rand.Read(b[:]); err != nil {
			return err
		}
		r.key = binary.LittleEndian.Uint32(b[:])
	}
	d.regions[r.index] = r
	d.keys[r.key] = r
	d.table.state(r.index).Store(r.state)
	return nil
}

func (r *region) Bytes() []byte       { return r.bytes }
func (r *region) Key() uint32         { return r.key }
func (r *region) Address() uint64     { return uint64(r.handle) << 36 }
func (r *region) Access() rdma.Access { return r.access }

// Close implements rdma.Region. The wait for a peer that is suspended inside an
// access is bounded by Config.AccessTimeout; its connection then fails, and the
// memory stays with it.
func (r *region) Close() error {
	r.closing.Do(func() { r.err = r.close() })
	return r.err
}

func (r *region) close() error {
	d := r.domain
	d.mu.Lock()
	delete(d.keys, r.key)
	pairs := make([]*queuePair, 0, len(d.pairs))
	for _, qp := range d.pairs {
		pairs = append(pairs, qp)
	}
	queues := make([]*completionQueue, 0, len(d.queues))
	for _, cq := range d.queues {
		queues = append(queues, cq)
	}
	d.mu.Unlock()

	r.closed.Store(true)
	d.table.state(r.index).Store(r.state &^ 1)
	for _, qp := range pairs {
		if qp.srq == nil && qp.receivesInto(r) {
			qp.setGate(gateLook)
		}
	}
	// This side's copies run under these locks and look at closed first.
	for _, qp := range pairs {
		qp.sendMu.Lock()
		qp.sendMu.Unlock() //nolint:staticcheck // waits for who is inside
	}
	for _, cq := range queues {
		cq.mu.Lock()
		cq.mu.Unlock() //nolint:staticcheck // waits for who is inside
	}
	deadline := time.Now().Add(d.device.config.AccessTimeout)
	barrier()
	for _, qp := range pairs {
		if !qp.awaitPeerAccess(deadline) {
			qp.failEvent(rdma.EventQueuePairError, fmt.Errorf("shm: close region: %s has been inside an access for %v, and is probably suspended: %w",
				qp.peerName(), d.device.config.AccessTimeout, rdma.ErrTimeout), "")
		}
		qp.revoke(r.handle)
	}
	d.mu.Lock()
	delete(d.regions, r.index)
	d.mu.Unlock()
	r.fileMu.Lock()
	defer r.fileMu.Unlock()
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("shm: close region: %w", err)
	}
	return nil
}

// grantFor looks up a region for a peer. A peer of another user gets only what
// its requests can be about.
func (d *domain) grantFor(w want, qp *queuePair, foreign bool) (*region, bool) {
	d.mu.Lock()
	var r *region
	if w.byHandle {
		if r = d.regions[handleIndex(w.value)]; r != nil && r.handle != w.value {
			r = nil
		}
	} else {
		r = d.keys[w.value]
	}
	d.mu.Unlock()
	if r == nil || r.closed.Load() {
		return nil, false
	}
	if foreign {
		const remote = rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteAtomic
		if w.byHandle && !qp.receivesInto(r) || !w.byHandle && r.access&remote == 0 {
			return nil, false
		}
	}
	return r, true
}

func (d *domain) addPair(qp *queuePair) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return rdma.ErrClosed
	}
	d.pairs[qp.number] = qp
	bit := qp.number % bellBits
	d.retryPairs[bit] = append(d.retryPairs[bit], qp)
	return nil
}

func (d *domain) removePair(qp *queuePair) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pairs, qp.number)
	bit := qp.number % bellBits
	d.retryPairs[bit] = without(d.retryPairs[bit], qp)
}

func without[T comparable](list []T, gone T) []T {
	var kept []T
	for _, e := range list {
		if e != gone {
			kept = append(kept, e)
		}
	}
	return kept
}

// runAgent serves the doorbell: it goes on with requests whose peer has posted
// what they wait for, and wakes waiters that have no thread of their own.
func (d *domain) runAgent() {
	word := d.bell.agent()
	healed := time.Now()
	var waiters []*completionQueue
	for {
		value := word.Load()
		select {
		case <-d.stop:
			return
		default:
		}
		d.bell.retries().collect(func(bit uint32) {
			d.mu.Lock()
			pairs := d.retryPairs[bit] // never changed in place
			d.mu.Unlock()
			for _, qp := range pairs {
				qp.retry()
			}
		})
		d.mu.Lock()
		waiters = slices.AppendSeq(waiters[:0], maps.Keys(d.waiters))
		shared := slices.Collect(maps.Keys(d.shared))
		d.mu.Unlock()
		for _, s := range shared {
			s.checkLate(false) // first: what comes back counts
			s.checkLimit()
		}
		for _, cq := range waiters {
			cq.wakeIfRung()
		}
		clear(waiters) // lets go of queues that are closed
		if now := time.Now(); now.Sub(healed) >= healInterval {
			healed = now
			d.heal()
		}
		if err := futex.Wait((*uint32)(unsafe.Pointer(word)), value, healInterval); err != nil {
			d.events.add(rdma.Event{Kind: rdma.EventDeviceError, Err: fmt.Errorf("shm: agent: %w", err)})
			return
		}
	}
}

func (d *domain) ringAgent() { ringAgent(d.bell) }

func ringAgent(bell doorbell) {
	bell.agent().Add(1)
	wake(bell.agent())
}

// wake wakes all waiters. It could fail only for a word that is not mapped or
// not aligned.
func wake(word *atomic.Uint32) {
	_, _ = futex.Wake((*uint32)(unsafe.Pointer(word)), 1<<30)
}

// heal repairs what a faulty peer may have done to the doorbell, and takes back
// what one has claimed that was killed before it could tell.
func (d *domain) heal() {
	d.mu.Lock()
	queues := slices.Collect(maps.Values(d.queues))
	pairs := slices.Collect(maps.Values(d.pairs))
	shared := slices.Collect(maps.Keys(d.shared))
	d.mu.Unlock()
	for _, cq := range queues {
		cq.heal()
	}
	for _, s := range shared {
		s.checkLate(true)
	}
	for _, qp := range pairs {
		qp.heal()
	}
}

func (d *domain) addWaiter(cq *completionQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiters[cq] = struct{}{}
}

func (d *domain) removeWaiter(cq *completionQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiters, cq)
}

// Close implements rdma.Domain.
func (d *domain) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	var pairs []*queuePair
	for _, qp := range d.pairs {
		pairs = append(pairs, qp)
	}
	d.mu.Unlock()

	var errs []error
	for _, qp := range pairs {
		qp.beginClose()
	}
	for _, qp := range pairs {
		// The regions close, too, so a peer that is stuck in one does no harm.
		if err := qp.Close(); !qp.stuck {
			errs = append(errs, err)
		}
	}
	d.mu.Lock()
	var closers []interface{ Close() error }
	for s := range d.shared {
		closers = append(closers, s)
	}
	for _, cq := range d.queues {
		closers = append(closers, cq)
	}
	for _, r := range d.regions {
		closers = append(closers, r)
	}
	d.mu.Unlock()
	for _, c := range closers {
		errs = append(errs, c.Close())
	}
	close(d.stop)
	d.ringAgent()
	d.workers.Wait()
	d.events.close()
	errs = append(errs, d.bellFile.Close(), d.tableFile.Close())
	return errors.Join(errs...)
}

// pause waits a little, longer the more often it was called.
func pause(attempt int) {
	if attempt < 64 {
		runtime.Gosched()
		return
	}
	time.Sleep(min(time.Duration(attempt)*time.Microsecond, time.Millisecond))
}
