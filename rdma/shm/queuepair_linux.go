package shm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/latch"
	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/internal/domains"
)

// A queuePair sends by itself into its peer's inbox and memory, and receives
// what the peer put into its own inbox.
//
// Locks are taken in this order: sendMu, recvMu, the domain's members, a completion
// queue's mu, a shared receive queue's mu.
type queuePair struct {
	domain         *domain
	uses           domains.Queues[*sharedReceiveQueue, *completionQueue]
	number         uint32
	sendCQ, recvCQ *completionQueue
	srq            *sharedReceiveQueue
	tally          *tally // of srq, for recvCQ
	sendDepth      int
	recvDepth      int
	maxEntries     int
	receiverRetry  time.Duration

	inboxFile *memfd.File
	inbox     inbox
	inboxMu   sync.RWMutex // keeps it mapped for those who hold no other lock
	unmapped  bool

	state    atomic.Uint32
	done     chan struct{}
	stateMu  sync.Mutex
	err      error
	conn     *conn // nil until connecting
	peerText string
	ending   sync.WaitGroup // the reader and the teardown
	torn     chan struct{}  // closed when everything has been flushed
	closing  sync.Once
	closeErr error
	started  bool     // Connect or Accept has been called
	stuck    bool     // the peer was inside an access when the teardown gave up waiting
	granted  sync.Map // handles of regions that the peer was given over this connection

	// What the peer told, fixed while connected.
	remote hello
	files  peerFiles // that the peer shares
	// passing is what of the peer's memory this side passes on, and views the promise to
	// the peer, once that wants to do so with memory of this side.
	passing passing
	views   atomic.Pointer[region]
	peer    atomic.Pointer[peerDomain]
	plain   bool // counted in recvCQ.plain
	// lazy says that both processes take part in barriers: who publishes needs no
	// fence then.
	lazy atomic.Bool

	// The receiving side. recvMu guards posting; recvCQ.mu guards taking.
	recvMu   latch.Latch
	receives receiveRing
	posted   atomic.Uint64
	taken    atomic.Uint64
	room     int // what the inbox says; guarded by recvMu
	arrived  uint64
	drained  bool   // nothing more is taken from the inbox
	hot      bool   // in recvCQ.hot
	cold     bool   // the peer rings
	idle     int    // harvests that found nothing, since the last that did
	behind   int    // harvests that came just after an empty one, in a row
	need     int    // how many of those bring rests
	rests    int    // harvests that are to begin with a rest
	warm     int    // messages taken while cold
	warmArms uint64 // recvCQ.arms when the first of them was
	bit      uint32

	recvFence fence

	// With a shared receive queue, posted is how many have been lent. recvCQ.mu
	// guards these and the ring; srq.mu guards hungry.
	loan      int    // what the queue pair should be lent
	lowest    int    // the least of it that was not used, since the agent's last round
	toppedAt  uint64 // arrived, when the loan was last topped up
	widenedAt uint64 // arrived, when the loan was last doubled, where the pool grows
	recent    bool   // something was lent or used since the agent's last round
	recalled  bool   // the agent is about to take the loan back
	starving  uint32 // what the peer has been told that its next message lacks
	hungry    bool   // in srq.hungry
	short     bool   // in recvCQ.short, whose next queue pair is after
	denied    bool   // nothing has been posted for it
	after     *queuePair

	// The sending side.
	sendMu       latch.Latch
	peerAlarm    *peerAlarm
	out          inbox // the peer's
	outMemory    []byte
	sendFence    fence
	sent         uint64 // messages put into out
	outLimit     uint64 // how many may be, as last seen
	outEpoch     uint64 // of the peer's gate, when outLimit was read
	outRoom      int    // what fits into each of those, without looking
	unbacked     bool   // the last message has no receive yet, as far as this side knows
	starvedSince time.Time
	answers      uint64 // taken, when the last message was placed into a receive
	unanswered   uint64 // messages so placed that none has come for
	accesses     uint64
	cache        [8]*peerRegion
	asked        want
	askedValid   bool
	refused      want
	refusedValid bool
	failure      failure
	sendPosted   uint64
	sendDone     atomic.Uint64 // requests known to be done, by polling
	queue        []waiting
	queueEntries []rdma.SGE
	queueInline  [][slotInline]byte // payload of inline ones
	queueFirst   int
	queueCount   int
	reason       outcome
	since        time.Time
	blocked      bool
	timer        *time.Timer
	timerSet     bool
	timerAt      time.Time
	timers       sync.WaitGroup
}

