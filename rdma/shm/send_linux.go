package shm

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-data/verbena/internal/release"
	"github.com/verbena-data/verbena/rdma"
)

// outcome is what became of an attempt to carry out a request.
type outcome uint8

const (
	outcomeDone    outcome = iota
	outcomeFailed          // with the status in failure
	outcomeReceive         // waits for the peer to post a receive
	outcomeSlot            // waits for the peer to take a message out of its ring
	outcomeRegion          // waits for the peer to hand over a region
)

// failure says how a request failed.
type failure struct {
	status rdma.Status
	err    error
}

// A waiting request is a copy of one that could not be carried out yet.
type waiting struct {
	request rdma.SendRequest
	total   int
}

// PostSend implements rdma.QueuePair.
func (qp *queuePair) PostSend(requests []rdma.SendRequest) (int, error) {
	qp.sendMu.Lock()
	// One alone is what those post who care for latency.
	if len(requests) == 1 && qp.queueCount == 0 && qp.sendPosted-qp.sendDone.Load() < uint64(qp.sendDepth) && qp.quick(&requests[0]) {
		r := &requests[0]
		qp.sendPosted++
		if r.Flags&rdma.Signaled != 0 {
			qp.complete(r, r.SGEs[0].Length, rdma.StatusSuccess, qp.sendPosted)
		}
		qp.sendMu.Unlock()
		return 1, nil
	}
	n, err := qp.postSend(requests)
	qp.sendMu.Unlock()
	return n, err
}

func (qp *queuePair) postSend(requests []rdma.SendRequest) (int, error) {
	if state := qp.State(); state != rdma.StateConnected {
		return 0, qp.stateError("post send", state)
	}
	for i := range requests {
		r := &requests[i]
		if qp.sendPosted-qp.sendDone.Load() >= uint64(qp.sendDepth) {
			return i, fmt.Errorf("shm: post send: %w: %d are outstanding; poll completions, and signal at least one in %d", rdma.ErrQueueFull, qp.sendDepth, qp.sendDepth)
		}
		if qp.queueCount > 0 && qp.queueCount%progressEvery == 0 {
			qp.progress()
		}
		if qp.queueCount == 0 && qp.quick(r) {
			qp.sendPosted++
			if r.Flags&rdma.Signaled != 0 {
				qp.complete(r, r.SGEs[0].Length, rdma.StatusSuccess, qp.sendPosted)
			}
			continue
		}
		total, err := qp.checkRequest(r)
		if err != nil {
			return i, fmt.Errorf("shm: post %s: %w", r.Op, err)
		}
		qp.sendPosted++
		// A request may have failed the queue pair during this very call, or the
		// peer may have; what was posted with it is flushed.
		if qp.queueCount > 0 {
			qp.enqueue(r, total)
			continue
		}
		if qp.State() != rdma.StateConnected {
			qp.complete(r, 0, rdma.StatusFlushed, qp.sendPosted)
			continue
		}
		switch o := qp.execute(r, total, nil); o {
		case outcomeDone:
			if r.Flags&rdma.Signaled != 0 {
				qp.complete(r, total, rdma.StatusSuccess, qp.sendPosted)
			}
		case outcomeFailed:
			qp.failRequest(r, qp.sendPosted)
		default:
			qp.enqueue(r, total)
			qp.startWaiting(o)
		}
	}
	return len(requests), nil
}

// progressEvery is at which lengths of the queue a post looks whether the queue
// can go on; in between that is left to polls.
const progressEvery = 16

