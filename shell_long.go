package verbena

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/slab"
)

// provideAtOnce gives a long message memory when it is announced, while there is
// plenty and the endpoint has less than its share. mu is held.
func (s *inbound) provideAtOnce() {
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
func (s *inbound) provide(ctx context.Context, want link.Want) error {
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
	if s.upcall.sink != nil {
		s.deliverReady()
	}
	s.tellReceive()
	return nil
}

// obtain gets the memory: growing memory, if some is left. If not, it waits for firm
// memory for the whole message. Firm memory is held by messages that are arriving and need
// no more, and by applications, so some always comes back. A message of which nothing has
// arrived yet first gets a trial: memory for its first part, which it has to fill.
func (s *inbound) obtain(ctx context.Context, want link.Want) (slab.Slab, memoryKind, error) {
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
func (s *inbound) whileWanted(ctx context.Context, want link.Want) (_ context.Context, stop func()) {
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
func (s *inbound) place(want link.Want, memory slab.Slab, kind memoryKind) {
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

// endIfStalled looks whether the peer has left a message unfinished for so long although
// it has memory, or brings it more slowly than leastRate, and ends the endpoint.
func (s *inbound) endIfStalled(limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reading, ok := s.m.Unfinished(); ok && s.long.pace.late(time.Now(), reading, limit) {
		s.fail(fmt.Errorf("%w: it left a message unfinished for %v, or brought less than %d bytes a second of it, while others waited for the memory",
			ErrProtocol, limit, leastRate))
	}
}
