package shm

// What a shared receive queue does whose user posts more receives when loans need
// them (rdma.SharedReceiveConfig.OnScarce), and takes back what they no longer need.

// addShort notes that the queue pair's loan is smaller than it should be. mu is held.
func (cq *completionQueue) addShort(qp *queuePair) {
	if !qp.short {
		qp.short, qp.after = true, cq.short
		cq.short = qp
	}
}

// forgetShort takes back addShort. mu is held.
func (cq *completionQueue) forgetShort(qp *queuePair) {
	for at := &cq.short; *at != nil; at = &(*at).after {
		if *at == qp {
			*at, qp.after = qp.after, nil
			qp.short = false
			return
		}
	}
}

// takeShort takes a queue pair out of those with too small a loan, with how many
// receives it lacks. mu is not held.
func (cq *completionQueue) takeShort() (qp *queuePair, lacks int) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if qp = cq.short; qp == nil {
		return nil, 0
	}
	cq.short, qp.after = qp.after, nil
	qp.short = false
	if !qp.drained {
		lacks = max(qp.loan-qp.lent(), 0)
	}
	return qp, lacks
}

// supply has receives posted for the loans that are smaller than they should be, and
// lends them. It tells whether there were any. Nothing is locked.
func (cq *completionQueue) supply() (any bool) {
	// What is added meanwhile is left to the next call.
	for range suppliedAtOnce {
		qp, lacks := cq.takeShort()
		if qp == nil {
			break
		}
		if lacks > 0 {
			posted := qp.srq.onScarce(lacks)
			any = any || posted > 0
			cq.lendSupplied(qp, posted)
		}
	}
	return any
}

// suppliedAtOnce is how many queue pairs a poll supplies at most.
const suppliedAtOnce = 64

// lendSupplied lends what has been posted for the queue pair. If that is nothing, idle
// peers have to give back theirs.
func (cq *completionQueue) lendSupplied(qp *queuePair, posted int) {
	s := qp.srq
	s.mu.Lock()
	hungry := qp.hungry
	s.mu.Unlock()
	least := 0
	cq.mu.Lock()
	if hungry && qp.usedUp() {
		least = 1
	}
	qp.denied = posted == 0
	lent := !qp.drained && s.lend(qp, least)
	if qp.denied {
		qp.denied = false
		cq.forgetShort(qp) // until it has used more
	}
	cq.unlockAfterLend(qp, lent)
}

// Recall implements rdma.RecallingReceiveQueue.
func (s *sharedReceiveQueue) Recall(ids []uint64, keep int) int {
	s.mu.Lock()
	pairs, tallies := s.pairs, s.tallies // never changed in place
	s.mu.Unlock()
	for _, t := range tallies {
		sweepQueue(t.cq, s, pairs)
	}
	s.feed()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for ; n < len(ids) && s.free() > keep && !s.closed; n++ {
		s.tail--
		s.posted--
		ids[n] = s.pool.at(s.tail).id
	}
	return n
}