// quick carries out a request of the kinds that most are: a Send or Write of one
// entry that need not wait and is right in every way. If it is anything else, it
// reports false and has done nothing. sendMu is held.
func (qp *queuePair) quick(r *rdma.SendRequest) bool {
	if len(r.SGEs) != 1 || qp.State() != rdma.StateConnected {
		return false
	}
	e := &r.SGEs[0]
	from, ok := e.Region.(*region)
	if !ok || from == nil || from.domain != qp.domain || uint(e.Offset) > uint(len(from.bytes)) ||
		uint(e.Length) > uint(len(from.bytes)-e.Offset) || e.Length > maxMessage || from.closed.Load() {
		return false
	}
	source := from.bytes[e.Offset:][:e.Length]
	switch {
	case r.Flags&rdma.Inline != 0 && len(source) > slotInline:
		return false
	case r.Op == rdma.OpWrite && len(source) > 0:
		region := qp.cache[r.Remote.Key%uint32(len(qp.cache))]
		if region == nil || region.key != r.Remote.Key || !region.has(rdma.AccessRemoteWrite) {
			return false
		}
		to := region.at(r.Remote.Address, len(source))
		if to == nil {
			return false
		}
		done := qp.enter() && region.open()
		if done {
			copyTailLast(to, source)
		}
		qp.leave()
		return done
	case r.Op == rdma.OpSend && len(source) <= slotInline:
		if qp.sent == qp.outLimit && qp.refresh() != outcomeDone {
			return false
		}
		if len(source) > qp.outRoom || qp.out.gate().Load()&(gateClosed|gateLook) != 0 {
			return false
		}
		s := qp.out.slot(qp.sent)
		copyShort(s.payload()[:len(source)], source)
		qp.publish(s, slotSend, r.Flags, len(source))
		return true
	case r.Op == rdma.OpSend:
		return qp.quickPlaced(r.Flags, source)
	}
	return false
}

func (qp *queuePair) quickPlaced(flags rdma.Flags, source []byte) bool {
	if qp.sent == qp.outLimit && qp.refresh() != outcomeDone || qp.outRoom < 0 {
		return false
	}
	d := qp.out.descriptor(qp.sent)
	head := d.head()
	if !head.published(qp.sent) || head.entries() != 1 || len(source) > head.length() {
		return false
	}
	place := place(word(d.base, 8).Load())
	region := qp.cached(place)
	if region == nil || !region.has(rdma.AccessLocalWrite) {
		return false
	}
	to := region.at(region.address+uint64(place.offset()), len(source))
	if to == nil {
		return false
	}
	if !qp.enter() || !region.open() {
		qp.leave()
		return false
	}
	move(to, source)
	qp.leave()
	qp.publish(qp.out.slot(qp.sent), slotSend|slotPlaced, flags, len(source))
	if qp.sent%descriptorsAhead == 0 && qp.outLimit-qp.sent >= 2*descriptorsAhead {
		prefetch(qp.out.descriptor(qp.sent + descriptorsAhead).base)
	}
	if qp.alternates() && len(source) < exchangeBelow {
		demote(unsafe.Pointer(&to[0]), lines(len(source)))
		qp.fetchPlace(len(source))
	}
	return true
}

// alternates notes that a message is sent into a receive of the peer, and tells
// whether it answers the one message that has come since the last such, and that
// one answered all before: then each side waits for the other, and what the caches
// do in between counts. In a stream the same care would halve the rate. With a
// shared receive queue nothing alternates: taken does not move.
func (qp *queuePair) alternates() bool {
	taken := qp.taken.Load()
	came := taken - qp.answers
	qp.answers = taken
	qp.unanswered -= min(qp.unanswered, came)
	qp.unanswered++
	return came == 1 && qp.unanswered == 1
}

// exchangeBelow is up to which length messages that alternate are brought nearer
// to who will use them. Longer ones are moved without fetching what they overwrite.
const exchangeBelow = 2048

// fetchPlace takes the lines of the next receive away from the receiver, whose
// processor has them since it read what came there before, while both wait for
// the answer. It only asks: nothing waits for it, and a receive that is gone
// meanwhile does no harm.
func (qp *queuePair) fetchPlace(length int) {
	if qp.sent == qp.outLimit {
		return
	}
	place := place(word(qp.out.descriptor(qp.sent).base, 8).Load())
	region := qp.cached(place)
	if region == nil {
		return
	}
	if to := region.at(region.address+uint64(place.offset()), length); to != nil {
		prefetchWrite(unsafe.Pointer(&to[0]), lines(length))
	}
}

// cached is the region that a place of the peer is in, if it was used lately.
func (qp *queuePair) cached(p place) *peerRegion {
	if r := qp.cache[p.handle()%uint32(len(qp.cache))]; r != nil && r.handle == p.handle() {
		return r
	}
	return nil
}

// lines is how many lines of 64 bytes so many bytes fill from the start of one.
func lines(length int) int { return (length + 63) / 64 }

// descriptorsAhead is how many descriptors of one entry are in a line.
const descriptorsAhead = 4

