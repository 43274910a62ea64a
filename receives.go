package verbena

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

const (
	// baseReceives of a shared queue are posted as long as there is an endpoint. They
	// take the messages that cost no credit, and the first ones that do.
	baseReceives = 8
	// sharedDepth is how many receives a shared queue can hold.
	sharedDepth = 2048
	// movedAfter is after how many uses a receive may move to other memory, and
	// sparseFrom how many bytes a pool may hold in any way.
	movedAfter, sparseFrom = 16, 4 << 20
	// firstRetry is the pause before receives are posted again after none could be.
	// It doubles up to lastRetry.
	firstRetry, lastRetry = 10 * time.Millisecond, time.Second
)

// errNoReceive says that there is no memory for a receive, but for what might be had
// without the locks that are held.
var errNoReceive = fmt.Errorf("memory of a receive: %w", slab.ErrExhausted)

// errNoPlaces says that a queue is too short for more promises.
var errNoPlaces = errors.New("verbena: the receive queue is full")

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
// told their peers of it yet, and less what messages lie in. A group has as many shared queues as it needs.
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
	target atomic.Int32 // to be posted; written under mu

	mu       sync.Mutex
	spare    []*buffer // without memory
	promised int
	retry    *time.Timer   // posts again after none could be posted
	pause    time.Duration // before that
	ebb      *time.Timer   // takes back what is not needed, of a queue that lends
	recalled []uint64      // IDs, for ebb
	closed   bool
}

// A poster takes receives: a queue pair, or a shared receive queue.
type poster interface {
	PostRecv(requests []rdma.RecvRequest) (int, error)
}

// A buffer is the memory of a receive and the message that comes to lie in it.
type buffer struct {
	message Message
	slab    slab.Slab
	memory  []byte // of slab
	home    *receives
	holder  holder // the endpoint whose message lies here
	posted  bool   // the device has it
	uses    uint8  // since it got its memory, in a circle
	request [1]rdma.RecvRequest
	entry   [1]rdma.SGE
}

// A holder is an endpoint to which a message in a buffer belongs.
type holder interface {
	// released takes the buffer back from the application.
	released(*buffer)
}

func (b *buffer) release() {
	if h := b.holder; h != nil {
		h.released(b)
		return
	}
	b.home.log.Error("a message was released twice; the second Release did nothing")
}

func (b *buffer) location() location {
	return location{pool: b.home.pool, slab: b.slab, offset: wire.HeaderSize}
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

// promise lets a peer use from least to most receives more, and tells how many. On a
// strict device all but awake of them sleep until wake. errNoPlaces says that the
// queue has too few places.
func (r *receives) promise(sh *share, least, most, awake int) (int, error) {
	return r.promiseWith(sh, least, most, awake, nil)
}

// promiseWith is promise with memory that the caller has fetched. What is left of it
// stays the caller's.
func (r *receives) promiseWith(sh *share, least, most, awake int, fetched *[]slab.Slab) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.strict {
		if most = min(most, r.depth-r.base-r.promised); most < least {
			return 0, errNoPlaces
		}
	}
	n, err := sh.promise(least, most)
	if err != nil {
		return 0, err
	}
	r.promised += n
	awake = min(awake, n)
	if r.strict {
		r.target.Add(int32(awake))
	} else {
		r.target.Store(max(r.target.Load(), r.least()))
	}
	if err := r.fill(fetched); err != nil {
		r.takeBack(sh, n, awake)
		return 0, err
	}
	return n, nil
}

// mostRefusals is how many slabs beyond those that it posts an endpoint that is
// being set up may have to fetch: other endpoints use the same queue up meanwhile.
const mostRefusals = 4

// admit is promise for an endpoint that is being set up, and holds no lock: it may wait
// while others register or close regions.
func (r *receives) admit(sh *share, least, most, awake int) (int, error) {
	var fetched []slab.Slab
	defer func() {
		for _, s := range fetched {
			r.pool.Put(s)
		}
	}()
	for refused := 0; ; refused++ {
		n, err := r.promiseWith(sh, least, most, awake, &fetched)
		if !errors.Is(err, errNoReceive) || refused == r.base+awake+mostRefusals {
			return n, err
		}
		memory, err := r.pool.GetNow(context.Background(), r.size)
		if err != nil {
			return 0, fmt.Errorf("memory of a receive: %w", err)
		}
		fetched = append(fetched, memory)
	}
}

// wake posts n promised receives that sleep.
func (r *receives) wake(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target.Add(int32(n))
	err := r.fill(nil)
	if err != nil {
		r.target.Add(int32(-n))
	}
	return err
}

// sleep takes n receives back that stay promised. Those that are posted go when they
// are used next.
func (r *receives) sleep(n int) { r.target.Add(int32(-n)) }

