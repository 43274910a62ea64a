package verbena

import (
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A device that lends shared receives to queue pairs tells when it has too few, and
// gives back what nobody has used for a while. So a group posts as many as its peers
// use at the moment, and one for each endpoint, eight at most, when all are idle.

// ebbEvery is how often receives are taken back that have not been used, while there
// are more than when all are idle. What was lent goes after two such rounds at most.
// Tests make it shorter.
var ebbEvery = 3 * time.Second

// lentPlaces is how many places of a queue that lends there are for each endpoint: a
// loan of two, and as many more for those that are busier.
const lentPlaces = 4

// A lender is a shared receive queue that lends.
type lender = rdma.RecallingReceiveQueue

// scarcity is what a device calls that lends.
func (r *receives) scarcity() func(n int) int {
	if r.strict {
		return nil
	}
	return r.demanded
}

// of makes q the queue.
func (r *receives) of(q rdma.SharedReceiveQueue) {
	r.queue = q
	if l, ok := q.(lender); ok && !r.strict {
		r.lender = l
	}
}

// most is how many receives peers can use at a time: those that they have been
// promised, and those for what costs no credit. r.mu is held.
func (r *receives) most() int {
	return r.promised + int(r.users.Load())*r.unpaid + baseReceives
}

// demanded posts up to n receives more, and tells how many it has posted.
func (r *receives) demanded(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	r.thinned = 0
	// Messages that applications hold have made room for others already.
	if lack := int32(n) - (r.target.Load() - r.posted.Load()); lack > 0 && !r.pool.Squeezed() {
		r.target.Store(max(r.target.Load(), min(r.target.Load()+lack, int32(r.most()), int32(r.depth))))
	}
	posted, err := r.fillSome(n, nil)
	if r.keepTrying(err); posted == 0 && r.posted.Load() < r.target.Load() {
		r.tryLater(errNoReceive) // others are registering memory, or there is none
	}
	r.ebbs()
	return posted
}

// ebbs begins to take back what is not needed, if that may be anything. r.mu is held.
func (r *receives) ebbs() {
	if r.lender != nil && r.target.Load() > r.least() {
		r.ebbsOnce()
	}
}

// ebbsOnce looks in a while what is not needed. r.mu is held.
func (r *receives) ebbsOnce() {
	if r.ebb != nil || r.closed {
		return
	}
	r.ebb = time.AfterFunc(ebbEvery, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ebb == nil || r.closed {
			return
		}
		r.ebb = nil
		if r.recall() {
			r.ebbsOnce() // what is left may lie here and there
		} else if r.thin() && r.thinned < mostThinned {
			r.thinned++
			r.ebbsOnce() // what moved may have freed nothing yet
		} else {
			r.ebbs()
		}
	})
}

// mostThinned is how often the last receives move since a demand, where memory does not go
// back because others still use it.
const mostThinned = 16

// thinFrom is how many bytes a pool may hold in any way when receives are taken back.
const thinFrom = 512 << 10

// thin is sparse for receives of which few are left.
func (r *receives) thin() bool {
	registered := r.pool.Registered()
	return registered > thinFrom && r.pool.Used() < registered/2
}

// recall takes receives back that are neither lent nor needed as the first ones of
// peers to come. It tells whether memory went back. r.mu is held.
func (r *receives) recall() (dropped bool) {
	least := r.least()
	n := int(r.posted.Load())
	if cap(r.recalled) < n {
		r.recalled = make([]uint64, n)
	}
	keep := int(least)
	if r.thin() {
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