// checkRequest checks what this side can see.
func (qp *queuePair) checkRequest(r *rdma.SendRequest) (total int, err error) {
	switch r.Op {
	case rdma.OpSend, rdma.OpSendImmediate, rdma.OpWrite, rdma.OpWriteImmediate:
		if total, err = qp.domain.checkEntries(r.SGEs, qp.maxEntries, false); err != nil {
			return 0, err
		}
		if r.Flags&rdma.Inline != 0 && total > slotInline {
			return 0, fmt.Errorf("%w: %d bytes inline, at most %d", rdma.ErrInvalid, total, slotInline)
		}
		return total, nil
	case rdma.OpRead:
		if r.Flags&rdma.Inline != 0 {
			return 0, fmt.Errorf("%w: nothing of a %s can be inline", rdma.ErrInvalid, r.Op)
		}
		return qp.domain.checkEntries(r.SGEs, qp.maxEntries, true)
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		if total, err = qp.domain.checkEntries(r.SGEs, qp.maxEntries, true); err != nil {
			return 0, err
		}
		if len(r.SGEs) != 1 || total != 8 || r.Flags&rdma.Inline != 0 {
			return 0, fmt.Errorf("%w: it takes one entry of 8 bytes for what was there", rdma.ErrInvalid)
		}
		return total, nil
	}
	if r.Op == rdma.OpSendInvalidate {
		return 0, fmt.Errorf("%w: %s", rdma.ErrUnsupported, r.Op)
	}
	return 0, fmt.Errorf("%w: %s is no operation of a send queue", rdma.ErrInvalid, r.Op)
}

// complete adds a completion of the send queue.
func (qp *queuePair) complete(r *rdma.SendRequest, length int, status rdma.Status, position uint64) {
	cq := qp.sendCQ
	cq.mu.Lock()
	if e := cq.push(); e != nil {
		e.pair, e.position = qp, position
		c := &e.completion
		c.ID, c.QueuePair, c.Length, c.Immediate = r.ID, qp.number, uint32(length), 0
		c.Op, c.Status, c.HasImmediate = r.Op, status, false
	}
	cq.mu.Unlock()
	cq.notify(status != rdma.StatusSuccess)
}

func (qp *queuePair) failRequest(r *rdma.SendRequest, position uint64) {
	f := qp.failure
	err := fmt.Errorf("shm: %s to %s: %s: %w", r.Op, qp.peerName(), f.status, f.err)
	qp.fail(err, fmt.Sprintf("a %s failed: %s", r.Op, f.status))
	qp.complete(r, 0, f.status, position)
}

func (qp *queuePair) failed(status rdma.Status, err error) outcome {
	qp.failure = failure{status, err}
	return outcomeFailed
}

// enqueue copies a request that has to wait.
func (qp *queuePair) enqueue(r *rdma.SendRequest, total int) {
	if qp.queue == nil {
		// Most queue pairs never wait, so this is made when it is first needed.
		qp.queue = make([]waiting, qp.sendDepth)
		qp.queueEntries = make([]rdma.SGE, qp.sendDepth*qp.maxEntries)
	}
	i := (qp.queueFirst + qp.queueCount) % len(qp.queue)
	qp.queueCount++
	w := &qp.queue[i]
	w.request, w.total = *r, total
	if r.Flags&rdma.Inline != 0 {
		if qp.queueInline == nil {
			qp.queueInline = make([][slotInline]byte, qp.sendDepth)
		}
		gather(qp.queueInline[i][:total], r.SGEs)
		w.request.SGEs = nil
		return
	}
	kept := qp.queueEntries[i*qp.maxEntries:][:len(r.SGEs)]
	copy(kept, r.SGEs)
	w.request.SGEs = kept
}

// progress carries out what waits, in order, and tells whether nothing does any
// more. sendMu is held.
func (qp *queuePair) progress() bool {
	for qp.queueCount > 0 {
		if qp.State() != rdma.StateConnected {
			return false // the teardown flushes the rest
		}
		w := &qp.queue[qp.queueFirst]
		var inline []byte
		if w.request.Flags&rdma.Inline != 0 {
			inline = qp.queueInline[qp.queueFirst][:w.total]
		}
		position := qp.sendPosted - uint64(qp.queueCount) + 1
		o := outcomeDone
		if !qp.quick(&w.request) {
			o = qp.execute(&w.request, w.total, inline)
		}
		if o > outcomeFailed {
			if o != qp.reason {
				qp.startWaiting(o)
			}
			return false
		}
		if qp.queueFirst++; qp.queueFirst == len(qp.queue) {
			qp.queueFirst = 0
		}
		qp.queueCount--
		qp.reason = outcomeDone
		if o == outcomeFailed {
			qp.failRequest(&w.request, position)
			return false
		}
		if w.request.Flags&rdma.Signaled != 0 {
			qp.complete(&w.request, w.total, rdma.StatusSuccess, position)
		}
	}
	return true
}

