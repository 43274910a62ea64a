package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-data/verbena/internal/longcopy"
	"github.com/verbena-data/verbena/internal/release"
	"github.com/verbena-data/verbena/rdma"
)

// enter begins an access to the peer's memory and returns the peer's gate. This side
// first says that it is inside and then looks at the gate. The peer first shuts the
// gate, or begins an epoch, and then waits for the access to end.
func (qp *queuePair) enter() (gate uint64) {
	qp.accesses++
	release.Store(qp.out.access(), qp.accesses)
	if !qp.lazy.Load() {
		qp.sendFence.order()
	}
	return qp.out.gate().Load()
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
	if r == nil || !r.answers(w) || !r.open() {
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

// remoteRange finds the memory that a request names, and its region, inside an access.
func (qp *queuePair) remoteRange(remote rdma.Remote, length int, access rdma.Access) ([]byte, *peerRegion, outcome) {
	r, o := qp.lookup(want{value: remote.Key})
	if r == nil {
		if o == outcomeFailed {
			o = qp.failed(rdma.StatusRemoteAccess, fmt.Errorf("%w: key %#x opens nothing here", rdma.ErrRemoteAccess, remote.Key))
		}
		return nil, nil, o
	}
	if !r.has(access) {
		return nil, nil, qp.failed(rdma.StatusRemoteAccess, fmt.Errorf("%w: the region of key %#x lacks the right", rdma.ErrRemoteAccess, remote.Key))
	}
	memory := r.at(remote.Address, length)
	if memory == nil {
		return nil, nil, qp.failed(rdma.StatusRemoteAccess, fmt.Errorf("%w: %d bytes at %#x are not in the region of key %#x", rdma.ErrRemoteAccess, length, remote.Address, remote.Key))
	}
	return memory, r, outcomeDone
}

func (qp *queuePair) peerClosing() outcome {
	return qp.failed(rdma.StatusRetryExceeded, fmt.Errorf("%w: the peer is closing its end", rdma.ErrDisconnected))
}

func (qp *queuePair) executeWrite(r *rdma.SendRequest, total int, inline []byte) outcome {
	if total == 0 {
		return outcomeDone
	}
	defer qp.leave()
	if qp.enter()&gateClosed != 0 {
		return qp.peerClosing()
	}
	return qp.writeInside(r, total, inline)
}

// writeInside is executeWrite inside an access. total is not 0.
func (qp *queuePair) writeInside(r *rdma.SendRequest, total int, inline []byte) outcome {
	memory, _, o := qp.remoteRange(r.Remote, total, rdma.AccessRemoteWrite)
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
	if qp.enter()&gateClosed != 0 {
		return qp.peerClosing()
	}
	memory, from, o := qp.remoteRange(r.Remote, total, rdma.AccessRemoteRead)
	if o != outcomeDone {
		return o
	}
	for i := range r.SGEs {
		e := &r.SGEs[i]
		to := e.Region.(*region).bytes[e.Offset : e.Offset+e.Length]
		longcopy.Fill(to, memory[:e.Length])
		memory = memory[e.Length:]
	}
	if from.kept != nil && !qp.wasKept(from) {
		return qp.failed(rdma.StatusRetryExceeded, fmt.Errorf("%w: the process whose memory the peer passes on, or the peer, is ending its connection", rdma.ErrDisconnected))
	}
	return outcomeDone
}

func (qp *queuePair) executeAtomic(r *rdma.SendRequest) outcome {
	if r.Remote.Address%8 != 0 {
		return qp.failed(rdma.StatusRemoteInvalid, fmt.Errorf("%w: address %#x is not a multiple of 8", rdma.ErrInvalid, r.Remote.Address))
	}
	defer qp.leave()
	if qp.enter()&gateClosed != 0 {
		return qp.peerClosing()
	}
	memory, _, o := qp.remoteRange(r.Remote, 8, rdma.AccessRemoteAtomic)
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

// copyTailLast copies source, which is not empty, to memory of the same length. Its
// last bytes come last: whoever polls them finds all others there when they change.
func copyTailLast(to, source []byte) {
	n := len(source)
	end := unsafe.Add(unsafe.Pointer(&to[0]), n)
	if n >= 8 && uintptr(end)&7 == 0 {
		// Copying nothing would still cost a call, while the peer waits.
		if n > 8 {
			longcopy.Fill(to[:n-8], source)
		}
		tail := *(*[8]byte)(source[n-8:])
		release.Store((*atomic.Uint64)(unsafe.Add(end, -8)), *(*uint64)(unsafe.Pointer(&tail)))
		return
	}
	tail := min(n, 8)
	if tail < n {
		longcopy.Fill(to[:n-tail], source)
		keepOrder()
	}
	copy(to[n-tail:], source[n-tail:])
}
