package engine

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
)

// piece is a part of a region.
type piece struct {
	region         *mem.Region
	offset, length int
}

// resolve checks a scatter-gather list against the domain, appends its parts
// that have a length to pieces and returns their sum.
func resolve(pieces []piece, owner mem.Owner, list []rdma.SGE, need rdma.Access) ([]piece, int64, error) {
	var total int64
	for i := range list {
		s := &list[i]
		if s.Region == nil && s.Length == 0 {
			continue
		}
		region, ok := s.Region.(*mem.Region)
		switch {
		case !ok || region == nil:
			return pieces, 0, fmt.Errorf("%w: entry %d names no region of this device", rdma.ErrInvalid, i)
		case region.Owner() != owner:
			return pieces, 0, fmt.Errorf("%w: entry %d names a region of another domain", rdma.ErrInvalid, i)
		case region.Closed():
			return pieces, 0, fmt.Errorf("%w: entry %d names a closed region", rdma.ErrInvalid, i)
		case s.Offset < 0 || s.Length < 0 || s.Offset > region.Size() || s.Length > region.Size()-s.Offset:
			return pieces, 0, fmt.Errorf("%w: entry %d is bytes %d to %d of a region of %d",
				rdma.ErrInvalid, i, s.Offset, s.Offset+s.Length, region.Size())
		case region.Access()&need != need:
			return pieces, 0, fmt.Errorf("%w: entry %d names a region without the right of local writes", rdma.ErrInvalid, i)
		}
		total += int64(s.Length)
		if s.Length > 0 {
			pieces = append(pieces, piece{region, s.Offset, s.Length})
		}
	}
	return pieces, total, nil
}

// RecvQueue holds receives, of one queue pair or of many. It may be used
// concurrently.
type RecvQueue struct {
	owner   mem.Owner
	depth   int
	maxSGE  int
	onLimit func()

	used atomic.Int32 // places taken, until the completions are polled

	mu         sync.Mutex
	ring       []receive
	head, tail uint64
	limit      int
	unneeded   int // receives that were left at all times since the last Recall
	closed     bool

	first, last *waiter // engines with a message that found no receive, in order
}

// waiter is an engine in the list of those that wait for a receive. Its fields
// are the queue's, by its lock, until given is true, and then the reader's.
type waiter struct {
	next  *waiter
	into  *receive
	wake  func() // called without locks once given is true
	given atomic.Bool
}

type receive struct {
	id     uint64
	pieces []piece // capacity maxSGE
	length int64
}

// NewRecvQueue makes a queue of depth receives of up to maxSGE entries. onLimit
// is called once when fewer than limit are left.
func NewRecvQueue(owner mem.Owner, depth, maxSGE, limit int, onLimit func()) *RecvQueue {
	q := &RecvQueue{owner: owner, depth: depth, maxSGE: maxSGE, limit: limit, onLimit: onLimit,
		ring: make([]receive, depth)}
	backing := make([]piece, depth*maxSGE)
	for i := range q.ring {
		q.ring[i].pieces = backing[i*maxSGE : i*maxSGE : (i+1)*maxSGE]
	}
	return q
}

// Post appends receives and returns how many it took. Engines that wait for one
// are served first, in turn, and go on in the caller's goroutine.
func (q *RecvQueue) Post(requests []rdma.RecvRequest) (int, error) {
	q.mu.Lock()
	n, err := q.post(requests)
	if q.first == nil {
		q.mu.Unlock()
		return n, err
	}
	for q.first != nil && q.head != q.tail {
		w := q.first
		q.remove(w)
		low := q.pop(w.into)
		w.given.Store(true)
		q.mu.Unlock()
		q.tell(low)
		w.wake()
		q.mu.Lock()
	}
	q.mu.Unlock()
	return n, err
}

func (q *RecvQueue) post(requests []rdma.RecvRequest) (int, error) {
	for i := range requests {
		r := &requests[i]
		if q.closed {
			return i, rdma.ErrState
		}
		if len(r.SGEs) > q.maxSGE {
			return i, fmt.Errorf("%w: a receive of %d entries, at most %d", rdma.ErrInvalid, len(r.SGEs), q.maxSGE)
		}
		if int(q.used.Load()) >= q.depth {
			return i, rdma.ErrQueueFull
		}
		slot := &q.ring[q.tail%uint64(q.depth)]
		pieces, length, err := resolve(slot.pieces[:0], q.owner, r.SGEs, rdma.AccessLocalWrite)
		if err != nil {
			return i, err
		}
		slot.id, slot.pieces, slot.length = r.ID, pieces, length
		q.tail++
		q.used.Add(1)
	}
	return len(requests), nil
}

// take moves the oldest receive into r, whose pieces are reused.
func (q *RecvQueue) take(r *receive) bool {
	q.mu.Lock()
	if q.head == q.tail {
		q.mu.Unlock()
		return false
	}
	low := q.pop(r)
	q.mu.Unlock()
	q.tell(low)
	return true
}

// takeOrWait is take, unless there is no receive, or others wait for one. Then w
// joins them: a Post fills w.into and calls w.wake.
func (q *RecvQueue) takeOrWait(w *waiter) bool {
	q.mu.Lock()
	if q.head == q.tail || q.first != nil {
		w.given.Store(false)
		if q.first == nil {
			q.first = w
		} else {
			q.last.next = w
		}
		q.last = w
		q.mu.Unlock()
		return false
	}
	low := q.pop(w.into)
	q.mu.Unlock()
	q.tell(low)
	return true
}

// leave ends the wait of w. It returns whether w has been given a receive.
func (q *RecvQueue) leave(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(w)
	return w.given.Load()
}

// remove takes w out of the list, if it is there.
func (q *RecvQueue) remove(w *waiter) {
	var before *waiter
	for each := q.first; each != nil; before, each = each, each.next {
		if each != w {
			continue
		}
		if before == nil {
			q.first = w.next
		} else {
			before.next = w.next
		}
		if q.last == w {
			q.last = before
		}
		w.next = nil
		return
	}
}

// pop moves the oldest receive into r. It returns whether the limit was passed.
func (q *RecvQueue) pop(r *receive) (low bool) {
	slot := &q.ring[q.head%uint64(q.depth)]
	r.id, r.length = slot.id, slot.length
	r.pieces = append(r.pieces[:0], slot.pieces...)
	q.head++
	q.unneeded = min(q.unneeded, int(q.tail-q.head))
	if low = q.limit > 0 && int(q.tail-q.head) < q.limit; low {
		q.limit = 0
	}
	return low
}

func (q *RecvQueue) tell(low bool) {
	if low && q.onLimit != nil {
		q.onLimit()
	}
}

// Recall takes receives out that were not needed since the last call, the youngest
// first: at most len(ids), whose IDs it returns there, and none of the last keep.
func (q *RecvQueue) Recall(ids []uint64, keep int) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := int(q.tail - q.head)
	for most := min(q.unneeded, left-keep, len(ids)); n < most && !q.closed; n++ {
		q.tail--
		ids[n] = q.ring[q.tail%uint64(q.depth)].id
	}
	q.used.Add(int32(-n))
	q.unneeded = left - n
	return n
}

// Close refuses further posts.
func (q *RecvQueue) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
}

// MaxSGE is the number of entries that a receive may have.
func (q *RecvQueue) MaxSGE() int { return q.maxSGE }

// Receives is where the engine's receives come from.
func (e *Engine) Receives() *RecvQueue { return e.cfg.Receives }
