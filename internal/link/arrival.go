package link

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/fifo"
	"github.com/verbena-data/verbena/internal/link/wire"
)

// arrivals is what this side does about the peer's offers. They are read, and
// confirmed, in the order in which they came; one whose message has no memory yet
// holds up those behind it, which belong to it or to later messages.
type arrivals struct {
	pending fifo.Queue[pendingOffer]
	confirm fifo.Queue[uint32] // ids that are done, to be told
	held    bool               // they are not told yet: see Hold
	open    int                // offers of the peer that it has not been told of
	viewed  int                // offers that the application uses where they lie
	reading int                // Reads under way
	asked   int                // bytes that they are for
	waiting int                // bytes of pending
	fetched uint64             // bytes that earlier ones have brought

	arriving bool   // the parts of message current are not all here
	current  uint64 // position in the inbox

	largest int // bytes of the longest message that the peer has delivered
}

type pendingOffer struct {
	message uint64
	offer   wire.Offer
}

// offered takes a part of a long message.
func (m *Machine[M]) offered(tag uint32, o wire.Offer) error {
	a := &m.arrivals
	if o.Offset == 0 {
		m.giveUpArrival()
		a.current = m.inbox.push(message[M]{tag: tag, total: int(o.Total), long: true})
		a.arriving = true
	}
	if !a.arriving {
		return fmt.Errorf("%w: offer of bytes %d to %d of %d, which does not continue what came before", wire.ErrProtocol, o.Offset, o.End(), o.Total)
	}
	e := m.inbox.at(a.current)
	if e.tag != tag || e.total != int(o.Total) || e.offered != int(o.Offset) {
		return fmt.Errorf("%w: offer of bytes %d to %d of %d, which does not continue what came before", wire.ErrProtocol, o.Offset, o.End(), o.Total)
	}
	if a.open++; a.open > int(m.peer.Chunks) {
		return fmt.Errorf("%w: more than %d offers at a time", wire.ErrProtocol, m.peer.Chunks)
	}
	e.offered += int(o.Length)
	a.pending.Push(pendingOffer{a.current, o})
	a.waiting += int(o.Length)
	a.arriving = e.offered < e.total
	return nil
}

// giveUpArrival notes that the peer did not finish a long message: something else
// begins.
func (m *Machine[M]) giveUpArrival() {
	if !m.arrivals.arriving {
		return
	}
	m.arrivals.arriving = false
	e := m.inbox.at(m.arrivals.current)
	e.givenUp = true
	if e.complete() {
		m.inbox.incomplete--
	}
	m.read()
	m.forget()
}

// forget takes long messages out at the end of the inbox that nobody will receive
// and that have no memory. A peer could make any number of them.
func (m *Machine[M]) forget() {
	for b := &m.inbox; !b.empty(); b.next-- {
		e := b.at(b.next - 1)
		if !e.long || e.given || !e.complete() || !e.givenUp && !m.goodbye.closed {
			return
		}
		*e = message[M]{}
	}
}

// read posts Reads of what has been offered, as far as there is memory.
func (m *Machine[M]) read() {
	a := &m.arrivals
	for a.pending.Len() > 0 {
		p := a.pending.Front()
		e := m.inbox.at(p.message)
		id := readOffer{p.offer.ID, p.offer.Length}
		switch {
		case e.givenUp || m.goodbye.closed:
			m.settle(e, id)
			a.pending.Pop()
			a.waiting -= int(id.length)
			if m.goodbye.closed {
				m.forget()
			}
			continue
		case e.capacity < p.offer.End() || a.reading >= m.limits.Chunks || !m.queue.room():
			return
		}
		seq := m.queue.tail
		*m.queue.at(seq) = place{what: placeRead, message: p.message, offer: id}
		m.queue.tail++
		m.queue.quiet = 0
		m.out = append(m.out, Post{
			Seq: seq, Signaled: true, Read: true, Message: p.message,
			Offset: int(p.offer.Offset), Length: int(p.offer.Length), Address: p.offer.Address, Key: p.offer.Key,
		})
		e.reading++
		a.reading++
		a.asked += int(id.length)
		a.pending.Pop()
		a.waiting -= int(id.length)
	}
}

// readDone notes the end of a Read.
func (m *Machine[M]) readDone(n uint64, id readOffer) {
	m.arrivals.reading--
	m.arrivals.asked -= int(id.length)
	m.arrivals.fetched += uint64(id.length)
	e := m.inbox.at(n)
	e.reading--
	m.settle(e, id)
	if e.settled == e.total {
		m.arrivals.largest = max(m.arrivals.largest, e.total)
	}
}

// settle confirms an offer whose bytes have been read, or are not wanted.
func (m *Machine[M]) settle(e *message[M], id readOffer) {
	m.arrivals.confirm.Push(id.id)
	e.settled += int(id.length)
	if e.complete() {
		m.inbox.incomplete--
	}
}

