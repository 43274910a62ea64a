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
	"github.com/verbena-data/verbena/internal/latch"
	"github.com/verbena-data/verbena/internal/release"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/internal/domains"
)

// A queue pair that has been found empty so many times in a row is cold: its sender
// rings, and the next look in vain is the last. Up to 4 queue pairs are cheap to look
// at, so they are given 4,096 looks; each of more is given 64.
const (
	patienceFew  = 4096
	patienceMany = 64
	few          = 4
)

// A receiver that is as fast as its sender takes each line away from it as soon as it
// is written, and the next line before it is written. Both are then slow.
//
// So a receiver that is just behind rests before it looks. It is just behind if 8
// harvests in a row found a message after at most 4 looks in vain. The next 64
// harvests then rest for 12 times 20 ns each, and the sender gets ahead. A rest is
// worth it if at least 3 messages come meanwhile. If fewer come, rests stop, and
// the next try takes twice as many harvests, up to 4,096.
const (
	closeLooks  = 4
	closeBehind = 8
	closeMost   = 4096
	restsAtOnce = 64
	restLength  = 12
	restWorth   = 3
)

// The sender of a cold queue pair may stop ringing after 32 messages that were taken
// without an Arm in between. A receiver that sleeps between messages so calls barrier
// for none of them. Nor may it if more than 16 queue pairs are polled: looking at all
// of those costs more than the rings.
const (
	warmAfter = 32
	warmest   = 16
)

// A completionQueue stores the completions of send queues and of what is flushed.
// Received messages stay in the inboxes until Poll takes them from there. So they
// never overrun the queue.
type completionQueue struct {
	domain *domain
	index  uint32 // of its block in the doorbell
	bell   bellView

	// mu guards what follows and the receiving side of the queue pairs that
	// complete receives here.
	mu      latch.Latch
	ring    []entry
	first   int
	count   int
	hot     []*queuePair
	next    int            // of hot, to be polled first
	ringers [][]*queuePair // by their bit
	short   *queuePair     // the first of those whose loans are smaller than they should be
	armed   bool
	arms    uint64 // calls of Arm
	overrun bool
	failing bool // failUsers is about to run
	closed  atomic.Bool
	waits   sync.WaitGroup // calls of Wait

	blockedMu    sync.Mutex
	blocked      []*queuePair // whose next request waits for the peer
	skip         int          // polls that leave them alone
	skips        int          // what skip was last set to
	blockedCount atomic.Int32

	wake chan struct{} // by the agent

	alarm *alarm                // nil: waiters sleep in the futex, or are woken by the agent
	plain atomic.Int32          // queue pairs whose peers take no alarms
	rung  func(fd uintptr) bool // waitIsOver, for the alarm
}

// An entry is a completion and what polling it tells its send queue.
type entry struct {
	completion rdma.Completion
	pair       *queuePair // nil for a shared receive that a queue pair's end completed
	position   uint64     // requests of the send queue that are known to be done; 0 for a receive
}

func (d *domain) NewCompletionQueue(depth int) (rdma.CompletionQueue, error) {
	a := d.device.Attributes()
	if err := domains.CompletionQueue(depth, &a); err != nil {
		return nil, fmt.Errorf("shm: completion queue: %w", err)
	}
	cq := &completionQueue{domain: d, ring: make([]entry, depth), wake: make(chan struct{}, 1)}
	d.members.Lock()
	defer d.members.Unlock()
	if err := d.members.Usable(); err != nil {
		return nil, fmt.Errorf("shm: completion queue: %w", err)
	}
	if len(d.blocks) == bellQueues {
		return nil, fmt.Errorf("shm: the domain has %d completion queues already: let queue pairs share them: %w", bellQueues, rdma.ErrQueueFull)
	}
	for used := true; used; d.nextBlock++ {
		cq.index = d.nextBlock % bellQueues
		_, used = d.blocks[cq.index]
	}
	cq.bell = d.bell.block(cq.index)
	cq.bell.armed().Store(0)
	d.blocks[cq.index] = struct{}{}
	if d.unpolled != nil && d.alarms < maxAlarms {
		if cq.alarm = newAlarm(d.alarmNumber); cq.alarm != nil {
			d.alarms++
			d.alarmNumber++
			cq.rung = cq.waitIsOver
			d.waiters[cq] = struct{}{} // for peers that have no descriptor of the alarm yet
		}
	}
	d.members.Completions.Add(cq)
	return cq, nil
}

// attach makes the queue one that a queue pair uses. It may not be closed any more.
func (cq *completionQueue) attach(qp *queuePair, receives bool) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
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
}

// detach takes the queue pair out, with its completions but those that have no
// owner.
func (cq *completionQueue) detach(qp *queuePair, receives bool) {
	cq.mu.Lock()
	if receives {
		cq.ringers[qp.bit] = without(cq.ringers[qp.bit], qp)
		cq.hot = without(cq.hot, qp)
		qp.hot = false
		cq.forgetShort(qp)
	}
	kept := 0
	for i := range cq.count {
		e := cq.ring[(cq.first+i)%len(cq.ring)]
		if e.pair != qp {
			cq.ring[(cq.first+kept)%len(cq.ring)] = e
			kept++
		}
	}
	for i := kept; i < cq.count; i++ {
		cq.ring[(cq.first+i)%len(cq.ring)].pair = nil
	}
	cq.count = kept
	cq.mu.Unlock()
	cq.unblock(qp)
}

