package verbena

import (
	"maps"

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
	if v.use != nil {
		v.use.Release()
	}
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

// passOn implements longHolder. What the device has to ask the peer for is there for a later
// message.
func (s *inbound) passOn(l *longMessage, n *domain, to passedTo) (location, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.passer == nil || s.n != n || s.e.over() {
		return location{}, false
	}
	v := &l.view
	if v.use == nil {
		region, use, ok := s.passer.PassOn(v.pin)
		if !ok {
			return location{}, false
		}
		v.passed, v.use = region, use
	}
	way := s.passages[to]
	if way == nil {
		maps.DeleteFunc(s.passages, func(to passedTo, old *passage) bool { return to.Err() != nil && old.idle() })
		if s.passages == nil {
			s.passages = map[passedTo]*passage{}
		}
		way = &passage{from: s, to: to}
		s.passages[to] = way
	}
	at, _ := extent(v.memory)
	start, _ := extent(v.passed.Bytes())
	return location{passed: v.passed, offset: int(at - start), passage: way}, true
}

// passesOn tells whether a peer may still read what has been passed on to it. This side's
// goodbye would have the owner use the memory again. mu is held.
func (s *inbound) passesOn() bool {
	for _, way := range s.passages {
		if !way.idle() {
			return true
		}
	}
	return false
}

// passedAll implements passedFrom: a Close may wait for it.
func (s *inbound) passedAll() {
	if s.e.closing.Load() {
		s.e.carrier.wake()
	}
}

// passOn tells where the peer may read a buffer that lies in another peer's memory. It
// opens the region there, so the peer has to be trusted.
func (s *outbound) passOn(b *Buffer) (location, bool) {
	if !s.trusts() || s.reads == nil || !s.reads.ReadsPassed() {
		return location{}, false
	}
	l := viewed(b.owner)
	if l == nil {
		return location{}, false
	}
	return l.holder.passOn(l, s.n, s.e)
}

// shows tells where the peer may read a buffer, and whether it may.
func (s *outbound) shows(b *Buffer) (at location, ok bool) {
	if at = b.owner.location(); s.mayShow(&at) {
		return at, true
	}
	return s.passOn(b)
}
