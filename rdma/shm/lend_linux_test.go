package shm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A pool is a side with a shared receive queue, and other sides whose queue pairs
// are connected to it.
type pool struct {
	*side
	t      *testing.T
	srq    *sharedReceiveQueue
	length int // of each receive
	pairs  []*queuePair
	peers  []*side
}

func newPool(t *testing.T, peers, depth, length int, change func(*rdma.QueuePairConfig)) *pool {
	t.Helper()
	return newPoolWith(t, peers, depth, length, change, nil)
}

func newPoolWith(t *testing.T, peers, depth, length int, change func(*rdma.QueuePairConfig), scarce func(int) int) *pool {
	t.Helper()
	device := openDevice(t, Config{})
	p := &pool{side: newSide(t, device, depth*length), t: t, length: length}
	srq, err := p.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: depth, MaxSGE: 2, OnScarce: scarce})
	if err != nil {
		t.Fatal(err)
	}
	p.srq = srq.(*sharedReceiveQueue)
	for range peers {
		peer := newSide(t, device, 1<<16)
		pair := p.pair(func(c *rdma.QueuePairConfig) { c.SharedReceive = srq })
		peer.qp = peer.pair(change)
		connect(t, device, peer.qp, pair)
		p.pairs, p.peers = append(p.pairs, pair.(*queuePair)), append(p.peers, peer)
	}
	return p
}

func (p *pool) post(ids ...uint64) {
	p.t.Helper()
	for _, id := range ids {
		if _, err := p.srq.PostRecv([]rdma.RecvRequest{{ID: id, SGEs: p.sge(int(id)*p.length, p.length)}}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// received awaits a message of a peer and returns its receive.
func (p *pool) received(peer int) uint64 {
	p.t.Helper()
	c := p.await()
	if c.Status != rdma.StatusSuccess || c.QueuePair != p.pairs[peer].number {
		p.t.Fatalf("%+v, want a message of peer %d: %v", c, peer, p.pairs[peer].Err())
	}
	return c.ID
}

func sendOf(s *side, id uint64, length int) rdma.SendRequest {
	return rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: s.sge(0, length)}
}

// held is how many receives are lent to queue pairs.
func (p *pool) held() (n int) {
	for _, qp := range p.pairs {
		qp.recvCQ.mu.Lock()
		n += qp.lent()
		qp.recvCQ.mu.Unlock()
	}
	return n
}

// What an idle peer was lent goes to another one that needs it, though nobody
// polls at this side.
func TestIdleLoanGoesToOthers(t *testing.T) {
	for _, length := range []int{8, 1000} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			const depth = 4
			p := newPool(t, 2, depth, 1024, nil)
			p.post(0, 1, 2, 3)
			idle, other := p.peers[0], p.peers[1]
			idle.send(sendOf(idle, 1, length))
			p.post(p.received(0))
			idle.expect(1, rdma.StatusSuccess)
			if p.held() == 0 {
				t.Fatal("nothing was lent to who has just sent")
			}
			for id := range uint64(depth) {
				other.send(sendOf(other, id, length))
				other.expect(id, rdma.StatusSuccess)
			}
			seen := map[uint64]bool{}
			for range depth {
				seen[p.received(1)] = true
			}
			if len(seen) != depth {
				t.Errorf("%d of %d receives were used", len(seen), depth)
			}
			// The idle one works again when there are receives.
			p.post(0)
			idle.send(sendOf(idle, 2, length))
			p.received(0)
			idle.expect(2, rdma.StatusSuccess)
		})
	}
}

// A peer that is inside an access keeps its loan: nobody waits for it, and others
// use what is left. Its message arrives.
func TestLoanInUseStays(t *testing.T) {
	p := newPool(t, 2, 4, 1024, nil)
	p.post(0, 1, 2, 3)
	for i, peer := range p.peers {
		peer.send(sendOf(peer, 1, 1000))
		p.post(p.received(i))
		peer.expect(1, rdma.StatusSuccess)
	}
	qp := p.peers[0].qp.(*queuePair)
	qp.sendMu.Lock()
	at, o := qp.openReceive()
	if o != outcomeDone || at.head.length() != 1024 {
		t.Fatalf("outcome %d, a receive of %d", o, at.head.length())
	}
	for range 3 {
		p.srq.sweep()
	}
	qp.send(&rdma.SendRequest{}, slotSend, 5)
	qp.leave()
	qp.sendMu.Unlock()
	p.received(0)
	for range 3 {
		p.srq.sweep()
	}
	if n := p.held(); n != 0 {
		t.Errorf("%d receives are lent to idle peers", n)
	}
	if p.srq.free() != 3 || p.srq.left() != 3 {
		t.Errorf("%d receives are free and %d outstanding, want 3", p.srq.free(), p.srq.left())
	}
}

