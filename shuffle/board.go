package shuffle

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-data/verbena/shuffle/internal/flow"
	"github.com/verbena-data/verbena/shuffle/internal/rest"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// A board is memory of this process, behind the slab, in which a peer on the same host
// leaves its entries by Puts. That wakes nobody: the threads of this process look at all
// boards before they sleep, and [Exchange.lookAfter] does while there is traffic. A message
// for each would wake a thread of the process that receives, and on a busy host that costs more
// than what the message tells of. A process that rests says so, and is woken by an
// empty message.
type board []byte

func (b board) word(at int) uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b[at : at+8][0])).Load()
}

// entries appends the entries of numbers from to end to b.
func (b board) entries(to []byte, from, end uint64) []byte {
	for from < end {
		slot := int(from % wire.BoardEntries)
		n := min(int(end-from), wire.BoardEntries-slot)
		at := wire.BoardFirst + slot*wire.EntrySize
		to = append(to, b[at:at+n*wire.EntrySize]...)
		from += uint64(n)
	}
	return to
}

// A reader is what this process has taken from a board that a peer fills.
type reader struct {
	taken   uint64 // entries
	entries []byte // of the last look
	closed  bool   // the board has gone
}

// A writer is what this process has left on a peer's board.
type writer struct {
	left   uint64    // entries
	bell   rest.Bell // that wakes the peer
	told   uint64    // entries of the peer's that it knows to be taken
	bye    bool      // the peer has been told that all has arrived here
	broken bool      // a Put has failed
	closed bool      // this process's boards have gone
}

// over tells whether nothing on the peer's board matters any more. sending is held.
func (p *peer) over() bool {
	return p.writer.broken || p.writer.closed || p.writer.bye && p.saidBye.Load()
}

// look takes what the peer has left on this process's board, and tells whether there was
// anything. Whoever finds another thread looking leaves it to that.
func (p *peer) look() (some bool) {
	if !p.reading.TryLock() {
		return false
	}
	defer p.reading.Unlock()
	r := &p.reader
	if r.closed {
		return false
	}
	tail := p.board.word(wire.BoardTail)
	if tail == r.taken {
		return false
	}
	if tail-r.taken > wire.BoardEntries {
		p.broke(fmt.Errorf("%w: %d entries on a board, %d were taken", flow.ErrBreach, tail, r.taken))
		return true
	}
	r.entries = p.board.entries(r.entries[:0], r.taken, tail)
	r.taken = tail
	p.seen.Store(tail)
	if err := p.entries(r.entries); err != nil {
		p.broke(err)
	}
	return true
}

// leave leaves notifications on the peer's board, as many as there is room for, and tells it
// how many of its own were taken. What cannot be left now is left by lookAfter.
func (p *peer) leave() {
	for p.waits() || p.seen.Load() != p.known.Load() {
		p.x.idle.arm()
		if !p.sending.TryLock() {
			return
		}
		some := p.leaveSome()
		p.sending.Unlock()
		if !some {
			return
		}
	}
}

// leaveSome reports false if there is nothing to leave, or no room. sending is held.
func (p *peer) leaveSome() (some bool) {
	w := &p.writer
	if p.over() {
		return false
	}
	if taken := p.seen.Load(); taken != w.told {
		w.told = taken
		p.known.Store(taken)
		p.putWord(wire.BoardTaken, taken)
		some = true
	}
	under := w.left - p.board.word(wire.BoardTaken)
	if under > wire.BoardEntries {
		p.broke(fmt.Errorf("%w: %d entries are said to be taken, %d were left", flow.ErrBreach, w.left-under, w.left))
		return false
	}
	p.mu.Lock()
	p.takeNotes(wire.BoardEntries - int(under))
	p.mu.Unlock()
	b := p.control
	if len(b) == 0 {
		return some
	}
	for len(b) > 0 {
		slot := int(w.left % wire.BoardEntries)
		n := min(len(b), (wire.BoardEntries-slot)*wire.EntrySize)
		p.put(wire.BoardFirst+slot*wire.EntrySize, b[:n])
		w.left += uint64(n / wire.EntrySize)
		b = b[n:]
	}
	p.control = p.control[:0]
	p.putWord(wire.BoardTail, w.left)
	p.messages.Add(1)
	return true
}

// put writes to the peer's board. sending is held.
func (p *peer) put(at int, b []byte) {
	if p.writer.broken {
		return
	}
	if err := p.ep.Put(p.x.ctx, p.token, p.x.c.slab().Size()+at, b); err != nil {
		p.writer.broken = true
		p.x.loops.Go(func() { p.unreachable(err) })
	}
}

func (p *peer) putWord(at int, v uint64) {
	binary.NativeEndian.PutUint64(p.word[:], v)
	p.put(at, p.word[:])
}

// unreachable ends the exchange because of a Put that has failed, unless the endpoint ends for
// a reason that receive knows better.
func (p *peer) unreachable(err error) {
	timer := time.NewTimer(patienceOfEnds)
	defer timer.Stop()
	select {
	case <-p.ep.Done():
	case <-p.x.ctx.Done():
	case <-timer.C:
		_ = p.lost(err)
	}
}

// ring wakes the peer, if it rests.
func (p *peer) ring() {
	if !p.sending.TryLock() {
		return
	}
	defer p.sending.Unlock()
	w := &p.writer
	if p.over() {
		return
	}
	if word := p.board.word(wire.BoardRest); w.bell.Needed(word) && p.ep.TrySend(wire.TagControl, nil) {
		w.bell.Rung(word)
		p.messages.Add(1)
	}
}

// unread tells whether the peer has not taken all that was left for it.
func (p *peer) unread() bool {
	p.sending.Lock()
	defer p.sending.Unlock()
	return !p.over() && p.writer.left != p.board.word(wire.BoardTaken)
}

// rests tells the peers on the same host whether this process rests: it is odd then.
func (x *Exchange) rests(word uint64) {
	for _, p := range x.peers {
		if p.direct {
			p.sending.Lock()
			if !p.over() {
				p.putWord(wire.BoardRest, word)
			}
			p.sending.Unlock()
		}
	}
}

// closeBoards ends all use of this process's board and the peer's.
func (p *peer) closeBoards() {
	p.reading.Lock()
	p.reader.closed = true
	p.reading.Unlock()
	p.sending.Lock()
	p.writer.closed = true
	p.sending.Unlock()
}

// turn leaves what waits for peers on the same host, and takes what they have left; it
// tells whether there was anything. A thread that is about to sleep calls it.
func (x *Exchange) turn() (some bool) {
	for _, p := range x.peers {
		if p.direct {
			some = p.look() || some
		}
	}
	for _, p := range x.peers {
		if p.direct {
			p.leave()
		}
	}
	if some {
		x.idle.arm()
	}
	return some
}
