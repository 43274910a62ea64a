package shuffle

import (
	"errors"
	"slices"
	"sync"

	"github.com/verbena-data/verbena/internal/crc32c"
	"github.com/verbena-data/verbena/shuffle/internal/flow"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// An outgoing is the stream from this process to a thread of another one. All threads add
// their parts to its open block, which goes out when it is long enough, when somebody
// waits for room, by Flush, and when nothing has been added for a while.
type outgoing struct {
	p        *peer
	receiver int // that thread

	mu       sync.Mutex
	offset   int    // of the open block
	length   int    // of it; 0: there is none
	room     int    // how long it may become
	sequence uint32 // of it
	parts    uint32 // in it
	grown    bool   // since the last look of the idle
	closed   bool   // the memory has gone
	header   [wire.HeaderSize]byte
}

// errCut says that there is no piece for so long a block.
var errCut = errors.New("no piece for so long a block")

// A slab is the memory in a peer that the streams to its threads share.
type slab struct {
	mu      sync.Mutex
	out     *flow.Out
	waiting [][]*Sender // by stream
	waits   int         // streams for whose room somebody waits
}

// begin begins a block. If there is no room who waits, unless nil, is woken when there is.
func (s *slab) begin(stream, least, want int, who *Sender) (offset, room int, v flow.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	offset, room, v = s.out.Begin(stream, least, want)
	if v == flow.Full && who != nil {
		if len(s.waiting[stream]) == 0 {
			s.waits++
		}
		if !slices.Contains(s.waiting[stream], who) {
			s.waiting[stream] = append(s.waiting[stream], who)
		}
	}
	return offset, room, v
}

// seal gives back what a block does not need.
func (s *slab) seal(offset, length int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Seal(offset, length)
	s.wake()
}

// free says that the peer has freed a block.
func (s *slab) free(stream, offset, length int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.out.Free(stream, offset, length)
	s.wake()
	return err
}

// wake wakes who may have room now. mu is held.
func (s *slab) wake() {
	if s.waits == 0 {
		return
	}
	for stream, waiting := range s.waiting {
		if len(waiting) == 0 || !s.out.Ready(stream) {
			continue
		}
		for i, sender := range waiting {
			sender.sleeper.wake()
			waiting[i] = nil
		}
		s.waiting[stream] = waiting[:0]
		s.waits--
	}
}

// add puts a part, which is head and then body, into the open block, or begins one. It
// reports false if there is no room; then all that was added goes out soon, and who waits,
// unless nil, is woken when room comes. errCut says that no block can be so long now. The bytes may be reused.
func (o *outgoing) add(head, body []byte, who *Sender) (ok bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false, ErrClosed
	}
	n := len(head) + len(body)
	if o.length == 0 || o.length+n > o.room {
		if err := o.seal(); err != nil {
			return false, err
		}
		offset, room, v := o.p.slab.begin(o.receiver, wire.HeaderSize+n, max(wire.HeaderSize+n, o.p.x.c.full), who)
		switch v {
		case flow.Full:
			return false, nil
		case flow.Cut:
			return false, errCut
		}
		o.offset, o.length, o.room = offset, wire.HeaderSize, room
	}
	at := o.offset + o.length
	if err := o.write(at, head); err != nil {
		return false, err
	}
	if len(body) > 0 {
		if err := o.write(at+len(head), body); err != nil {
			return false, err
		}
	}
	o.length += n
	o.parts++
	o.grown = true
	if o.room-o.length < o.p.x.c.part { // another one may have no room
		return true, o.seal()
	}
	o.p.x.idle.arm()
	return true, nil
}

// write writes to the slab: that of the peer, or what this process has in its place. mu is held.
func (o *outgoing) write(at int, b []byte) error {
	if !o.p.direct {
		copy(o.p.mirror[at:], b)
		return nil
	}
	return o.p.ep.Put(o.p.x.ctx, o.p.token, at, b)
}

// seal lets the open block go out, if there is one. mu is held.
func (o *outgoing) seal() error {
	if o.length == 0 {
		return nil
	}
	offset, length := o.offset, o.length
	h := wire.Header{
		Length: uint32(length - wire.HeaderSize), Sequence: o.sequence, Offset: uint32(offset), Receiver: uint16(o.receiver), Parts: o.parts,
		Summed: o.p.sums,
	}
	o.sequence++
	o.length, o.parts = 0, 0
	if o.room-length >= o.p.x.c.page {
		o.p.slab.seal(offset, length)
	}
	e := wire.Entry{Kind: wire.Filled, Receiver: uint16(o.receiver), Offset: uint32(offset), Length: uint32(length)}
	if !o.p.direct {
		block := o.p.mirror[offset : offset+length]
		h.Put(block)
		summed := block[4:wire.HeaderSize]
		if h.Summed {
			summed = block[4:]
		}
		wire.SetSum(block, crc32c.Update(0, summed))
		o.p.post(e)
		return nil
	}
	h.Put(o.header[:])
	wire.SetSum(o.header[:], crc32c.Update(0, o.header[4:]))
	if err := o.write(offset, o.header[:]); err != nil {
		return err
	}
	o.p.note(e)
	return nil
}

// flush lets what was added go out.
func (o *outgoing) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return ErrClosed
	}
	return o.seal()
}

// look lets the open block go out if nothing was added since the last look, and tells
// whether there is one still.
func (o *outgoing) look() (open bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.grown && !o.closed {
		return false, o.seal()
	}
	o.grown = false
	return !o.closed && o.length > 0, nil
}

// close ends all writing.
func (o *outgoing) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
}