// A peer that waits for a receive while its loan is about to be taken back is told when
// it keeps the loan after all: it may sleep by then.
func TestKeptLoanIsTold(t *testing.T) {
	p := newPool(t, 1, 4, 1024, nil)
	p.post(0, 1, 2, 3)
	peer, pair := p.peers[0], p.pairs[0]
	peer.send(sendOf(peer, 1, 1000))
	p.post(p.received(0))
	peer.expect(1, rdma.StatusSuccess)
	qp := peer.qp.(*queuePair)

	// The round has begun, and is held up before it decides.
	pair.recvCQ.mu.Lock()
	if pair.lent() == 0 {
		t.Fatal("nothing was lent to who has just sent")
	}
	pair.recent = false
	pair.inbox.limit().Store(pair.arrived)
	pair.inbox.gate().Add(gateEpoch)
	pair.recvCQ.mu.Unlock()
	peer.send(sendOf(peer, 2, 1000))
	for deadline := time.Now().Add(healInterval / 2); qp.out.waiting().Load() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the sender does not ask to be told")
		}
		runtime.Gosched()
	}

	// It finds the peer inside an access, which is just about to end.
	qp.sendMu.Lock()
	qp.enter()
	if !sweepQueue(pair.recvCQ, p.srq, p.pairs) {
		t.Error("the loan was taken back")
	}
	qp.leave()
	qp.sendMu.Unlock()

	// Polls of the sender would find the receive by themselves.
	for deadline := time.Now().Add(healInterval / 2); ; runtime.Gosched() {
		qp.sendMu.Lock()
		waits := qp.queueCount > 0
		qp.sendMu.Unlock()
		if !waits {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the sender was not told of its receives")
		}
	}
	peer.expect(2, rdma.StatusSuccess)
	p.received(0)
}

// Senders that stream while their loans are taken back all the time lose nothing and
// put nothing into what is not theirs.
func TestLoansComeAndGo(t *testing.T) {
	const peers, depth, length = 4, 5, 600
	rounds := 4000
	if testing.Short() {
		rounds = 400
	}
	p := newPool(t, peers, depth, length, nil)
	for id := range uint64(depth) {
		p.post(id)
	}
	done := make(chan error, peers)
	for i, peer := range p.peers {
		go func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			source := peer.memory.Bytes()
			for n := range rounds {
				size := random.IntN(length)
				fill(source[:size], byte(n*7+i))
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
	stop, sweeping := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sweeping)
		for {
			select {
			case <-stop:
				return
			default:
				// Not sweep, which is the agent's.
				sweepQueue(p.cq.(*completionQueue), p.srq, p.srq.pairs)
				pause(0)
			}
		}
	}()
	next := make(map[uint32]int)
	number := make(map[uint32]int)
	random := make(map[uint32]*rand.Rand)
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
		p.post(c.ID)
	}
	for range peers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-sweeping
	if _, err := p.srq.PostRecv([]rdma.RecvRequest{{}}); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("one more receive: %v", err)
	}
}

// A Send to an empty shared receive queue completes when a receive has been posted,
// not before.
func TestSharedReceiveLate(t *testing.T) {
	for _, request := range []rdma.SendRequest{
		{Op: rdma.OpSend}, {Op: rdma.OpSend, SGEs: make([]rdma.SGE, 1)}, {Op: rdma.OpSendImmediate, Immediate: 5}, {Op: rdma.OpWriteImmediate},
	} {
		t.Run(fmt.Sprint(request.Op, len(request.SGEs)), func(t *testing.T) {
			p := newPool(t, 1, 4, 1024, nil)
			peer := p.peers[0]
			for id := range uint64(3) {
				request.ID, request.Flags = id, rdma.Signaled
				if len(request.SGEs) > 0 {
					request.SGEs[0] = peer.sge(0, 1000)[0]
				}
				peer.send(request)
				// Longer than polls are left alone: the agents have had their turn.
				for begin := time.Now(); time.Since(begin) < 10*pollersFirst; {
					var c [2]rdma.Completion
					if n, err := peer.cq.Poll(c[:]); n != 0 || err != nil {
						t.Fatalf("%+v before there was a receive, %v", c[0], err)
					}
					if n, err := p.cq.Poll(c[:]); n != 0 || err != nil {
						t.Fatalf("%+v before there was a receive, %v", c[0], err)
					}
				}
				p.post(id)
				if c := p.await(); c.ID != id || c.Status != rdma.StatusSuccess {
					t.Fatalf("%+v", c)
				}
				peer.expect(id, rdma.StatusSuccess)
			}
		})
	}
}

