package verbena

import (
	"context"
	"errors"

	"github.com/verbena-data/verbena/internal/longcopy"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// Long messages that the application reads where they lie in the peer's memory: see
// [DialConfig].InPlace. The peer is told that it may use that again when the application
// releases them; the protocol is the same as for messages that are read.

// viewAll takes the messages that have been announced whole as they lie in the peer's
// memory, if the application wants that and the device can. It tells whether there was
// one. mu is held.
func (s *inbound) viewAll() (any bool) {
	if s.viewer == nil || s.e.closing.Load() {
		return false
	}
	for {
		want, ok := s.m.Wanted()
		if !ok || !want.Whole {
			return any
		}
		memory, pin, ok := s.viewer.View(rdma.Remote{Address: want.Address, Key: want.Key}, want.Total)
		if !ok {
			return any // it is read, which also lets the device get to know the region
		}
		l := s.long.begin(s)
		l.view = view{memory: memory, pin: pin}
		l.view.offer = s.m.View(want, &l.message)
		any = true
	}
}

// unview ends the use of a message in the peer's memory, and lets the peer know at the next
// flush. mu is held.
func (s *inbound) unview(l *longMessage) {
	v := l.view
	l.view = view{}
	v.pin.Release()
	if !s.life.breach && !s.queue.broken && !s.life.reached(stageClosed) {
		s.m.Viewed(v.offer)
	}
}

// cutOff tells that the next message lies in the memory of a peer that is gone, or may
// use it for something else by now. No message behind it is received either. mu is held.
func (s *inbound) cutOff() bool { return s.e.over() && s.m.FirstIsViewed() }

// viewsHold implements longHolder. With this side's goodbye, too, the peer has its memory
// back. Whoever asks has read before: so the peer's end is looked at first.
func (s *inbound) viewsHold() bool { return s.viewer.ViewsHold() && !s.e.closing.Load() }

// errNotIntact is why a message cannot be had any more.
var errNotIntact = errors.New("the message lay in memory that the peer may have used again")

// ownLong implements longHolder. The latch is not held while the message is copied.
func (s *inbound) ownLong(ctx context.Context, l *longMessage) error {
	size := len(l.view.memory)
	memory, kind, err := s.longFor(ctx, size)
	if err != nil {
		return s.e.failure("copy a message of", err)
	}
	longcopy.Fill(memory.Bytes()[:size], l.view.memory)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.viewsHold() || s.life.reached(stageClosed) {
		l.share.put(memory, kind)
		return s.e.failure("copy a message of", errNotIntact)
	}
	l.slab, l.kind = memory, kind
	s.long.bytes += memory.Size()
	s.unview(l)
	s.flush()
	s.endIfFinished()
	return nil
}

// longFor gets memory for a whole message, as obtain does for one that is to arrive.
func (s *inbound) longFor(ctx context.Context, size int) (slab.Slab, memoryKind, error) {
	share := s.long.share
	if memory, ok, err := share.tryGrowing(size, s.n.longPool.TryGet); ok || err != nil {
		return memory, growingMemory, err
	}
	if memory, ok, err := share.tryFirm(size); ok || err != nil {
		return memory, firmMemory, err
	}
	ctx, stop := untilOver(ctx, s.e)
	defer stop()
	defer s.n.endStalled()()
	memory, err := share.getFirm(ctx, size)
	return memory, firmMemory, err
}
