package shm

import (
	"slices"
	"time"

	"github.com/verbena-data/verbena/internal/release"
)

// A shared receive queue lends its receives to queue pairs: it announces them in
// the inbox of one, where the peer uses them as if they had been posted there.
// The peer needs nothing else, so a message costs what it costs with a queue
// pair's own receives.
//
// A loan is made by whoever harvests, ahead of need, and by the agent when a peer
// asks. It doubles with use, up to the slots of the inbox. Loans leave a part of
// the pool free (share), out of which those are served who have no loan.
//
// A peer without a loan puts one message that fits into a slot there all the same;
// its Send completes when a receive has been found for it. For a longer one it asks.
//
// An idle peer must not keep what others need. When a loan cannot be made, the
// agent takes back those that were not used since its last round (sweep). It lowers
// the limit, begins a new epoch in the gate, and waits for nobody: a peer that is
// just inside an access keeps its loan until the next round. Peers look at the
// epoch inside the access in which they use a receive.
//
// All of this is private but for limit, room, descriptors and gate of the queue
// pair's own inbox. So a peer that dies or writes nonsense harms its own loan only,
// and that returns to the pool when its queue pair ends.
const (
	// firstLoan is how many receives a queue pair is lent that was idle, and
	// firstOfMany as many where more are posted when loans need them.
	firstLoan, firstOfMany = 4, 2
	// hungrySweeps and lowSweeps are the least times between two rounds of the agent:
	// while a peer waits for a receive, and while loans are smaller than they should be.
	hungrySweeps = time.Millisecond
	lowSweeps    = 100 * time.Millisecond
)

// share is how many of the free receives the queue pair may be lent at once. An
// eighth at most leaves seven receives free, however many queue pairs come. As long as
// more are posted when there are too few, it may have all. mu is held.
func (s *sharedReceiveQueue) share(qp *queuePair) int {
	if !qp.settles() {
		return s.free()
	}
	return s.free() / min(len(s.pairs)+1, 8)
}

// settles tells whether the queue pair has to content itself with what there is: no
// more is posted for it. recvCQ.mu is held.
func (qp *queuePair) settles() bool { return qp.srq.onScarce == nil || qp.denied }

// lent is how many lent receives no message has been taken for. recvCQ.mu is held.
func (qp *queuePair) lent() int { return int(qp.posted.Load() - qp.arrived) }

// unused returns the position of the first lent receive that no message has come for.
// recvCQ.mu is held.
func (qp *queuePair) unused() uint64 {
	n := qp.arrived
	for n != qp.posted.Load() && qp.inbox.slot(n).header().published(n) {
		n++
	}
	return n
}

// usedUp tells whether messages have come for all that was lent. recvCQ.mu is held.
func (qp *queuePair) usedUp() bool { return qp.unused() == qp.posted.Load() }

// topUp lends more if so many receives of the loan have been used. recvCQ.mu is held.
func (qp *queuePair) topUp(used int) {
	if qp.lent() > qp.loan-used || qp.toppedAt == qp.arrived {
		return
	}
	qp.toppedAt = qp.arrived
	if qp.srq.onScarce == nil {
		qp.loan = min(2*qp.loan, qp.mostLent())
	} else {
		qp.lowest = min(qp.lowest, qp.lent())
		// A pool that grows with its loans lends no more than is needed.
		if 4*qp.lent() <= qp.loan {
			qp.widen()
		}
	}
	qp.srq.lend(qp, 0)
}

// widen doubles the loan of a queue pair that has used it up, or nearly so, where the
// pool grows with its loans. recvCQ.mu is held.
func (qp *queuePair) widen() {
	if qp.recent && qp.srq.onScarce != nil && qp.widenedAt != qp.arrived {
		qp.widenedAt = qp.arrived
		qp.loan = min(2*qp.loan, qp.mostLent())
		qp.lowest = 0
	}
}

// narrow halves the loan if no more than half has been used at a time since the last
// round. recvCQ.mu is held.
func (qp *queuePair) narrow() {
	if 2*qp.lowest > qp.loan {
		qp.loan = max(qp.loan/2, qp.leastLoan())
	}
	qp.lowest = qp.loan
}

// leastLoan is what the queue pair is lent when it has been idle.
func (qp *queuePair) leastLoan() int {
	n := firstLoan
	if qp.srq.onScarce != nil {
		n = firstOfMany
	}
	return min(n, qp.mostLent())
}

// mostLent leaves a slot for the message that comes without a loan.
func (qp *queuePair) mostLent() int { return int(qp.inbox.shape.slots) - 1 }