// Where no receive comes in time, the Send fails. Receives that an idle peer was lent
// count as there.
func TestSharedReceiverNotReady(t *testing.T) {
	for _, retry := range []time.Duration{0, 20 * time.Millisecond} {
		for _, length := range []int{8, 1000} {
			t.Run(fmt.Sprint(retry, length), func(t *testing.T) {
				p := newPool(t, 2, 2, 1024, func(c *rdma.QueuePairConfig) { c.ReceiverNotReadyRetry = retry })
				idle, peer := p.peers[0], p.peers[1]
				p.post(0, 1)
				idle.send(sendOf(idle, 1, length))
				idle.expect(1, rdma.StatusSuccess)
				p.received(0)
				peer.send(sendOf(peer, 1, length))
				peer.expect(1, rdma.StatusSuccess)
				p.received(1)
				peer.send(sendOf(peer, 2, length), sendOf(peer, 3, length))
				peer.expect(2, rdma.StatusReceiverNotReady)
				peer.expect(3, rdma.StatusFlushed)
			})
		}
	}
}

// A message that was sent before its receive was known, and cannot be put there,
// fails as any other does.
func TestUnbackedFails(t *testing.T) {
	t.Run("too long", func(t *testing.T) {
		p := newPool(t, 1, 2, 64, nil)
		p.post(0)
		p.peers[0].send(sendOf(p.peers[0], 1, 65))
		if c := p.await(); c.Status != rdma.StatusLocalLength {
			t.Errorf("%+v", c)
		}
		p.peers[0].expect(1, rdma.StatusRemoteInvalid)
	})
	for _, lent := range []bool{false, true} {
		for _, length := range []int{8, 1000} {
			t.Run(fmt.Sprintf("closed region, lent=%t, %d", lent, length), func(t *testing.T) {
				p := newPool(t, 1, 4, 1024, nil)
				peer := p.peers[0]
				gone, err := p.domain.Allocate(4096, everything)
				if err != nil {
					t.Fatal(err)
				}
				if lent {
					p.post(0)
				}
				for id := range uint64(3) {
					if _, err := p.srq.PostRecv([]rdma.RecvRequest{{ID: id + 1, SGEs: []rdma.SGE{{Region: gone, Length: 2048}}}}); err != nil {
						t.Fatal(err)
					}
				}
				if lent {
					peer.send(sendOf(peer, 0, length))
					p.received(0)
					peer.expect(0, rdma.StatusSuccess)
					if p.held() == 0 {
						t.Fatal("nothing is lent")
					}
				}
				if err := gone.Close(); err != nil {
					t.Fatal(err)
				}
				peer.send(sendOf(peer, 9, length))
				if c := p.await(); c.Status != rdma.StatusLocalProtection {
					t.Errorf("%+v", c)
				}
				peer.expect(9, rdma.StatusRemoteOperation)
			})
		}
	}
}

// Posting, sending and polling allocate nothing, whether receives are lent ahead
// or have to be asked for.
func TestSharedReceivesAllocateNothing(t *testing.T) {
	for _, length := range []int{8, 1000} {
		p := newPool(t, 1, 8, 1024, nil)
		p.post(0, 1, 2, 3, 4, 5, 6, 7)
		peer := p.peers[0]
		send := []rdma.SendRequest{sendOf(peer, 1, length)}
		receive := []rdma.RecvRequest{{SGEs: p.sge(0, 1024)}}
		var c [1]rdma.Completion
		poll := func(cq rdma.CompletionQueue) {
			for i := 0; ; i++ {
				if n, err := cq.Poll(c[:]); n == 1 && err == nil && c[0].Status == rdma.StatusSuccess {
					return
				} else if n == 1 || err != nil {
					t.Fatal(n, err, c[0])
				}
				pause(i & 63)
			}
		}
		round := func() {
			if _, err := peer.qp.PostSend(send); err != nil {
				t.Fatal(err)
			}
			poll(p.cq)
			if _, err := p.srq.PostRecv(receive); err != nil {
				t.Fatal(err)
			}
			poll(peer.cq)
		}
		round()
		if n := testing.AllocsPerRun(200, round); n != 0 {
			t.Errorf("%d bytes: %v allocations for each message", length, n)
		}
	}
}

// Receives that were lent or used through a queue pair that is gone are counted: no
// more and no fewer fit than the depth.
func TestDepthOutlivesQueuePairs(t *testing.T) {
	const depth = 6
	p := newPool(t, 3, depth, 1024, nil)
	for id := range uint64(depth) {
		p.post(id)
	}
	for i, peer := range p.peers {
		for id := range uint64(2) {
			peer.send(sendOf(peer, id, 1000))
			peer.expect(id, rdma.StatusSuccess)
			p.received(i)
		}
		if err := p.pairs[i].Close(); err != nil {
			t.Fatal(err)
		}
		p.post(0, 1)
		if _, err := p.srq.PostRecv([]rdma.RecvRequest{{}}); !errors.Is(err, rdma.ErrQueueFull) {
			t.Fatalf("one more receive: %v", err)
		}
	}
	if p.srq.free() != depth {
		t.Errorf("%d receives are free", p.srq.free())
	}
}
