package shm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A supplier posts receives when the queue asks for them, up to a limit.
type supplier struct {
	p     *pool
	mu    sync.Mutex
	spare []uint64 // that are not posted
	asked atomic.Int64
}

func (s *supplier) scarce(n int) int {
	s.asked.Add(1)
	s.mu.Lock()
	n = min(n, len(s.spare))
	ids := append([]uint64(nil), s.spare[:n]...)
	s.spare = s.spare[n:]
	s.mu.Unlock()
	for _, id := range ids {
		s.p.repost(id)
	}
	return n
}

func (s *supplier) back(ids ...uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = append(s.spare, ids...)
}

// repost is post on any goroutine.
func (p *pool) repost(id uint64) {
	if _, err := p.srq.PostRecv([]rdma.RecvRequest{{ID: id, SGEs: p.sge(int(id)*p.length, p.length)}}); err != nil {
		p.t.Error(err)
	}
}

// haltAgent ends the domain's agent. Whoever polls does without it.
func (p *pool) haltAgent() {
	d := p.srq.domain
	close(d.stop)
	d.ringAgent()
	d.workers.Wait()
	d.stop = make(chan struct{}) // for Close
}

func newSupplied(t *testing.T, peers, depth, length int) (*pool, *supplier) {
	t.Helper()
	s := &supplier{}
	s.p = newPoolWith(t, peers, depth, length, nil, s.scarce)
	for id := range uint64(depth) {
		s.back(id)
	}
	return s.p, s
}

// With nothing posted at all, a message brings its receive, and the loan behind it is
// there before the next one. What idle peers were lent comes back in the second round.
func TestReceivesFollowTheLoans(t *testing.T) {
	for _, length := range []int{8, 1000} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			const peers, depth = 3, 16
			p, s := newSupplied(t, peers, depth, 1024)
			p.haltAgent() // its rounds take receives back, too
			var loans [peers]int
			for round := range 3 {
				most := 0
				for i, peer := range p.peers {
					began := time.Now()
					peer.send(sendOf(peer, 1, length))
					s.back(p.received(i))
					peer.expect(1, rdma.StatusSuccess)
					loans[i] = max(loans[i], firstOfMany)
					if time.Since(began) > pollersFirst {
						loans[i] *= 2 // it may have asked, and is lent twice as much from then on
					}
					most += loans[i]
				}
				lent := p.held()
				if lent > most || lent < peers {
					t.Fatalf("round %d: %d receives are lent to %d peers, want at most %d", round, lent, peers, most)
				}
				ids := make([]uint64, depth)
				if n := p.srq.Recall(ids, 0); n != 0 {
					t.Errorf("%d of %d receives came back that have just been used", n, lent)
				}
				n := p.srq.Recall(ids, 1)
				if n != lent-1 || p.held() != 0 {
					t.Fatalf("%d of %d receives came back, want all but one; %d are lent", n, lent, p.held())
				}
				n += p.srq.Recall(ids[n:], 0)
				seen := map[uint64]bool{}
				for _, id := range ids[:n] {
					seen[id] = true
				}
				if n != lent || len(seen) != lent {
					t.Errorf("receives %v came back of %d", ids[:n], lent)
				}
				s.back(ids[:n]...)
			}
			p.srq.mu.Lock()
			defer p.srq.mu.Unlock()
			if n := p.srq.left(); n != 0 {
				t.Errorf("%d receives are outstanding after all have come back", n)
			}
		})
	}
}

// A message that waits for a receive is found when the agent lends to its peer between
// the post of two receives and the look at who waits for them.
func TestAgentLendsToMessage(t *testing.T) {
	p, s := newSupplied(t, 1, 4, 1024)
	spare := s.spare
	s.spare = nil
	pair, peer := p.pairs[0], p.peers[0]
	if err := p.cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	peer.send(sendOf(peer, 1, 8))
	for range 3 {
		if n, err := p.cq.Poll(make([]rdma.Completion, 1)); n != 0 || err != nil {
			t.Fatalf("%d completions, %v, want none without a receive", n, err)
		}
	}
	p.srq.mu.Lock()
	for _, id := range spare[:firstOfMany] {
		if _, err := p.srq.post([]rdma.RecvRequest{{ID: id, SGEs: p.sge(int(id)*p.length, p.length)}}); err != nil {
			t.Error(err)
		}
	}
	p.srq.mu.Unlock()
	pair.inbox.asks().Store(1) // as the peer does when it has waited
	pair.answer()
	p.srq.feed()
	// Nothing else is told to look before the agent's next round.
	began := time.Now()
	p.received(0)
	if d := time.Since(began); d > healInterval/2 {
		t.Errorf("the message was found after %v", d)
	}
	peer.expect(1, rdma.StatusSuccess)
}