func (d *domain) NewQueuePair(config rdma.QueuePairConfig) (rdma.QueuePair, error) {
	qp, err := d.newQueuePair(config)
	if err != nil {
		return nil, fmt.Errorf("shm: queue pair: %w", err)
	}
	return qp, nil
}

func (d *domain) newQueuePair(config rdma.QueuePairConfig) (_ *queuePair, err error) {
	a := d.device.Attributes()
	if config, err = domains.QueuePair(config, &a); err != nil {
		return nil, err
	}
	d.members.Lock()
	defer d.members.Unlock()
	uses, err := d.members.Find(&config)
	if err != nil {
		return nil, err
	}
	qp := &queuePair{
		domain: d, uses: uses, sendCQ: uses.Send, recvCQ: uses.Recv, srq: uses.Shared,
		sendDepth: config.SendDepth, recvDepth: config.RecvDepth, maxEntries: config.MaxSGE,
		receiverRetry: config.ReceiverNotReadyRetry, done: make(chan struct{}), torn: make(chan struct{}),
	}
	// What was posted before a limit was lowered by a completion that is being
	// polled must still have its place: the depth itself is the size.
	receives, entries := powerOfTwo(qp.recvDepth), qp.maxEntries
	if qp.srq != nil {
		receives, entries = min(powerOfTwo(max(d.device.config.SharedReceiveSlots, 2)), maxQueueDepth), qp.srq.maxEntries
	}
	shape := inboxShape{receives: receives, entries: uint32(entries), slots: receives}
	if qp.srq != nil {
		qp.receives = newReceiveRing(min(receives, 2*firstLoan), entries) // grows with the loan
	} else {
		qp.receives = newReceiveRing(receives, entries)
	}
	if qp.inboxFile, err = memfd.Create("verbena-inbox", shape.size(), memfd.Sparse); err != nil {
		return nil, err
	}
	qp.inbox = viewInbox(qp.inboxFile.Bytes(), shape)
	qp.need = closeBehind
	// Until the receiver looks for the first time, it has to be told.
	qp.cold = true
	qp.inbox.gate().Store(gateCold)
	if qp.srq != nil {
		qp.loan = qp.leastLoan()
	}
	qp.number = d.device.number.Next()
	qp.sendCQ.attach(qp, false)
	qp.recvCQ.attach(qp, true)
	if qp.srq != nil {
		qp.srq.attach(qp)
	}
	d.addPair(qp)
	return qp, nil
}

func (qp *queuePair) Number() uint32        { return qp.number }
func (qp *queuePair) State() rdma.State     { return rdma.State(qp.state.Load()) }
func (qp *queuePair) Done() <-chan struct{} { return qp.done }

func (qp *queuePair) Err() error {
	qp.stateMu.Lock()
	defer qp.stateMu.Unlock()
	return qp.err
}

func (qp *queuePair) peerName() string {
	qp.stateMu.Lock()
	defer qp.stateMu.Unlock()
	if qp.peerText == "" {
		return "the peer"
	}
	return qp.peerText
}

func (qp *queuePair) stateError(what string, state rdma.State) error {
	switch state {
	case rdma.StateClosed:
		return fmt.Errorf("shm: %s: %w: %w", what, rdma.ErrState, rdma.ErrClosed)
	case rdma.StateError:
		return fmt.Errorf("shm: %s: %w: it has failed: %w", what, rdma.ErrState, qp.Err())
	}
	return fmt.Errorf("shm: %s: %w: %s", what, rdma.ErrState, state)
}