// Waiting is left to whoever polls for this long, before the peer is asked to
// ring.
const pollersFirst = 50 * time.Microsecond

// startWaiting notes for what the first request of the queue waits.
func (qp *queuePair) startWaiting(o outcome) {
	qp.reason = o
	qp.since = time.Now()
	if !qp.blocked {
		qp.blocked = true
		qp.sendCQ.block(qp)
	}
	wait := pollersFirst
	if o == outcomeReceive && qp.receiverRetry >= 0 {
		wait = min(wait, qp.receiverRetry)
	}
	qp.setTimer(qp.since.Add(wait))
}

// setTimer makes onTimer run at that time, or before: a sender that is ahead of
// its receiver waits often and for short, and leaves the timer as it is.
// sendMu is held.
func (qp *queuePair) setTimer(at time.Time) {
	if qp.timerSet && !qp.timerAt.After(at) {
		return
	}
	qp.timerSet, qp.timerAt = true, at
	if qp.timer == nil {
		qp.timers.Add(1)
		qp.timer = time.AfterFunc(time.Until(at), qp.onTimer)
		return
	}
	if !qp.timer.Reset(time.Until(at)) {
		qp.timers.Add(1)
	}
}

func (qp *queuePair) stopTimer() {
	if qp.timer != nil && qp.timer.Stop() {
		qp.timers.Done()
	}
}

func (qp *queuePair) onTimer() {
	defer qp.timers.Done()
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	qp.timerSet = false
	qp.retryLocked()
}

// retry goes on with what waits, and asks the peer to ring if that is still so.
func (qp *queuePair) retry() {
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	qp.retryLocked()
}

func (qp *queuePair) retryLocked() {
	if qp.queueCount == 0 || qp.State() != rdma.StateConnected {
		return
	}
	if qp.progress() {
		qp.unblock()
		return
	}
	if qp.queueCount == 0 || qp.State() != rdma.StateConnected {
		return
	}
	elapsed := time.Since(qp.since)
	switch qp.reason {
	case outcomeReceive, outcomeSlot:
		if qp.reason == outcomeReceive && qp.receiverRetry >= 0 && elapsed >= qp.receiverRetry {
			qp.giveUp(rdma.StatusReceiverNotReady, fmt.Errorf("the peer posted no receive within %v", qp.receiverRetry))
			return
		}
		if elapsed < pollersFirst {
			qp.setTimer(qp.since.Add(pollersFirst))
			return
		}
		qp.askToRing()
		barrier()
		// The peer may have posted in between, without seeing that this side waits.
		if qp.progress() {
			qp.unblock()
			return
		}
		if qp.reason == outcomeReceive && qp.receiverRetry >= 0 && qp.queueCount > 0 {
			qp.setTimer(qp.since.Add(qp.receiverRetry))
		}
	case outcomeRegion:
		limit := qp.domain.device.config.AccessTimeout
		if elapsed >= limit {
			qp.giveUp(rdma.StatusRetryExceeded, fmt.Errorf("the peer did not hand over a region within %v: %w", limit, rdma.ErrTimeout))
			return
		}
		if !qp.askedValid {
			limit = min(limit, elapsed+10*time.Millisecond) // the question did not get out
		}
		qp.setTimer(qp.since.Add(limit))
	}
}

func (qp *queuePair) askToRing() {
	qp.out.waiting().Store(1)
	if qp.remote.shared {
		qp.outShared.waiting().Store(1)
	}
}

// heal repairs what a faulty peer may have done to the bits of the doorbell.
func (qp *queuePair) heal() {
	if qp.sendCQ.blockedCount.Load() != 0 {
		qp.retry()
	}
}

func (qp *queuePair) unblock() {
	qp.sendCQ.unblock(qp)
	qp.blocked = false
}

