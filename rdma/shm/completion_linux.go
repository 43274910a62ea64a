package shm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-data/verbena/internal/futex"
	"github.com/verbena-data/verbena/internal/release"
	"github.com/verbena-data/verbena/rdma"
)

// How often a queue pair may be found empty before it is polled no longer and
// its sender has to ring. Few are cheap to look at for longer.
const (
	patienceFew  = 4096
	patienceMany = 64
	few          = 4
)

// A receiver that is as fast as its sender would take each line away from it as
// soon as it is written, and the next one, too, before it is. So after some
// messages in a row that came just after a look in vain, the next harvests begin
// with a rest, in which the sender gets ahead. That is worth it if several messages
// come meanwhile; if not, it is tried again after twice as many.
const (
	closeLooks  = 4 // looks in vain that are few
	closeBehind = 8 // messages in a row
	closeMost   = 4096
	restsAtOnce = 64 // harvests
	restLength  = 12 // of about 20 ns each
	restWorth   = 3  // messages
)

// A queue pair whose sender rings is polled without that again after so many
// messages in a row which nobody armed the queue for, so that a receiver that
// sleeps between messages need not call barrier for each, and only if so few
// queue pairs are polled that looking at all of them is cheaper than rings.
const (
	warmAfter = 32
	warmest   = 16
)

// A completionQueue stores the completions of the send queues and of whatever
// is flushed. Those of receives stay in the inboxes until Poll takes them from
// there, so they never overrun it.
type completionQueue struct {
	domain *domain
	index  uint32 // of its block in the doorbell
	bell   bellView

	// mu guards what follows and the receiving side of the queue pairs that
	// complete receives here.
	mu      latch
	ring    []entry
	first   int
	count   int
	hot     []*queuePair
	next    int            // of hot, to be polled first
	ringers [][]*queuePair // by their bit
	armed   bool
	arms    uint64 // calls of Arm
	overrun bool
	failing bool // failUsers is about to run
	users   int
	closed  atomic.Bool
	waits   sync.WaitGroup // calls of Wait

	blockedMu    sync.Mutex
	blocked      []*queuePair // whose next request waits for the peer
	skip, skips  int          // polls to leave them alone, and the last choice of that
	blockedCount atomic.Int32

	wake chan struct{} // by the agent
}

// An entry is a completion and what polling it tells its send queue.
type entry struct {
	completion rdma.Completion
	pair       *queuePair // nil for a shared receive that a queue pair's end completed
	position   uint64     // requests of the send queue that are known to be done; 0 for a receive
}

func (d *domain) NewCompletionQueue(depth int) (rdma.CompletionQueue, error) {
	if limit := d.device.Attributes().MaxCompletions; depth < 1 || depth > limit {
		return nil, fmt.Errorf("shm: completion queue of depth %d: %w: from 1 to %d", depth, rdma.ErrInvalid, limit)
	}
	cq := &completionQueue{domain: d, ring: make([]entry, depth), wake: make(chan struct{}, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed("domain")
	}
	if len(d.queues) == bellQueues {
		return nil, fmt.Errorf("shm: the domain has %d completion queues already: let queue pairs share them: %w", bellQueues, rdma.ErrQueueFull)
	}
	for d.queues[d.nextQueue%bellQueues] != nil {
		d.nextQueue++
	}
	cq.index = d.nextQueue % bellQueues
	d.nextQueue++
	cq.bell = d.bell.block(cq.index)
	cq.bell.armed().Store(0)
	d.queues[cq.index] = cq
	return cq, nil
}

func (cq *completionQueue) attach(qp *queuePair, receives bool) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.closed.Load() {
		return errClosed("completion queue")
	}
	cq.users++
	if receives {
		bit := slices.IndexFunc(cq.ringers, func(pairs []*queuePair) bool { return len(pairs) == 0 })
		switch {
		case bit >= 0:
		case len(cq.ringers) < bellBits:
			bit = len(cq.ringers)
			cq.ringers = append(cq.ringers, nil)
		default:
			bit = int(qp.number % bellBits)
		}
		qp.bit = uint32(bit)
		cq.ringers[bit] = append(cq.ringers[bit], qp)
	}
	return nil
}

