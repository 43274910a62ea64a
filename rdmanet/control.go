package rdmanet

import "context"

// control sends a message of the connection c without data. It waits promptly
// at most; a goroutine sends what the endpoint does not take in that time, in
// order.
func (s *session) control(c *conn, k kind) {
	s.mu.Lock()
	if s.dead || s.conn != c || c.closing { // nothing follows CLOSE
		s.mu.Unlock()
		return
	}
	c.closing = k == kindClose
	s.controls = append(s.controls, k)
	if s.sending {
		s.mu.Unlock()
		return
	}
	s.sending = true
	s.wg.Add(1)
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), promptly)
	sent := s.sendControls(ctx, c)
	cancel()
	if sent {
		s.wg.Done()
		return
	}
	go func() {
		defer s.wg.Done()
		s.sendControls(s.life, c)
	}()
}

// sendControls reports false if the context ended first; then the caller goes
// on with another.
func (s *session) sendControls(ctx context.Context, c *conn) bool {
	select {
	case <-s.tx:
	case <-s.life.done:
		return s.controlsFailed(s.life.cause())
	case <-ctx.Done():
		return false
	}
	defer func() { s.tx <- struct{}{} }()
	for {
		s.mu.Lock()
		if len(s.controls) == 0 {
			s.sending = false
			s.mu.Unlock()
			return true
		}
		k := s.controls[0]
		s.mu.Unlock()
		if err := s.ep.Send(ctx, tagOf(k, c.stream), nil); err != nil {
			if ctx.Err() != nil && ctx != s.life {
				return false
			}
			return s.controlsFailed(err)
		}
		s.mu.Lock()
		s.controls = s.controls[1:]
		if len(s.controls) == 0 {
			s.controls = nil
		}
		if k == kindClose {
			// Nothing follows CLOSE, and from here on the session may be given
			// to another connection.
			s.sending = false
			c.closeSent.Store(true)
			s.mu.Unlock()
			s.kick()
			return true
		}
		s.mu.Unlock()
	}
}

func (s *session) controlsFailed(err error) bool {
	s.mu.Lock()
	s.sending = false
	s.controls = nil
	s.mu.Unlock()
	s.died(err) // what was received by now can still be read
	s.kick()
	return true
}
