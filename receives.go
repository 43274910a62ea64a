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
	// baseReceives is how many receives a shared queue posts before it knows its load.
	// They take the messages that cost no credit, and the first that do.
	baseReceives = 8
	// sharedDepth is how many receives a shared queue can hold.
	sharedDepth = 2048
)

// receives are the receives of one queue. Endpoints of a group share it, or it is the
// queue of one queue pair: where the device has no shared receive queues, and for the
// first endpoints of a group if Tuning.Own says how many, which no built-in tuning does.
//
// Peers are promised receives, and the promises are counted. How many receives are
// posted, which takes memory, depends on the device:
//
//   - A device that lends receives to queue pairs says how many more it could use. The
//     queue posts those.
//   - Another device that makes a sender wait for a receive gets one for each endpoint,
//     2 at least and 8 at most, and twice as many each time that fewer than 4 are left,
//     or than half of what is posted.
//   - A device that gives receives back is asked for what nobody has used for a while.
//     It begins with one receive.
//   - On a device that does neither, and for one endpoint, no message may find the queue
//     empty: it is strict. A receive is posted for each promise but for two kinds: those
//     that sleep, since the peer has not been told of them, and those for which the
//     application holds a message.
type receives struct {
	queue  poster
	pool   *slab.Pool
	log    *slog.Logger
	number uint32       // of a shared queue in its domain, from 1; 0: an endpoint's own
	size   int          // bytes of a receive
	strict bool         // a message must never find the queue empty
	kept   int          // places of a strict queue that are not promised
	base   int          // receives that are posted there
	depth  int          // of the queue
	users  atomic.Int32 // endpoints of a shared queue; changed under its domain's mu
	lends  bool         // the device lends the receives to queue pairs
	unpaid int          // if it does: messages without a credit that a peer may have on their way
	giver  giver        // nil unless the queue gives receives back
	tidy   func()       // if it does: posts what endpoints have yet to post

	slots  atomic.Pointer[[]*buffer] // by the ID of their receive
	posted atomic.Int32
	target atomic.Int32 // to be posted; of a strict queue endpoints change it, of another one who holds mu

	mu       sync.Mutex
	spare    []*buffer // without memory
	promised int
	retry    *time.Timer   // posts again after none could be posted
	pause    time.Duration // before that
	recaller *time.Timer   // takes back what is not needed
	recalled []uint64      // IDs, for recall
	vain     int           // rounds that gave no memory back, since a demand or a release that did
	closed   bool
}

// A poster takes receives: a queue pair, or a shared receive queue.
type poster interface {
	PostRecv(requests []rdma.RecvRequest) (int, error)
}

func newReceives(queue poster, pool *slab.Pool, log *slog.Logger, number uint32, size, depth int, strict bool) *receives {
	r := &receives{queue: queue, pool: pool, log: log, number: number, size: size, depth: depth, strict: strict}
	if number > 0 {
		r.kept = baseReceives
	}
	r.slots.Store(new([]*buffer))
	return r
}

// places is how many more receives a strict queue may promise if it uses depth of its
// places at most.
func (r *receives) places(depth int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return depth - r.kept - r.promised
}

// least is how many receives a queue that is not strict keeps posted: one for each
// endpoint, 8 at most. A queue that gives none back keeps 2 at least: as many as a peer
// needs who waits for each answer.
func (r *receives) least() int32 {
	few := int32(2)
	if r.giver != nil {
		few = 1
	}
	return min(baseReceives, max(r.users.Load(), few))
}

// fill posts receives up to the target. It uses up the fetched memory before it takes
// any of the pool. r.mu is held.
func (r *receives) fill(fetched *[]slab.Slab) error {
	_, err := r.fillSome(math.MaxInt, fetched)
	return err
}

// fillSome is fill for at most that many receives. It tells how many it has posted.
// r.mu is held.
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

// reserve counts one more posted receive, unless the target is reached or the queue is
// full.
func (r *receives) reserve() bool { return r.reserveSome(1) == 1 }

// reserveSome is reserve for up to n receives. It tells how many it has counted.
func (r *receives) reserveSome(n int) int {
	for {
		posted := r.posted.Load()
		more := min(int32(n), min(r.target.Load(), int32(r.depth))-posted)
		if more <= 0 {
			return 0
		}
		if r.posted.CompareAndSwap(posted, posted+more) {
			return int(more)
		}
	}
}

