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
	"github.com/verbena-data/verbena/rdma/internal/domains"
)

// healInterval is how long a wake-up can stay lost after a faulty peer has
// scribbled over the doorbell that it shares with others.
const healInterval = 5 * time.Second

// maxSleepers is how many waiters of a domain sleep on a thread of their own.
// The others share that of the agent.
const maxSleepers = 4

// maxAlarms is how many queues of a domain have alarms: each takes a descriptor here and
// one in every peer that rings it.
const maxAlarms = 8

type domain struct {
	device    *device
	unpolled  func() bool // from alarmsWhile
	id        [16]byte
	tableFile *memfd.File
	bellFile  *memfd.File
	table     table
	bell      doorbell
	events    domains.Events

	workers  sync.WaitGroup
	stop     chan struct{}
	sleepers atomic.Int32
	start    time.Time
	asked    atomic.Int64 // nanoseconds since start: when a peer has last asked the agent; 0: never

	members domains.Members[*queuePair, *sharedReceiveQueue, *completionQueue, *region]
	// By the members' lock:
	regions     map[uint32]*region // by table index
	keys        map[uint32]*region
	nextIndex   uint32
	blocks      map[uint32]struct{} // of the doorbell, in use by completion queues
	nextBlock   uint32
	retryPairs  [bellBits][]*queuePair
	waiters     map[*completionQueue]struct{} // that the agent wakes
	alarms      int                           // of queues that are open
	alarmNumber uint32                        // of the next
	passed      atomic.Int32                  // regions of peers that are passed on; no lock
}

func errClosed(what string) error { return fmt.Errorf("shm: %s: %w", what, rdma.ErrClosed) }

func (d *domain) Device() rdma.Device { return d.device }

type region struct {
	domain  *domain
	file    *memfd.File // nil: memory of the program that no peer reaches
	bytes   []byte
	shift   uint64 // of bytes in the file
	size    uint64 // of the file, as peers map it
	index   uint32
	handle  uint32
	key     uint32
	state   uint64
	access  rdma.Access
	reader  *queuePair // whose peer may have the file, which is no memory; nil: a region
	aside   bool       // it stands for no memory of this side, inside which somebody could be
	passed  *passedOn  // the peer's region that it stands for; nil: none
	written bool       // memory of the program that this side may write to; access does not tell
	closed  atomic.Bool
	leaving sync.Once
	closing sync.Once
	err     error
	fileMu  sync.Mutex // held while the descriptor is used or closed
}

func (d *domain) Allocate(size int, access rdma.Access) (rdma.Region, error) {
	a := d.device.Attributes()
	if err := domains.Region(size, access, &a); err != nil {
		return nil, fmt.Errorf("shm: allocate: %w", err)
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
	r := &region{domain: d, file: file, bytes: file.Bytes()[:size:size], size: uint64(size), access: access}
	if err := d.register(r); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: allocate %d bytes: %w", size, err), file.Close())
	}
	return r, nil
}

// Register implements [rdma.RegisteringDomain]. A peer maps the file behind the
// memory, and all of it.
func (d *domain) Register(memory rdma.UserMemory) (rdma.Region, error) {
	a := d.device.Attributes()
	size := len(memory.Bytes)
	if err := domains.Region(size, memory.Access, &a); err != nil {
		return nil, fmt.Errorf("shm: register: %w", err)
	}
	// Without local write in its access it passes no check of a receive, which comes
	// often. The peer would not find a receive there that lies in no file.
	r := &region{domain: d, bytes: memory.Bytes[:size:size], access: memory.Access &^ rdma.AccessLocalWrite, written: memory.Access&rdma.AccessLocalWrite != 0}
	f := memory.File
	switch {
	case memory.Access&^rdma.AccessLocalWrite == 0:
	case f == nil:
		return nil, fmt.Errorf("shm: register: %w: peers map the file behind memory, and this has none that they could get", rdma.ErrUnsupported)
	case f.Offset < 0 || int64(size) > f.Size-f.Offset || f.Size > maxRegion:
		return nil, fmt.Errorf("shm: register: %w: %d bytes at %d of a file of %d", rdma.ErrInvalid, size, f.Offset, f.Size)
	default:
		err := memfd.Check(f.FD, f.Size)
		if err == nil {
			r.file, err = memfd.Share(f.FD)
		}
		if err != nil {
			return nil, fmt.Errorf("shm: register: %w", err)
		}
		r.shift, r.size = uint64(f.Offset), uint64(f.Size)
	}
	if err := d.register(r); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: register %d bytes: %w", size, err), r.closeFile())
	}
	return r, nil
}

