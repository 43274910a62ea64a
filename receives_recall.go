package verbena

import (
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Shared receives over a device that gives back what has been posted and nobody uses.
// When all peers are idle, one is left for each endpoint, 8 at most.

// recallEvery is how often receives that have not been used are taken back, while more
// are posted than when all are idle. A receive goes back after 3 to 6 s without use. Tests
// make it shorter.
var recallEvery = 3 * time.Second

// mostVainRecalls is how many rounds may give no memory back. In every second of them the
// last receives move to other memory. More would not help: others in the same region may
// keep it registered for ever.
const mostVainRecalls = 32

// A giver is a shared receive queue that gives receives back.
type giver = rdma.RecallingReceiveQueue

// recallSurplus has unused receives taken back later, if more are posted than when all
// are idle. r.mu is held.
func (r *receives) recallSurplus() {
	if r.giver != nil && r.target.Load() > r.least() {
		r.recallLater()
	}
}

// recallRest has the last receives move later, because memory went back when an application
// released its messages, and others in the same regions may still be posted. r.mu is held.
func (r *receives) recallRest() {
	if r.giver != nil && r.fragmented(fragmentedFromIdle) {
		r.vain = 0
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
		r.tidy()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.recaller == nil || r.closed {
			return
		}
		r.recaller = nil
		if r.recall() {
			r.recallLater() // what is left may be in regions that are nearly empty
		} else if r.fragmented(fragmentedFromIdle) && r.vain < mostVainRecalls {
			r.vain++
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
	if r.vain%2 == 1 && r.fragmented(fragmentedFromIdle) {
		// The first ones move, too, so that they keep no large region. Rounds between keep
		// them: others than these may be surplus, and a device gives the youngest back.
		keep = 0
	}
	n = r.giver.Recall(r.recalled[:n], keep)
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
