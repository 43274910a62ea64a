package link

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
)

// Operations that the peer's runtime serves are messages. One costs a credit and takes
// an id of those that offers have; its answer costs none: this side keeps a receive for
// each id. So a peer that serves slowly holds ids and nothing else.

// Serve says that both ends have agreed on operations.
func (m *Machine[M]) Serve() { m.serves = true }

// LongestAnswer is how many bytes an answer to this side can carry, or that of the peer
// if it is less.
func (m *Machine[M]) LongestAnswer() int { return m.MaxEager() - wire.AnswerSize }

// MayAsk tells whether an operation may be asked for now: see MayOffer.
func (m *Machine[M]) MayAsk() bool { return m.MayOffer() }

// Asks tells whether the peer takes operations.
func (m *Machine[M]) Asks() bool { return m.serves && m.MaxEager() >= wire.OperationSize }

// Ask asks for an operation, when MayAsk. It returns the id of the answer.
func (m *Machine[M]) Ask(o wire.Operation) (id uint32) {
	o.ID = m.outgoing.take(true)
	p := m.pay(wire.Asked, 0, wire.OperationSize, false)
	o.Put(m.queue.body(p.Seq))
	p.Size += wire.OperationSize
	return o.ID
}

// asked takes an operation of the peer.
func (m *Machine[M]) asked(body []byte) (wire.Operation, error) {
	o, err := wire.ParseOperation(body, m.LongestAnswer())
	if err != nil {
		return o, err
	}
	if m.arrivals.open++; m.arrivals.open > int(m.peer.Chunks) {
		return o, fmt.Errorf("%w: more than %d offers and operations at a time", wire.ErrProtocol, m.peer.Chunks)
	}
	return o, nil
}

// MayAnswer tells whether an answer may be sent now. None is sent behind this side's
// goodbye: Answered then tells that it will not be.
func (m *Machine[M]) MayAnswer() bool { return m.live && !m.goodbye.sent && m.queue.room() }

// Unanswered tells that no answer will be sent any more.
func (m *Machine[M]) Unanswered() bool { return m.goodbye.sent }

// Answer answers an operation, when MayAnswer. Data that does not fit beside the
// header is the caller's to post behind it, as for Eager.
func (m *Machine[M]) Answer(a wire.Answer, data []byte) {
	const front = wire.AnswerSize
	p := m.header(wire.Answered, 0, 0, uint32(front+len(data)), front+len(data) > Small)
	body := m.queue.body(p.Seq)
	a.Put(body)
	p.Size += front
	if front+len(data) <= Small {
		p.Size += copy(body[front:], data)
	} else {
		p.Payload = len(data)
	}
	m.arrivals.open--
	m.pump()
}
