package rdmanet

import "fmt"

// A kept message is a short one that was copied, so that its credit goes back to
// the peer before somebody reads it.
type kept []byte

func (k kept) Bytes() []byte { return k }

func (k kept) Release() {}

func keep(m message) message {
	if len(m.Bytes()) > keepLimit {
		return m
	}
	defer m.Release()
	return kept(append([]byte(nil), m.Bytes()...))
}

// dispatch takes in one message; the caller holds rx. It returns the message if
// it is data of the connection, which the caller must release, and the
// connection that it opened.
func (s *session) dispatch(tag uint32, m message) (message, *conn, error) {
	size := len(m.Bytes())
	k, stream, err := parse(tag, size)
	if k == kindData && err == nil {
		// conn stays what it is as long as the caller holds rx.
		s.mu.Lock()
		c := s.conn
		s.mu.Unlock()
		if c == nil || stream != c.stream || c.peerFin.Load() {
			m.Release()
			return nil, nil, fmt.Errorf("%w: %v for connection %d, which is not open", errProtocol, k, stream)
		}
		return m, nil, nil
	}
	m.Release()
	if err != nil {
		return nil, nil, err
	}

	opened, answer, err := s.take(k, stream)
	if answer != nil {
		s.control(answer, kindStop)
	}
	return nil, opened, err
}

// take takes in a message without data. It returns the connection that it
// opened, or the one whose peer is to be told that all has arrived.
func (s *session) take(k kind, stream uint32) (opened, answer *conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conn
	switch k {
	case kindOpen:
		if s.dialed || c != nil || stream != s.stream+1 {
			return nil, nil, fmt.Errorf("%w: %v of connection %d after connection %d", errProtocol, k, stream, s.stream)
		}
		s.stream = stream
		s.stopIdle()
		s.watch = false
		s.conn = newConn(s, stream)
		return s.conn, nil, nil
	case kindRetire:
		if !s.dialed {
			return nil, nil, fmt.Errorf("%w: %v from the dialer", errProtocol, k)
		}
		s.retired = true
		if c == nil {
			s.dead = true
			s.reason = errRetired
		}
		return nil, nil, nil
	}
	if c == nil || stream != c.stream || c.peerClosed.Load() {
		return nil, nil, fmt.Errorf("%w: %v for connection %d, which is not open", errProtocol, k, stream)
	}
	switch k {
	case kindFin:
		if c.peerFin.Swap(true) {
			return nil, nil, fmt.Errorf("%w: second %v for connection %d", errProtocol, k, stream)
		}
	case kindStop:
		c.wdl.fail(errPeerStopped)
		c.noteTaken()
	case kindClose:
		c.peerFin.Store(true)
		c.peerClosed.Store(true)
		c.wdl.fail(errPeerStopped)
		c.noteTaken()
		// The peer waits to hear that everything is here. Our CLOSE says so, too.
		return nil, c, nil
	}
	return nil, nil, nil
}

// noteTaken is called with s.mu held.
func (c *conn) noteTaken() {
	if !c.isTaken {
		c.isTaken = true
		close(c.taken)
	}
}
