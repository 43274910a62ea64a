package link

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
)

const headerSize = wire.HeaderSize

// Small is the longest payload in bytes that fits beside a header at a place.
const Small = PlaceSize - headerSize

// outgoing counts this side's open offers: parts of long messages that the peer
// may still read.
type outgoing struct {
	open  []bool   // by id
	asked []bool   // by id: it is no offer, but an operation
	idle  []uint32 // ids that are free
}

func newOutgoing(chunks int) outgoing {
	o := outgoing{open: make([]bool, chunks), asked: make([]bool, chunks), idle: make([]uint32, 0, chunks)}
	for id := range chunks {
		o.idle = append(o.idle, uint32(id))
	}
	return o
}

// taken takes the peer's word that it has read an offer.
func (o *outgoing) taken(id uint32) error {
	if int64(id) >= int64(len(o.open)) || !o.open[id] || o.asked[id] {
		return fmt.Errorf("%w: confirmation of offer %d, which is not open", wire.ErrProtocol, id)
	}
	o.free(id)
	return nil
}

// answered takes the peer's answer to an operation.
func (o *outgoing) answered(id uint32) error {
	if int64(id) >= int64(len(o.open)) || !o.asked[id] {
		return fmt.Errorf("%w: an answer to operation %d, which was not asked for", wire.ErrProtocol, id)
	}
	o.free(id)
	return nil
}

// take takes an id that is free.
func (o *outgoing) take(asked bool) (id uint32) {
	last := len(o.idle) - 1
	id = o.idle[last]
	o.idle = o.idle[:last]
	o.open[id], o.asked[id] = true, asked
	return id
}

func (o *outgoing) free(id uint32) {
	o.open[id], o.asked[id] = false, false
	o.idle = append(o.idle, id)
}

// MaySend tells whether an eager message may be sent now. If it may not for want
// of a credit, the next message tells the peer that it was waited for; receives for
// answers may also be missing: see [Machine.Lacks]. None may be sent to a peer that
// has said goodbye, which would drop it.
func (m *Machine[M]) MaySend() bool {
	return m.mayPay(m.OffersOpen())
}

// MayOffer tells whether a part of a long message may be offered now.
func (m *Machine[M]) MayOffer() bool { return m.MayOfferParts(1) }

// MayOfferParts tells whether n parts may be offered now, one after the other.
func (m *Machine[M]) MayOfferParts(n int) bool {
	return len(m.outgoing.idle) >= n && m.mayPay(m.OffersOpen()+n) && m.credits.left >= n
}

// mayPay tells whether a message that costs a credit may be sent now, with which so
// many offers are open.
func (m *Machine[M]) mayPay(offers int) bool {
	if !m.takes || m.credits.left == 0 {
		m.credits.starved, m.answers.lacking = true, 0
		return false
	}
	return m.answered(offers) && m.queue.roomPaid()
}

// OffersOpen is how many offers the peer has not confirmed.
func (m *Machine[M]) OffersOpen() int { return len(m.outgoing.open) - len(m.outgoing.idle) }

// Eager sends a message that fits into a receive of the peer, when MaySend. A
// payload of at most Small bytes is copied to the request's place. A longer one is
// the caller's to post behind the header; soon says that its memory is wanted back
// as soon as the request is done, which makes it a signalled one.
func (m *Machine[M]) Eager(tag uint32, payload []byte, soon bool) {
	p := m.pay(wire.Eager, tag, uint32(len(payload)), soon)
	if len(payload) <= Small {
		p.Size += copy(m.queue.body(p.Seq), payload)
	} else {
		p.Payload = len(payload)
	}
}

// Ahead puts the header of an eager message of length bytes at b, which has room for
// [wire.HeaderSize], when MaySend: of one that goes out now and past the send queue, whose
// place and completion it does not need. Nothing has changed until Gone, the next call of
// the machine, says that it is out. Ahead reports false if it would overtake what is to be
// posted.
func (m *Machine[M]) Ahead(tag, length uint32, b []byte) bool {
	if len(m.out) > 0 {
		return false
	}
	flags := uint8(0)
	if m.credits.starved {
		flags = wire.Starved
	}
	c := &m.credits
	wire.PutPacket(b, wire.Eager, flags, uint16(c.owed), uint16(c.owedControl), tag, length)
	return true
}

// Gone says that the message of Ahead is out.
func (m *Machine[M]) Gone() {
	m.paid()
	m.credits.take()
}

// Gather is Eager for a message in two pieces. Of what is longer than Small bytes
// together, header goes to the request's place, where it must fit, and payload is the
// caller's to post behind it.
func (m *Machine[M]) Gather(tag uint32, header, payload []byte, soon bool) {
	p := m.pay(wire.Eager, tag, uint32(len(header)+len(payload)), soon)
	body := m.queue.body(p.Seq)
	n := copy(body[:len(header)], header)
	p.Size += n
	if n+len(payload) <= Small {
		p.Size += copy(body[n:], payload)
	} else {
		p.Payload = len(payload)
	}
}

// Offer offers a part of a long message, when MayOffer. It returns the id under
// which the peer will confirm it; until then the peer may read the memory.
func (m *Machine[M]) Offer(tag uint32, o wire.Offer) (id uint32) {
	o.ID = m.outgoing.take(false)
	p := m.pay(wire.Offered, tag, wire.OfferSize, false)
	o.Put(m.queue.body(p.Seq))
	p.Size += wire.OfferSize
	return o.ID
}

// pay makes the post of a message that costs a credit.
func (m *Machine[M]) pay(kind wire.Kind, tag, length uint32, signaled bool) *Post {
	return m.header(kind, m.paid(), tag, length, signaled)
}

// paid uses a credit up, and returns the flags of the message.
func (m *Machine[M]) paid() (flags uint8) {
	if m.answers.asleep > 0 && m.controls() > 1 {
		m.answers.crowded = true
	}
	m.credits.left--
	if m.credits.starved {
		flags = wire.Starved
		m.credits.starved = false
	}
	return flags
}
