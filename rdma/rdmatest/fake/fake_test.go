package fake_test

import (
	"context"
	"errors"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

func TestProviderWithoutDevices(t *testing.T) {
	if _, err := fake.NewProvider("fake").Devices(context.Background()); !errors.Is(err, rdma.ErrUnavailable) {
		t.Fatalf("Devices: %v, want ErrUnavailable", err)
	}
}

// side is one end of a connection, for the tests of what only the fake has.
type side struct {
	domain rdma.Domain
	cq     rdma.CompletionQueue
	qp     rdma.QueuePair
	region rdma.Region
	events chan rdma.Event
}

func newSide(t *testing.T, d *fake.Device) *side {
	t.Helper()
	s := &side{events: make(chan rdma.Event, 16)}
	var err error
	if s.domain, err = d.OpenDomain(rdma.DomainConfig{OnEvent: func(e rdma.Event) { s.events <- e }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.domain.Close() })
	if s.cq, err = s.domain.NewCompletionQueue(64); err != nil {
		t.Fatal(err)
	}
	if s.qp, err = s.domain.NewQueuePair(rdma.QueuePairConfig{SendCompletions: s.cq, RecvCompletions: s.cq, SendDepth: 16, RecvDepth: 16}); err != nil {
		t.Fatal(err)
	}
	if s.region, err = s.domain.Allocate(4096, rdma.AccessLocalWrite|rdma.AccessRemoteWrite); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *side) next(t *testing.T) rdma.Completion {
	t.Helper()
	for {
		var c [1]rdma.Completion
		if err := s.cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		n, err := s.cq.Poll(c[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			return c[0]
		}
		if err := s.cq.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func pair(t *testing.T, n *fake.Network) (*fake.Device, *side, *fake.Device, *side) {
	t.Helper()
	da, db := n.NewDevice(fake.InfiniBand("a")), n.NewDevice(fake.InfiniBand("b"))
	a, b := newSide(t, da), newSide(t, db)
	l, err := db.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(t.Context())
		if err == nil {
			err = r.Accept(t.Context(), b.qp, nil)
		}
		accepted <- err
	}()
	if _, err := a.qp.Connect(t.Context(), l.Address(), nil); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	return da, a, db, b
}

func (s *side) write(t *testing.T, to *side, id uint64) {
	t.Helper()
	_, err := s.qp.PostSend([]rdma.SendRequest{{
		ID: id, Op: rdma.OpWrite, Flags: rdma.Signaled,
		Remote: rdma.Remote{Address: to.region.Address(), Key: to.region.Key()},
		SGEs:   []rdma.SGE{{Region: s.region, Length: 8}},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDropAfter(t *testing.T) {
	da, a, _, b := pair(t, fake.NewNetwork())
	da.DropAfter(3)
	for id := range uint64(4) {
		a.write(t, b, id)
		c := a.next(t)
		switch {
		case c.ID != id:
			t.Fatalf("completion of %d, want %d", c.ID, id)
		case id < 2 && c.Status != rdma.StatusSuccess:
			t.Fatalf("%d: %s", id, c.Status)
		case id == 2:
			if c.Status != rdma.StatusRetryExceeded || a.qp.State() != rdma.StateError {
				t.Fatalf("third request: %s, queue pair %s", c.Status, a.qp.State())
			}
			if e := <-b.events; e.Kind != rdma.EventDisconnected {
				t.Fatalf("event at the peer: %s", e.Kind)
			}
			return
		}
	}
}

func TestHoldCompletions(t *testing.T) {
	da, a, _, b := pair(t, fake.NewNetwork())
	da.HoldCompletions(true)
	a.write(t, b, 7)
	// The peer's completion shows that the first request has been carried out.
	if _, err := b.qp.PostRecv([]rdma.RecvRequest{{ID: 9}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.qp.PostSend([]rdma.SendRequest{{ID: 8, Op: rdma.OpSend, Flags: rdma.Signaled}}); err != nil {
		t.Fatal(err)
	}
	b.next(t)
	var c [2]rdma.Completion
	if n, err := a.cq.Poll(c[:]); n != 0 || err != nil {
		t.Fatalf("poll while held: %d, %v", n, err)
	}
	da.HoldCompletions(false)
	if first, second := a.next(t), a.next(t); first.ID != 7 || second.ID != 8 {
		t.Fatalf("completions %d and %d, want 7 and 8", first.ID, second.ID)
	}
}

func TestRefuse(t *testing.T) {
	n := fake.NewNetwork()
	da, db := n.NewDevice(fake.InfiniBand("a")), n.NewDevice(fake.InfiniBand("b"))
	a := newSide(t, da)
	l, err := db.Listen(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cause := errors.New("no route")
	db.Refuse(cause)
	if _, err := a.qp.Connect(t.Context(), "b", nil); !errors.Is(err, cause) {
		t.Fatalf("Connect: %v, want %v", err, cause)
	}
	if a.qp.State() != rdma.StateError {
		t.Fatalf("queue pair %s after a failed Connect", a.qp.State())
	}
}

func TestOverrun(t *testing.T) {
	da, a, _, _ := pair(t, fake.NewNetwork())
	da.Overrun(a.cq)
	if e := <-a.events; e.Kind != rdma.EventCompletionOverrun || e.Completions != a.cq {
		t.Fatalf("event %v", e)
	}
	var c [1]rdma.Completion
	if _, err := a.cq.Poll(c[:]); !errors.Is(err, rdma.ErrOverrun) {
		t.Fatalf("Poll: %v, want ErrOverrun", err)
	}
	<-a.qp.Done()
	if !errors.Is(a.qp.Err(), rdma.ErrOverrun) {
		t.Fatalf("Err: %v", a.qp.Err())
	}
}

func TestKill(t *testing.T) {
	_, a, db, b := pair(t, fake.NewNetwork())
	db.Stop()
	a.write(t, b, 1)
	db.Kill()
	if c := a.next(t); c.Status != rdma.StatusRetryExceeded {
		t.Fatalf("write to a dead peer: %s", c.Status)
	}
	if e := <-a.events; e.Kind != rdma.EventDisconnected {
		t.Fatalf("event %s", e.Kind)
	}
	if !errors.Is(a.qp.Err(), rdma.ErrDisconnected) {
		t.Fatalf("Err: %v", a.qp.Err())
	}
}