// Pins implements [rdma.RegisteringDomain]: processes copy from their mappings.
func (d *domain) Pins() bool { return false }

// closeFile lets go of the memory. fileMu is held, or nobody knows the region.
func (r *region) closeFile() error {
	if r.file == nil {
		return nil
	}
	if r.passed != nil {
		return errors.Join(r.file.Close(), r.passed.table.Close())
	}
	return r.file.Close()
}

// register gives the region an index, a generation and a key.
func (d *domain) register(r *region) error {
	d.members.Lock()
	defer d.members.Unlock()
	if err := d.members.Usable(); err != nil {
		return err
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
	d.members.Regions.Add(r)
	d.table.state(r.index).Store(r.state)
	return nil
}

func (r *region) Bytes() []byte {
	if r.passed != nil {
		return r.passed.of.bytes()
	}
	return r.bytes
}

func (r *region) Key() uint32     { return r.key }
func (r *region) Address() uint64 { return r.base() + r.shift }

func (r *region) Access() rdma.Access {
	if r.written {
		return r.access | rdma.AccessLocalWrite
	}
	return r.access
}

// base is the remote address of the first byte of the file.
func (r *region) base() uint64 { return uint64(r.handle) << 36 }

// Close implements rdma.Region. The wait for a peer that is suspended inside an
// access is bounded by Config.AccessTimeout; its connection then fails, and the
// memory stays with it.
func (r *region) Close() error {
	r.closing.Do(func() { r.err = r.close() })
	return r.err
}

func (r *region) close() error {
	r.leaving.Do(r.withdraw)
	r.domain.members.Lock()
	_, _ = r.domain.members.Regions.Remove(r)
	r.domain.members.Unlock()
	r.fileMu.Lock()
	defer r.fileMu.Unlock()
	if err := r.closeFile(); err != nil {
		return fmt.Errorf("shm: close region: %w", err)
	}
	return nil
}

// Withdraw implements rdma.WithdrawableRegion.
func (r *region) Withdraw() error {
	r.leaving.Do(r.withdraw)
	return nil
}

func (r *region) withdraw() {
	d := r.domain
	if r.aside {
		r.closed.Store(true)
		d.table.state(r.index).Store(r.state &^ 1)
		d.members.Lock()
		delete(d.keys, r.key)
		delete(d.regions, r.index)
		pairs := d.members.Pairs.List()
		d.members.Unlock()
		if r.reader != nil {
			r.reader.revoke(r.handle)
		}
		if r.passed != nil {
			for _, qp := range pairs {
				qp.revoke(r.handle)
			}
		}
		return
	}
	d.members.Lock()
	delete(d.keys, r.key)
	pairs, queues := d.members.Pairs.List(), d.members.Completions.List()
	d.members.Unlock()

	r.closed.Store(true)
	d.table.state(r.index).Store(r.state &^ 1)
	for _, qp := range pairs {
		if qp.receivesInto(r) {
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
	d.members.Lock()
	delete(d.regions, r.index)
	d.members.Unlock()
}

// grantFor looks up a region for a peer, and the rights that it gets. A peer of
// another user gets only what its requests can be about.
func (d *domain) grantFor(w want, qp *queuePair, foreign bool) (*region, rdma.Access, bool) {
	d.members.Lock()
	var r *region
	if w.byHandle {
		if r = d.regions[handleIndex(w.value)]; r != nil && r.handle != w.value {
			r = nil
		}
	} else {
		r = d.keys[w.value]
	}
	d.members.Unlock()
	if r == nil || r.closed.Load() || r.file == nil || r.reader != nil || r.passed != nil && !qp.passes() {
		return nil, 0, false
	}
	if !foreign {
		return r, r.access, true
	}
	access := r.access &^ rdma.AccessLocalWrite
	switch receives := qp.receivesInto(r); {
	case receives:
		access = r.access
	case w.byHandle || access == 0:
		return nil, 0, false
	}
	return r, access, true
}

// descriptor returns a descriptor of the memory for a peer. The caller closes it.
func (r *region) descriptor(writable bool) (int, error) {
	r.fileMu.Lock()
	defer r.fileMu.Unlock()
	if r.closed.Load() {
		return -1, rdma.ErrClosed
	}
	if writable {
		return r.file.Duplicate()
	}
	return r.file.OpenReadOnly()
}

// addPair makes a queue pair a member. The members' lock is held.
func (d *domain) addPair(qp *queuePair) {
	d.members.AddPair(qp, qp.uses)
	bit := qp.number % bellBits
	d.retryPairs[bit] = append(d.retryPairs[bit], qp)
}

func (d *domain) removePair(qp *queuePair) {
	d.members.Lock()
	defer d.members.Unlock()
	d.members.DropPair(qp, qp.uses)
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

// runAgent serves the doorbell. It goes on with requests whose peer has posted what
// they wait for, lends receives to peers that ask, takes back those that idle peers
// hold, and wakes waiters that have no thread of their own.
func (d *domain) runAgent() {
	word := d.bell.agent()
	healed := time.Now()
	var waiters []*completionQueue
	var shared []*sharedReceiveQueue
	for {
		value := word.Load()
		select {
		case <-d.stop:
			return
		default:
		}
		d.bell.retries().collect(func(bit uint32) {
			d.asked.Store(int64(time.Since(d.start)))
			d.members.Lock()
			pairs := d.retryPairs[bit] // never changed in place
			d.members.Unlock()
			for _, qp := range pairs {
				qp.retry()
				qp.answer()
			}
		})
		d.members.Lock()
		waiters = slices.AppendSeq(waiters[:0], maps.Keys(d.waiters))
		shared = d.members.Shared.AppendTo(shared[:0])
		d.members.Unlock()
		rest := healInterval
		for _, s := range shared {
			rest = min(rest, s.sweepIfWanted())
		}
		for _, cq := range waiters {
			cq.wakeIfRung()
		}
		clear(waiters) // lets go of queues that are closed
		clear(shared)
		if now := time.Now(); now.Sub(healed) >= healInterval {
			healed = now
			d.heal()
		}
		if err := futex.WaitIdle((*uint32)(unsafe.Pointer(word)), value, rest); err != nil {
			d.events.Add(rdma.Event{Kind: rdma.EventDeviceError, Err: fmt.Errorf("shm: agent: %w", err)})
			return
		}
	}
}

// agentBusy tells that peers have asked the agent lately. Who sleeps then gives Go's
// processor away at once: if all processors are with threads that sleep in the kernel,
// the agent, and whoever it was to help, wait for up to 10 ms until Go's monitor takes
// one back.
func (d *domain) agentBusy() bool {
	asked := d.asked.Load()
	return asked != 0 && time.Since(d.start)-time.Duration(asked) < agentBusyFor
}

const agentBusyFor = 100 * time.Millisecond

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

// heal repairs what a faulty peer may have done to the doorbell.
func (d *domain) heal() {
	d.members.Lock()
	queues, pairs := d.members.Completions.List(), d.members.Pairs.List()
	d.members.Unlock()
	for _, cq := range queues {
		cq.heal()
	}
	for _, qp := range pairs {
		qp.heal()
	}
}

func (d *domain) addWaiter(cq *completionQueue) {
	d.members.Lock()
	defer d.members.Unlock()
	d.waiters[cq] = struct{}{}
}

func (d *domain) removeWaiter(cq *completionQueue) {
	d.members.Lock()
	defer d.members.Unlock()
	if cq.alarm == nil {
		delete(d.waiters, cq)
	}
}

// Close implements rdma.Domain.
func (d *domain) Close() error {
	first, err := d.members.Close(func(qp *queuePair) error {
		err := qp.Close()
		if qp.stuck {
			return nil // the regions close, too, so that such a peer does no harm
		}
		return err
	})
	if !first {
		return nil
	}
	close(d.stop)
	d.ringAgent()
	d.workers.Wait()
	d.events.Stop()
	return errors.Join(err, d.bellFile.Close(), d.tableFile.Close())
}

// pause waits a little, longer the more often it was called.
func pause(attempt int) {
	if attempt < 64 {
		runtime.Gosched()
		return
	}
	time.Sleep(min(time.Duration(attempt)*time.Microsecond, time.Millisecond))
}
