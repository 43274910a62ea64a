package verbena

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// A queuePair is a device's queue pair with the protocol's machine on it. It owns the
// queue pair and the memory of both of its queues, posts what the machine says, and knows
// how the connection ends. Whoever posts or handles a completion holds mu.
//
// Each of its parts knows one thing and nothing of the others. What has no lock of its own
// is guarded by mu from the machine downwards; what stands above mu does not change once
// the machine is started, or says who may use it.
type queuePair struct {
	e      *Endpoint
	n      *domain
	w      *worker
	t      Tuning
	limits link.Limits
	scarce bool // when it was made, receives were
	qp     rdma.QueuePair
	claim  int // completion queue entries
	helpers

	mu      postLatch
	m       *link.Machine[*Message]
	life    life
	held    int           // messages, and memory of Buffer, that the application has
	queue   sendQueue     // what the device was given to send from
	window  receiveWindow // receives that the peer may use
	flights *flights      // one-sided operations; nil before the first
	buffers bufferUses
}

// helpers are the goroutines of a shell.
type helpers struct {
	unwatch chan struct{} // closed: the connection's end is not watched any more
	wg      sync.WaitGroup
}

// open enters the domain, and decides on the sizes of the queues.
func (s *queuePair) open(e *Endpoint, n *domain) error {
	a := &n.attributes
	s.e, s.n, s.t, s.unwatch = e, n, e.tuning, make(chan struct{})
	if a.MaxMessage > 0 {
		s.t.Chunk = int(min(int64(s.t.Chunk), a.MaxMessage))
	}
	if err := n.enter(s.t.polls()); err != nil {
		return err
	}
	w := &s.window
	w.own = n.own(s.t.Own)
	w.strict = w.own || !n.waits
	w.share = n.shares.join(e.origin)
	s.limits, s.scarce = n.limits(s.t, w.strict), w.share.scarce()
	s.queue = sendQueue{
		pool: n.sendPool, offerPool: n.offerPool, private: n.offerPool.NewPrivate(), letGo: s.letGo,
		inline: min(a.MaxInline, link.PlaceSize), gathers: a.MaxSendSGE >= 2, strict: w.strict,
	}
	return nil
}

// make gets what it owns of the device, and the machine.
func (s *queuePair) make() (err error) {
	w := &s.window
	rest := 0 // receives for what costs no credit
	if w.strict {
		rest = s.limits.Receives(0, s.limits.AllAnswers())
	}
	awake := s.limits.Receives(1, s.limits.Answers)
	var shared *receives
	if !w.own {
		var granted int
		if shared, granted, err = s.n.share(w.share, 1+rest, s.limits.Window+rest, awake); err != nil {
			return err
		}
		w.recv = shared
		w.grant(granted, rest, &s.limits)
	}
	config, err := s.n.queuePairConfig(&s.limits, &s.queue, w.own)
	if err != nil {
		return err
	}
	s.claim = config.SendDepth + config.RecvDepth
	if s.w, err = s.n.claim(s.claim, shared); err != nil {
		return err
	}
	places, err := s.n.sendPool.GetNow(context.Background(), s.limits.FirstPlaces()*link.PlaceSize)
	if err != nil {
		return fmt.Errorf("memory of a send queue, or raise SendMemory: %w", err)
	}
	s.queue.places = places
	s.queue.make(&s.limits)
	config.SendCompletions, config.RecvCompletions = s.w.cq, s.w.cq
	if shared != nil {
		config.SharedReceive = shared.queue.(rdma.SharedReceiveQueue)
	}
	if s.qp, err = s.n.domain.NewQueuePair(config); err != nil {
		return fmt.Errorf("queue pair: %w", err)
	}
	s.queue.qp, s.queue.mu = s.qp, &s.mu
	s.mu.doorbell, _ = s.qp.(rdma.DoorbellQueuePair)
	if shared == nil {
		// They are posted before a message can come, on any device.
		w.recv = newReceives(s.qp, s.n.receivePool, s.n.log, 0, s.n.receiveSize(), config.RecvDepth, true)
		granted, err := w.recv.admit(w.share, 1+rest, s.limits.Window+rest, awake)
		if err != nil {
			return err
		}
		w.grant(granted, rest, &s.limits)
	}
	s.m = link.New[*Message](s.limits, s.queue.places.Bytes()[:s.limits.FirstPlaces()*link.PlaceSize])
	if s.servesOperations() {
		s.m.Serve()
	}
	return nil
}

// watch notices the end of the connection, and ends it when the endpoint has
// failed.
func (s *queuePair) watch() {
	select {
	case <-s.qp.Done():
	case <-s.unwatch:
		return
	case <-s.e.done:
		if !errors.Is(s.e.err, ErrPeerClosed) && !errors.Is(s.e.err, ErrClosed) {
			_ = s.qp.Disconnect() // tells the peer; it may know
		}
		select {
		case <-s.qp.Done():
		case <-s.unwatch:
			return
		}
	}
	// What the peer sent before it went may still be in the completion queue.
	s.w.drain()
	err := s.qp.Err()
	if err == nil {
		err = rdma.ErrDisconnected
	}
	s.mu.Lock()
	kind := s.death(err)
	s.mu.Unlock()
	s.fail(fmt.Errorf("%w: %w", kind, err))
}