// lend lends the queue pair what it should have, and at least so many receives if
// the pool has them. If it has not, the queue pair waits in line for the next that
// is posted. lend tells whether anything was lent. A message that has waited for it is
// found by the next poll. Who lends outside of a poll has to wake who waits for one
// (unlockAfterLend). recvCQ.mu is held.
func (s *sharedReceiveQueue) lend(qp *queuePair, least int) bool {
	if least > 0 && qp.lent() == qp.mostLent() {
		qp.tellStarved(starvedOfSlots)
		return false
	}
	s.mu.Lock()
	n := s.share(qp)
	if least == 0 && len(s.hungry) > 0 {
		n = 0 // they come first
	}
	if n < qp.loan-qp.lent() && s.onScarce != nil {
		qp.recvCQ.addShort(qp)
	}
	if n == 0 && qp.settles() {
		s.wantSweep(qp, sweepLow)
	}
	n = min(max(min(n, qp.loan-qp.lent()), least), s.free())
	if n <= 0 {
		if qp.denied {
			qp.loan = min(qp.loan, max(qp.lent(), qp.leastLoan()))
		}
		starved := least > 0 && s.starve(qp)
		s.mu.Unlock()
		if starved {
			qp.tellStarved(starvedOfReceives)
		}
		return false
	}
	unbacked := qp.lent() == 0
	for qp.lent()+n > len(qp.receives.receives) {
		qp.receives.double(qp.arrived, qp.posted.Load())
	}
	position, room := qp.posted.Load(), qp.room
	for range n {
		length, open := qp.receives.moveQuick(position, &s.pool, s.first, qp.inbox.descriptor(position))
		if length < 0 {
			length, open = qp.receives.move(position, &s.pool, s.first)
			qp.receives.announce(position, qp.inbox.descriptor(position))
		}
		if !open {
			qp.inbox.gate().Or(gateLook) // the message that comes for it must fail
		}
		// As in postRecv.
		if length < room || length > room && position == qp.arrived {
			room = length
		}
		s.first++
		position++
	}
	s.mu.Unlock()
	if qp.settles() {
		// What the pool cannot give is not waited for: the next loan asks for twice this.
		qp.loan = min(qp.loan, max(int(position-qp.arrived), qp.leastLoan()))
	}
	if room != qp.room {
		qp.room = room
		release.Store(qp.inbox.room(), uint64(room))
	}
	if unbacked && !qp.unbackedUsable() {
		qp.inbox.refused().Store(1)
	}
	if qp.starving != 0 {
		qp.starving = 0
		qp.inbox.starved().Store(0)
	}
	if qp.inbox.asks().Load() != 0 {
		qp.inbox.asks().Store(0)
		qp.widen() // for the next time
	}
	qp.recent = true
	release.Store(&qp.posted, position)
	release.Store(qp.inbox.limit(), position)
	qp.ringIfWaiting()
	if unbacked {
		// Polls may have stopped looking here: the message had no receive.
		if _, found := qp.pending(); found {
			qp.recvCQ.bell.bits().set(qp.bit)
		}
	}
	return true
}

// unlockAfterLend is for who lends outside of a poll. If it lent, and a message has
// waited for that, it wakes who waits for messages. mu is held, and released.
func (cq *completionQueue) unlockAfterLend(qp *queuePair, lent bool) {
	var header slotHeader
	found := false
	if lent {
		header, found = qp.pending()
	}
	cq.mu.Unlock()
	if found {
		cq.notify(header.solicited())
	}
}

// starve puts the queue pair in line. It tells whether there is nothing to be had
// from others either. mu is held.
func (s *sharedReceiveQueue) starve(qp *queuePair) bool {
	if !qp.hungry {
		qp.hungry = true
		s.hungry = append(s.hungry, qp)
	}
	if !qp.settles() {
		qp.recvCQ.addShort(qp)
		return false
	}
	s.wantSweep(qp, sweepHungry)
	return s.lentToOthers(qp) <= 0
}

// tellStarved tells the peer what its next message lacks. From then on it may lose
// patience, if that is a receive. recvCQ.mu is held.
func (qp *queuePair) tellStarved(of uint32) {
	if qp.starving != of {
		qp.starving = of
		qp.inbox.starved().Store(of)
		qp.ringIfWaiting()
	}
}

// unbackedUsable tells whether a message that came without a loan, if there is one,
// can be copied to the receive that has just been stored for it. recvCQ.mu is held.
func (qp *queuePair) unbackedUsable() bool {
	header := qp.inbox.slot(qp.arrived).header()
	if !header.published(qp.arrived) {
		return true
	}
	left := header.length()
	for _, s := range qp.receives.spansAt(qp.arrived) {
		if left > 0 && s.region.closed.Load() {
			return false
		}
		left -= s.length
	}
	return true
}

// feed lends to those in line.
func (s *sharedReceiveQueue) feed() {
	for {
		s.mu.Lock()
		if len(s.hungry) == 0 || s.free() == 0 {
			s.mu.Unlock()
			return
		}
		qp := s.hungry[0]
		last := len(s.hungry) - 1
		copy(s.hungry, s.hungry[1:])
		s.hungry[last] = nil
		s.hungry = s.hungry[:last]
		qp.hungry = false
		s.mu.Unlock()

		cq := qp.recvCQ
		cq.mu.Lock()
		lent := !qp.drained && qp.usedUp() && s.lend(qp, 1)
		cq.unlockAfterLend(qp, lent)
	}
}