// A peer that sends more at a time than it has been lent gets more from then on.
func TestLoanGrowsWithUse(t *testing.T) {
	const burst = 12
	p, s := newSupplied(t, 1, 64, 1024)
	peer := p.peers[0]
	for round := range 5 {
		for id := range uint64(burst) {
			peer.send(sendOf(peer, id, 1000))
		}
		for range burst {
			s.back(p.received(0))
		}
		for id := range uint64(burst) {
			peer.expect(id, rdma.StatusSuccess)
		}
		t.Logf("round %d: %d are lent", round, p.held())
	}
	if n := p.held(); n < burst || n > 4*burst {
		t.Errorf("%d receives are lent to a peer that sends %d at a time", n, burst)
	}
	// One at a time needs less, and gets less in time.
	for range 8 {
		for id := range uint64(64) {
			peer.send(sendOf(peer, id, 1000))
			s.back(p.received(0))
			peer.expect(id, rdma.StatusSuccess)
		}
		ids := make([]uint64, 64)
		s.back(ids[:p.srq.Recall(ids, 0)]...)
	}
	if n := p.held(); n > burst {
		t.Errorf("%d receives are lent to a peer that sends one at a time", n)
	}
}

// When no more is posted, peers that have nothing get what idle ones were lent.
func TestRefusedLoansComeFromIdlePeers(t *testing.T) {
	p, s := newSupplied(t, 3, firstOfMany, 1024)
	for round := range 2 {
		for i, peer := range p.peers {
			peer.send(sendOf(peer, 1, 1000))
			s.back(p.received(i))
			peer.expect(1, rdma.StatusSuccess)
		}
		if s.asked.Load() == 0 {
			t.Fatalf("round %d: nobody was asked for receives", round)
		}
	}
}

// Streams lose nothing and use no receive that is not theirs while receives are posted,
// lent, taken back and taken out all the time.
func TestReceivesComeAndGo(t *testing.T) {
	const peers, depth, length = 4, 12, 600
	rounds := 4000
	if testing.Short() {
		rounds = 400
	}
	p, s := newSupplied(t, peers, depth, length)
	done := make(chan error, peers)
	for i, peer := range p.peers {
		go func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range rounds {
				size := random.IntN(length)
				fill(peer.memory.Bytes()[:size], byte(n*7+i))
				if _, err := peer.qp.PostSend([]rdma.SendRequest{sendOf(peer, uint64(n), size)}); err != nil {
					done <- err
					return
				}
				if c := peer.await(); c.ID != uint64(n) || c.Status != rdma.StatusSuccess {
					done <- fmt.Errorf("peer %d: %+v: %w", i, c, peer.qp.Err())
					return
				}
			}
			done <- nil
		}()
	}
	stop, recalling := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(recalling)
		ids := make([]uint64, 3)
		for {
			select {
			case <-stop:
				return
			default:
				n := p.srq.Recall(ids, 0)
				for _, id := range ids[:n] {
					clear(p.memory.Bytes()[int(id)*length:][:length]) // it is this side's again
				}
				s.back(ids[:n]...)
				pause(0)
			}
		}
	}()
	next, number, random := map[uint32]int{}, map[uint32]int{}, map[uint32]*rand.Rand{}
	for i, qp := range p.pairs {
		number[qp.number], random[qp.number] = i, rand.New(rand.NewPCG(uint64(i), 1))
	}
	want := make([]byte, length)
	for range peers * rounds {
		c := p.await()
		size, n, i := random[c.QueuePair].IntN(length), next[c.QueuePair], number[c.QueuePair]
		next[c.QueuePair]++
		fill(want[:size], byte(n*7+i))
		if got := p.memory.Bytes()[int(c.ID)*length:][:c.Length]; c.Status != rdma.StatusSuccess || !bytes.Equal(got, want[:size]) {
			t.Fatalf("message %d of peer %d: %+v, or its bytes differ", n, i, c)
		}
		if n%2 == 0 {
			p.repost(c.ID)
		} else {
			s.back(c.ID)
		}
	}
	for range peers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-recalling
	p.haltAgent() // it answers peers that asked for more, and posts what is spare
	ids := make([]uint64, depth)
	n := 0
	for range 3 {
		n += p.srq.Recall(ids[n:], 0)
	}
	if all := n + len(s.spare); all != depth {
		t.Errorf("%d of %d receives are left", all, depth)
	}
}
