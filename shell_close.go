package verbena

import (
	"context"
	"errors"

	"github.com/verbena-data/verbena/internal/slab"
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

// await waits until ready, which is called with mu held, or until that cannot come
// any more.
func (s *shell) await(ctx context.Context, ready func() bool) bool {
	locked := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting = true
		return ready()
	}
	for !locked() {
		s.w.sleep()
		select {
		case <-s.progress:
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
	s.closed = true
	s.mu.Unlock()
	s.wg.Wait()
	stuck := false
	if s.qp != nil {
		if err := s.qp.Close(); err != nil {
			s.n.log.Error("queue pair not closed", "peer", s.e.remote, "error", err)
			stuck = true
		}
		// The receives that it had taken come back through the queue.
		s.w.drain()
		s.w.remove(s.qp.Number())
	}
	s.mu.Lock()
	s.dead, s.stuck, s.handing = true, stuck, false
	for i := range s.early {
		if c := &s.early[i]; c.ID&idKind == idReceive {
			s.putBack(s.recv.arrived(c.ID))
		}
	}
	if s.m != nil {
		s.m.Discard(s.dropBuffer)
	}
	s.freeFlights(stuck)
	// What the application holds stays readable: the domain keeps the memory.
	held, standing := s.held, s.standing()
	s.left = true
	s.mu.Unlock()
	if !stuck {
		s.letAllGo()
	}
	var shared *receives
	if s.recv != nil {
		if s.recv.number > 0 {
			shared = s.recv
		} else {
			s.recv.reclaim(stuck) // they were the queue pair's own
		}
		s.recv.withdraw(s.share, s.promised, standing)
	}
	s.freeSends(stuck)
	if s.serving {
		s.w.serving.Add(-1)
	}
	if s.w != nil {
		s.n.unclaim(s.w, s.claim, shared)
	}
	if shared != nil {
		s.n.unshare(shared)
	}
	s.share.leave()
	s.n.leave(held, s.own)
}

// letAllGo ends the use of all buffers: the device and the peer do not reach them any
// more.
func (s *shell) letAllGo() {
	s.mu.Lock()
	if s.gather != nil {
		s.inFlight++ // it was not posted
		s.letGo(s.gather)
		s.gather = nil
	}
	for i, b := range s.gatherings {
		if b != nil {
			s.gatherings[i] = nil
			s.letGo(b)
		}
	}
	for i := range s.offers {
		if b := s.offers[i].buffer; b != nil {
			s.offers[i] = offered{}
			s.letGo(b)
		}
	}
	s.mu.Unlock()
	s.dropLoose()
}

// freeSends gives back the memory that the device was given to send from.
func (s *shell) freeSends(stuck bool) {
	put := func(p *slab.Pool, memory slab.Slab) {
		switch {
		case memory.None():
		case stuck:
			p.Spoil(memory, nil)
		default:
			p.Put(memory)
		}
	}
	for _, memory := range s.sends {
		put(s.n.sendPool, memory)
	}
	for _, o := range s.offers {
		put(s.n.offerPool, o.slab)
	}
	if s.private != nil {
		if err := s.private.Close(); err != nil { // no peer reads any more
			s.n.log.Error("memory of offers not closed", "peer", s.e.remote, "error", err)
		}
	}
	put(s.n.sendPool, s.payload)
	put(s.n.sendPool, s.places)
	s.sends, s.offers, s.payload, s.places = nil, nil, slab.Slab{}, slab.Slab{}
}