// giveUp fails the first request of the queue.
func (qp *queuePair) giveUp(status rdma.Status, err error) {
	w := &qp.queue[qp.queueFirst]
	position := qp.sendPosted - uint64(qp.queueCount) + 1
	qp.queueFirst = (qp.queueFirst + 1) % len(qp.queue)
	qp.queueCount--
	qp.failed(status, err)
	qp.failRequest(&w.request, position)
}

// flushSends completes what waits as flushed.
func (qp *queuePair) flushSends() {
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	qp.stopTimer()
	for ; qp.queueCount > 0; qp.queueCount-- {
		w := &qp.queue[qp.queueFirst]
		qp.complete(&w.request, 0, rdma.StatusFlushed, qp.sendPosted-uint64(qp.queueCount)+1)
		qp.queueFirst = (qp.queueFirst + 1) % len(qp.queue)
	}
	if qp.blocked {
		qp.unblock()
	}
}

var errDeregistered = fmt.Errorf("%w: a local region was closed while the request named it", rdma.ErrInvalid)

// execute tries to carry out one request. The payload is in inline, if that is
// not nil, or in the request's entries. sendMu is held.
func (qp *queuePair) execute(r *rdma.SendRequest, total int, inline []byte) outcome {
	for i := range r.SGEs {
		if r.SGEs[i].Region.(*region).closed.Load() {
			return qp.failed(rdma.StatusLocalProtection, errDeregistered)
		}
	}
	switch r.Op {
	case rdma.OpSend, rdma.OpSendImmediate:
		return qp.executeSend(r, total, inline)
	case rdma.OpWriteImmediate:
		return qp.executeWriteImmediate(r, total, inline)
	case rdma.OpWrite:
		return qp.executeWrite(r, total, inline)
	case rdma.OpRead:
		return qp.executeRead(r, total)
	default:
		return qp.executeAtomic(r)
	}
}

// enter begins an access to the peer's memory. The peer, when it closes
// something, first says so and then waits for the access to end; this side first
// says that it is inside and then looks. It reports false if the peer is closing.
func (qp *queuePair) enter() bool {
	qp.accesses++
	release.Store(qp.out.access(), qp.accesses)
	if !qp.lazy.Load() {
		qp.sendFence.order()
	}
	return qp.out.gate().Load()&gateClosed == 0
}

func (qp *queuePair) leave() {
	qp.accesses++
	release.Store(qp.out.access(), qp.accesses)
}

// lookup finds a region that the peer has granted. Nil means that the outcome
// says why not.
func (qp *queuePair) lookup(w want) (*peerRegion, outcome) {
	cache := &qp.cache[w.value%uint32(len(qp.cache))]
	r := *cache
	if r == nil || w.byHandle && r.handle != w.value || !w.byHandle && r.key != w.value || !r.open() {
		r = qp.peer.Load().find(w)
		if r == nil || !r.open() {
			if qp.refusedValid && qp.refused == w {
				qp.refusedValid = false
				return nil, outcomeFailed
			}
			if !qp.askedValid || qp.asked != w {
				qp.asked, qp.askedValid = w, qp.conn.want(w)
			}
			return nil, outcomeRegion
		}
		*cache = r
	}
	qp.askedValid = false
	return r, outcomeDone
}

// remoteRange finds the memory that a request names, inside an access.
func (qp *queuePair) remoteRange(remote rdma.Remote, length int, access rdma.Access) ([]byte, outcome) {
	r, o := qp.lookup(want{value: remote.Key})
	if r == nil {
		if o == outcomeFailed {
			o = qp.failed(rdma.StatusRemoteAccess, fmt.Errorf("%w: key %#x opens nothing here", rdma.ErrRemoteAccess, remote.Key))
		}
		return nil, o
	}
	if !r.has(access) {
		return nil, qp.failed(rdma.StatusRemoteAccess, fmt.Errorf("%w: the region of key %#x lacks the right", rdma.ErrRemoteAccess, remote.Key))
	}
	memory := r.at(remote.Address, length)
	if memory == nil {
		return nil, qp.failed(rdma.StatusRemoteAccess, fmt.Errorf("%w: %d bytes at %#x are not in the region of key %#x", rdma.ErrRemoteAccess, length, remote.Address, remote.Key))
	}
	return memory, outcomeDone
}

