package verbena

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// A shell is the carrier over a queue pair. It owns the queue pair and the memory,
// and carries out what the protocol's machine says; whoever posts or handles a
// completion holds mu.
//
// Each of its parts knows one thing and nothing of the others: the shell brings them
// together. What has no lock of its own is guarded by mu from the machine downwards;
// what stands above mu does not change once the shell is started, or says who may use
// it.
type shell struct {
	e      *Endpoint
	n      *domain
	w      *worker
	t      Tuning
	limits link.Limits
	qp     rdma.QueuePair
	claim  int // completion queue entries
	helpers

	in  receiver // the Receive that waits
	out sender   // the Send that waits

	mu       postLatch
	m        *link.Machine[*Message]
	life     life
	held     int // messages, and memory of Buffer, that the application has
	sent     Traffic
	received Traffic           // by Receive, or by the sink
	queue    sendQueue         // what the device was given to send from
	window   receiveWindow     // receives that the peer may use
	long     longMemory        // of messages that are read
	upcall   upcall            // who gets messages instead of Receive
	early    []rdma.Completion // that came before the machine was started
	buffers  bufferUses
	served   served   // operations that are messages
	flights  *flights // one-sided operations; nil before the first
}

// helpers are the goroutines of a shell.
type helpers struct {
	unwatch chan struct{} // closed: the connection's end is not watched any more
	wg      sync.WaitGroup
}

// newShell makes a queue pair that takes messages, ready to be connected. It is
// closed by the endpoint's Close, or by free if connecting fails.
func newShell(e *Endpoint, n *domain) (s *shell, err error) {
	t := e.tuning
	a := &n.attributes
	if a.MaxMessage > 0 {
		t.Chunk = int(min(int64(t.Chunk), a.MaxMessage))
	}
	if err := n.enter(); err != nil {
		return nil, err
	}
	own := n.own(t.Own)
	strict := own || !n.waits
	s = &shell{e: e, n: n, t: t, limits: n.limits(t, strict), helpers: helpers{unwatch: make(chan struct{})}}
	peer := n.shares.join(e.origin)
	s.long.share, s.window.share = peer, peer
	s.window.own, s.window.strict = own, strict
	defer func() {
		if err != nil {
			s.free()
			s = nil
		}
	}()
	s.in.init(newSpinner(t.Spin), s.drop)
	s.out.init(newSpinner(t.Spin))
	s.queue = sendQueue{
		pool: n.sendPool, offerPool: n.offerPool, private: n.offerPool.NewPrivate(), letGo: s.letGo,
		inline: min(a.MaxInline, link.PlaceSize), gathers: a.MaxSendSGE >= 2, strict: strict,
	}
	if err := s.make(a); err != nil {
		return s, err
	}
	s.m = link.New[*Message](s.limits, s.queue.places.Bytes())
	if s.servesOperations() {
		s.m.Serve()
	}
	s.w.add(s.qp.Number(), s)
	e.carrier, e.selection.Device = s, a.Name
	e.selection.OneSided = s.oneSided()
	return s, nil
}

// make gets what the shell owns of the device.
func (s *shell) make(a *rdma.Attributes) (err error) {
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
	config, err := s.queuePairConfig(a)
	if err != nil {
		return err
	}
	s.claim = config.SendDepth + config.RecvDepth
	if s.w, err = s.n.claim(s.claim, shared); err != nil {
		return err
	}
	places, err := s.n.sendPool.GetNow(context.Background(), s.limits.Places()*link.PlaceSize)
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
	if shared != nil {
		return nil
	}
	// They are posted before a message can come, on any device.
	w.recv = newReceives(s.qp, s.n.receivePool, s.n.log, 0, s.n.receiveSize(), config.RecvDepth, true)
	granted, err := w.recv.admit(w.share, 1+rest, s.limits.Window+rest, awake)
	if err == nil {
		w.grant(granted, rest, &s.limits)
	}
	return err
}

// queuePairConfig is what the queue pair needs, but for queues that it shares.
func (s *shell) queuePairConfig(a *rdma.Attributes) (rdma.QueuePairConfig, error) {
	config := rdma.QueuePairConfig{
		SendDepth: s.limits.SendDepth(), MaxSGE: 1, MaxInline: s.queue.inline, MaxReads: s.limits.Chunks,
		ReceiverNotReadyRetry: -1, // the peer promised receives
	}
	if s.queue.gathers {
		config.MaxSGE = 2
	}
	if a.MaxReads > 0 {
		config.MaxReads = min(config.MaxReads, a.MaxReads)
	}
	if s.window.own {
		config.RecvDepth = s.limits.Receives(s.limits.MaxWindow, s.limits.AllAnswers())
	}
	if m := a.MaxQueueDepth; m > 0 && max(config.SendDepth, config.RecvDepth) > m {
		return config, fmt.Errorf("queues of %d and %d requests, the device has %d at most: lower the window", config.SendDepth, config.RecvDepth, m)
	}
	return config, nil
}

// startWith is start with the peer's answer as it came.
func (s *shell) startWith(reply []byte) error {
	peer, err := wire.ParseParameters(reply)
	if err != nil {
		return err
	}
	return s.start(peer)
}

// start makes the shell usable with what the peer said of itself.
func (s *shell) start(peer wire.Parameters) error {
	s.mu.Lock()
	err := s.m.Start(peer)
	if err == nil {
		s.e.selection.Files = s.files()
		s.flush()
		for i := range s.early {
			s.handle(&s.early[i])
		}
		s.early = nil
		s.settled()
	}
	s.mu.Unlock()
	if err == nil {
		s.wg.Go(s.watch)
	}
	return err
}

// watch notices the end of the connection, and ends it when the endpoint has
// failed.
func (s *shell) watch() {
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
func (s *shell) death(err error) error {
	if s.flights != nil && errors.Is(err, rdma.ErrRemoteAccess) {
		return ErrRevoked
	}
	return ErrPeerDied
}

// statusError is what a completion says that is not a success. mu is held.
func (s *shell) statusError(what string, status rdma.Status) error {
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
func (s *shell) postFailed(err error) {
	if errors.Is(err, rdma.ErrState) {
		if cause := s.qp.Err(); cause != nil {
			err = cause
		}
	}
	s.fail(fmt.Errorf("%w: %w", s.death(err), err))
}

// fail may be called with mu held or not.
func (s *shell) fail(err error) {
	s.e.end(err)
	s.wake()
}

// wake ends all waits, so that they look at the endpoint's state.
func (s *shell) wake() {
	s.in.wake()
	s.out.wake()
}

func (s *shell) maxMessage() int { return s.m.MaxMessage() }

func (s *shell) eager() int { return s.m.MaxEager() }

func (s *shell) sentTraffic() Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

func (s *shell) receivedTraffic() Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received
}

// A memorySource is where slabs come from.
type memorySource interface {
	TryGet(size int) (slab.Slab, bool, error)
	Get(ctx context.Context, size int) (slab.Slab, error)
}

// take gets memory, and lets the endpoint's end end the wait.
func (s *shell) take(ctx context.Context, p memorySource, size int) (slab.Slab, error) {
	if memory, ok, err := p.TryGet(size); ok || err != nil {
		return memory, err
	}
	ctx, stop := untilOver(ctx, s.e)
	defer stop()
	return p.Get(ctx, size)
}
