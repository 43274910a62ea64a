package verbena

import (
	"context"
	"errors"
	"sync"
)

func (s *shell) close(ctx context.Context) error {
	err := s.goodbye(ctx)
	// What the peer may still try is refused, which ends the connection; it has had its
	// time.
	s.e.exposed.end()
	s.groundFlights()
	// A Send may still be copying into registered memory. It has no reason to
	// wait any more.
	s.e.sendLock <- struct{}{}
	s.free()
	// A device may tell that the connection has ended before it hands over what had
	// arrived by then, which Close of the queue pair waits for.
	if err != nil && s.m.PeerSaidGoodbye() {
		return nil
	}
	return err
}

// goodbye waits until the peer has everything, or cannot be waited for.
func (s *shell) goodbye(ctx context.Context) error {
	answered := errors.Is(s.e.err, ErrPeerClosed)
	if !answered && !errors.Is(s.e.err, ErrClosed) {
		return nil // failed before
	}
	// A Send that has still to notice the end could take the token of progress.
	select {
	case s.e.sendLock <- struct{}{}:
		defer func() { <-s.e.sendLock }()
	case <-ctx.Done():
		if answered {
			return nil
		}
		return ErrNotDelivered
	}
	if answered {
		// It has everything it wants. Let the answer to its goodbye go out.
		s.await(ctx, s.m.GoodbyeOut)
		return nil
	}
	if s.passer != nil {
		s.awaitPassages(ctx)
	}
	s.mu.Lock()
	s.m.Close()
	s.flush()
	s.mu.Unlock()
	if !s.await(ctx, func() bool { return s.m.GoodbyeOut() && s.m.PeerSaidGoodbye() }) {
		s.mu.Lock()
		defer s.mu.Unlock()
		// A peer that said goodbye wants nothing more, or has it.
		if !s.m.PeerSaidGoodbye() {
			return ErrNotDelivered
		}
	}
	return nil
}

// awaitPassages waits until no peer reads what has been passed on to it.
func (s *shell) awaitPassages(ctx context.Context) {
	over := make(chan struct{})
	var watchers sync.WaitGroup
	s.mu.Lock()
	for to, way := range s.passages {
		if !way.idle() {
			watchers.Go(func() { // nobody else tells that an endpoint has failed
				select {
				case <-to.Done():
					s.e.carrier.wake()
				case <-over:
				}
			})
		}
	}
	s.mu.Unlock()
	s.await(ctx, func() bool { return !s.passesOn() })
	close(over)
	watchers.Wait()
}

// await waits until ready, which is called with mu held, or until that cannot come
// any more.
func (s *shell) await(ctx context.Context, ready func() bool) bool {
	locked := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.out.waiting = true
		return ready()
	}
	for !locked() {
		s.w.sleep()
		select {
		case <-s.out.token:
		case <-s.qp.Done():
			s.w.awake()
			s.w.drain()
			return locked()
		case <-ctx.Done():
			s.w.awake()
			return locked()
		}
		s.w.awake()
	}
	return true
}

// free gives everything back. It works at every stage of newShell.
func (s *shell) free() {
	if s.qp != nil {
		_ = s.qp.Disconnect() // it may never have been connected
	}
	close(s.unwatch)
	s.mu.Lock()
	s.life.advance(stageClosing)
	s.mu.Unlock()
	s.wg.Wait()
	stuck := s.closeQueuePair()
	held, standing := s.discard(stuck)
	if !stuck {
		// The device and the peer do not reach buffers any more.
		s.mu.Lock()
		s.queue.dropAll()
		s.mu.Unlock()
		s.dropLoose()
	}
	shared := s.freeReceives(stuck, standing)
	if err := s.queue.free(stuck); err != nil {
		s.n.log.Error("memory of offers not closed", "peer", s.e.remote, "error", err)
	}
	if s.upcall.serving {
		s.w.serving.Add(-1)
	}
	if s.w != nil {
		s.n.unclaim(s.w, s.claim, shared)
	}
	if shared != nil {
		s.n.unshare(shared)
	}
	s.long.share.leave()
	s.n.leave(held, s.window.own, s.t.polls())
}

// closeQueuePair reports true if it failed.
func (s *queuePair) closeQueuePair() (stuck bool) {
	if s.qp == nil {
		return false
	}
	err := s.qp.Close()
	if err != nil {
		s.n.log.Error("queue pair not closed", "peer", s.e.remote, "error", err)
	}
	// The receives that it had taken come back through the queue.
	s.w.drain()
	s.w.remove(s.qp.Number())
	return err != nil
}

// discard frees what arrived and nobody has received. It returns how many messages the
// application holds, which stay readable: the domain keeps the memory. And it returns
// how many receives stand behind what the peer was promised.
func (s *shell) discard(stuck bool) (held, standing int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life.advance(stageClosed)
	s.life.stuck, s.in.handing = stuck, false
	for i := range s.early {
		if c := &s.early[i]; c.ID&idKind == idReceive {
			s.putBack(s.window.recv.arrived(c.ID))
		}
	}
	s.postReleased()
	s.window.count()
	if s.m != nil {
		s.m.Discard(s.in.drop)
	}
	s.freeFlights(stuck)
	s.life.advance(stageLeft)
	return s.held, s.window.standing()
}

// freeReceives gives back the receives that the peer was promised. It returns those
// that other endpoints share.
func (s *queuePair) freeReceives(stuck bool, standing int) (shared *receives) {
	w := &s.window
	if w.recv == nil {
		return nil
	}
	if w.recv.number > 0 {
		shared = w.recv
	} else {
		w.recv.reclaim(stuck) // they were the queue pair's own
	}
	w.recv.withdraw(w.share, w.promised, standing)
	return shared
}
