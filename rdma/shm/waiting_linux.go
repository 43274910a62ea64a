package shm

import (
	"fmt"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A waiting request is a copy of one that could not be carried out yet.
type waiting struct {
	request rdma.SendRequest
	total   int
}

// enqueue copies a request that has to wait.
func (qp *queuePair) enqueue(r *rdma.SendRequest, total int) {
	if qp.queueCount == len(qp.queue) {
		qp.growQueue()
	}
	i := (qp.queueFirst + qp.queueCount) % len(qp.queue)
	qp.queueCount++
	w := &qp.queue[i]
	w.request, w.total = *r, total
	if r.Flags&rdma.Inline != 0 {
		if qp.queueInline == nil {
			qp.queueInline = make([][slotInline]byte, len(qp.queue))
		}
		gather(qp.queueInline[i][:total], r.SGEs)
		w.request.SGEs = nil
		return
	}
	kept := qp.queueEntries[i*qp.maxEntries:][:len(r.SGEs)]
	copy(kept, r.SGEs)
	w.request.SGEs = kept
}

// firstWaiting is how many requests the queue has room for at first.
const firstWaiting = 4

// growQueue makes the queue twice as long. Most queue pairs never wait, or with few
// requests, so it begins with no memory. sendMu is held.
func (qp *queuePair) growQueue() {
	size := min(max(2*len(qp.queue), firstWaiting), qp.sendDepth)
	queue, entries := make([]waiting, size), make([]rdma.SGE, size*qp.maxEntries)
	var inline [][slotInline]byte
	if qp.queueInline != nil {
		inline = make([][slotInline]byte, size)
	}
	for k := range qp.queueCount {
		i := (qp.queueFirst + k) % len(qp.queue)
		queue[k] = qp.queue[i]
		r := &queue[k].request
		if r.Flags&rdma.Inline != 0 {
			inline[k] = qp.queueInline[i]
			continue
		}
		kept := entries[k*qp.maxEntries:][:len(r.SGEs)]
		copy(kept, r.SGEs)
		r.SGEs = kept
	}
	qp.queue, qp.queueEntries, qp.queueInline, qp.queueFirst = queue, entries, inline, 0
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
		if qp.unbacked {
			o = qp.awaitReceive(w.total)
		} else if !qp.quick(&w.request) {
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

// For this long polls alone look whether a request can go on. Then the peer is asked
// to ring. It is asked at once where nobody polls: a timer of 50 us takes 1 ms in a
// process that rests, because Go waits by whole milliseconds then.
const pollersFirst = 50 * time.Microsecond

// left is how long the first request of the queue has left for polls. sendMu is held.
func (qp *queuePair) left() time.Duration {
	if qp.sendCQ.bell.armed().Load() != 0 {
		return 0
	}
	return pollersFirst - time.Since(qp.since)
}

// startWaiting notes for what the first request of the queue waits.
func (qp *queuePair) startWaiting(o outcome) {
	qp.reason = o
	qp.since = time.Now()
	if !qp.blocked {
		qp.blocked = true
		qp.sendCQ.block(qp)
	}
	if o == outcomeReceive && qp.remote.shared {
		qp.starvedSince = time.Time{}
		if !qp.unbacked {
			qp.ask()
		}
	}
	wait := pollersFirst
	if o == outcomeReceive {
		wait = qp.left()
	}
	if o == outcomeReceive && qp.receiverRetry >= 0 {
		wait = min(wait, qp.receiverRetry)
	}
	qp.setTimer(qp.since.Add(wait))
}

// setTimer makes onTimer run at that time or before. A sender that is ahead of its
// receiver waits often and shortly, so a timer that is set already is left as it is.
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
	case outcomeReceive:
		if qp.receiverRetry >= 0 && !time.Now().Before(qp.patience()) {
			qp.giveUp(rdma.StatusReceiverNotReady, fmt.Errorf("the peer posted no receive within %v", qp.receiverRetry))
			return
		}
		if left := qp.left(); left > 0 {
			qp.setTimer(time.Now().Add(left))
			return
		}
		qp.askToRing()
		barrier()
		// The peer may have posted in between, without seeing that this side waits.
		if qp.progress() {
			qp.unblock()
			return
		}
		if qp.receiverRetry >= 0 && qp.queueCount > 0 {
			qp.setTimer(qp.patience())
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

// patience is when a request that waits for a receive fails. A peer that lends its
// receives first has to say that it has none. If it says nothing, its process stands
// still, and the request waits for AccessTimeout longer.
func (qp *queuePair) patience() time.Time {
	if !qp.remote.shared {
		return qp.since.Add(qp.receiverRetry)
	}
	timeout := qp.domain.device.config.AccessTimeout
	switch qp.out.starved().Load() {
	case starvedOfReceives:
		if qp.starvedSince.IsZero() {
			qp.starvedSince = time.Now()
		}
		return qp.starvedSince.Add(qp.receiverRetry)
	case starvedOfSlots: // until the peer polls
		qp.starvedSince = time.Time{}
		return time.Now().Add(timeout)
	}
	qp.starvedSince = time.Time{}
	return qp.since.Add(qp.receiverRetry + timeout)
}

// askToRing asks the peer to wake this side's agent when it has posted a receive.
func (qp *queuePair) askToRing() {
	qp.out.waiting().Store(1)
	if qp.remote.shared {
		qp.out.asks().Store(1)
		qp.askAgent()
	}
}

// ask asks the peer to lend a receive. Whoever polls there sees it. If nobody does,
// the agent has to.
func (qp *queuePair) ask() {
	qp.out.asks().Store(1)
	block := qp.peer.Load().bell.block(qp.remote.bell.queue)
	block.bits().set(qp.remote.bell.bit)
	if block.armed().Load() != 0 {
		qp.askAgent()
	}
}

func (qp *queuePair) askAgent() {
	bell := qp.peer.Load().bell
	bell.retries().set(qp.remote.retryBit)
	ringAgent(bell)
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
	qp.unbacked = false
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
		qp.complete(&w.request, 0, qp.flushStatus(w.total), qp.sendPosted-uint64(qp.queueCount)+1)
		qp.queueFirst = (qp.queueFirst + 1) % len(qp.queue)
	}
	if qp.blocked {
		qp.unblock()
	}
}

// flushStatus is what becomes of a request that waits when the queue pair has ended.
// The first may have failed before.
func (qp *queuePair) flushStatus(total int) rdma.Status {
	if qp.unbacked && qp.awaitReceive(total) == outcomeFailed {
		return qp.failure.status
	}
	qp.unbacked = false
	return rdma.StatusFlushed
}