// fail moves the queue pair to the error state. It may be called with any lock
// but stateMu held; what it entails happens in a goroutine. The peer, if it lives,
// is told the farewell.
func (qp *queuePair) fail(err error, farewell string) { qp.end(err, farewell, rdma.StateError) }

func (qp *queuePair) end(err error, farewell string, to rdma.State) bool {
	qp.stateMu.Lock()
	defer qp.stateMu.Unlock()
	state := qp.State()
	if state == rdma.StateClosed {
		return false
	}
	if state == rdma.StateError {
		if to == rdma.StateClosed {
			qp.state.Store(uint32(to))
		}
		return false
	}
	qp.err = err
	qp.state.Store(uint32(to))
	// Peers that are not inside an access by now stay out.
	qp.inbox.gate().Or(gateClosed)
	if kept := qp.views.Load(); kept != nil {
		kept.breakPromise() // before anybody uses the memory again
	}
	close(qp.done)
	qp.ending.Go(func() { qp.teardown(farewell) })
	return true
}

// awaitPeerAccess waits until the peer is in no access that it began before, or
// is dead. It reports false if the deadline came first.
func (qp *queuePair) awaitPeerAccess(deadline time.Time) bool {
	qp.inboxMu.RLock()
	defer qp.inboxMu.RUnlock()
	if qp.unmapped {
		return true
	}
	access := qp.inbox.access()
	value := access.Load()
	if value&1 == 0 {
		return true
	}
	for attempt := 0; access.Load() == value; attempt++ {
		if qp.peerGone() {
			return true
		}
		if attempt&63 == 63 && time.Now().After(deadline) {
			return false
		}
		pause(attempt)
	}
	return true
}

// setGate sets a bit of the inbox's gate, if that is still there.
func (qp *queuePair) setGate(bit uint64) {
	qp.inboxMu.RLock()
	defer qp.inboxMu.RUnlock()
	if !qp.unmapped {
		qp.inbox.gate().Or(bit)
	}
}

// peerGone tells whether nobody is left at the other end.
func (qp *queuePair) peerGone() bool {
	qp.stateMu.Lock()
	c := qp.conn
	qp.stateMu.Unlock()
	return c == nil || c.hungUp.Load()
}

// teardown takes the connection down and flushes. The memory of this side is
// its own again when it has run.
func (qp *queuePair) teardown(farewell string) {
	defer close(qp.torn)
	qp.stateMu.Lock()
	c := qp.conn
	qp.stateMu.Unlock()
	// Out of the peer's memory first.
	qp.sendMu.Lock()
	qp.sendMu.Unlock() //nolint:staticcheck // waits for who is inside
	if c != nil {
		c.goodbye(farewell)
		barrier()
		qp.stuck = !qp.awaitPeerAccess(time.Now().Add(qp.domain.device.config.AccessTimeout))
		c.close()
	}
	qp.flushSends()
	qp.flushReceives()
	if qp.srq != nil {
		qp.srq.feed()
	}
	for _, cq := range []*completionQueue{qp.sendCQ, qp.recvCQ} {
		cq.notify(true)
	}
}

// flushReceives completes what has arrived, then flushes the other receives.
func (qp *queuePair) flushReceives() {
	qp.recvMu.Lock()
	defer qp.recvMu.Unlock()
	cq := qp.recvCQ
	cq.mu.Lock()
	defer cq.mu.Unlock()
	// Those of shared receives outlive the queue pair.
	owner := qp
	if qp.srq != nil {
		owner = nil
	}
	var batch [16]rdma.Completion
	for {
		n := qp.harvest(batch[:])
		if n == 0 {
			break
		}
		for _, c := range batch[:n] {
			if e := cq.push(); e != nil {
				*e = entry{completion: c, pair: owner}
			}
		}
	}
	qp.drained = true
	if qp.srq != nil {
		qp.srq.takeBack(qp, qp.arrived)
		return
	}
	for ; qp.arrived < qp.posted.Load(); qp.arrived++ {
		if e := cq.push(); e != nil {
			*e = entry{completion: rdma.Completion{ID: qp.receives.at(qp.arrived).id, QueuePair: qp.number, Op: rdma.OpRecv, Status: rdma.StatusFlushed}, pair: qp}
		}
	}
	qp.taken.Store(qp.arrived)
}

