package call

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
)

// Flows counts the bytes of a call's two streams at one end: what it may send, and what
// it has promised to take. Take, Return, Finish and Finished are its owner's to call;
// the rest goes by the Side.
type Flows struct {
	out      int64 // bytes that may be sent
	finished bool  // this end's stream has ended

	receiving bool // the peer may send
	ended     bool // the peer has said that it will not
	dropped   bool // nobody reads or writes any more
	window    int  // bytes: of left, of owed, and of what is received and not consumed
	left      int  // the peer's credit
	owed      int  // consumed and not granted again
}

// Take takes up to n bytes of credit, and returns how many: none if there are fewer than
// the lesser of n and least.
func (f *Flows) Take(n, least int) int {
	if f.out < int64(min(n, least)) {
		return 0
	}
	n = int(min(int64(n), f.out))
	f.out -= int64(n)
	return n
}

// Return gives back credit of bytes that were not sent.
func (f *Flows) Return(n int) { f.out += int64(n) }

// Finish ends this end's stream. It reports false if it has ended before.
func (f *Flows) Finish() bool {
	ended := f.finished
	f.finished = true
	return !ended
}

// Finished tells whether this end's stream has ended.
func (f *Flows) Finished() bool { return f.finished }

// Ended tells whether the peer has ended its stream.
func (f *Flows) Ended() bool { return f.ended }

// start begins the streams of a call: each end has promised the other its first credit.
func (s *Side[C, R]) start(f *Flows) {
	*f = Flows{out: int64(s.peer.Stream), receiving: true, window: s.own.Stream, left: s.own.Stream}
	s.streams++
	s.promised += f.window
}

// stop ends what the peer may send.
func (s *Side[C, R]) stop(f *Flows) {
	if f != nil && f.receiving {
		f.receiving = false
		s.streams--
		s.promised -= f.left + f.owed
		f.window -= f.left + f.owed
		f.left, f.owed = 0, 0
	}
}

// Drop ends the streams of a call before it is answered. What was received has to be
// consumed all the same; what comes is late.
func (s *Side[C, R]) Drop(f *Flows) {
	s.stop(f)
	f.dropped = true
}

// PeerStream is the first credit of the peer's streams in bytes, 0 if it takes none.
func (s *Side[C, R]) PeerStream() int { return s.peer.Stream }

// Promised is how many bytes of streams the peer may send, or has sent and they have not
// been consumed.
func (s *Side[C, R]) Promised() int { return s.promised }

// flows returns those of the call that a Data, End or Grant names; nil if they have been
// dropped or the call has been answered, which the peer may hear later.
func (s *Side[C, R]) flows(h Header) (*Flows, error) {
	var f *Flows
	var known, under bool
	if slot := int64(h.ID.Slot); h.Flags&FromCaller != 0 {
		if known = slot < int64(len(s.served)); known {
			r := &s.served[slot]
			f, under = r.flows, r.busy && !r.over && r.generation == h.ID.Generation
		}
	} else if known = slot < int64(len(s.made)); known {
		m := &s.made[slot]
		f, under = m.flows, m.state != free && m.generation == h.ID.Generation
	}
	switch {
	case !known:
		return nil, fmt.Errorf("%w: a message of kind %d for a stream of call %d, which never was", wire.ErrProtocol, h.Kind, h.ID.Slot)
	case !under:
		return nil, nil
	case f == nil:
		return nil, fmt.Errorf("%w: a message of kind %d for call %d, which has no streams", wire.ErrProtocol, h.Kind, h.ID.Slot)
	}
	if f.dropped {
		return nil, nil
	}
	return f, nil
}

// Piece takes a piece of n bytes. late is true if nobody is to get it.
func (s *Side[C, R]) Piece(h Header, n int) (late bool, err error) {
	f, err := s.flows(h)
	switch {
	case err != nil || f == nil:
		return true, err
	case f.ended:
		return false, fmt.Errorf("%w: a piece of a stream behind its end", wire.ErrProtocol)
	case n == 0 || n > f.left:
		return false, fmt.Errorf("%w: a piece of %d bytes of a stream with a credit of %d", wire.ErrProtocol, n, f.left)
	}
	f.left -= n
	return false, nil
}

// Ended takes the end of the peer's stream.
func (s *Side[C, R]) Ended(h Header) (late bool, err error) {
	f, err := s.flows(h)
	switch {
	case err != nil || f == nil:
		return true, err
	case f.ended:
		return false, fmt.Errorf("%w: a stream that ends twice", wire.ErrProtocol)
	}
	f.ended = true
	s.stop(f)
	return false, nil
}

// Granted takes the peer's word that n bytes more may be sent.
func (s *Side[C, R]) Granted(h Header, n uint32) (late bool, err error) {
	f, err := s.flows(h)
	if err != nil || f == nil {
		return true, err
	}
	if f.out += int64(n); n == 0 || f.out > MaxStream {
		return false, fmt.Errorf("%w: credit of %d bytes for a stream, %d in all", wire.ErrProtocol, n, f.out)
	}
	return false, nil
}

// Consumed counts n bytes of a stream that the application is through with. It returns
// what the peer is to be granted now, 0 if that can wait: for a quarter of the window.
//
// Windows grow with what is consumed while the peer uses them up, and shrink when more
// streams share Limits.Memory.
func (s *Side[C, R]) Consumed(f *Flows, n int) (grant uint32) {
	if !f.receiving {
		f.window -= n
		s.promised -= n
		return 0
	}
	f.owed += n
	most := max(min(s.own.Memory/s.streams, s.own.Window), s.own.Stream)
	if over := min(f.owed, f.window-most); over > 0 {
		f.owed -= over
		f.window -= over
		s.promised -= over
	}
	if f.owed == 0 || 4*f.owed < f.window {
		return 0
	}
	more := 0
	if 2*f.left <= f.window {
		more = max(min(f.owed, most-f.window, s.own.Memory-s.promised), 0)
	}
	n = f.owed + more
	f.window += more
	s.promised += more
	f.left += n
	f.owed = 0
	return uint32(n)
}