func (qp *queuePair) peerClosing() outcome {
	return qp.failed(rdma.StatusRetryExceeded, fmt.Errorf("%w: the peer is closing its end", rdma.ErrDisconnected))
}

func (qp *queuePair) executeWrite(r *rdma.SendRequest, total int, inline []byte) outcome {
	if total == 0 {
		return outcomeDone
	}
	defer qp.leave()
	if !qp.enter() {
		return qp.peerClosing()
	}
	memory, o := qp.remoteRange(r.Remote, total, rdma.AccessRemoteWrite)
	if o != outcomeDone {
		return o
	}
	if inline != nil {
		copyTailLast(memory, inline)
		return outcomeDone
	}
	for i := range r.SGEs {
		e := &r.SGEs[i]
		source := e.Region.(*region).bytes[e.Offset : e.Offset+e.Length]
		if len(source) == len(memory) {
			copyTailLast(memory, source)
			break
		}
		memory = memory[copy(memory, source):]
	}
	return outcomeDone
}

func (qp *queuePair) executeRead(r *rdma.SendRequest, total int) outcome {
	if total == 0 {
		return outcomeDone
	}
	defer qp.leave()
	if !qp.enter() {
		return qp.peerClosing()
	}
	memory, o := qp.remoteRange(r.Remote, total, rdma.AccessRemoteRead)
	if o != outcomeDone {
		return o
	}
	for i := range r.SGEs {
		e := &r.SGEs[i]
		memory = memory[copy(e.Region.(*region).bytes[e.Offset:e.Offset+e.Length], memory):]
	}
	return outcomeDone
}

func (qp *queuePair) executeAtomic(r *rdma.SendRequest) outcome {
	if r.Remote.Address%8 != 0 {
		return qp.failed(rdma.StatusRemoteInvalid, fmt.Errorf("%w: address %#x is not a multiple of 8", rdma.ErrInvalid, r.Remote.Address))
	}
	defer qp.leave()
	if !qp.enter() {
		return qp.peerClosing()
	}
	memory, o := qp.remoteRange(r.Remote, 8, rdma.AccessRemoteAtomic)
	if o != outcomeDone {
		return o
	}
	target := (*uint64)(unsafe.Pointer(&memory[0]))
	var old uint64
	if r.Op == rdma.OpFetchAdd {
		old = atomic.AddUint64(target, r.CompareAdd) - r.CompareAdd
	} else {
		for {
			if atomic.CompareAndSwapUint64(target, r.CompareAdd, r.Swap) {
				old = r.CompareAdd
				break
			}
			if old = atomic.LoadUint64(target); old != r.CompareAdd {
				break
			}
		}
	}
	e := &r.SGEs[0]
	*(*[8]byte)(e.Region.(*region).bytes[e.Offset:]) = *(*[8]byte)(unsafe.Pointer(&old))
	return outcomeDone
}

// receiveAt is a receive of the peer that the next message will use.
type receiveAt struct {
	descriptor descriptor
	head       descriptorHead
	position   uint64 // of a shared one
}

// nextReceive finds the receive for the next message, and its slot.
func (qp *queuePair) nextReceive() (at receiveAt, o outcome) {
	if qp.sent == qp.outLimit {
		if o := qp.refresh(); o != outcomeDone {
			return at, o
		}
	}
	if !qp.remote.shared {
		at.descriptor = qp.out.descriptor(qp.sent)
		at.head = at.descriptor.head()
		if !at.head.published(qp.sent) {
			return at, qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer's receive %d is damaged", qp.sent))
		}
		return at, qp.checkHead(&at, qp.out.shape.entries)
	}
	fresh := !qp.claimed
	if fresh {
		position, ok := qp.outShared.claim(qp.remote.queuePair)
		if !ok {
			return at, outcomeReceive
		}
		// Kept until a message has used it: a mapping may have to come first.
		qp.claim, qp.claimed = position, true
		if qp.outShared.low(position) {
			ringAgent(qp.peer.Load().bell)
		}
	}
	// The peer closes the gate and then takes back what has been claimed, so it has
	// missed this claim at most if the gate is seen closed here.
	if qp.out.gate().Load()&gateClosed != 0 {
		if fresh {
			qp.outShared.late().Store(1)
			ringAgent(qp.peer.Load().bell)
		}
		return at, qp.peerClosing()
	}
	at.position = qp.claim
	at.descriptor = qp.outShared.descriptor(at.position)
	at.head = at.descriptor.head()
	if !at.head.published(at.position) {
		return at, qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer's shared receive %d is damaged", at.position))
	}
	return at, qp.checkHead(&at, qp.outShared.shape.entries)
}

