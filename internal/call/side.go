package call

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
)

const (
	// MaxRequests is how many requests an end may take at a time.
	MaxRequests = 1 << 16
	// MaxStream is the first credit of a stream in bytes at most.
	MaxStream = 1 << 30
)

// Limits is what an end takes.
type Limits struct {
	Requests int // calls that are not answered and notifications that are not handled
	Stream   int // first credit of each stream in bytes; 0: it takes no streams

	// What the peer is not told: up to how many bytes the window of a stream grows, and
	// how many bytes all together may have for that.
	Window, Memory int
}

// A Side is one end's view of the calls on an endpoint: C is what it keeps of each call
// that it makes, R of each that it serves. Methods must not be called concurrently.
// After an error nothing may be called but Outstanding and Serving.
type Side[C, R any] struct {
	own, peer Limits
	greeted   bool

	made []made[C] // by slot
	idle []uint32  // slots that are free
	left int       // requests that may be sent
	told int       // notifications that the peer has not said to have handled

	served []served[R] // by the peer's slot; as long as own.Requests once it is used
	open   int         // requests of the peer that are not answered or handled
	calls  int         // of them, calls
	owed   int         // notifications that are handled and not told

	streams  int // that the peer may send
	promised int // bytes of streams: the peer's credit, and what is not consumed
}

type state uint8

const (
	free      state = iota
	waiting         // for an answer
	abandoned       // an answer will come, but nobody waits for it
)

type made[C any] struct {
	state      state
	generation uint32
	of         C
	flows      *Flows // nil: the call has no streams
}

type served[R any] struct {
	busy       bool
	over       bool // the answer is given, and waits to be sent
	generation uint32
	of         R
	flows      *Flows // nil: the call has no streams
}

// New returns an end that takes as much as own says.
func New[C, R any](own Limits) *Side[C, R] { return &Side[C, R]{own: own} }

// Greeting is what the peer is told first.
func (s *Side[C, R]) Greeting() (h Header, tag uint32) {
	return Header{Kind: Greeting, Value: uint32(s.own.Requests), ID: ID{Slot: uint32(s.own.Stream)}}, Revision
}

// Greeted takes the peer's greeting. Calls may be made from here on.
func (s *Side[C, R]) Greeted(h Header, tag uint32) error {
	switch {
	case s.greeted:
		return fmt.Errorf("%w: a second greeting", wire.ErrProtocol)
	case tag != Revision:
		return fmt.Errorf("%w: revision %d of calls, this side has %d", wire.ErrProtocol, tag, Revision)
	case h.Value == 0 || h.Value > MaxRequests || h.ID.Slot > MaxStream:
		return fmt.Errorf("%w: a greeting of %d requests and streams of %d bytes", wire.ErrProtocol, h.Value, h.ID.Slot)
	}
	s.peer = Limits{Requests: int(h.Value), Stream: int(h.ID.Slot)}
	s.greeted, s.left = true, s.peer.Requests
	return nil
}

// IsGreeted tells whether the peer's greeting is here. Anything else that comes before
// it is a breach.
func (s *Side[C, R]) IsGreeted() bool { return s.greeted }

// Calls that this end makes.

// Begin begins a call, if the peer takes one more. With flows it has streams, which the
// peer must take.
func (s *Side[C, R]) Begin(of C, flows *Flows) (id ID, ok bool) {
	if s.left == 0 {
		return ID{}, false
	}
	if flows != nil {
		s.start(flows)
	}
	s.left--
	var slot uint32
	if n := len(s.idle); n > 0 {
		slot = s.idle[n-1]
		s.idle = s.idle[:n-1]
	} else {
		slot = uint32(len(s.made))
		s.made = append(s.made, made[C]{})
	}
	m := &s.made[slot]
	m.state, m.of, m.flows = waiting, of, flows
	return ID{slot, m.generation}, true
}

// end frees the slot of a call.
func (s *Side[C, R]) end(slot uint32) {
	m := &s.made[slot]
	s.stop(m.flows)
	*m = made[C]{generation: m.generation + 1}
	s.idle = append(s.idle, slot)
	s.left++
}

// Unsent ends a call whose request has not been sent.
func (s *Side[C, R]) Unsent(id ID) {
	if m := s.find(id); m != nil {
		s.end(id.Slot)
	}
}

// find returns the call of an id, or nil if it has ended.
func (s *Side[C, R]) find(id ID) *made[C] {
	if int64(id.Slot) >= int64(len(s.made)) {
		return nil
	}
	if m := &s.made[id.Slot]; m.state != free && m.generation == id.Generation {
		return m
	}
	return nil
}

// Abandon notes that nobody waits for an answer any more. It reports false if the call
// has been answered. The slot stays taken until the answer comes.
func (s *Side[C, R]) Abandon(id ID) bool {
	m := s.find(id)
	if m == nil || m.state == abandoned {
		return false
	}
	var none C
	m.state, m.of = abandoned, none
	if m.flows != nil {
		s.Drop(m.flows)
	}
	return true
}

