package verbena

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/rdma"
)

// complete handles completions, in order, under one latch: where messages come faster
// than they are received, a latch for each would be a tenth of their cost. Its worker
// calls it.
func (s *shell) complete(batch []rdma.Completion) {
	s.mu.Lock()
	due := false
	for i := range batch {
		c := &batch[i]
		if s.in.handing && c.ID&idKind == idReceive && s.handOver(c) {
			s.out.tell()
		} else if s.handle(c) {
			due = true
		}
	}
	if due {
		s.settled()
	}
	loose := s.buffers.anyLoose()
	s.mu.Unlock()
	if loose {
		s.dropLoose()
	}
}

// handle handles what is not handed over at once. It tells whether settled is due. mu is
// held.
func (s *shell) handle(c *rdma.Completion) bool {
	kind := c.ID & idKind
	switch {
	case s.life.reached(stageClosed):
		if kind == idReceive {
			s.putBack(s.window.arrived(c.ID))
		}
		return false
	case !s.m.Started():
		s.early = append(s.early, *c) // no more than were posted
		return false
	case kind == idSend:
		s.requestDone(c)
	case kind == idReceive:
		s.arrived(c)
	}
	if s.m.PeerSaidGoodbye() {
		s.settled() // before what may follow, which breaks the protocol
	}
	return true
}

// settled posts what completions have brought about, and tells those who wait what has
// become of what they wait for. mu is held.
func (s *shell) settled() {
	s.window.count()
	if !s.life.breach {
		s.flush()
	}
	if s.upcall.sink != nil {
		s.deliverReady()
	}
	if s.endIfFinished() {
		return
	}
	s.tellReceive()
	s.out.tell()
}

// requestDone takes a completion of the send queue.
func (s *shell) requestDone(c *rdma.Completion) {
	if c.Status != rdma.StatusSuccess {
		s.fail(s.statusError("request", c.Status))
		return
	}
	if s.m.MayHold() && s.mayHold() {
		s.m.Hold()
	}
	from, to, ok := s.m.Sent(uint32(c.ID))
	if s.m.Holding() && !s.owing {
		s.owing = true
		s.w.owe(s)
	}
	if !ok {
		return // of a queue pair that had this number before
	}
	if n := s.m.Fetched(); n != s.long.fetched {
		s.long.brought(n)
	}
	s.queue.done(from, to)
	if s.flights != nil && s.flights.Any() {
		s.arriveUntil(to)
	}
	s.mayGoOn()
}

// mayHold tells whether confirmations may wait: the peer sleeps, so that each of them would
// wake it, and the queue is not left to callers, so that the worker's goroutine pays before it
// rests. Where who has polled spares a worker that sleeps the event, nobody would pay. mu is
// held, and the worker's.
func (s *shell) mayHold() bool {
	return s.notices != nil && s.w.events == nil && !s.w.deferred.Load() && s.notices.PeerSleeps()
}

// pay tells the peer what has been held. Its worker calls it.
func (s *shell) pay() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owing = false
	if s.m.Holding() && !s.life.reached(stageClosed) && !s.life.breach {
		s.m.Tell()
		s.flush()
	}
}

// arrived takes a message of the peer. Its receive is posted again at once unless
// the application gets to see it.
func (s *shell) arrived(c *rdma.Completion) {
	b := s.window.arrived(c.ID)
	if b == nil {
		return // of a queue pair that had this number before
	}
	if c.Status != rdma.StatusSuccess {
		s.fail(s.statusError("receive", c.Status))
		s.putBack(b)
		return
	}
	s.arrivedIn(b, c)
}

// arrivedIn is arrived for a message in b.
func (s *shell) arrivedIn(b *buffer, c *rdma.Completion) {
	if s.life.breach {
		s.putBack(b)
		return
	}
	memory := b.memory
	if int64(c.Length) > int64(len(memory)) {
		s.fail(fmt.Errorf("%w: message of %d bytes in a receive of %d", ErrProtocol, c.Length, len(memory)))
		s.putBack(b)
		return
	}
	memory = memory[:c.Length]
	effects, err := s.m.Received(memory, &b.message)
	switch {
	case effects.Answered:
		err = s.asks.answered(effects.Answer, effects.Data)
	case effects.Asked:
		s.asked(effects.Operation)
	}
	if effects.Kept {
		b.message.data, b.message.front = memory[wire.HeaderSize:c.Length:c.Length], 0
		b.holder = &s.inbound
	} else {
		s.putBack(b)
	}
	if effects.Freed {
		s.queue.confirmed(effects.FreedID)
	}
	if err != nil {
		s.breached(err)
		return
	}
	if effects.Starved {
		s.widen()
	}
	if effects.Kept {
		s.lend()
	}
}