// answer is for the agent, which a peer wakes that needs a receive.
func (qp *queuePair) answer() {
	if qp.srq == nil {
		return
	}
	cq := qp.recvCQ
	cq.mu.Lock()
	lent := !qp.drained && qp.lendIfAsked()
	short := cq.short != nil
	cq.unlockAfterLend(qp, lent)
	if short {
		cq.supply()
	}
}

// lendIfAsked lends to a peer that has nothing and asks. It tells whether it did.
// recvCQ.mu is held.
func (qp *queuePair) lendIfAsked() bool {
	if qp.inbox.asks().Load() == 0 || !qp.usedUp() {
		return false
	}
	qp.widen()
	return qp.srq.lend(qp, 1)
}

// lendToMessage lends to a queue pair that has a message without a receive. It tells
// whether there was one. recvCQ.mu is held.
func (qp *queuePair) lendToMessage() bool {
	qp.widen()
	return qp.srq.lend(qp, 1)
}

// takeBack returns to the pool what the queue pair was lent from position n on.
// recvCQ.mu is held.
func (s *sharedReceiveQueue) takeBack(qp *queuePair, n uint64) {
	s.mu.Lock()
	for position := n; position < qp.posted.Load(); position++ {
		s.pool.move(s.tail, &qp.receives, position)
		s.tail++
	}
	s.mu.Unlock()
	qp.posted.Store(n)
}

// How urgently a round of the agent is wanted.
const (
	sweepLow    = 1
	sweepHungry = 2
)

// lentToOthers is how many receives other queue pairs have been lent. mu is held.
func (s *sharedReceiveQueue) lentToOthers(qp *queuePair) int {
	return s.left() - s.free() - qp.lent()
}

// wantSweep wakes the agent for a round, if it has not been told and others than the
// queue pair have been lent anything. mu is held.
func (s *sharedReceiveQueue) wantSweep(qp *queuePair, urgency uint32) {
	if s.sweepWanted.Load() < urgency && s.lentToOthers(qp) > 0 {
		s.sweepWanted.Store(urgency)
		s.domain.ringAgent()
	}
}

// sweepIfWanted makes a round when it is time for one. It returns how long the
// agent may sleep.
func (s *sharedReceiveQueue) sweepIfWanted() time.Duration {
	interval := lowSweeps
	switch s.sweepWanted.Load() {
	case 0:
		return healInterval
	case sweepHungry:
		interval = hungrySweeps
	}
	now := time.Now()
	if rest := interval - now.Sub(s.swept); rest > 0 {
		return rest
	}
	s.swept = now
	s.sweepWanted.Store(0)
	return s.sweep()
}

// sweep takes back loans that nobody has used since the last round, and lends to
// those in line. It returns when it wants to be called again.
func (s *sharedReceiveQueue) sweep() time.Duration {
	s.mu.Lock()
	pairs, tallies := s.pairs, s.tallies // never changed in place
	s.mu.Unlock()
	kept := false
	for _, t := range tallies {
		kept = sweepQueue(t.cq, s, pairs) || kept
	}
	s.feed()
	s.mu.Lock()
	hungry := slices.Clone(s.hungry)
	s.mu.Unlock()
	if len(hungry) == 0 {
		return healInterval
	}
	if kept {
		s.sweepWanted.Store(sweepHungry)
		return hungrySweeps
	}
	for _, qp := range hungry {
		qp.recvCQ.mu.Lock()
		if !qp.drained && qp.usedUp() {
			qp.tellStarved(starvedOfReceives)
		}
		qp.recvCQ.mu.Unlock()
	}
	return healInterval
}

// sweepQueue takes back what it can from the queue pairs of one completion queue,
// all behind the same barrier. It tells whether any kept a loan that it may not use.
func sweepQueue(cq *completionQueue, s *sharedReceiveQueue, pairs []*queuePair) (kept bool) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	recalling := false
	for _, qp := range pairs {
		if qp.recvCQ != cq || qp.drained || qp.usedUp() {
			continue
		}
		if qp.recent {
			qp.recent, kept = false, true
			if s.onScarce != nil {
				qp.narrow()
			}
			continue
		}
		// Whoever looks from here on finds nothing lent.
		qp.recalled = true
		recalling = true
		qp.inbox.limit().Store(qp.arrived)
		qp.inbox.gate().Add(gateEpoch)
	}
	if !recalling {
		return kept
	}
	barrier()
	for _, qp := range pairs {
		if qp.recvCQ != cq || !qp.recalled {
			continue
		}
		qp.recalled = false
		n := qp.posted.Load()
		if qp.inbox.access().Load()&1 == 0 {
			// The peer is outside, and will see the epoch when it comes in. What it
			// has used is in the slots.
			n = qp.unused()
			s.takeBack(qp, n)
			if s.onScarce != nil {
				qp.lowest = qp.loan
				qp.narrow()
			} else {
				qp.loan = qp.leastLoan()
			}
		} else {
			kept = true
		}
		qp.inbox.limit().Store(n)
		// While the limit was lowered the peer may have looked for the last time.
		qp.ringIfWaiting()
	}
	return kept
}
