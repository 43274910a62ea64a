package iwarp

import (
	"context"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// Two ends answer each other by the functions of their queues alone: whoever reads the
// socket polls, posts and arms, and nobody who waits is woken.
func TestReaderTellsOfEvents(t *testing.T) {
	const rounds = 500
	d := testDevice(t, Config{})
	a, b := newSide(t, d, 4096, nil), newSide(t, d, 4096, nil)
	done := make(chan struct{})
	answers := func(s *side) func() bool {
		got := 0
		return func() bool {
			for {
				var c [8]rdma.Completion
				_, _ = s.sends.Poll(c[:]) // makes room for further ones
				n, err := s.recvs.Poll(c[:])
				for range n {
					if got++; got == rounds && s == a {
						close(done)
						return true
					}
					s.recv(1, 2048, 64)
					s.send(rdma.SendRequest{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: s.memory, Length: 64}}})
				}
				if n > 0 {
					continue
				}
				if err == nil {
					err = s.recvs.Arm(false)
				}
				if err != nil {
					t.Error(err)
				}
				// The next message comes behind the answer to this one, by the same reader.
				return true
			}
		}
	}
	for _, s := range []*side{a, b} {
		s.recvs.(rdma.EventQueue).OnEvent(answers(s))
	}
	joinListener(t, a, b)
	for _, s := range []*side{a, b} {
		s.recv(1, 2048, 64)
		if err := s.recvs.Arm(false); err != nil {
			t.Fatal(err)
		}
	}
	a.send(rdma.SendRequest{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: a.memory, Length: 64}}})
	select {
	case <-done:
	case <-bounded(t).Done():
		t.Fatal("an end waits for its function to be called")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, s := range []*side{a, b} {
		if s.recvs.Wait(ctx) == nil {
			t.Error("an event that the function has dealt with ended a Wait")
		}
	}
}

// A Write that the socket takes at once has completed before the post is over. Who holds its
// queue polls it, and nobody who waits is woken.
func TestHeldWriteWakesNobody(t *testing.T) {
	d := testDevice(t, Config{})
	a, b := newSide(t, d, 4096, nil), newSide(t, d, 4096, nil)
	joinListener(t, a, b)
	q := a.sends.(rdma.EventQueue)
	waits := func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return q.Wait(ctx) != nil // an event comes before the context
	}
	write := func() {
		a.send(rdma.SendRequest{
			Op: rdma.OpWrite, Flags: rdma.Signaled,
			SGEs: a.sge(0, 64), Remote: b.at(0),
		})
	}
	if err := q.Arm(false); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		q.Hold()
		if write(); !q.Held() {
			t.Fatal("a Write has not completed when it is posted, or raises no event")
		}
		var c [2]rdma.Completion
		if n, err := q.Poll(c[:]); n != 1 || err != nil || c[0].Status != rdma.StatusSuccess {
			t.Fatalf("%d completions, %v, %v; want 1", n, c[0].Status, err)
		}
		if q.Release(); !waits() {
			t.Fatal("a completion that has been polled wakes who waits")
		}
	}
	q.Hold()
	if write(); !waits() {
		t.Error("a completion that is held wakes who waits")
	}
	if q.Release(); waits() {
		t.Error("a completion that nobody has polled does not wake who waits")
	}
}
