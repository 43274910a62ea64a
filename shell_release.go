package verbena

import "github.com/verbena-data/verbena/rdma"

// mostUnposted is how many receives may wait to be posted again.
const mostUnposted = 8

// unposted are receives whose messages the application has released. The peer has its
// credit back; the receive has yet to be posted. Where receives are shared and lent,
// posting one takes the latch of the queue and changes what all its endpoints count, a
// fifth of what a short message costs. So the receive of the last message is posted when
// the application waits for the next one, which is when the time costs nobody anything.
// While messages are there to be received, up to 8 receives are posted together.
type unposted struct {
	n        int
	buffers  [mostUnposted]*buffer
	requests [mostUnposted]rdma.RecvRequest
}

// take returns the receives. They may be used until the next that is added.
func (u *unposted) take() []*buffer {
	n := u.n
	u.n = 0
	return u.buffers[:n]
}

// released takes a buffer back from the application.
func (s *inbound) released(b *buffer) {
	m := &b.message
	s.mu.Lock()
	if !m.held || b.holder != s {
		s.mu.Unlock()
		s.releasedTwice()
		return
	}
	if s.life.reached(stageClosed) {
		m.held, m.data, b.holder = false, nil, nil
		b.home.putLate(b, true)
		s.releasedOne()
		return
	}
	s.returned(b)
	s.mu.Unlock()
}

// returned gives a buffer that the application has had back to the peer. mu is held.
func (s *inbound) returned(b *buffer) {
	m := &b.message
	m.held, m.data, b.holder = false, nil, nil
	s.held--
	s.window.held--
	withdrawn := s.window.narrow(s.m.Window(), s.m.Stopped())
	s.unposted.buffers[s.unposted.n] = b
	s.unposted.n++
	if !s.mayWait() {
		// The receive is there before the credit.
		s.postReleased()
	}
	if withdrawn {
		s.m.Withdraw()
	} else if !s.m.Released() {
		return
	}
	s.flush()
}

// mayWait tells whether what is unposted may stay so for a while: whether somebody will
// soon post it who has to take mu anyway, and nobody lacks it meanwhile. A credit without
// a receive is none where messages must find one. mu is held.
func (s *inbound) mayWait() bool {
	w := &s.window
	if !w.recv.lends || s.in.handing || s.upcall.sink != nil || w.recv.pool.Squeezed() {
		return false
	}
	return s.unposted.n == 1 || s.unposted.n < mostUnposted && s.m.Ready()
}

// postReleased posts what is unposted. mu is held.
func (s *inbound) postReleased() {
	if s.unposted.n > 0 {
		s.putAllBack(s.unposted.take(), s.unposted.requests[:])
	}
}

// tidy is postReleased for who does not hold mu, and counts what was taken.
func (s *inbound) tidy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.postReleased()
	s.window.count()
}

// releasedTwice reports what a program did wrong and harms nobody else.
func (s *queuePair) releasedTwice() {
	s.n.log.Error("a message was released twice; the second Release did nothing", "peer", s.e.remote, "service", s.e.service)
}

// releasedOne counts a message that came back. It unlocks mu.
func (s *queuePair) releasedOne() {
	s.held--
	left := s.life.reached(stageLeft)
	s.mu.Unlock()
	if left {
		s.n.cameBack()
	}
}