// Answer ends the call that a Reply or Failure names, and returns what was kept of it.
// wanted is false if nobody waits for it.
func (s *Side[C, R]) Answer(id ID) (of C, wanted bool, err error) {
	m := s.find(id)
	if m == nil {
		return of, false, fmt.Errorf("%w: an answer to call %d of generation %d, which is not under way", wire.ErrProtocol, id.Slot, id.Generation)
	}
	of, wanted = m.of, m.state == waiting
	s.end(id.Slot)
	return of, wanted, nil
}

// Made returns what is kept of a call that this end makes and still waits for.
func (s *Side[C, R]) Made(id ID) (of C, ok bool) {
	if m := s.find(id); m != nil && m.state == waiting {
		return m.of, true
	}
	return of, false
}

// Notify takes the credit of a notification, if the peer takes one more.
func (s *Side[C, R]) Notify() bool {
	if s.left == 0 {
		return false
	}
	s.left--
	s.told++
	return true
}

// UnsentNotification takes back the credit of one that has not been sent.
func (s *Side[C, R]) UnsentNotification() { s.left, s.told = s.left+1, s.told-1 }

// Credited takes the peer's word that it has handled n notifications.
func (s *Side[C, R]) Credited(n uint32) error {
	if n == 0 || int64(n) > int64(s.told) {
		return fmt.Errorf("%w: %d notifications handled, %d were sent", wire.ErrProtocol, n, s.told)
	}
	s.left, s.told = s.left+int(n), s.told-int(n)
	return nil
}

// Pending is how many calls of this end the peer has not answered.
func (s *Side[C, R]) Pending() int { return len(s.made) - len(s.idle) }

// Outstanding calls each for every call that somebody waits for.
func (s *Side[C, R]) Outstanding(each func(ID, C)) {
	for slot := range s.made {
		if m := &s.made[slot]; m.state == waiting {
			each(ID{uint32(slot), m.generation}, m.of)
		}
	}
}

// Calls that this end serves.

// Requested takes a request of the peer, of which it keeps of until Answered. Flows are
// those of a call with streams.
func (s *Side[C, R]) Requested(id ID, of R, flows *Flows) error {
	if flows != nil && (s.own.Stream == 0 || s.peer.Stream == 0) {
		return fmt.Errorf("%w: a call with streams, which one of the ends does not take", wire.ErrProtocol)
	}
	if int64(id.Slot) >= int64(s.own.Requests) {
		return fmt.Errorf("%w: call %d, this side takes %d at a time", wire.ErrProtocol, id.Slot, s.own.Requests)
	}
	for int(id.Slot) >= len(s.served) {
		s.served = append(s.served, served[R]{})
	}
	r := &s.served[id.Slot]
	if r.busy {
		return fmt.Errorf("%w: call %d, which is under way already", wire.ErrProtocol, id.Slot)
	}
	if err := s.take(); err != nil {
		return err
	}
	s.calls++
	if flows != nil {
		s.start(flows)
	}
	*r = served[R]{busy: true, generation: id.Generation, of: of, flows: flows}
	return nil
}

// Notified takes a notification of the peer, which counts until Handled.
func (s *Side[C, R]) Notified() error { return s.take() }

func (s *Side[C, R]) take() error {
	if s.open == s.own.Requests {
		return fmt.Errorf("%w: more than %d requests at a time", wire.ErrProtocol, s.own.Requests)
	}
	s.open++
	return nil
}

// Served returns what is kept of a call of the peer; ok is false if it has been
// answered.
func (s *Side[C, R]) Served(id ID) (of R, ok bool) {
	if int64(id.Slot) >= int64(len(s.served)) {
		return of, false
	}
	r := &s.served[id.Slot]
	return r.of, r.busy && r.generation == id.Generation
}

// Answered ends a call of the peer, which is sent the answer. It reports false if the
// call has been answered before.
func (s *Side[C, R]) Answered(id ID) bool {
	if _, ok := s.Served(id); !ok {
		return false
	}
	r := &s.served[id.Slot]
	s.stop(r.flows)
	*r = served[R]{}
	s.open--
	s.calls--
	return true
}

// Reopen takes Answered back: the answer has not been sent. It reports false if the
// peer has used the slot meanwhile, for which it had no reason. What the peer's stream
// brings until the answer is sent is late.
func (s *Side[C, R]) Reopen(id ID, of R) bool {
	r := &s.served[id.Slot]
	if r.busy || s.open == s.own.Requests {
		return false
	}
	*r = served[R]{busy: true, generation: id.Generation, of: of, over: true}
	s.open++
	s.calls++
	return true
}

// Handled counts a notification that has been handled. It returns how many the peer is
// to be told of now, 0 if that can wait.
func (s *Side[C, R]) Handled() (tell uint32) {
	s.open--
	if s.owed++; 2*s.owed < s.own.Requests {
		return 0
	}
	tell = uint32(s.owed)
	s.owed = 0
	return tell
}

// Serving calls each for every call of the peer that is not answered.
func (s *Side[C, R]) Serving(each func(R)) {
	for i := range s.served {
		if s.served[i].busy {
			each(s.served[i].of)
		}
	}
}

// Unanswered is how many calls of the peer are not answered.
func (s *Side[C, R]) Unanswered() int { return s.calls }
