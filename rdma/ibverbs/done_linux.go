//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"fmt"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// sent takes a completion of the send queue. The completion queue's lock is held.
func (p *queuePair) sent(q *completionQueue, wc *verbs.WC) {
	status := p.outcome(wc)
	if !p.sends.report(uint32(wc.ID), status) {
		return
	}
	p.tellSends(q, false)
	if status != rdma.StatusSuccess {
		p.bad(wc, status)
	}
}

// outcome is the status of a completion. On iWARP some drivers report an operation
// error for the request that was under way when the connection ended. That is a flush.
func (p *queuePair) outcome(wc *verbs.WC) rdma.Status {
	status := translate(wc.Status)
	if status == rdma.StatusLocalOperation && p.domain.device.attributes.Class == rdma.ClassIWARP {
		return rdma.StatusFlushed
	}
	return status
}

// tellSends emits the completions of requests that are done, or, with flush, of all
// requests. It returns how many of those the device has forgotten.
func (p *queuePair) tellSends(q *completionQueue, flush bool) (forgotten int) {
	for {
		s, tell, lost, ok := p.sends.next(flush)
		if !ok {
			return forgotten
		}
		if lost {
			forgotten++
		}
		if tell && !p.silent.Load() {
			q.emit(rdma.Completion{ID: s.id, QueuePair: p.number, Length: s.length, Op: s.op, Status: s.status})
		}
	}
}

// received takes a completion of the receive queue. The lock is held.
func (p *queuePair) received(q *completionQueue, wc *verbs.WC) {
	seq := uint32(wc.ID)
	if !p.recvs.has(seq) {
		return
	}
	for p.recvs.head.Load() != seq {
		// The device fills receives in order, so it has forgotten this one.
		id, _ := p.recvs.next()
		p.domain.device.provider.counters.lostCompletions.Add(1)
		p.tellRecv(q, id, nil, rdma.StatusFlushed)
	}
	id, _ := p.recvs.next()
	p.endRecv(q, id, wc)
}

// endRecv emits the completion of a receive, and fails the queue pair if it is bad.
func (p *queuePair) endRecv(q *completionQueue, id uint64, wc *verbs.WC) {
	status := translate(wc.Status)
	switch status {
	case rdma.StatusSuccess:
		p.tellRecv(q, id, wc, status)
	case rdma.StatusRemoteAccess, rdma.StatusRemoteInvalid, rdma.StatusRemoteOperation:
		// Some drivers end a receive so when a request of the peer that has nothing to do
		// with it is refused.
		p.tellRecv(q, id, wc, rdma.StatusFlushed)
		p.fail(fmt.Errorf("a request of the peer was refused: %s", status), rdma.EventQueuePairError, true)
	default:
		p.tellRecv(q, id, wc, status)
		p.bad(wc, status)
	}
}

func (p *queuePair) tellRecv(q *completionQueue, id uint64, wc *verbs.WC, status rdma.Status) {
	if p.silent.Load() && p.shared == nil {
		return
	}
	c := rdma.Completion{ID: id, QueuePair: p.number, Op: rdma.OpRecv, Status: status}
	if status == rdma.StatusSuccess {
		c.Length = wc.Length
		if wc.Opcode == verbs.WCRecvWriteWithImmediate {
			c.Op = rdma.OpRecvWriteImmediate
		}
		if wc.Flags&verbs.WCWithImmediate != 0 {
			c.HasImmediate, c.Immediate = true, wc.Immediate()
		}
	}
	q.emit(c)
}

// bad fails the queue pair for a completion that is not a success.
func (p *queuePair) bad(wc *verbs.WC, status rdma.Status) {
	if status == rdma.StatusFlushed {
		p.suspect(errNoReason)
		return
	}
	kind := rdma.EventQueuePairError
	if status == rdma.StatusRetryExceeded {
		kind = rdma.EventDisconnected
	}
	err := reason(status)
	if wc.VendorError != 0 {
		err = fmt.Errorf("%w (the device's code is %#x)", err, wc.VendorError)
	}
	p.fail(err, kind, true)
}
