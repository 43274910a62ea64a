package shm

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// scribble writes random words all over what it has mapped of its peer, and all
// over what it shares with it, while it pretends to take part.
func scribble(s *side, remote rdma.Remote) error {
	qp := s.qp.(*queuePair)
	peer := qp.peer.Load()
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	bell := peer.bellMemory[:bellHeader+2*bellBlock]
	// Its own gate and descriptors, too, which the peer reads.
	targets := [][]byte{qp.outMemory[inboxLimit:], qp.outMemory[inboxLimit:inboxRings], bell, qp.inboxFile.Bytes()[inboxRings:]}
	nonsense := func() uint64 { return random.Uint64() >> (random.IntN(8) * 8) }
	var c [16]rdma.Completion
	for i := 0; qp.State() == rdma.StateConnected; i++ {
		_ = s.write(remote, 8+random.IntN(4096), 1)
		for range random.IntN(20) {
			target := targets[random.IntN(len(targets))]
			word := target[random.IntN(len(target)/8)*8:][:8]
			value := random.Uint64()
			if random.IntN(2) == 0 {
				value &= 0xff
			}
			for b := range word {
				word[b] = byte(value >> (8 * b))
			}
		}
		switch random.IntN(60) {
		case 0: // a message that looks as if it were the next
			qp.sendMu.Lock()
			slot := qp.out.slot(qp.sent)
			slot.setDetail(nonsense())
			slot.publish(makeSlotHeader(qp.sent, slotKind(random.IntN(256)), int(uint32(nonsense()))))
			qp.sent++
			qp.sendMu.Unlock()
		case 1: // receives that look as if they had been posted
			for n := qp.posted.Load() - 32; n != qp.posted.Load()+4; n++ {
				d := qp.inbox.descriptor(n)
				count := random.IntN(5)
				for j := range max(count, 1) {
					d.setEntry(j%2, count, place(nonsense()), int(nonsense()))
				}
				d.publish(makeDescriptorHead(n, count, int(uint32(nonsense()))))
			}
		}
		if _, err := s.cq.Poll(c[:]); err != nil {
			return nil //nolint:nilerr // the parent has hung up
		}
	}
	return nil
}

// A peer that scribbles over all it can reach fails its own connection. Another
// connection of the same domain and completion queue goes on.
func TestScribblingPeer(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		t.Run("", func(t *testing.T) {
			if round%2 == 1 { // both connections receive by one shared receive queue
				t.Setenv(sharedVariable, "1")
			}
			s, remote := with(t, "scribble")
			good := newSide(t, s.domain.Device(), 4096)
			own, err := s.domain.NewQueuePair(rdma.QueuePairConfig{SendCompletions: s.cq, RecvCompletions: s.cq, SharedReceive: s.srq, SendDepth: 8, RecvDepth: 8, ReceiverNotReadyRetry: -1})
			if err != nil {
				t.Fatal(err)
			}
			good.qp = good.pair(nil)
			connect(t, s.domain.Device(), good.qp, own)
			var c [16]rdma.Completion
			deadline := time.Now().Add(20 * time.Second)
			// The peer writes nonsense for as long as it is connected; it need not
			// hit anything that this side looks at.
			end := time.Now().Add(100 * time.Millisecond)
			for s.qp.State() == rdma.StateConnected && time.Now().Before(end) {
				_, _ = s.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: s.sge(0, 5000)},
					{Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: s.sge(0, 100), Remote: remote}})
				if err := s.cq.Arm(false); err != nil {
					t.Fatal(err)
				}
				n, err := s.cq.Poll(c[:])
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range c[:n] {
					if c.QueuePair == s.qp.Number() && c.Op == rdma.OpRecv && c.Status == rdma.StatusSuccess {
						_ = s.repost(c.ID)
					}
				}
			}
			t.Log(s.qp.State(), s.qp.Err())
			// The other connection, both ways.
			if s.srq == nil {
				if _, err := own.PostRecv([]rdma.RecvRequest{{ID: 1 << 40}}); err != nil {
					t.Fatal(err)
				}
			}
			good.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
			good.expect(1, rdma.StatusSuccess)
			for {
				n, err := s.cq.Poll(c[:])
				if err != nil {
					t.Fatal(err)
				}
				found := false
				for _, c := range c[:n] {
					found = found || c.QueuePair == own.Number() && (s.srq != nil || c.ID == 1<<40) && c.Status == rdma.StatusSuccess
				}
				if found {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("a scribbling peer took the messages of another connection")
				}
				pause(100)
			}
			if own.State() != rdma.StateConnected {
				t.Fatal("another connection failed:", own.Err())
			}
		})
	}
}
