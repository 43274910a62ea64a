package verbena

import (
	"context"
	"errors"
	"fmt"
	"net"
)

func (s *stream) close(ctx context.Context) error {
	notify(s.room)
	err := s.goodbye(ctx)
	s.watcher.Stop()
	_ = s.conn.Close() // what is lost by that goodbye has told
	s.leaveLane()
	s.wg.Wait()
	s.in.clear()
	return err
}

// goodbye hands over what is left and waits for the peer's goodbye. An error
// says that the peer may not have everything.
func (s *stream) goodbye(ctx context.Context) error {
	peerClosed := errors.Is(s.e.err, ErrPeerClosed)
	lost := func(err error) error {
		switch {
		case s.sentTraffic().Messages == 0: // there was nothing to lose
			return nil
		case ctx.Err() != nil:
			return ErrNotDelivered
		}
		return fmt.Errorf("%w: %w", ErrNotDelivered, err)
	}
	// Sends that wait have been told; the lock is theirs only for a moment.
	select {
	case s.e.sendLock <- struct{}{}:
		defer func() { <-s.e.sendLock }()
	case <-ctx.Done():
		return lost(ctx.Err())
	}
	s.e.exposed.end() // answers that are due still go out
	// Also after the peer's goodbye: the reader may have left the answer to Close.
	if err := s.sayGoodbye(); err != nil && !peerClosed {
		return lost(err)
	}
	if err := s.waitBacklog(ctx, nil, 1, nil); err != nil {
		if peerClosed { // it wants nothing any more
			return nil
		}
		return lost(err)
	}
	if h, ok := s.conn.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite() // the goodbye says the same
	}
	// Closing a socket with unread data resets it, and the peer may lose what it
	// has not read. So the peer goes first: its goodbye says that it has
	// everything, or wants nothing any more.
	select {
	case <-s.readDone:
		if s.readErr != nil {
			return lost(s.readErr)
		}
		return nil
	case <-ctx.Done():
		return lost(ctx.Err())
	}
}

// sayGoodbye sends the goodbye, once. Whoever comes second waits until it is in
// the backlog, or in the socket.
func (s *stream) sayGoodbye() error {
	s.byeOnce.Do(func() { s.byeErr = s.write(frame{kind: frameGoodbye}, parcel{}) })
	return s.byeErr
}

// abort ends the connection at once.
func (s *stream) abort(err error) {
	s.fail(err)
	if c, ok := s.conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0) // the kernel need not try any longer
	}
	_ = s.conn.Close() // err tells more
}
