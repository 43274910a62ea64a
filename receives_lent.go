package verbena

import "github.com/verbena-data/verbena/rdma"

// Shared receives over a device that lends them to queue pairs (decision 0026). The
// device tells when it could lend more than are posted, and what nobody uses is taken back.
// So as many are posted as peers use at the moment.

// lentPlaces is how many places of a queue that lends an endpoint needs: 2 for its first
// loan, and 2 that busier ones use. A queue of 2,048 takes 512 endpoints.
const lentPlaces = 4

// onScarce is what a device that lends calls when it could lend more receives; nil for a
// strict queue, where all that may be used are posted.
func (r *receives) onScarce() func(n int) int {
	if r.strict {
		return nil
	}
	return r.demanded
}

// attach makes q the queue, of a device that may lend its receives.
func (r *receives) attach(q rdma.SharedReceiveQueue, lends bool) {
	r.queue = q
	if g, ok := q.(giver); ok && !r.strict {
		r.giver, r.lends = g, lends
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
	r.vain = 0
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