// detach takes the queue pair out, with its completions but those that have no
// owner.
func (cq *completionQueue) detach(qp *queuePair, receives bool) {
	cq.mu.Lock()
	cq.users--
	if receives {
		cq.ringers[qp.bit] = without(cq.ringers[qp.bit], qp)
		cq.hot = without(cq.hot, qp)
		qp.hot = false
	}
	kept := 0
	for i := range cq.count {
		e := cq.ring[(cq.first+i)%len(cq.ring)]
		if e.pair != qp {
			cq.ring[(cq.first+kept)%len(cq.ring)] = e
			kept++
		}
	}
	cq.count = kept
	cq.mu.Unlock()
	cq.unblock(qp)
}

// push makes room for a completion, which the caller fills in place: a copy of
// what has just been written in pieces would wait for them. It returns nil if
// there is none. The caller holds mu.
func (cq *completionQueue) push() *entry {
	if cq.count == len(cq.ring) {
		cq.overflow()
		return nil
	}
	i := cq.first + cq.count
	if i >= len(cq.ring) {
		i -= len(cq.ring)
	}
	cq.count++
	return &cq.ring[i]
}

func (cq *completionQueue) overflow() {
	first := !cq.overrun
	cq.overrun = true
	if !cq.failing {
		cq.failing = true
		cq.domain.workers.Go(func() { cq.failUsers(first) })
	}
}

// failUsers fails the queue pairs whose completions have been lost.
func (cq *completionQueue) failUsers(first bool) {
	err := fmt.Errorf("shm: completion queue of %d entries: %w: make it deep enough for everything outstanding on its queue pairs", len(cq.ring), rdma.ErrOverrun)
	if first {
		cq.domain.events.add(rdma.Event{Kind: rdma.EventCompletionOverrun, Completions: cq, Err: err})
	}
	// A queue pair that is made later loses completions of its own, and fails then.
	cq.mu.Lock()
	cq.failing = false
	cq.mu.Unlock()
	cq.domain.mu.Lock()
	var pairs []*queuePair
	for _, qp := range cq.domain.pairs {
		if qp.sendCQ == cq || qp.recvCQ == cq {
			pairs = append(pairs, qp)
		}
	}
	cq.domain.mu.Unlock()
	for _, qp := range pairs {
		qp.fail(err, "")
	}
	cq.notify(true)
}

// notify wakes who waits for a completion of this side.
func (cq *completionQueue) notify(solicited bool) { ring(cq.domain.bell, cq.bell, solicited) }

// ring wakes who waits at a completion queue, here or in a peer, if it asked for it.
func ring(bell doorbell, v bellView, solicited bool) {
	armed := v.armed().Load()
	if armed&(armedAny|armedSolicited) == 0 || armed&armedAny == 0 && !solicited {
		return
	}
	// The waiter may change armed to tell that it sleeps.
	for !v.armed().CompareAndSwap(armed, 0) {
		if armed = v.armed().Load(); armed == 0 {
			return
		}
	}
	v.futex().Add(1)
	switch {
	case armed&armedAgent != 0:
		ringAgent(bell)
	case armed&armedSleeping != 0:
		wake(v.futex())
	}
}

// Poll implements rdma.CompletionQueue.
func (cq *completionQueue) Poll(into []rdma.Completion) (int, error) {
	if cq.blockedCount.Load() != 0 {
		cq.retryBlocked()
	}
	cq.mu.Lock()
	n, err := cq.poll(into)
	cq.mu.Unlock()
	return n, err
}

func (cq *completionQueue) poll(into []rdma.Completion) (n int, err error) {
	for n < len(into) && cq.count > 0 {
		e := &cq.ring[cq.first]
		if cq.first++; cq.first == len(cq.ring) {
			cq.first = 0
		}
		cq.count--
		into[n] = e.completion
		n++
		if e.position != 0 {
			release.Store(&e.pair.sendDone, e.position)
		}
	}
	if n < len(into) && !cq.closed.Load() {
		if cq.bell.bits().summary().Load() != 0 {
			cq.bell.bits().collect(cq.heat)
		}
		if len(cq.hot) > 0 {
			n += cq.harvest(into[n:])
		}
	}
	if n == 0 {
		switch {
		case cq.overrun:
			return 0, fmt.Errorf("shm: poll: %w: its queue pairs have failed; make the queue deeper", rdma.ErrOverrun)
		case cq.closed.Load():
			return 0, errClosed("poll")
		}
	}
	return n, nil
}

