package verbena

import (
	"context"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/rdma"
)

// A shell is the carrier over a queue pair. It brings together its parts, each of which
// has one job: the queue pair with the protocol's machine on it, what sends, what
// receives, what carries out one-sided operations, and what serves the peer's. The parts
// know the queue pair and not each other, but for operations that go out as messages.
type shell struct {
	queuePair
	outbound
	inbound
	operator
	answerer

	early   []rdma.Completion      // that came before the machine was started; mu guards it
	notices rdma.NoticingQueuePair // nil: nobody knows whether the peer sleeps
	owing   bool                   // the worker knows that confirmations are held; its mu guards it
}

// newShell makes a queue pair that takes messages, ready to be connected. It is
// closed by the endpoint's Close, or by free if connecting fails.
func newShell(e *Endpoint, n *domain) (s *shell, err error) {
	s = &shell{}
	q := &s.queuePair
	s.outbound.queuePair, s.inbound.queuePair, s.operator.queuePair, s.answerer.queuePair = q, q, q, q
	s.asks = asker{queuePair: q, messages: &s.outbound}
	if err := s.open(e, n); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.free()
			s = nil
		}
	}()
	s.long.share = s.window.share
	s.in.init(s.drop)
	s.out.init()
	if err := s.make(); err != nil {
		return s, err
	}
	spin := s.w.spinner(s.t.Spin)
	s.in.spin, s.out.spin, s.buffers.settling.spin = spin, spin, spin
	s.now, s.atOnce = s.qp.(rdma.PromptQueuePair)
	s.reads, _ = s.qp.(rdma.PassingQueuePair)
	s.notices, _ = s.qp.(rdma.NoticingQueuePair)
	s.device = s.now
	if e.inPlace {
		s.viewer, _ = s.qp.(rdma.ViewingQueuePair)
		s.passer, _ = s.qp.(rdma.PassingQueuePair)
	}
	e.carrier, e.selection.Device = s, n.attributes.Name
	e.selection.OneSided, e.selection.Checksums = s.oneSided(), n.attributes.Has(rdma.CapChecksums)
	s.w.add(s.qp.Number(), s)
	return s, nil
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
		s.e.scarce = s.scarce || peer.Scarce
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

// wake ends all waits, so that they look at the endpoint's state.
func (s *shell) wake() {
	s.in.wake()
	s.out.wake()
}

func (s *shell) done() activity {
	s.mu.Lock()
	a := activity{sent: s.sent, received: s.received, operations: s.operated}
	s.mu.Unlock()
	a.stalls, a.stalled = s.wait.total()
	return a
}

func (s *shell) credits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m.Credits()
}

func (s *shell) expose(ctx context.Context, c *ExposeConfig) (exposable, error) {
	return s.n.expose(ctx, s.e, c)
}

func (s *shell) wrap(ctx context.Context, memory []byte) (*Buffer, error) {
	return s.n.wrap(ctx, s.e, memory, s.trusts())
}