// push makes room for a completion and returns it for the caller to fill in place.
// Filled elsewhere in pieces and then copied, the copy would wait for the pieces.
// push returns nil if there is no room. The caller holds mu.
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
		cq.domain.events.Add(rdma.Event{Kind: rdma.EventCompletionOverrun, Completions: cq, Err: err})
	}
	// A queue pair that is made later loses completions of its own, and fails then.
	cq.mu.Lock()
	cq.failing = false
	cq.mu.Unlock()
	cq.domain.members.Lock()
	pairs := cq.domain.members.Pairs.List()
	cq.domain.members.Unlock()
	for _, qp := range pairs {
		if qp.sendCQ == cq || qp.recvCQ == cq {
			qp.fail(err, "")
		}
	}
	cq.notify(true)
}

// notify wakes who waits for a completion of this side, if it asked for it.
func (cq *completionQueue) notify(solicited bool) {
	armed := cq.bell.disarm(solicited)
	if armed&armedAlarm != 0 && cq.alarm != nil {
		cq.alarm.ring()
		return
	}
	wakeArmed(armed, cq.domain.bell, cq.bell)
}

// wakeArmed wakes, without an alarm, who waits at a completion queue here or in a peer.
func wakeArmed(armed uint32, bell doorbell, v bellView) {
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
	short := cq.short != nil
	cq.mu.Unlock()
	if short && cq.supply() && n == 0 && err == nil {
		// A message may have waited for a receive.
		cq.mu.Lock()
		n, err = cq.poll(into)
		cq.mu.Unlock()
	}
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
		e.pair = nil // the slot may stay as it is for long, and the queue pair may be closed
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
	// The last call may have run out of room here: beginning here is fair to all.
	i := cq.next
	for left := len(cq.hot); left > 0; left-- {
		if i >= len(cq.hot) {
			i = 0
		}
		if n == len(into) {
			break
		}
		qp := cq.hot[i]
		// With several queue pairs to look at, each rests anyway.
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
	if err := cq.arm(solicitedOnly); err != nil {
		return err
	}
	if cq.blockedCount.Load() != 0 {
		cq.askBlocked()
	}
	return nil
}

func (cq *completionQueue) arm(solicitedOnly bool) error {
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
	if cq.alarm != nil && cq.plain.Load() == 0 && cq.domain.unpolled() {
		return cq.waitForAlarm(ctx)
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
		wait := futex.Wait
		if cq.domain.agentBusy() {
			wait = futex.WaitIdle
		}
		if err := wait((*uint32)(unsafe.Pointer(word)), value, healInterval); err != nil {
			return fmt.Errorf("shm: wait: %w", err)
		}
	}
}

// waitForAlarm waits in Go's network poller.
func (cq *completionQueue) waitForAlarm(ctx context.Context) error {
	over := cq.rung
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, cq.alarm.ring)()
		over = func(fd uintptr) bool { return ctx.Err() != nil || cq.rung(fd) }
	}
	for {
		if err := cq.waitOver(ctx); err != errWaiting {
			return err
		}
		if err := cq.alarm.sleep(over); err != nil {
			return fmt.Errorf("shm: wait: %w", err)
		}
	}
}

// waitIsOver tells whether there is nothing to wait for any more. If there is, peers
// know afterwards how the waiter is woken.
func (cq *completionQueue) waitIsOver(uintptr) bool {
	return cq.closed.Load() || !cq.tellArmed(armedAlarm|armedAgent)
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

// wakeIfRung is the agent's part of waitForAgent, and of waitForAlarm if a peer has no
// descriptor of the alarm or scribbled over the doorbell.
func (cq *completionQueue) wakeIfRung() {
	if cq.closed.Load() || cq.bell.armed().Load()&(armedAny|armedSolicited) == 0 {
		if cq.alarm != nil && cq.alarm.asleep.Load() {
			cq.alarm.ring()
		}
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
	// Each look takes a line away from the peer that is to write it.
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
	// After looks in vain the next 1, 3, 7, 15 and then 31 polls do not look.
	cq.skips = min(2*cq.skips+1, mostSkips)
	if moved {
		cq.skips = 0
	}
	cq.skip = cq.skips
}

const mostSkips = 31

// askBlocked asks the peers for whose receives requests wait to ring, because polls end.
func (cq *completionQueue) askBlocked() {
	var room [16]*queuePair // most often that suffices, and nothing is allocated
	cq.blockedMu.Lock()
	pairs := append(room[:0], cq.blocked...)
	cq.blockedMu.Unlock()
	for _, qp := range pairs {
		qp.sendMu.Lock()
		if qp.State() == rdma.StateConnected && qp.reason == outcomeReceive && qp.out.waiting().Load() == 0 {
			qp.retryLocked()
		}
		qp.sendMu.Unlock()
	}
}

// Close implements rdma.CompletionQueue.
func (cq *completionQueue) Close() error {
	d := cq.domain
	d.members.Lock()
	was, err := d.members.Completions.Remove(cq)
	d.members.Unlock()
	if err != nil {
		return fmt.Errorf("shm: close completion queue: %w", err)
	}
	if !was {
		return nil
	}
	cq.mu.Lock()
	cq.closed.Store(true)
	cq.mu.Unlock()
	cq.bell.futex().Add(1)
	wake(cq.bell.futex())
	if cq.alarm != nil {
		cq.alarm.ring()
	}
	select {
	case cq.wake <- struct{}{}:
	default:
	}
	cq.waits.Wait()
	d.members.Lock()
	delete(d.blocks, cq.index)
	delete(d.waiters, cq)
	if cq.alarm != nil {
		d.alarms--
	}
	d.members.Unlock()
	if cq.alarm != nil {
		if err := cq.alarm.close(); err != nil {
			return fmt.Errorf("shm: close completion queue: %w", err)
		}
	}
	return nil
}