// heat makes the queue pairs behind a bit of the doorbell polled again.
func (cq *completionQueue) heat(bit uint32) {
	if int(bit) >= len(cq.ringers) {
		return // some peer scribbles
	}
	for _, qp := range cq.ringers[bit] {
		if !qp.hot {
			qp.hot, qp.idle = true, 0
			cq.hot = append(cq.hot, qp)
		}
	}
}

// harvest takes receive completions out of the inboxes of hot queue pairs.
func (cq *completionQueue) harvest(into []rdma.Completion) int {
	if cq.armed && cq.bell.armed().Load() == 0 {
		cq.armed = false
	}
	n, cooled := 0, false
	patience := patienceFew
	if len(cq.hot) > few {
		patience = patienceMany
	}
	// Beginning where the last call ran out of room is fair to all.
	i := cq.next
	for left := len(cq.hot); left > 0; left-- {
		if i >= len(cq.hot) {
			i = 0
		}
		if n == len(into) {
			break
		}
		qp := cq.hot[i]
		// With several to look at, each is left alone for a while anyway.
		rested := qp.rests > 0 && qp.idle == 0 && len(cq.hot) == 1
		if rested {
			qp.rests--
			relax(restLength)
		}
		k := qp.harvest(into[n:])
		n += k
		switch {
		case k > 0:
			qp.keepPace(k, rested)
			qp.idle = 0
			if qp.cold && !cq.armed && len(cq.hot) <= warmest && qp.warms(k, cq.arms) {
				qp.setCold(false)
			}
		case qp.cold:
			// It was empty after its sender had been told to ring.
			last := len(cq.hot) - 1
			cq.hot[i] = cq.hot[last]
			cq.hot[last] = nil
			cq.hot = cq.hot[:last]
			qp.hot = false
			continue
		default:
			if qp.idle++; qp.idle > patience {
				qp.setCold(true)
				cooled = true
			}
		}
		i++
	}
	cq.next = i
	if cooled {
		barrier()
	}
	return n
}

// Arm implements rdma.CompletionQueue.
func (cq *completionQueue) Arm(solicitedOnly bool) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.closed.Load() {
		return errClosed("arm")
	}
	mode := armedAny
	if solicitedOnly {
		mode = armedSolicited
	}
	cq.bell.armed().Store(mode)
	cq.armed = true
	cq.arms++
	// Senders look at their gate first, and at the doorbell only if it says so.
	cooled := false
	for _, qp := range cq.hot {
		if !qp.cold {
			qp.setCold(true)
			cooled = true
		}
	}
	if cooled {
		barrier()
	}
	return nil
}

// Wait implements rdma.CompletionQueue.
func (cq *completionQueue) Wait(ctx context.Context) error {
	cq.mu.Lock()
	if cq.closed.Load() {
		cq.mu.Unlock()
		return errClosed("wait")
	}
	cq.waits.Add(1)
	cq.mu.Unlock()
	defer cq.waits.Done()
	if err := cq.waitOver(ctx); err != errWaiting {
		return err
	}
	if cq.domain.sleepers.Add(1) > maxSleepers {
		defer cq.domain.sleepers.Add(-1)
		return cq.waitForAgent(ctx)
	}
	defer cq.domain.sleepers.Add(-1)
	word := cq.bell.futex()
	if ctx.Done() != nil {
		ended := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(ended)
			word.Add(1)
			wake(word)
		})
		defer func() {
			if !stop() {
				<-ended
			}
		}()
	}
	for {
		value := word.Load()
		if err := cq.waitOver(ctx); err != errWaiting {
			return err
		}
		if !cq.tellArmed(armedSleeping) {
			continue
		}
		if err := futex.Wait((*uint32)(unsafe.Pointer(word)), value, healInterval); err != nil {
			return fmt.Errorf("shm: wait: %w", err)
		}
	}
}

// errWaiting says that a wait is not over.
var errWaiting = errors.New("shm: still waiting")

