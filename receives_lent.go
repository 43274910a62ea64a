package verbena

import (
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Shared receives over a device that lends them to queue pairs (decision 0026). The
// device tells when it could lend more than are posted, and gives back what nobody has
// used for a while. So as many are posted as peers use at the moment. When all are idle,
// one is for each endpoint, 8 at most.

// recallEvery is how often receives that have not been used are taken back, while more
// are posted than when all are idle. A receive that was lent goes back after 3 to 6 s
// without use. Tests make it shorter.
var recallEvery = 3 * time.Second

// lentPlaces is how many places of a queue that lends an endpoint needs: 2 for its first
// loan, and 2 that busier ones use. A queue of 2,048 takes 512 endpoints.
const lentPlaces = 4

// mostMoves is how many rounds move the last receives in vain after a demand. Others that
// use the same region may keep it from going back for as long as they like.
const mostMoves = 16

// A lender is a shared receive queue that lends.
type lender = rdma.RecallingReceiveQueue

// onScarce is what a device that lends calls when it could lend more receives; nil for a
// strict queue, where all that may be used are posted.
func (r *receives) onScarce() func(n int) int {
	if r.strict {
		return nil
	}
	return r.demanded
}

// attach makes q the queue.
func (r *receives) attach(q rdma.SharedReceiveQueue) {
	r.queue = q
	if l, ok := q.(lender); ok && !r.strict {
		r.lender = l
	}
}

// most is how many receives peers can use at a time where they are lent: those that they
// were promised, and those for messages that cost no credit. r.mu is held.
func (r *receives) most() int {
	return r.promised + int(r.users.Load())*r.unpaid + baseReceives
}

// demanded posts up to n receives more, as many as peers can use at most. It tells how
// many it has posted. The device calls it, in a poll or on a goroutine of its own.
func (r *receives) demanded(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	r.moves = 0
	// A receive whose message an application holds is in the target and not posted: as
	// many can be posted without raising the target.
	if lack := int32(n) - (r.target.Load() - r.posted.Load()); lack > 0 && !r.pool.Squeezed() {
		r.target.Store(max(r.target.Load(), min(r.target.Load()+lack, int32(r.most()), int32(r.depth))))
	}
	posted, err := r.fillSome(n, nil)
	if r.keepTrying(err); posted == 0 && r.posted.Load() < r.target.Load() {
		r.tryLater(errNoReceive) // others are registering memory, or there is none
	}
	r.recallSurplus()
	return posted
}

// recallSurplus has unused receives taken back later, if more are posted than when all
// are idle. r.mu is held.
func (r *receives) recallSurplus() {
	if r.lender != nil && r.target.Load() > r.least() {
		r.recallLater()
	}
}

// recallLater makes a round in recallEvery, and further ones while they are of use. r.mu
// is held.
func (r *receives) recallLater() {
	if r.recaller != nil || r.closed {
		return
	}
	r.recaller = time.AfterFunc(recallEvery, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.recaller == nil || r.closed {
			return
		}
		r.recaller = nil
		if r.recall() {
			r.recallLater() // what is left may be in regions that are nearly empty
		} else if r.fragmented(fragmentedFromIdle) && r.moves < mostMoves {
			r.moves++
			r.recallLater() // the regions that receives moved out of may not be empty yet
		} else {
			r.recallSurplus()
		}
	})
}

// recall takes receives back that are not lent, but for the first ones of peers to come.
// It tells whether memory went back. r.mu is held.
func (r *receives) recall() (dropped bool) {
	least := r.least()
	n := int(r.posted.Load())
	if cap(r.recalled) < n {
		r.recalled = make([]uint64, n)
	}
	keep := int(least)
	if r.fragmented(fragmentedFromIdle) {
		keep = 0 // the first ones move, too, so that they keep no large region
	}
	n = r.lender.Recall(r.recalled[:n], keep)
	kept := min(int(least)-keep, n)
	for _, id := range r.recalled[kept:n] {
		b := r.look(id)
		b.posted = false
		r.posted.Add(-1)
		r.drop(b)
	}
	r.target.Store(max(r.posted.Load(), least))
	for _, id := range r.recalled[:kept] {
		b := r.look(id)
		r.move(b)
		if err := r.post(b); err != nil {
			r.log.Debug("a receive is not posted again", "error", err)
			r.drop(b)
		}
	}
	return n > kept
}
