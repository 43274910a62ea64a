package verbena

import (
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