// enoughUnread is how many bytes the peer must have offered besides for confirmations to be
// held. To read them takes about as long, by estimate, as the peer takes to wake and to offer
// more. Tests change it.
var enoughUnread = 1 << 20

// mostHeld is how many confirmations may be held.
const mostHeld = 4

// MayHold tells whether confirmations of what has been read may wait for others, as far as
// the machine knows: nothing else is due to the peer, and it has offered enough for this side
// to go on with.
func (m *Machine[M]) MayHold() bool {
	a := &m.arrivals
	return a.waiting+a.asked >= enoughUnread && a.confirm.Len() < mostHeld && !m.creditsDue() && !m.goodbye.peerSaid
}

// Hold has the confirmations that the next Sent brings about wait for as long as MayHold
// reports true, and until Tell at the longest. It is for a peer that sleeps: each would wake
// it, and it has enough under way.
func (m *Machine[M]) Hold() { m.arrivals.held = true }

// Holding tells that confirmations wait. Whoever has called Hold calls Tell before it rests.
func (m *Machine[M]) Holding() bool { return m.arrivals.held }

// Tell ends Hold. Afterwards posts may be due.
func (m *Machine[M]) Tell() {
	m.arrivals.held = false
	m.pump()
}

// short tells that message n waits for memory, and that its memory can be moved.
func (m *Machine[M]) short(n uint64) bool {
	if m.arrivals.pending.Len() == 0 || m.goodbye.closed {
		return false
	}
	p := m.arrivals.pending.Front()
	e := m.inbox.at(n)
	return p.message == n && !e.givenUp && e.reading == 0 && e.capacity < p.offer.End()
}

// Announced tells that there are offers of the peer which wait for something.
func (m *Machine[M]) Announced() bool { return m.arrivals.pending.Len() > 0 }

// A Want is a long message that waits for memory.
type Want struct {
	Message uint64 // for Provide
	Tag     uint32
	Have    int // bytes that have arrived: they move along
	Need    int // bytes without which nothing goes on
	Size    int // bytes that would be best, at least Need
	Total   int // bytes of the message
	First   bool
	// Whole says that one offer has all of it: it may be looked at in the peer's memory, at
	// Address in the region that Key opens, in place of being read. See Machine.View.
	Whole   bool
	Address uint64
	Key     uint32
	offer   uint32
}

// Wanted tells which long message waits for memory, if one does. First says that
// it is also the next that the application receives.
//
// An announcement is cheap, so memory follows what has arrived: Limits.Commit bytes
// at first, then twice what there was. A peer that has delivered a message gets
// memory for one of up to twice its length at once.
func (m *Machine[M]) Wanted() (Want, bool) {
	if m.arrivals.pending.Len() == 0 {
		return Want{}, false
	}
	p := m.arrivals.pending.Front()
	if !m.short(p.message) {
		return Want{}, false
	}
	e := m.inbox.at(p.message)
	w := Want{Message: p.message, Tag: e.tag, Have: e.settled, Total: e.total, First: p.message == m.inbox.first}
	w.Need = min(e.total, max(m.limits.Commit, 2*e.capacity, p.offer.End()))
	w.Size = min(e.total, max(w.Need, 2*m.arrivals.largest))
	w.Whole = int(p.offer.Length) == e.total && m.arrivals.viewed < m.mostViewed()
	w.Address, w.Key, w.offer = p.offer.Address, p.offer.Key, p.offer.ID
	return w, true
}

// mostViewed is how many offers the application may use where they lie. The peer needs
// ids for others meanwhile.
func (m *Machine[M]) mostViewed() int { return int(m.peer.Chunks) / 2 }

// View takes the message of a [Want] that is Whole as complete. Its bytes stay in the
// peer's memory, which keeps them until the message has been Viewed, with the offer that
// View returns. Afterwards posts may be due.
func (m *Machine[M]) View(w Want, handle M) (offer uint32) {
	a := &m.arrivals
	e := m.inbox.at(w.Message)
	a.pending.Pop()
	a.waiting -= e.total
	a.viewed++
	a.largest = max(a.largest, e.total)
	e.handle, e.given, e.viewed = handle, true, true
	e.settled = e.total
	m.inbox.incomplete--
	m.pump()
	return w.offer
}

// Viewed confirms an offer that the application has used where it lay. Nothing comes of
// it once this side has said goodbye: the peer does not wait for confirmations then.
func (m *Machine[M]) Viewed(offer uint32) {
	m.arrivals.viewed--
	m.arrivals.confirm.Push(offer)
	m.Tell()
}

// Provide gives the message of a [Want] memory of size bytes, into which the
// caller has copied what had arrived.
func (m *Machine[M]) Provide(n uint64, handle M, size int) {
	e := m.inbox.at(n)
	e.handle, e.capacity, e.given = handle, size, true
	m.pump()
}

// Handle is the memory of a message that a Read is for.
func (m *Machine[M]) Handle(n uint64) M { return m.inbox.at(n).handle }