// death tells what the end of the connection by err is. Some devices do not tell which
// request the peer has refused. mu is held.
func (s *queuePair) death(err error) error {
	if s.flights != nil && errors.Is(err, rdma.ErrRemoteAccess) {
		return ErrRevoked
	}
	return ErrPeerDied
}

// statusError is what a completion says that is not a success. mu is held.
func (s *queuePair) statusError(what string, status rdma.Status) error {
	cause := s.qp.Err()
	if cause == nil {
		cause = rdma.ErrDisconnected
	}
	kind := s.death(cause)
	switch {
	case status == rdma.StatusRemoteAccess && s.flights != nil:
		kind = ErrRevoked // it may have been a Read of a long message: then the peer is at fault, too
	case status == rdma.StatusRemoteAccess || status == rdma.StatusLocalLength || status == rdma.StatusRemoteInvalid:
		kind = ErrProtocol
	}
	return fmt.Errorf("%w: %s completed with %q: %w", kind, what, status, cause)
}

// postFailed ends the endpoint. mu is held.
func (s *queuePair) postFailed(err error) {
	if errors.Is(err, rdma.ErrState) {
		if cause := s.qp.Err(); cause != nil {
			err = cause
		}
	}
	s.fail(fmt.Errorf("%w: %w", s.death(err), err))
}

// fail ends the endpoint and all waits. It may be called with mu held or not.
func (s *queuePair) fail(err error) {
	s.e.end(err)
	s.e.carrier.wake()
}

// parameters is what the peer is told of this end.
func (s *queuePair) parameters() []byte {
	p := s.limits.Parameters()
	p.Scarce = s.scarce
	return p.Append(nil)
}

func (s *queuePair) maxMessage() int { return s.m.MaxMessage() }

func (s *queuePair) eager() int { return s.m.MaxEager() }

// flush posts what the machine wants posted. mu is held.
func (s *queuePair) flush() {
	s.postAll(s.m.Posts())
	for s.m.Crowded() && s.grow() {
		s.postAll(s.m.Posts())
	}
}

// grow gives the send queue twice as many places, and reports false if there is no
// memory at once: a later flush tries again. mu is held, and all posts have been posted.
func (s *queuePair) grow() bool {
	if s.queue.broken {
		return false
	}
	places, ok := s.queue.morePlaces()
	if ok {
		first, last := s.m.Grow(places.Bytes()[:2*len(s.queue.slabs)*link.PlaceSize])
		s.queue.grow(places, first, last)
	}
	return ok
}

func (s *queuePair) postAll(posts []link.Post) {
	for len(posts) > 0 && !s.queue.broken {
		n := min(len(posts), flushBatch)
		for i := range posts[:n] {
			if p := &posts[i]; p.Read {
				s.queue.read(i, p, s.m.Handle(p.Message).owner.(*longMessage).slab)
			} else {
				s.queue.send(i, p)
			}
		}
		if err := s.queue.post(s.queue.requests[:n]); err != nil {
			s.postFailed(err)
			return
		}
		posts = posts[n:]
	}
}

// putBack posts a receive again.
func (s *queuePair) putBack(b *buffer) {
	if b == nil {
		return
	}
	one := [1]*buffer{b}
	s.putAllBack(one[:], nil)
}

// putAllBack posts receives again. requests has room for as many, unless there is one.
func (s *queuePair) putAllBack(buffers []*buffer, requests []rdma.RecvRequest) {
	if s.life.reached(stageClosed) {
		s.window.count()
		for _, b := range buffers {
			b.home.putLate(b, false)
		}
	} else if err := s.window.recv.put(buffers, requests, s.window.replaced(len(buffers))); err != nil {
		s.postFailed(err)
	}
}

func (s *queuePair) sleep() { s.w.sleepBeside() }

func (s *queuePair) awake() { s.w.awake() }

func (s *queuePair) roused() { s.w.runnable.Add(1) }

func (s *queuePair) ran() { s.w.runnable.Add(-1) }

func (s *queuePair) inOrder() bool { return s.w.lingers.costly }

// A memorySource is where slabs come from.
type memorySource interface {
	TryGet(size int) (slab.Slab, bool, error)
	Get(ctx context.Context, size int) (slab.Slab, error)
}

// take gets memory, and lets the endpoint's end end the wait.
func (s *queuePair) take(ctx context.Context, p memorySource, size int) (slab.Slab, error) {
	if memory, ok, err := p.TryGet(size); ok || err != nil {
		return memory, err
	}
	ctx, stop := untilOver(ctx, s.e)
	defer stop()
	return p.Get(ctx, size)
}
