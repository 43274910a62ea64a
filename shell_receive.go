package verbena

import (
	"context"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/rdma"
)

// inbound is what hands an endpoint's messages to Receive, or to a sink, and takes them
// back. It gets memory for long ones. The queue pair's mu guards it.
type inbound struct {
	*queuePair
	in       receiver   // the Receive that waits
	unposted unposted   // receives of what was released
	received Traffic    // by Receive, or by the sink
	long     longMemory // of messages that are read
	upcall   upcall     // who gets messages instead of Receive

	viewer rdma.ViewingQueuePair // nil: messages are not used where they lie
	passer rdma.PassingQueuePair // nil: nor are they passed on

	passages map[passedTo]*passage // ways that messages have been passed on
}

// receive waits for the next message, and makes progress meanwhile.
func (s *inbound) receive(ctx context.Context) (*Message, error) {
	for {
		over, cut := s.e.over(), ctx.Err() != nil
		if over {
			return s.last()
		}
		s.mu.Lock()
		m := s.next()
		if m != nil && !s.e.over() {
			s.flush()
		}
		var want link.Want
		wanted := false
		if s.m.Announced() { // seldom: a Want is large
			want, wanted = s.m.Wanted()
			wanted = wanted && want.First
		}
		s.in.asleep = false
		s.in.handing = m == nil && !wanted && !cut && !s.life.breach
		if m == nil {
			s.postReleased()
		}
		s.mu.Unlock()
		switch {
		case m != nil:
			return m, nil
		case wanted:
			if err := s.provide(ctx, want); err != nil && !s.e.over() {
				return nil, err
			}
			continue
		case cut:
			return nil, context.Cause(ctx)
		}
		if !s.w.drive(&s.in.spin, s.in.ready) {
			s.sleepForMessage(ctx)
		}
		if s.in.handed.Load() {
			return s.in.take(), nil
		}
	}
}

// sleepForMessage sleeps until there is something to do, or the end of ctx or of the endpoint.
func (s *inbound) sleepForMessage(ctx context.Context) {
	s.mu.Lock()
	s.in.asleep = true
	s.mu.Unlock()
	s.w.sleep()
	defer s.w.awake()
	s.in.sleep(ctx, s.e.done)
}

// next takes the message that was handed over, or else the first one that is
// complete out of the inbox. mu is held.
func (s *inbound) next() *Message {
	s.in.handing = false
	if s.in.handed.Load() {
		return s.in.take()
	}
	if s.cutOff() {
		return nil
	}
	in, ok := s.m.Next(s.in.drop)
	if ok && s.m.Ready() || s.e.over() {
		s.in.readable.Set()
	} else {
		s.in.readable.Clear()
	}
	if !ok {
		// Nothing was ready when the flag was cleared under mu.
		return nil
	}
	return s.accept(in)
}

// tellReceive gives memory to messages that have been announced, and tells Receive of those that
// are complete. mu is held.
func (s *inbound) tellReceive() {
	if s.m.Announced() {
		s.viewAll()
		s.provideAtOnce()
	}
	if !s.in.readable.Load() && s.m.Ready() {
		s.in.readable.Set()
	}
	s.in.tell()
}

// accept makes a message of the inbox the application's. mu is held.
func (s *inbound) accept(in link.Message[*Message]) *Message {
	m := in.Handle
	m.Tag = in.Tag
	if in.Long {
		l := m.owner.(*longMessage)
		m.data, m.front = l.bytes()[:in.Length:in.Length], 0
		s.long.received(l)
	} else {
		s.window.held++
	}
	m.held = true
	s.held++
	s.received.add(in.Length)
	return m
}

// last is Receive once the endpoint has ended.
func (s *inbound) last() (*Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.in.handed.Load() && s.e.closing.Load() {
		s.in.handing = false
		return nil, ErrClosed
	}
	if m := s.next(); m != nil {
		return m, nil
	}
	return nil, s.e.lastError()
}

// handOver is arrived for a message that goes to the Receive that waits for it, past
// the inbox. If it is anything else, handOver reports false and has done nothing.
func (s *inbound) handOver(c *rdma.Completion) bool {
	b := s.window.recv.look(c.ID)
	if b == nil || c.Status != rdma.StatusSuccess || int64(c.Length) > int64(b.home.size) {
		return false
	}
	memory := b.memory[:c.Length]
	tag, ok := s.m.Take(memory)
	if !ok {
		return false
	}
	s.window.took(b)
	m := &b.message
	m.Tag, m.data, m.held, b.holder = tag, memory[wire.HeaderSize:c.Length:c.Length], true, s
	m.front = 0
	s.held++
	s.window.held++
	s.received.add(len(m.data))
	if s.upcall.sink != nil {
		s.window.count()
		s.deliver(m)
	} else {
		s.in.give(m)
	}
	if s.window.asleep > 0 {
		s.lend()
		s.flush()
	}
	return true
}

// drop frees a message that no application has seen. mu is held.
func (s *inbound) drop(m *Message) {
	switch owner := m.owner.(type) {
	case *longMessage:
		s.long.received(owner)
		s.freeLong(owner)
	case *buffer:
		owner.holder = nil
		s.putBack(owner)
	}
}

// freeLong gives the memory of a long message back. mu is held.
func (s *inbound) freeLong(l *longMessage) {
	if l.view.pin != nil {
		s.unview(l)
		return
	}
	s.long.free(l, s.life.stuck)
}

// releasedLong takes a message back from the application.
func (s *inbound) releasedLong(l *longMessage) {
	m := &l.message
	s.mu.Lock()
	if !m.held {
		s.mu.Unlock()
		s.releasedTwice()
		return
	}
	m.held, m.data = false, nil
	viewed := l.view.pin != nil
	s.freeLong(l)
	if viewed && !s.life.reached(stageClosed) {
		s.flush()
		s.endIfFinished()
	}
	s.releasedOne()
}

// endIfFinished ends the endpoint in order if the peer has said goodbye and nothing of its
// is to come, or is used, any more. mu is held.
func (s *inbound) endIfFinished() bool {
	if !s.m.PeerSaidGoodbye() || s.life.breach || !s.m.Finished() {
		return false
	}
	s.flush()
	s.e.end(ErrPeerClosed)
	s.e.carrier.wake()
	return true
}

// breached ends an endpoint whose peer has broken the protocol. mu is held.
func (s *inbound) breached(err error) {
	s.life.breach, s.in.handing = true, false
	s.fail(err)
}
