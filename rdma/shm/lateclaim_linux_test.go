package shm

import (
	"errors"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// A lateClaim is a shared receive queue with two receives, a queue pair of it
// whose peer is kept from seeing that it has been closed, and one that goes on.
type lateClaim struct {
	s, good *side
	to      rdma.QueuePair
	from    *queuePair // the peer's of the closed one; sendMu is held
	post    func(id uint64)
}

func newLateClaim(t *testing.T) *lateClaim {
	t.Helper()
	device := openDevice(t, Config{})
	s, late, good := newSide(t, device, 4096), newSide(t, device, 4096), newSide(t, device, 4096)
	srq, err := s.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: 2})
	if err != nil {
		t.Fatal(err)
	}
	post := func(id uint64) {
		t.Helper()
		if _, err := srq.PostRecv([]rdma.RecvRequest{{ID: id, SGEs: s.sge(int(id)*64, 64)}}); err != nil {
			t.Fatal(err)
		}
	}
	shared := func(c *rdma.QueuePairConfig) { c.SharedReceive = srq }
	closing, to := s.pair(shared), s.pair(shared)
	late.qp, good.qp = late.pair(nil), good.pair(nil)
	connect(t, device, late.qp, closing)
	connect(t, device, good.qp, to)
	post(0)
	post(1)
	l := &lateClaim{s: s, good: good, to: to, from: late.qp.(*queuePair), post: post}
	l.from.sendMu.Lock()
	if err := closing.Close(); err != nil {
		t.Fatal(err)
	}
	return l
}

// message sends one over the queue pair that goes on and returns its completion.
func (l *lateClaim) message(t *testing.T, id uint64) rdma.Completion {
	t.Helper()
	l.good.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: l.good.sge(0, 8)})
	l.good.expect(id, rdma.StatusSuccess)
	c := l.s.await()
	if c.Status != rdma.StatusSuccess || c.QueuePair != l.to.Number() {
		t.Fatalf("message %d: %+v", id, c)
	}
	return c
}

// claimUntold has the closed queue pair's peer claim a receive and say nothing.
func (l *lateClaim) claimUntold(t *testing.T) {
	t.Helper()
	defer l.from.sendMu.Unlock()
	if _, ok := l.from.outShared.claim(l.from.remote.queuePair); !ok {
		t.Fatal("no receive to claim")
	}
}

// twoMessages uses both receives.
func (l *lateClaim) twoMessages(t *testing.T) {
	t.Helper()
	if a, b := l.message(t, 0), l.message(t, 1); a.ID == b.ID {
		t.Errorf("receive %d was used twice", a.ID)
	}
}

// A peer that claims a shared receive and then sees that its queue pair here has
// been closed says so, and the others have it at once.
func TestClaimAfterClose(t *testing.T) {
	l := newLateClaim(t)
	if _, o := l.from.nextReceive(); o != outcomeFailed || !errors.Is(l.from.failure.err, rdma.ErrDisconnected) {
		t.Errorf("outcome %d, %v", o, l.from.failure.err)
	}
	l.from.sendMu.Unlock()
	l.twoMessages(t)
}

// One that was killed just then can't say so; the agent looks now and then.
func TestClaimUntold(t *testing.T) {
	l := newLateClaim(t)
	l.claimUntold(t)
	l.s.domain.(*domain).heal()
	l.twoMessages(t)
}

// Until then one receive is left, and goes round, and brings the other back.
func TestClaimGoesRound(t *testing.T) {
	l := newLateClaim(t)
	l.claimUntold(t)
	seen := map[uint64]bool{}
	for i := range uint64(64) {
		c := l.message(t, i)
		seen[c.ID] = true
		l.post(c.ID)
	}
	if len(seen) != 2 {
		t.Errorf("of two receives only %v were used", seen)
	}
}
