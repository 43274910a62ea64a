package verbena

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/rdma"
)

// complete handles a completion. Its worker calls it.
func (s *shell) complete(c *rdma.Completion) {
	s.mu.Lock()
	switch {
	case s.in.handing && c.ID&idKind == idReceive && s.handOver(c):
	case s.life.reached(stageClosed):
		if c.ID&idKind == idReceive {
			s.putBack(s.window.recv.arrived(c.ID))
		}
	case !s.m.Started():
		s.early = append(s.early, *c) // no more than were posted
	default:
		s.handle(c)
		s.settled()
	}
	loose := s.buffers.anyLoose()
	s.mu.Unlock()
	if loose {
		s.dropLoose()
	}
}

func (s *shell) handle(c *rdma.Completion) {
	switch c.ID & idKind {
	case idSend:
		s.requestDone(c)
	case idReceive:
		s.arrived(c)
	}
}

// settled tells those who wait what has become of what they wait for. mu is held.
func (s *shell) settled() {
	if s.upcall.sink != nil {
		s.deliverReady()
	}
	if s.m.PeerSaidGoodbye() && s.m.Finished() {
		s.flush()
		s.e.end(ErrPeerClosed)
		s.wake()
		return
	}
	if s.m.Announced() {
		s.provideAtOnce()
	}
	if !s.in.readable.Load() && s.m.Ready() {
		s.in.readable.Set()
	}
	s.in.tell()
	s.out.tell()
}

// requestDone takes a completion of the send queue.
func (s *shell) requestDone(c *rdma.Completion) {
	if c.Status != rdma.StatusSuccess {
		s.fail(s.statusError("request", c.Status))
		return
	}
	from, to, ok := s.m.Sent(uint32(c.ID))
	if !ok {
		return // of a queue pair that had this number before
	}
	if n := s.m.Fetched(); n != s.long.fetched {
		s.long.brought(n)
	}
	s.queue.done(from, to)
	if s.flights != nil && s.flights.count > 0 {
		s.arriveUntil(to)
	}
	s.flush()
	if s.served.serving {
		notify(s.served.room)
	}
}

// arrived takes a message of the peer. Its receive is posted again at once unless
// the application gets to see it.
func (s *shell) arrived(c *rdma.Completion) {
	b := s.window.recv.arrived(c.ID)
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

// handOver is arrived for a message that goes to the Receive that waits for it, past
// the inbox. If it is anything else, handOver reports false and has done nothing.
func (s *shell) handOver(c *rdma.Completion) bool {
	recv := s.window.recv
	b := recv.look(c.ID)
	if b == nil || c.Status != rdma.StatusSuccess || int64(c.Length) > int64(b.home.size) {
		return false
	}
	memory := b.memory[:c.Length]
	tag, ok := s.m.Take(memory)
	if !ok {
		return false
	}
	recv.took(b)
	m := &b.message
	m.Tag, m.data, m.held, b.holder = tag, memory[wire.HeaderSize:c.Length:c.Length], true, s
	m.front = 0
	s.held++
	s.window.held++
	s.received.add(len(m.data))
	if s.upcall.sink != nil {
		s.deliver(m)
	} else {
		s.in.give(m)
	}
	s.out.tell()
	if s.window.asleep > 0 {
		s.lend()
		s.flush()
	}
	return true
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
		err = s.answered(effects.Answer, effects.Data)
	case effects.Asked:
		s.asked(effects.Operation)
	}
	if effects.Kept {
		b.message.data, b.message.front = memory[wire.HeaderSize:c.Length:c.Length], 0
		b.holder = s
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
	s.flush()
}

// breached ends an endpoint whose peer has broken the protocol. mu is held.
func (s *shell) breached(err error) {
	s.life.breach, s.in.handing = true, false
	s.fail(err)
}

// putBack posts a receive again.
func (s *shell) putBack(b *buffer) {
	if b == nil {
		return
	}
	if s.life.reached(stageClosed) {
		b.home.putLate(b, false)
	} else if err := b.home.put(b); err != nil {
		s.postFailed(err)
	}
}

// flush posts what the machine wants posted. mu is held.
func (s *shell) flush() {
	posts := s.m.Posts()
	for len(posts) > 0 && !s.queue.broken {
		n := min(len(posts), flushBatch)
		for i := range posts[:n] {
			if p := &posts[i]; p.Read {
				s.queue.read(i, p, s.m.Handle(p.Message).owner.(*longMessage).slab)
			} else {
				s.queue.send(i, p)
			}
		}
		if err := s.queue.post(s.queue.requests[:n]); err != nil {
			s.postFailed(err)
			return
		}
		posts = posts[n:]
	}
}
