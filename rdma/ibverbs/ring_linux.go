//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"math/bits"
	"sync/atomic"

	"github.com/verbena-data/verbena/rdma"
)

// A sendRing remembers the requests on a send queue. It is needed because a driver's
// completion tells nothing but the identifier of the request, may stand for many
// unsignalled requests before it, comes out of order on some iWARP devices, and
// sometimes does not come at all.
//
// Posting goroutines, one at a time, take places at the tail. Whoever holds the
// completion queue's lock frees places at the head. Sequence numbers wrap.
type sendRing struct {
	slots []sendSlot
	mask  uint32
	depth uint32
	tail  atomic.Uint32 // the next request's number
	_     [108]byte     // head and tail are written by different processors
	head  atomic.Uint32 // the oldest request that is not known to be done

	// Of the completions' side:
	seen   uint32 // one past the newest request that has been reported
	failed bool   // a request has failed: none behind it succeeds
}

type sendSlot struct {
	id     uint64
	length uint32
	op     rdma.Opcode
	status rdma.Status
	// signaled says that the application wants a completion, reports that the device
	// was asked for one, and done that the device's has come.
	signaled, reports, done bool
}

func newSlots(depth int) (size, mask uint32) {
	size = 1 << bits.Len32(uint32(depth)-1)
	return size, size - 1
}

func (r *sendRing) init(depth int) {
	size, mask := newSlots(depth)
	r.slots, r.mask, r.depth = make([]sendSlot, size), mask, uint32(depth)
}

// room is how many requests can be posted.
func (r *sendRing) room() uint32 { return r.depth - (r.tail.Load() - r.head.Load()) }

func (r *sendRing) outstanding() uint32 { return r.tail.Load() - r.head.Load() }

// report notes a completion. It returns false if no such request is outstanding.
func (r *sendRing) report(seq uint32, status rdma.Status) bool {
	head := r.head.Load()
	if seq-head >= r.tail.Load()-head {
		return false
	}
	s := &r.slots[seq&r.mask]
	if s.done {
		return false
	}
	s.done, s.status = true, status
	if int32(seq+1-r.seen) > 0 {
		r.seen = seq + 1
	}
	return true
}

// next takes the oldest request if it is known to be done, with its outcome. With
// flush it takes one that is not known to be done, as flushed; lost then says that
// the device has not completed it. tell says that the application gets a completion.
func (r *sendRing) next(flush bool) (done sendSlot, tell, lost, ok bool) {
	head := r.head.Load()
	if head == r.tail.Load() {
		return sendSlot{}, false, false, false
	}
	s := &r.slots[head&r.mask]
	status := rdma.StatusSuccess
	switch {
	case s.done:
		status = s.status
	case !s.reports && int32(r.seen-head) > 0 && !r.failed:
		// A later request has been done, and so has this one.
	case flush:
		status, lost = rdma.StatusFlushed, true
	case !s.reports && int32(r.seen-head) > 0:
		status = rdma.StatusFlushed
	default:
		return sendSlot{}, false, false, false
	}
	if r.failed && status == rdma.StatusSuccess {
		status = rdma.StatusFlushed
	}
	if status != rdma.StatusSuccess {
		r.failed = true
	}
	s.done = false
	done = *s // whoever posts may take the place once the head has moved
	done.status = status
	r.head.Store(head + 1)
	if int32(head+1-r.seen) > 0 {
		r.seen = head + 1
	}
	return done, done.signaled || status != rdma.StatusSuccess, lost, true
}

// A recvRing remembers the receives on a receive queue, in order.
type recvRing struct {
	ids   []uint64
	mask  uint32
	depth uint32
	tail  atomic.Uint32
	_     [108]byte
	head  atomic.Uint32
}

func (r *recvRing) init(depth int) {
	size, mask := newSlots(depth)
	r.ids, r.mask, r.depth = make([]uint64, size), mask, uint32(depth)
}

func (r *recvRing) room() uint32 { return r.depth - (r.tail.Load() - r.head.Load()) }

func (r *recvRing) outstanding() uint32 { return r.tail.Load() - r.head.Load() }

// has tells whether the receive with that number is outstanding.
func (r *recvRing) has(seq uint32) bool {
	head := r.head.Load()
	return seq-head < r.tail.Load()-head
}

// next takes the oldest receive.
func (r *recvRing) next() (id uint64, ok bool) {
	head := r.head.Load()
	if head == r.tail.Load() {
		return 0, false
	}
	id = r.ids[head&r.mask]
	r.head.Store(head + 1)
	return id, true
}