// refresh looks how far the peer lets this side go. The outcome says what to wait
// for if that is no further than it has gone.
func (qp *queuePair) refresh() outcome {
	limit, most := qp.out.limit().Load(), uint64(qp.out.shape.slots)
	if limit == qp.sent {
		if qp.remote.shared {
			return outcomeSlot
		}
		return outcomeReceive
	}
	if limit-qp.sent > most {
		return qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer lets this side send message %d after %d, and has room for %d", limit, qp.sent, most))
	}
	qp.outLimit, qp.outRoom = limit, -1
	if !qp.remote.shared {
		qp.outRoom = int(min(qp.out.room().Load(), maxMessage))
	}
	return outcomeDone
}

func (qp *queuePair) checkHead(at *receiveAt, entries uint32) outcome {
	if at.head.entries() > int(entries) || at.head.length() > maxMessage {
		return qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer's receive has %d entries of %d bytes", at.head.entries(), at.head.length()))
	}
	return outcomeDone
}

// send publishes a message that is not quick.
func (qp *queuePair) send(at *receiveAt, s slot, r *rdma.SendRequest, kind slotKind, length int) {
	flags := r.Flags
	if kind >= slotTooLong {
		flags |= rdma.Solicited
	}
	s.setDetail(makeDetail(r.Immediate, uint32(at.position)))
	qp.claimed = false
	qp.publish(s, kind, flags, length)
}

// publish hands a message over and, if the peer does not look, rings.
func (qp *queuePair) publish(s slot, kind slotKind, flags rdma.Flags, length int) {
	if flags&rdma.Solicited != 0 {
		kind |= slotSolicited
	}
	s.publish(makeSlotHeader(qp.sent, kind, length))
	qp.sent++
	if qp.sent%slotsAhead == 0 && qp.outLimit-qp.sent >= 2*slotsAhead {
		qp.fetchSlots()
	}
	if !qp.lazy.Load() {
		qp.sendFence.order()
	}
	if qp.out.gate().Load()&gateCold != 0 {
		qp.ringReceiver(kind)
	}
}

// slotsAhead is how many slots a sender that has room takes at once.
const slotsAhead = 8

// fetchSlots takes the lines of the next slots but slotsAhead away from the
// receiver, all at the same time: a store to each is enough. One by one, as
// messages are written, each would keep the processor waiting, which has room for
// the stores of few posts. What they store is not read.
func (qp *queuePair) fetchSlots() {
	for n := qp.sent + slotsAhead; n < qp.sent+2*slotsAhead; n++ {
		qp.out.slot(n).setDetail(0)
	}
}

func (qp *queuePair) ringReceiver(kind slotKind) {
	// Whoever clears the bits looks for messages then, and has to see this one if
	// the bit is found set here.
	qp.sendFence.order()
	peer := qp.peer.Load()
	block := peer.bell.block(qp.remote.bell.queue)
	block.bits().set(qp.remote.bell.bit)
	ring(peer.bell, block, kind&slotSolicited != 0)
}

func (qp *queuePair) executeSend(r *rdma.SendRequest, total int, inline []byte) outcome {
	at, o := qp.nextReceive()
	if o != outcomeDone {
		return o
	}
	s := qp.out.slot(qp.sent)
	if total > at.head.length() {
		qp.send(&at, s, r, slotTooLong, 0)
		return qp.failed(rdma.StatusRemoteInvalid, fmt.Errorf("%d bytes are longer than the peer's receive of %d", total, at.head.length()))
	}
	kind := slotSend
	if r.Op == rdma.OpSendImmediate {
		kind = slotSendImmediate
	}
	switch {
	case total <= slotInline && !qp.receiveUsable(&at, total):
		if qp.out.gate().Load()&gateClosed != 0 {
			return qp.peerClosing() // its regions go after its queue pair
		}
		qp.send(&at, s, r, slotProtection, 0)
		return qp.failed(rdma.StatusRemoteOperation, errReceiveClosed)
	case inline != nil:
		copy(s.payload()[:], inline)
	case total <= slotInline:
		gather(s.payload()[:total], r.SGEs)
	default:
		if o := qp.place(&at, r, total); o != outcomeDone {
			if o == outcomeFailed && qp.failure.status == rdma.StatusRemoteOperation {
				qp.send(&at, s, r, slotProtection, 0)
			}
			return o
		}
		kind |= slotPlaced
	}
	qp.send(&at, s, r, kind, total)
	return outcomeDone
}

