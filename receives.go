package verbena

import (
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

const (
	// baseReceives of a shared queue are posted as long as there is an endpoint. They
	// take the messages that cost no credit, and the first ones that do.
	baseReceives = 8
	// sharedDepth is how many receives a shared queue can hold.
	sharedDepth = 2048
)

// receives are the posted receives of a group on a device, which its endpoints
// share, or those of one endpoint: where the device has no shared receive queues, and
// of as many endpoints of a group as Tuning.Own says.
//
// What peers may use is promised and counted; memory is taken as messages come. A
// device that makes a sender wait for a receive needs few posted ones, and gets
// more as they run low.
//
// On any other device, and for one endpoint, a receive is posted for each message
// that may come: for what is promised, less what is asleep, since endpoints have not
// told their peers of it yet, and less what messages lie in. A group has as many shared
// queues as it needs.
type receives struct {
	queue  poster
	pool   *slab.Pool
	log    *slog.Logger
	number uint32       // of a shared queue in its domain, from 1; 0: an endpoint's own
	size   int          // bytes of a receive
	strict bool         // a message must never find the queue empty
	base   int          // receives that are posted beside those promised
	depth  int          // of the queue
	users  atomic.Int32 // endpoints of a shared queue; changed under its domain's mu
	lender lender       // nil unless the queue lends its receives
	unpaid int          // of a lender: messages without a credit that a peer may have on their way

	slots  atomic.Pointer[[]*buffer] // by the ID of their receive
	posted atomic.Int32
	target atomic.Int32 // to be posted; of a strict queue endpoints change it, of another one who holds mu

	mu       sync.Mutex
	spare    []*buffer // without memory
	promised int
	retry    *time.Timer   // posts again after none could be posted
	pause    time.Duration // before that
	ebb      *time.Timer   // takes back what is not needed, of a queue that lends
	recalled []uint64      // IDs, for ebb
	thinned  int           // times that the last receives have moved in vain since a demand
	closed   bool
}

// A poster takes receives: a queue pair, or a shared receive queue.
type poster interface {
	PostRecv(requests []rdma.RecvRequest) (int, error)
}

func newReceives(queue poster, pool *slab.Pool, log *slog.Logger, number uint32, size, depth int, strict bool) *receives {
	r := &receives{queue: queue, pool: pool, log: log, number: number, size: size, depth: depth, strict: strict}
	if number > 0 {
		r.base = baseReceives
	}
	if strict {
		r.target.Store(int32(r.base))
	}
	r.slots.Store(new([]*buffer))
	return r
}

// places is how many more receives a strict queue has room for if depth of its
// places are used.
func (r *receives) places(depth int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return depth - r.base - r.promised
}

// least is how many receives a queue that is not strict has posted at least. Where
// they are lent, it is no more than one for each endpoint.
func (r *receives) least() int32 {
	if r.lender == nil {
		return baseReceives
	}
	return min(baseReceives, max(r.users.Load(), 1))
}

// fill posts receives up to the target, in memory that was fetched or else the pool's.
// r.mu is held.
func (r *receives) fill(fetched *[]slab.Slab) error {
	_, err := r.fillSome(math.MaxInt, fetched)
	return err
}

// fillSome is fill for at most so many, and tells how many it has posted. r.mu is held.
func (r *receives) fillSome(most int, fetched *[]slab.Slab) (n int, err error) {
	for n < most && r.reserve() {
		b, err := r.take(fetched)
		if err != nil {
			r.posted.Add(-1)
		} else if err = r.post(b); err != nil {
			r.drop(b)
		}
		switch {
		case err == nil:
			n++
		case r.strict || r.posted.Load() == 0:
			return n, err
		default:
			return n, nil // there are some; the next that comes back is posted
		}
	}
	return n, nil
}

// reserve counts one more posted receive if so many are wanted. More than the queue
// holds would be refused.
func (r *receives) reserve() bool {
	for {
		n := r.posted.Load()
		if n >= min(r.target.Load(), int32(r.depth)) {
			return false
		}
		if r.posted.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// post posts a buffer for which reserve has counted.
func (r *receives) post(b *buffer) error {
	b.posted = true
	if _, err := r.queue.PostRecv(b.request[:]); err != nil {
		b.posted = false
		r.posted.Add(-1)
		return fmt.Errorf("post receive: %w", err)
	}
	return nil
}

// arrived returns the buffer of a receive that has completed. It belongs to the
// caller until put. It is nil for a completion that belongs to none.
func (r *receives) arrived(id uint64) *buffer {
	b := r.look(id)
	if b != nil {
		r.took(b)
	}
	return b
}

// look is arrived without taking the buffer, which is up to took.
func (r *receives) look(id uint64) *buffer {
	slots := *r.slots.Load()
	slot := uint32(id)
	if uint32(id&^idKind>>idQueue) != r.number || int64(slot) >= int64(len(slots)) || !slots[slot].posted {
		return nil
	}
	return slots[slot]
}

// took counts a receive that look has found as used.
func (r *receives) took(b *buffer) {
	b.posted = false
	if r.strict {
		// One less is wanted until put, and never one more than is.
		r.target.Add(-1)
		r.posted.Add(-1)
	} else if left := r.posted.Add(-1); left < baseReceives/2 && r.lender == nil {
		r.low()
	}
}

// shrink lets one receive less be posted, while memory is short.
func (r *receives) shrink() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.target.Load(); n > r.least() && !r.strict {
		r.target.Store(n - 1)
	}
}

// put takes a buffer back and posts it again if that many are wanted. The queue is
// not being closed: the caller is one of those for whom it is open.
func (r *receives) put(b *buffer) error {
	if r.pool.Squeezed() {
		r.shrink()
	}
	if b.uses++; b.uses%movedAfter == 0 && r.sparse() {
		r.move(b)
	}
	if r.strict {
		r.target.Add(1)
	}
	if r.reserve() {
		err := r.post(b)
		if err == nil {
			return nil
		}
		r.mu.Lock()
		r.drop(b)
		r.mu.Unlock()
		return err
	}
	r.mu.Lock()
	r.drop(b)
	r.mu.Unlock()
	return nil
}

// putLate is put by an endpoint that has gone: the queue may be closed meanwhile. held
// says that the application had the message when the endpoint took its promises back.
func (r *receives) putLate(b *buffer, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.strict && !held {
		r.target.Add(1)
	}
	if !r.reserve() || r.post(b) != nil {
		r.drop(b) // reclaim, which holds mu, has not seen it posted
	}
}

// reclaim takes back what is still posted. The queue has been closed and its
// completions have been handled. If it is stuck, the device may still use the memory.
func (r *receives) reclaim(stuck bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target.Store(0)
	for _, b := range *r.slots.Load() {
		if b.posted {
			b.posted = false
			r.posted.Add(-1)
			if stuck {
				r.pool.Spoil(b.slab, nil)
				b.slab, b.memory = slab.Slab{}, nil
			} else {
				r.drop(b)
			}
		}
	}
}

// close closes the shared queue, if it is one.
func (r *receives) close() error {
	q, ok := r.queue.(rdma.SharedReceiveQueue)
	if !ok {
		return nil
	}
	r.suspend(true)
	if err := q.Close(); err != nil {
		r.suspend(false)
		return fmt.Errorf("shared receives: %w", err)
	}
	r.reclaim(false)
	return nil
}

// suspend ends, or allows again, that a timer posts.
func (r *receives) suspend(closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed = closed; closed && r.retry != nil {
		r.retry.Stop()
		r.retry = nil
	}
	if closed && r.ebb != nil {
		r.ebb.Stop()
		r.ebb = nil
	}
}
