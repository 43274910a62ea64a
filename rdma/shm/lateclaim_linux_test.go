package shm

import (
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// A peer that claims a shared receive before it notices that its queue pair here
// has been closed takes it from nobody, however often the ring goes round.
func TestClaimAfterClose(t *testing.T) {
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
	from := late.qp.(*queuePair)
	claim := from.outShared
	number := from.remote.queuePair
	from.sendMu.Lock() // the peer does not get to see the end
	if err := closing.Close(); err != nil {
		t.Fatal(err)
	}
	if _, ok := claim.claim(number); !ok {
		t.Fatal("no receive to claim")
	}
	from.sendMu.Unlock()
	// One receive is left, and goes round; the other comes back.
	seen := map[uint64]bool{}
	for i := range uint64(64) {
		good.send(rdma.SendRequest{ID: i, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: good.sge(0, 8)})
		good.expect(i, rdma.StatusSuccess)
		c := s.await()
		if c.Status != rdma.StatusSuccess || c.QueuePair != to.Number() {
			t.Fatalf("message %d: %+v", i, c)
		}
		seen[c.ID] = true
		post(c.ID)
	}
	if len(seen) != 2 {
		t.Errorf("of two receives only %v were used", seen)
	}
}