// post posts a buffer for which reserve has counted.
func (r *receives) post(b *buffer) error {
	b.posted = true
	_, err := r.queue.PostRecv(b.request[:])
	if err != nil {
		r.notPosted(b)
		return fmt.Errorf("post receive: %w", err)
	}
	return nil
}

// postSome is post for several, by requests, which has room for as many. It tells how
// many it has posted.
func (r *receives) postSome(buffers []*buffer, requests []rdma.RecvRequest) (int, error) {
	if len(buffers) == 1 {
		if err := r.post(buffers[0]); err != nil {
			return 0, err
		}
		return 1, nil
	}
	for i, b := range buffers {
		b.posted, requests[i] = true, b.request[0]
	}
	n, err := r.queue.PostRecv(requests[:len(buffers)])
	for _, b := range buffers[n:] {
		r.notPosted(b)
	}
	if err != nil {
		return n, fmt.Errorf("post receive: %w", err)
	}
	return n, nil
}

// notPosted takes back what reserve has counted for a buffer that was not posted.
func (r *receives) notPosted(b *buffer) {
	b.posted = false
	r.posted.Add(-1)
}

// arrived returns the buffer of a receive that has completed, which is the caller's until
// put. It returns nil if no such receive is posted.
func (r *receives) arrived(id uint64) *buffer {
	b := r.look(id)
	if b != nil {
		r.took(b)
	}
	return b
}

// look is arrived for a caller that may leave the receive posted. Who takes it calls
// took.
func (r *receives) look(id uint64) *buffer {
	slots := *r.slots.Load()
	slot := uint32(id)
	if uint32(id&^idKind>>idQueue) != r.number || int64(slot) >= int64(len(slots)) || !slots[slot].posted {
		return nil
	}
	return slots[slot]
}

// took takes a receive that look has found.
func (r *receives) took(b *buffer) {
	b.posted = false
	if r.strict {
		// Until put one receive less is wanted. The target goes first, so that no other
		// is posted in its place.
		r.target.Add(-1)
		r.posted.Add(-1)
	} else if left := r.posted.Add(-1); !r.lends && 2*left < min(baseReceives, r.target.Load()) {
		r.low()
	}
}

// shrink lowers the target by one, because memory is short. A strict queue keeps its
// target.
func (r *receives) shrink() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.target.Load(); n > r.least() && !r.strict {
		r.target.Store(n - 1)
	}
}

// put takes buffers back. It posts them again, by requests if there are several, or gives
// their memory back if the target is reached. So many of them are counted as posted
// already. The caller is an endpoint that uses the queue, which is therefore open.
func (r *receives) put(buffers []*buffer, requests []rdma.RecvRequest, counted int) error {
	squeezed := r.pool.Squeezed()
	for _, b := range buffers {
		if squeezed {
			r.shrink()
		}
		if b.uses++; b.uses%movedAfter == 0 && r.fragmented(fragmentedFrom) {
			r.move(b)
		}
	}
	if r.strict {
		r.target.Add(int32(len(buffers)))
	}
	if counted > 0 && r.posted.Load() > r.target.Load() {
		r.posted.Add(int32(-counted)) // the target has fallen
		counted = 0
	}
	n, err := counted, error(nil)
	if n < len(buffers) {
		n += r.reserveSome(len(buffers) - n)
	}
	if n > 0 {
		n, err = r.postSome(buffers[:n], requests)
	}
	if n < len(buffers) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, b := range buffers[n:] {
			r.drop(b)
		}
		r.recallRest()
	}
	return err
}

// putLate is put after the endpoint has gone, when the queue may be closed. held says that
// the application still had the message when the endpoint gave its promises back, among
// which this receive was not counted then.
func (r *receives) putLate(b *buffer, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.strict && !held {
		r.target.Add(1)
	}
	if !r.reserve() || r.post(b) != nil {
		r.drop(b) // reclaim, which holds mu, has not seen it posted
		r.recallRest()
	}
}

// reclaim takes back what is still posted. The queue is closed and its completions have
// been handled. stuck says that closing failed: the device may still use the memory,
// which is then never used again.
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

// suspend stops the timers, and lets none begin while closed is true.
func (r *receives) suspend(closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed = closed; closed && r.retry != nil {
		r.retry.Stop()
		r.retry = nil
	}
	if closed && r.recaller != nil {
		r.recaller.Stop()
		r.recaller = nil
	}
}