// more is promise for a peer that had to wait, as long as memory is plentiful. As
// many more are posted: a peer that sends so fast would wait for them, too.
func (r *receives) more(sh *share, most int) int {
	if most <= 0 || !sh.plenty() || r.pool.Squeezed() {
		return 0
	}
	n, err := r.promise(sh, 0, most, most)
	if err != nil {
		return 0 // it waits on
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.strict && r.lender == nil {
		r.target.Store(min(r.target.Load()+int32(n), int32(r.promised+baseReceives)))
		_ = r.fill(nil) // there are some posted; what comes back is posted, too
	}
	return n
}

// scarce tells that endpoints of a peer should give back what they have grown by.
func (r *receives) scarce(sh *share) bool { return sh.scarce() || r.pool.Squeezed() }

// withdraw takes back n promises. Of them awake neither sleep nor have a message that
// an application holds.
func (r *receives) withdraw(sh *share, n, awake int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takeBack(sh, n, awake)
}

// takeBack needs mu.
func (r *receives) takeBack(sh *share, n, awake int) {
	sh.withdraw(n)
	r.promised -= n
	if r.strict {
		r.target.Add(int32(-awake))
	} else {
		most := r.promised + baseReceives
		if r.lender != nil {
			most = r.most()
		}
		r.target.Store(min(r.target.Load(), int32(most)))
		r.ebbs()
	}
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

// take returns a buffer with memory. r.mu is held.
func (r *receives) take(fetched *[]slab.Slab) (*buffer, error) {
	var s slab.Slab
	if fetched != nil && len(*fetched) > 0 {
		last := len(*fetched) - 1
		s, *fetched = (*fetched)[last], (*fetched)[:last]
	} else {
		var ok bool
		var err error
		// Whoever calls may hold locks that others want.
		if s, ok, err = r.pool.TryNow(r.size); err != nil {
			return nil, fmt.Errorf("memory of a receive: %w", err)
		} else if !ok {
			return nil, errNoReceive
		}
	}
	var b *buffer
	if n := len(r.spare); n > 0 {
		b = r.spare[n-1]
		r.spare = r.spare[:n-1]
	} else {
		slots := *r.slots.Load()
		b = &buffer{home: r}
		b.message.owner = b
		b.request[0] = rdma.RecvRequest{ID: idReceive | uint64(r.number)<<idQueue | uint64(len(slots)), SGEs: b.entry[:]}
		grown := append(slots[:len(slots):len(slots)], b)
		r.slots.Store(&grown)
	}
	r.lie(b, s)
	return b, nil
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

// drop gives the memory of a buffer back to the pool. r.mu is held.
func (r *receives) drop(b *buffer) {
	r.pool.Put(b.slab)
	b.slab, b.memory = slab.Slab{}, nil
	r.spare = append(r.spare, b)
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

// low posts more receives: peers use them faster than they come back.
func (r *receives) low() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target.Store(min(2*r.target.Load(), int32(r.promised+baseReceives)))
	r.replenish()
}

// replenish posts receives up to the target. r.mu is held.
func (r *receives) replenish() { r.keepTrying(r.fill(nil)) }

// keepTrying takes the error of fill. If there are no receives at all it tries again
// later: nothing may ever come back while applications hold what there was. r.mu is
// held.
func (r *receives) keepTrying(err error) {
	switch {
	case err == nil:
		r.pause = 0
		return
	default:
		r.tryLater(err)
	}
}

// tryLater posts receives after a pause if there are none then, or if peers want more
// of a queue that lends. r.mu is held.
func (r *receives) tryLater(err error) {
	if r.closed || r.retry != nil {
		return
	}
	r.pause = min(max(2*r.pause, firstRetry), lastRetry)
	r.log.Debug("too few receives are posted, trying again", "pause", r.pause, "error", err)
	r.retry = time.AfterFunc(r.pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.retry = nil; !r.closed && (r.posted.Load() == 0 || r.lender != nil) {
			r.replenish()
		}
	})
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

// sparse tells that the pool holds much more than is used, here and there.
func (r *receives) sparse() bool {
	registered := r.pool.Registered()
	return registered > sparseFrom && r.pool.Used() < registered/2
}

// move gives a buffer other memory, so that what lies here and there comes together
// and the rest can go back.
func (r *receives) move(b *buffer) {
	if memory, ok := r.pool.Denser(b.slab); ok {
		r.pool.Put(b.slab)
		r.lie(b, memory)
	}
}

// lie gives a buffer its memory.
func (r *receives) lie(b *buffer, s slab.Slab) {
	b.slab, b.memory, b.uses = s, s.Bytes()[:r.size], 0
	b.entry[0] = rdma.SGE{Region: s.Region(), Offset: s.Offset(), Length: r.size}
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
