package verbena

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/slab"
)

// receive waits for the next message, and makes progress meanwhile.
func (s *shell) receive(ctx context.Context) (*Message, error) {
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
		want, wanted := s.m.Wanted()
		wanted = wanted && want.First
		s.in.asleep = false
		s.in.handing = m == nil && !wanted && !cut && !s.life.breach
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
func (s *shell) sleepForMessage(ctx context.Context) {
	s.mu.Lock()
	s.in.asleep = true
	s.mu.Unlock()
	s.w.sleep()
	defer s.w.awake()
	s.in.sleep(ctx, s.e.done)
}

// next takes the message that was handed over, or else the first one that is
// complete out of the inbox. mu is held.
func (s *shell) next() *Message {
	s.in.handing = false
	if s.in.handed.Load() {
		return s.in.take()
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

// accept makes a message of the inbox the application's. mu is held.
func (s *shell) accept(in link.Message[*Message]) *Message {
	m := in.Handle
	m.Tag = in.Tag
	if in.Long {
		l := m.owner.(*longMessage)
		m.data, m.front = l.slab.Bytes()[:in.Length:in.Length], 0
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
func (s *shell) last() (*Message, error) {
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

// provideAtOnce gives a long message memory when it is announced, while there is
// plenty and the endpoint has less than its share. mu is held.
func (s *shell) provideAtOnce() {
	want, ok := s.m.Wanted()
	if !ok || s.e.closing.Load() {
		return
	}
	size := s.long.atOnce(want)
	if size == 0 {
		return // Receive asks for it
	}
	// An error is no failure: a device that cannot register more may be able to later.
	memory, ok, err := s.long.share.tryGrowing(size, s.n.longPool.TryQuick)
	if !ok || err != nil {
		return
	}
	s.place(want, memory, growingMemory)
}

// provide gets memory for the message that Receive waits for. Messages behind that one
// wait for none, and get theirs from provideAtOnce.
func (s *shell) provide(ctx context.Context, want link.Want) error {
	memory, kind, err := s.obtain(ctx, want)
	if errors.Is(err, errGivenUp) {
		return nil
	} else if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, ok := s.m.Wanted()
	if !ok || now.Message != want.Message || now.Have != want.Have || now.Need > memory.Size() || s.life.reached(stageClosed) {
		s.long.share.put(memory, kind)
		return nil
	}
	s.place(want, memory, kind)
	s.settled()
	return nil
}

// obtain gets the memory: growing memory, if some is left. If not, it waits for firm
// memory for the whole message. Firm memory is held by messages that are arriving and need
// no more, and by applications, so some always comes back. A message of which nothing has
// arrived yet first gets a trial: memory for its first part, which it has to fill.
func (s *shell) obtain(ctx context.Context, want link.Want) (slab.Slab, memoryKind, error) {
	size := s.long.portion(want)
	if s.n.longPool.Used() >= s.n.longPool.Limit()/2 {
		size = want.Need
	}
	if memory, ok, err := s.long.share.tryGrowing(size, s.n.longPool.TryGet); ok || err != nil {
		return memory, growingMemory, err
	}
	proven := want.Have > 0 || want.Size == want.Total
	if proven {
		if memory, ok, err := s.long.share.tryFirm(want.Total); ok || err != nil {
			return memory, firmMemory, err
		}
	}
	ctx, stop := s.whileWanted(ctx, want)
	defer stop()
	defer s.n.endStalled()()
	if !proven {
		memory, err := s.long.share.getTrial(ctx, want.Need, trialPatience)
		if !errors.Is(err, errNoTrial) {
			return memory, trialMemory, err
		}
	}
	memory, err := s.long.share.getFirm(ctx, want.Total)
	return memory, firmMemory, err
}

// errGivenUp says that a message that waits for memory will not come.
var errGivenUp = errors.New("verbena: the peer gave the message up")

// whileWanted ends ctx when the endpoint ends or the message does not wait for
// memory any more, because the peer gave it up.
func (s *shell) whileWanted(ctx context.Context, want link.Want) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	over, watched := make(chan struct{}), make(chan struct{})
	wanted := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.in.asleep = true // settled tells of what has happened
		now, ok := s.m.Wanted()
		return ok && now == want
	}
	go func() {
		defer close(watched)
		for wanted() {
			select {
			case <-s.in.token:
			case <-s.e.done:
				cancel(s.e.err)
				return
			case <-over:
				return
			}
		}
		cancel(errGivenUp)
	}()
	return ctx, func() {
		close(over)
		<-watched
		cancel(nil)
	}
}

// place moves a message into memory. mu is held.
func (s *shell) place(want link.Want, memory slab.Slab, kind memoryKind) {
	var l *longMessage
	if m := s.m.Handle(want.Message); m != nil {
		l = m.owner.(*longMessage)
	} else {
		l = s.long.begin(s)
	}
	s.long.move(l, memory, kind, want.Have)
	s.m.Provide(want.Message, &l.message, memory.Size())
	s.flush()
}

// drop frees a message that no application has seen. mu is held.
func (s *shell) drop(m *Message) {
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
func (s *shell) freeLong(l *longMessage) { s.long.free(l, s.life.stuck) }

// releasedLong takes a message back from the application.
func (s *shell) releasedLong(l *longMessage) {
	m := &l.message
	s.mu.Lock()
	if !m.held {
		s.mu.Unlock()
		s.releasedTwice()
		return
	}
	m.held, m.data = false, nil
	s.freeLong(l)
	s.releasedOne()
}

// releasedTwice reports what a program did wrong and harms nobody else.
func (s *shell) releasedTwice() {
	s.n.log.Error("a message was released twice; the second Release did nothing", "peer", s.e.remote, "service", s.e.service)
}

// released takes a buffer back from the application.
func (s *shell) released(b *buffer) {
	m := &b.message
	s.mu.Lock()
	if !m.held || b.holder != s {
		s.mu.Unlock()
		s.releasedTwice()
		return
	}
	if s.life.reached(stageClosed) {
		m.held, m.data, b.holder = false, nil, nil
		b.home.putLate(b, true)
		s.releasedOne()
		return
	}
	s.returned(b)
	s.mu.Unlock()
}

// returned gives a buffer that the application has had back to the peer. mu is held.
func (s *shell) returned(b *buffer) {
	m := &b.message
	m.held, m.data, b.holder = false, nil, nil
	s.held--
	s.window.held--
	if s.window.narrow(s.m.Window(), s.m.Stopped()) {
		s.m.Withdraw()
		s.putBack(b)
	} else {
		// The receive is there before the credit.
		s.putBack(b)
		s.m.Released()
	}
	s.flush()
}

// releasedOne counts a message that came back. It unlocks mu.
func (s *shell) releasedOne() {
	s.held--
	left := s.life.reached(stageLeft)
	s.mu.Unlock()
	if left {
		s.n.cameBack()
	}
}

// endIfStalled looks whether the peer has left a message unfinished for so long although
// it has memory, or brings it more slowly than leastRate, and ends the endpoint.
func (s *shell) endIfStalled(limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reading, ok := s.m.Unfinished(); ok && s.long.pace.late(time.Now(), reading, limit) {
		s.fail(fmt.Errorf("%w: it left a message unfinished for %v, or brought less than %d bytes a second of it, while others waited for the memory",
			ErrProtocol, limit, leastRate))
	}
}
