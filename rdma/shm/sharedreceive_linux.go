package shm

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/latch"
	"github.com/verbena-data/verbena/internal/release"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/internal/domains"
)

// A sharedReceiveQueue is a pool of receives, private to its process. It lends
// them to its queue pairs (lend_linux.go), whose peers then use them as if they
// had been posted there.
type sharedReceiveQueue struct {
	domain     *domain
	depth      int
	maxEntries int
	limit      int
	onScarce   func(n int) (posted int) // may be nil

	mu     latch.Latch
	pool   receiveRing
	first  uint64 // the pool holds the positions from first up to tail
	tail   uint64
	posted uint64 // receives, since the beginning
	gone   uint64 // of those, used by queue pairs whose tally has been dropped
	// tallies count what has been used, for each completion queue that receives from here.
	tallies []*tally
	pairs   []*queuePair
	hungry  []*queuePair // that need a receive and found none, the longest waiting first
	warned  bool         // the limit event has been raised
	closed  bool

	sweepWanted atomic.Uint32 // how urgently; set with mu held, cleared by the agent
	swept       time.Time     // the agent's last round; the agent's own
}

// A tally counts the receives that the queue pairs of one completion queue have
// used. Only the holder of that queue's mu adds to it, so a plain store does.
type tally struct {
	cq    *completionQueue
	used  atomic.Uint64
	users int // queue pairs; guarded by the shared receive queue's mu
}

func (d *domain) NewSharedReceiveQueue(config rdma.SharedReceiveConfig) (rdma.SharedReceiveQueue, error) {
	a := d.device.Attributes()
	config, err := domains.SharedReceive(config, &a, maxQueueDepth, maxEntries)
	if err != nil {
		return nil, fmt.Errorf("shm: shared receive queue: %w", err)
	}
	entries := config.MaxSGE
	s := &sharedReceiveQueue{
		domain: d, depth: config.Depth, maxEntries: entries, limit: config.LimitEvent, onScarce: config.OnScarce,
		pool: newReceiveRing(powerOfTwo(config.Depth), entries),
	}
	d.members.Lock()
	defer d.members.Unlock()
	if err := d.members.Usable(); err != nil {
		return nil, fmt.Errorf("shm: shared receive queue: %w", err)
	}
	d.members.Shared.Add(s)
	return s, nil
}

// PostRecv implements rdma.SharedReceiveQueue.
func (s *sharedReceiveQueue) PostRecv(requests []rdma.RecvRequest) (int, error) {
	s.mu.Lock()
	n, err := s.post(requests)
	hungry := len(s.hungry) > 0
	s.mu.Unlock()
	if hungry && n > 0 {
		s.feed()
	}
	return n, err
}

func (s *sharedReceiveQueue) post(requests []rdma.RecvRequest) (n int, err error) {
	if s.closed {
		return 0, errClosed("post receive: shared receive queue")
	}
	left := s.left()
	for n < len(requests) {
		if left+n >= s.depth {
			return n, fmt.Errorf("shm: post receive: %w: %d are outstanding", rdma.ErrQueueFull, s.depth)
		}
		request := &requests[n]
		if !s.pool.storeQuick(s.tail, request, s.domain) {
			length, invalid := s.domain.checkEntries(request.SGEs, s.maxEntries, useReceive)
			if invalid != nil {
				return n, fmt.Errorf("shm: post receive: %w", invalid)
			}
			s.pool.store(s.tail, request, length)
		}
		s.tail++
		s.posted++
		n++
	}
	return n, nil
}

// left is how many receives are outstanding, lent ones included. mu is held.
func (s *sharedReceiveQueue) left() int {
	left := s.posted - s.gone
	for _, t := range s.tallies {
		left -= t.used.Load()
	}
	return int(left)
}

// free is how many receives are not lent. mu is held.
func (s *sharedReceiveQueue) free() int { return int(s.tail - s.first) }

func (s *sharedReceiveQueue) hasFree() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free() > 0
}

// used notes that messages have used receives which were lent to the queue pair.
// recvCQ.mu is held.
func (s *sharedReceiveQueue) used(qp *queuePair, messages int) {
	release.Store(&qp.tally.used, qp.tally.used.Load()+uint64(messages))
	if s.limit <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := s.left(); left < s.limit && !s.warned {
		s.warned = true
		s.domain.events.Add(rdma.Event{Kind: rdma.EventReceiveLimit, SharedReceive: s,
			Err: fmt.Errorf("shm: fewer than %d receives are left in a shared receive queue", s.limit)})
	}
}

func (s *sharedReceiveQueue) attach(qp *queuePair) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pairs = append(s.pairs, qp)
	i := slices.IndexFunc(s.tallies, func(t *tally) bool { return t.cq == qp.recvCQ })
	if i < 0 {
		i = len(s.tallies)
		s.tallies = append(s.tallies, &tally{cq: qp.recvCQ})
	}
	qp.tally = s.tallies[i]
	qp.tally.users++
}

func (s *sharedReceiveQueue) detach(qp *queuePair) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pairs = without(s.pairs, qp)
	s.hungry = without(s.hungry, qp)
	if qp.tally.users--; qp.tally.users == 0 {
		s.gone += qp.tally.used.Load()
		s.tallies = without(s.tallies, qp.tally)
	}
}

// Close implements rdma.SharedReceiveQueue.
func (s *sharedReceiveQueue) Close() error {
	d := s.domain
	d.members.Lock()
	was, err := d.members.Shared.Remove(s)
	d.members.Unlock()
	if err != nil {
		return fmt.Errorf("shm: close shared receive queue: %w", err)
	}
	if !was {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