var errReceiveClosed = errors.New("the peer's receive names a region that it has closed")

// receiveUsable tells whether the peer will be able to copy length bytes out of a
// slot to where it wanted them.
func (qp *queuePair) receiveUsable(at *receiveAt, length int) bool {
	table := qp.peer.Load().table
	for i, count := 0, at.head.entries(); i < count && length > 0; i++ {
		p, size := at.descriptor.entry(i, count, at.head.length())
		if !table.open(p.handle()) {
			return false
		}
		length -= size
	}
	return true
}

// place copies a message straight into the peer's receive.
func (qp *queuePair) place(at *receiveAt, r *rdma.SendRequest, total int) outcome {
	defer qp.leave()
	if !qp.enter() {
		return qp.peerClosing()
	}
	var parts [maxEntries][]byte
	count, left := at.head.entries(), total
	n := 0
	for ; n < count && left > 0; n++ {
		p, length := at.descriptor.entry(n, count, at.head.length())
		region, o := qp.lookup(want{byHandle: true, value: p.handle()})
		if region == nil {
			if o == outcomeFailed {
				o = qp.failed(rdma.StatusRemoteOperation, errReceiveClosed)
			}
			return o
		}
		length = min(length, left)
		part := region.at(region.address+uint64(p.offset()), length)
		if part == nil || !region.has(rdma.AccessLocalWrite) {
			return qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer's receive lies outside of its region"))
		}
		parts[n] = part
		left -= length
	}
	if left > 0 {
		return qp.failed(rdma.StatusRemoteOperation, fmt.Errorf("the peer's receive is shorter than it says"))
	}
	if n == 1 && len(r.SGEs) == 1 {
		e := &r.SGEs[0]
		move(parts[0], e.Region.(*region).bytes[e.Offset:e.Offset+e.Length])
		return outcomeDone
	}
	to := 0
	for i := range r.SGEs {
		e := &r.SGEs[i]
		source := e.Region.(*region).bytes[e.Offset : e.Offset+e.Length]
		for len(source) > 0 {
			if len(parts[to]) == 0 {
				to++
				continue
			}
			k := copy(parts[to], source)
			parts[to], source = parts[to][k:], source[k:]
		}
	}
	return outcomeDone
}

func (qp *queuePair) executeWriteImmediate(r *rdma.SendRequest, total int, inline []byte) outcome {
	at, o := qp.nextReceive()
	if o != outcomeDone {
		return o
	}
	if o := qp.executeWrite(r, total, inline); o != outcomeDone {
		return o
	}
	qp.send(&at, qp.out.slot(qp.sent), r, slotWriteImmediate, total)
	return outcomeDone
}

// gather copies all of the entries' bytes to where they fit exactly.
func gather(to []byte, entries []rdma.SGE) {
	for i := range entries {
		e := &entries[i]
		to = to[copy(to, e.Region.(*region).bytes[e.Offset:e.Offset+e.Length]):]
	}
}

// copyTailLast copies source, which is not empty, to memory of the same length
// so that whoever polls the last bytes finds all others there when they change.
func copyTailLast(to, source []byte) {
	n := len(source)
	end := unsafe.Add(unsafe.Pointer(&to[0]), n)
	if n >= 8 && uintptr(end)&7 == 0 {
		// A call for nothing would come before what others wait for.
		if n > 8 {
			move(to[:n-8], source)
		}
		tail := *(*[8]byte)(source[n-8:])
		release.Store((*atomic.Uint64)(unsafe.Add(end, -8)), *(*uint64)(unsafe.Pointer(&tail)))
		return
	}
	tail := min(n, 8)
	if tail < n {
		move(to[:n-tail], source)
		// A release store and an acquiring load, in this order, keep the stores
		// before from those after on every architecture.
		var fence uint64
		atomic.StoreUint64(&fence, 1)
		atomic.LoadUint64(&fence)
	}
	copy(to[n-tail:], source[n-tail:])
}