func (cq *completionQueue) waitOver(ctx context.Context) error {
	switch {
	case cq.closed.Load():
		return errClosed("wait")
	case cq.bell.armed().Load()&(armedAny|armedSolicited) == 0:
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errWaiting
}

// tellArmed adds how the waiter wants to be woken, unless the event has happened.
func (cq *completionQueue) tellArmed(how uint32) bool {
	for {
		armed := cq.bell.armed().Load()
		if armed&(armedAny|armedSolicited) == 0 {
			return false
		}
		if cq.bell.armed().CompareAndSwap(armed, armed&(armedAny|armedSolicited)|how) {
			return true
		}
	}
}

func (cq *completionQueue) waitForAgent(ctx context.Context) error {
	cq.domain.addWaiter(cq)
	defer cq.domain.removeWaiter(cq)
	for {
		if err := cq.waitOver(ctx); err != errWaiting {
			return err
		}
		if !cq.tellArmed(armedAgent) {
			continue
		}
		select {
		case <-cq.wake:
		case <-ctx.Done():
		}
	}
}

// wakeIfRung is the agent's part of waitForAgent.
func (cq *completionQueue) wakeIfRung() {
	if cq.closed.Load() || cq.bell.armed().Load()&(armedAny|armedSolicited) == 0 {
		select {
		case cq.wake <- struct{}{}:
		default:
		}
	}
}

// heal looks for messages that nobody has been told of, because some peer has
// scribbled over the doorbell, and reports them.
func (cq *completionQueue) heal() {
	cq.mu.Lock()
	if cq.closed.Load() {
		cq.mu.Unlock()
		return
	}
	lost, solicited := false, false
	for _, pairs := range cq.ringers {
		for _, qp := range pairs {
			if !qp.hot || cq.armed {
				if header, ok := qp.pending(); ok {
					cq.bell.bits().set(qp.bit)
					lost, solicited = true, solicited || header.solicited()
				}
			}
		}
	}
	cq.mu.Unlock()
	if lost {
		cq.notify(solicited)
	}
}

// block notes that the queue pair waits for its peer. Its sendMu is held.
func (cq *completionQueue) block(qp *queuePair) {
	cq.blockedMu.Lock()
	cq.blocked = append(cq.blocked, qp)
	cq.blockedCount.Store(int32(len(cq.blocked)))
	cq.blockedMu.Unlock()
}

func (cq *completionQueue) unblock(qp *queuePair) {
	cq.blockedMu.Lock()
	cq.dropBlocked(qp)
	cq.blockedMu.Unlock()
}

func (cq *completionQueue) dropBlocked(qp *queuePair) {
	for i, other := range cq.blocked {
		if other == qp {
			last := len(cq.blocked) - 1
			cq.blocked[i] = cq.blocked[last]
			cq.blocked[last] = nil
			cq.blocked = cq.blocked[:last]
			break
		}
	}
	cq.blockedCount.Store(int32(len(cq.blocked)))
}

// retryBlocked goes on with requests that waited, for whoever polls.
func (cq *completionQueue) retryBlocked() {
	if !cq.blockedMu.TryLock() {
		return
	}
	defer cq.blockedMu.Unlock()
	// Whoever looks too often takes the line away from the peer that writes it.
	if cq.skip > 0 {
		cq.skip--
		return
	}
	moved := false
	for i := len(cq.blocked) - 1; i >= 0; i-- {
		qp := cq.blocked[i]
		if !qp.sendMu.TryLock() {
			continue
		}
		before := qp.queueCount
		if qp.progress() {
			cq.dropBlocked(qp)
			qp.blocked = false
		}
		moved = moved || qp.queueCount != before
		qp.sendMu.Unlock()
	}
	cq.skips = min(2*cq.skips+1, mostSkips)
	if moved {
		cq.skips = 0
	}
	cq.skip = cq.skips
}

const mostSkips = 31

// Close implements rdma.CompletionQueue.
func (cq *completionQueue) Close() error {
	cq.mu.Lock()
	if cq.users > 0 {
		cq.mu.Unlock()
		return fmt.Errorf("shm: close completion queue: %w: %d uses by queue pairs", rdma.ErrInUse, cq.users)
	}
	first := cq.closed.CompareAndSwap(false, true)
	cq.mu.Unlock()
	if !first {
		return nil
	}
	cq.bell.futex().Add(1)
	wake(cq.bell.futex())
	select {
	case cq.wake <- struct{}{}:
	default:
	}
	cq.waits.Wait()
	cq.domain.mu.Lock()
	delete(cq.domain.queues, cq.index)
	cq.domain.mu.Unlock()
	return nil
}
