package verbena

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// Where receives can be taken back, an idle peer holds little registered memory however few or
// many peers there are, and also after they have been busy.
func TestIdlePeersHoldLittleMemoryAfterWork(t *testing.T) {
	every := recallEvery
	t.Cleanup(func() { recallEvery = every })
	recallEvery = 20 * time.Millisecond
	for _, w := range worlds {
		if w.name != "shm" && w.name != "iwarp" {
			continue // the others give no receive back
		}
		for _, count := range []int{1, 2, 9, 70} {
			t.Run(fmt.Sprint(w.name, count), func(t *testing.T) {
				p := w.pair(t, Config{IgnorePressure: true}, ListenConfig{})
				var ends [][2]*Endpoint
				for range count {
					a, b := p.connect(t, w.transport)
					ends = append(ends, [2]*Endpoint{a, b})
				}
				for range 3 {
					for _, e := range ends {
						burst(t, p, e[0], e[1])
						burst(t, p, e[1], e[0])
					}
				}
				for name, r := range map[string]*Runtime{"client": p.client, "server": p.server} {
					n := r.firstDomain(w.transport)
					var used, registered int64
					for p.ctx.Err() == nil {
						used, registered = 0, 0
						for _, pool := range n.pools() {
							used += pool.Used
							registered += pool.Registered
						}
						// Each of two pools has two regions that are not full at most, for
						// two sizes of memory.
						few := n.receivePool.Registered() <= max(fragmentedFromIdle, 2*n.receivePool.Used())
						if few && used <= int64(count*idleMemory) && registered <= int64(count*idleMemory)+4*largestRegion(count) {
							break
						}
						if recalling(n) {
							runtime.Gosched()
							continue // what is idle may be needed to move to
						}
						n.receivePool.Trim()
						n.sendPool.Trim()
						time.Sleep(time.Millisecond)
					}
					t.Logf("%s: %d KiB for each of %d peers are used, %d registered", name, used/int64(count)>>10, count, registered/int64(count)>>10)
					if p.ctx.Err() != nil {
						t.Errorf("%s: too much for %d idle peers, of which receives have %d KiB", name, count, n.receivePool.Registered()>>10)
					}
				}
			})
		}
	}
}

// recalling tells whether receives are still taken back.
func recalling(n *domain) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.queues {
		r.mu.Lock()
		recalls := r.recaller != nil
		r.mu.Unlock()
		if recalls {
			return true
		}
	}
	return false
}

// largestRegion is how large the regions of a pool are at most that so many peers use.
func largestRegion(count int) int64 {
	if count < baseReceives {
		return 132 << 10
	}
	return 2 << 20
}

// burst sends as many messages as the peer has credits for before it receives any, and
// holds them all.
func burst(t *testing.T, p *pair, from, to *Endpoint) {
	t.Helper()
	var held []*Message
	const size = 1000
	for range from.Tuning().Window {
		if err := from.Send(p.ctx, 1, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	for range from.Tuning().Window {
		m, err := to.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Bytes()) != size {
			t.Fatalf("%d bytes, want %d", len(m.Bytes()), size)
		}
		held = append(held, m)
	}
	for _, m := range held {
		m.Release()
	}
}

// youngestFirst is a queue that gives back what was not needed since the last time, the youngest
// first.
type youngestFirst struct {
	rdma.SharedReceiveQueue
	mu       sync.Mutex
	posted   []uint64
	unneeded int
}

func (q *youngestFirst) PostRecv(requests []rdma.RecvRequest) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range requests {
		q.posted = append(q.posted, requests[i].ID)
	}
	return len(requests), nil
}

func (q *youngestFirst) Recall(ids []uint64, keep int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := max(0, min(q.unneeded, len(q.posted)-keep, len(ids)))
	for i := range n {
		last := len(q.posted) - 1
		ids[i], q.posted = q.posted[last], q.posted[:last]
	}
	q.unneeded = len(q.posted)
	return n
}

// complete takes the oldest receive. There is one.
func (q *youngestFirst) complete() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := q.posted[0]
	q.posted = q.posted[1:]
	q.unneeded = min(q.unneeded, len(q.posted))
	return id
}

// Whatever was needed and when, as many receives are left when all is quiet as idle peers
// need, and they keep no more than twice their memory.
func TestReceivesGoBackAfterAnyLoad(t *testing.T) {
	const size, users, promised = 32<<10 + 64, 2, 100
	for seed := range uint64(500) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			domain := &stuckDomain{stuck: make(chan struct{})}
			close(domain.stuck)
			pool := slab.New(domain, rdma.AccessLocalWrite, 64<<20)
			q := &youngestFirst{}
			r := newReceives(q, pool, slog.New(slog.DiscardHandler), 1, size, sharedDepth, false)
			r.giver, r.tidy, r.promised = q, func() {}, promised
			r.users.Store(users)
			r.target.Store(r.least())
			r.low()
			var held []*buffer
			for range rng.IntN(200) {
				if rng.IntN(8) == 0 {
					time.Sleep(time.Duration(rng.Int64N(int64(recallEvery))))
					synctest.Wait()
				}
				if len(held) > 0 && rng.IntN(2) == 0 {
					i := rng.IntN(len(held))
					if err := r.put(held[i:i+1], nil, 0); err != nil {
						t.Fatal(err)
					}
					held[i] = held[len(held)-1]
					held = held[:len(held)-1]
				} else if len(q.posted) > 0 {
					held = append(held, r.arrived(q.complete()))
				}
			}
			for _, b := range held {
				if err := r.put([]*buffer{b}, nil, 0); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(100 * recallEvery)
			synctest.Wait()
			if n := len(q.posted); n != users || r.posted.Load() != users {
				t.Errorf("seed %d: %d receives are posted, %d counted, for %d idle peers", seed, n, r.posted.Load(), users)
			}
			if registered, used := pool.Registered(), pool.Used(); registered > max(fragmentedFromIdle, 2*used) {
				t.Errorf("seed %d: %d bytes are registered, %d used", seed, registered, used)
			}
			r.suspend(true)
			r.reclaim(false)
			if err := pool.Close(); err != nil || pool.Registered() != 0 {
				t.Errorf("seed %d: %d bytes stay registered: %v", seed, pool.Registered(), err)
			}
		})
	}
}
