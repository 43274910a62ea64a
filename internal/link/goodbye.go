package link

import "github.com/verbena-data/verbena/internal/link/wire"

// goodbye is how far the orderly end has come.
type goodbye struct {
	closed   bool // this side takes no messages any more
	due      bool // this side has nothing more to send
	sent     bool // its goodbye is in the send queue
	out      bool // its goodbye has left it
	peerSaid bool // the peer sends nothing more
}

// Close says goodbye behind what has been sent. Messages that arrive are dropped
// from here on, and offers confirmed without being read.
func (m *Machine[M]) Close() {
	m.goodbye.closed, m.goodbye.due = true, true
	m.pump()
}

// Finished tells that the peer has said goodbye, that all its messages are complete, and
// that none is viewed in its memory. This side then answers with its own goodbye.
func (m *Machine[M]) Finished() bool {
	a := &m.arrivals
	done := m.goodbye.peerSaid && a.reading == 0 && a.viewed == 0 && a.pending.Len() == 0 && m.inbox.incomplete == 0
	if done && !m.goodbye.due {
		m.goodbye.due = true
		m.pump()
	}
	return done
}

// GoodbyeOut tells that this side's goodbye, and all before it, has left the send
// queue.
func (m *Machine[M]) GoodbyeOut() bool { return m.goodbye.out }

// PeerSaidGoodbye tells that nothing more comes from the peer. A peer that answers
// this side's goodbye has everything.
func (m *Machine[M]) PeerSaidGoodbye() bool { return m.goodbye.peerSaid }

func (m *Machine[M]) sayGoodbye() {
	if m.goodbye.due && !m.goodbye.sent && m.arrivals.confirm.Len() == 0 && m.queue.room() {
		m.queue.at(m.header(wire.Goodbye, 0, 0, 0, true).Seq).what = placeGoodbye
		m.goodbye.sent = true
	}
}