// Disconnect implements rdma.QueuePair.
func (qp *queuePair) Disconnect() error {
	if state := qp.State(); state == rdma.StateInit {
		return qp.stateError("disconnect", state)
	}
	qp.fail(fmt.Errorf("shm: disconnected by this side: %w", rdma.ErrDisconnected), "disconnected")
	return nil
}

func (qp *queuePair) beginClose() { qp.end(errClosed("queue pair"), "closed", rdma.StateClosed) }

// Close implements rdma.QueuePair. If the peer is suspended in the middle of an
// access, it waits for Config.AccessTimeout, destroys the queue pair all the same
// and returns an error that wraps rdma.ErrTimeout: closing the regions is then the
// only way to be safe from the peer.
func (qp *queuePair) Close() error {
	qp.closing.Do(func() {
		qp.beginClose()
		qp.closeErr = qp.destroy()
	})
	return qp.closeErr
}

func (qp *queuePair) destroy() error {
	<-qp.torn
	qp.ending.Wait()
	qp.timers.Wait()
	d := qp.domain
	if qp.plain {
		qp.recvCQ.plain.Add(-1)
	}
	qp.recvCQ.detach(qp, true)
	qp.sendCQ.detach(qp, false)
	if qp.srq != nil {
		qp.srq.detach(qp)
	}
	d.removePair(qp) // from here on its queues may be closed
	var errs []error
	if qp.stuck {
		errs = append(errs, fmt.Errorf("%s has been inside an access to memory of this side for %v, and is probably suspended: "+
			"when it goes on, it may still write there: close the regions that it could write to before their memory is used again: %w",
			qp.peerName(), d.device.config.AccessTimeout, rdma.ErrTimeout))
	}
	qp.files.close()
	qp.passing.close()
	if kept := qp.views.Load(); kept != nil {
		errs = append(errs, kept.Close())
	}
	peer := qp.peer.Swap(nil)
	qp.sendMu.Lock()
	clear(qp.cache[:])
	// Nothing waits any more. Whoever still refers to the queue pair does not keep
	// these, which are most of its memory.
	qp.queue, qp.queueEntries, qp.queueInline = nil, nil, nil
	qp.recvMu.Lock()
	errs = append(errs, memfd.Unmap(qp.outMemory))
	qp.outMemory = nil
	alarm := qp.peerAlarm
	qp.peerAlarm = nil
	qp.inboxMu.Lock()
	qp.unmapped = true
	errs = append(errs, qp.inboxFile.Close())
	qp.inboxMu.Unlock()
	qp.recvMu.Unlock()
	qp.sendMu.Unlock()
	if peer != nil {
		peer.leave(qp)
		if alarm != nil {
			errs = append(errs, peer.dropAlarm(qp.remote.bell.queue, alarm))
		}
		errs = append(errs, d.device.releasePeer(peer))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("shm: close queue pair: %w", err)
	}
	return nil
}

// forget drops a region of the peer that is about to be unmapped.
func (qp *queuePair) forget(r *peerRegion) {
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	for i := range qp.cache {
		if qp.cache[i] == r {
			qp.cache[i] = nil
		}
	}
}

// revoke tells the peer to unmap a region, if it was given that.
func (qp *queuePair) revoke(handle uint32) {
	if _, ok := qp.granted.LoadAndDelete(handle); !ok {
		return
	}
	qp.stateMu.Lock()
	c := qp.conn
	qp.stateMu.Unlock()
	if c != nil {
		c.revoke(handle)
	}
}
