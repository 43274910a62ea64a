package shm

import (
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// outcome is what became of an attempt to carry out a request.
type outcome uint8

const (
	outcomeDone    outcome = iota
	outcomeFailed          // with the status in failure
	outcomeReceive         // waits for the peer to post a receive
	outcomeRegion          // waits for the peer to hand over a region
)

// failure says how a request failed.
type failure struct {
	status rdma.Status
	err    error
}

// PostSend implements rdma.QueuePair.
func (qp *queuePair) PostSend(requests []rdma.SendRequest) (int, error) {
	qp.sendMu.Lock()
	// Who cares for latency posts one request: that has the shortest path.
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
		// An earlier request of this call, or the peer, may have failed the queue pair.
		// Then the rest is flushed.
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

// While requests wait, a post tries to go on with them when their number is a
// multiple of progressEvery. In between that is left to polls.
const progressEvery = 16

// checkRequest checks what this side can see.
func (qp *queuePair) checkRequest(r *rdma.SendRequest) (total int, err error) {
	switch r.Op {
	case rdma.OpSend, rdma.OpSendImmediate, rdma.OpWrite, rdma.OpWriteImmediate:
		if total, err = qp.domain.checkEntries(r.SGEs, qp.maxEntries, useRead); err != nil {
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
		return qp.domain.checkEntries(r.SGEs, qp.maxEntries, useWrite)
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		if total, err = qp.domain.checkEntries(r.SGEs, qp.maxEntries, useWrite); err != nil {
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
