package shm

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

// A sharedReceiveQueue lies in memory of its own that the peers of all its queue
// pairs map: each claims receives by itself. The claims are in there, too, so
// that what a dead peer has claimed goes back to the others.
type sharedReceiveQueue struct {
	domain     *domain
	depth      int
	maxEntries int
	limit      int
	file       *memfd.File
	queue      sharedQueue

	mu       sync.Mutex
	receives receiveRing
	used     []bool // of each position in the ring: outstanding
	tail     uint64 // the next position to post at
	held     []held // receives that wait for their position to become free
	left     int    // receives outstanding, held ones included
	warned   bool   // the limit event has been raised
	pairs    []*queuePair
	closed   bool
}

// A held receive is outstanding but not announced yet.
type held struct {
	receive
	spans []span
}

func (d *domain) NewSharedReceiveQueue(config rdma.SharedReceiveConfig) (rdma.SharedReceiveQueue, error) {
	entries := max(config.MaxSGE, 1)
	if config.Depth < 1 || config.Depth > maxQueueDepth || entries > maxEntries {
		return nil, fmt.Errorf("shm: shared receive queue: %w: depth %d (at most %d), %d entries (at most %d)",
			rdma.ErrInvalid, config.Depth, maxQueueDepth, entries, maxEntries)
	}
	// Twice as many positions as receives: one that is claimed for long holds
	// its position, and the others go round.
	shape := sharedShape{receives: 2 * powerOfTwo(config.Depth), entries: uint32(entries)}
	file, err := memfd.Create("verbena-receives", shape.size(), memfd.Reserved)
	if err != nil {
		return nil, fmt.Errorf("shm: shared receive queue: %w", err)
	}
	s := &sharedReceiveQueue{
		domain: d, depth: config.Depth, maxEntries: entries, limit: config.LimitEvent, file: file,
		queue: viewShared(file.Bytes(), shape), receives: newReceiveRing(shape.receives, entries), used: make([]bool, shape.receives),
	}
	s.queue.limit().Store(uint64(max(s.limit, 0)))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.Join(errClosed("domain"), file.Close())
	}
	d.shared[s] = struct{}{}
	return s, nil
}

// PostRecv implements rdma.SharedReceiveQueue.
func (s *sharedReceiveQueue) PostRecv(requests []rdma.RecvRequest) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errClosed("post receive: shared receive queue")
	}
	for i := range requests {
		if s.left >= s.depth {
			return i, s.postedSome(i, fmt.Errorf("shm: post receive: %w: %d are outstanding", rdma.ErrQueueFull, s.depth))
		}
		length, err := s.domain.checkEntries(requests[i].SGEs, s.maxEntries, true)
		if err != nil {
			return i, s.postedSome(i, fmt.Errorf("shm: post receive: %w", err))
		}
		s.left++
		if len(s.held) > 0 || !s.vacant() {
			s.hold(&requests[i], length)
			continue
		}
		s.receives.store(s.tail, &requests[i], length)
		s.announce()
	}
	return len(requests), s.postedSome(len(requests), nil)
}

func (s *sharedReceiveQueue) postedSome(n int, err error) error {
	if n > 0 {
		s.announceHeld()
		s.ringWaiting()
	}
	return err
}

func (s *sharedReceiveQueue) slotOf(n uint64) int { return int(n & uint64(len(s.used)-1)) }

// vacant tells whether a receive can be posted at the tail.
func (s *sharedReceiveQueue) vacant() bool {
	if !s.used[s.slotOf(s.tail)] {
		return true
	}
	// The ring has room, so that position was overtaken: by one that was claimed
	// long ago, or because a peer has moved the head past it.
	state := s.queue.state(s.tail).Load()
	switch state >> 30 & 3 {
	case sharedPosted:
		s.queue.head().Store(s.tail - uint64(len(s.used)))
	case sharedClaimed:
		// A peer that was killed or is suspended has not told of a late claim.
		if number := uint32(state >> 32); !s.serves(number) {
			s.unclaim()
			return true
		}
	}
	return false
}

// serves tells whether what a queue pair's peer claims can still be used, or will
// be reclaimed.
func (s *sharedReceiveQueue) serves(number uint32) bool {
	return slices.ContainsFunc(s.pairs, func(qp *queuePair) bool { return qp.number == number && !qp.reclaimed })
}

func (s *sharedReceiveQueue) hold(request *rdma.RecvRequest, length int) {
	h := held{receive: receive{id: request.ID, length: length, count: len(request.SGEs)}}
	for _, sge := range request.SGEs {
		h.spans = append(h.spans, span{sge.Region.(*region), sge.Offset, sge.Length})
	}
	s.held = append(s.held, h)
}

// announce publishes what has been stored at the tail.
func (s *sharedReceiveQueue) announce() {
	s.used[s.slotOf(s.tail)] = true
	s.receives.announce(s.tail, s.queue.descriptor(s.tail))
	s.queue.state(s.tail).Store(sharedState(s.tail, sharedPosted, 0))
	s.tail++
	s.queue.tail().Store(s.tail)
	// A faulty peer may have moved the head to where nobody finds anything.
	if head := s.queue.head().Load(); s.tail-head > uint64(len(s.used)) {
		s.queue.head().Store(s.tail - min(s.tail, uint64(len(s.used))))
	}
}

func (s *sharedReceiveQueue) announceHeld() {
	for len(s.held) > 0 && s.vacant() {
		h := s.held[0]
		s.held = s.held[1:]
		*s.receives.at(s.tail) = h.receive
		copy(s.receives.spansAt(s.tail), h.spans)
		s.announce()
	}
}

// ringWaiting tells peers that wait for a receive. mu is held.
func (s *sharedReceiveQueue) ringWaiting() {
	if s.queue.waiting().Load() == 0 || s.queue.waiting().Swap(0) == 0 {
		return
	}
	for _, qp := range s.pairs {
		qp.ringIfWaiting()
	}
}

// redeem checks a peer's statement that it has used a receive.
func (s *sharedReceiveQueue) redeem(low, number uint32) (position uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := uint64(len(s.used))
	// Of the positions that the ring holds, at most one has these lower bits.
	position = s.tail - uint64(uint32(s.tail)-low)
	if s.tail-position == 0 || s.tail-position > size || !s.used[s.slotOf(position)] {
		return 0, fmt.Errorf("a message in shared receive %d, which is not outstanding", low)
	}
	if state := s.queue.state(position).Load(); state != sharedState(position, sharedClaimed, number) {
		return 0, fmt.Errorf("a message in shared receive %d, which it has not claimed", low)
	}
	return position, nil
}

// done retires a receive.
func (s *sharedReceiveQueue) done(position uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[s.slotOf(position)] = false
	s.queue.state(position).Store(sharedState(position, sharedDone, 0))
	s.left--
	if s.left < s.limit {
		s.warn()
	}
	if len(s.held) > 0 {
		s.announceHeld()
		s.ringWaiting()
	}
}

// checkLimit is for the agent, which peers wake when they find few receives left.
func (s *sharedReceiveQueue) checkLimit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.limit <= 0 || s.warned || s.queue.limit().Load() != 0 {
		return
	}
	if s.tail-s.queue.head().Load()+uint64(len(s.held)) >= uint64(s.limit) {
		s.queue.limit().Store(uint64(s.limit)) // nonsense, or receives were posted since
		return
	}
	s.warn()
}

func (s *sharedReceiveQueue) warn() {
	if !s.warned {
		s.warned = true
		s.domain.events.add(rdma.Event{Kind: rdma.EventReceiveLimit, SharedReceive: s,
			Err: fmt.Errorf("shm: fewer than %d receives are left in a shared receive queue", s.limit)})
	}
}

// checkLate is for the agent, which a peer wakes that has claimed a receive for a
// queue pair that has ended. It can't use it. One that was killed just then has not
// told, so the agent looks now and then anyhow.
func (s *sharedReceiveQueue) checkLate(anyhow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !anyhow && s.queue.late().Load() == 0 {
		return
	}
	s.queue.late().Store(0)
	s.unclaim()
	s.announceHeld()
	s.ringWaiting()
}

// reclaim gives back what a queue pair's peer had claimed and can use no more.
func (s *sharedReceiveQueue) reclaim(qp *queuePair) {
	s.mu.Lock()
	defer s.mu.Unlock()
	qp.reclaimed = true
	s.unclaim()
	s.announceHeld()
	s.ringWaiting()
}

// unclaim holds again what is claimed for queue pairs that do not serve. mu is held.
func (s *sharedReceiveQueue) unclaim() {
	serving := make(map[uint32]bool, len(s.pairs))
	for _, qp := range s.pairs {
		serving[qp.number] = !qp.reclaimed
	}
	for i := range s.used {
		n := uint64(i)
		state := s.queue.state(n).Load()
		if !s.used[i] || state>>30&3 != sharedClaimed || serving[uint32(state>>32)] {
			continue
		}
		h := held{receive: *s.receives.at(n), spans: append([]span(nil), s.receives.spansAt(n)...)}
		s.held = append(s.held, h)
		s.used[i] = false
		s.queue.state(n).Store(state&sharedPositionMask | sharedDone<<30)
	}
}

func (s *sharedReceiveQueue) receivesInto(r *region) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, used := range s.used {
		if !used {
			continue
		}
		for _, span := range s.receives.spansAt(uint64(i)) {
			if span.region == r {
				return true
			}
		}
	}
	return false
}

func (s *sharedReceiveQueue) attach(qp *queuePair) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed("shared receive queue")
	}
	s.pairs = append(s.pairs, qp)
	return nil
}

func (s *sharedReceiveQueue) detach(qp *queuePair) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pairs = without(s.pairs, qp)
	s.unclaim() // since the teardown
	s.announceHeld()
	s.ringWaiting()
}

// Close implements rdma.SharedReceiveQueue.
func (s *sharedReceiveQueue) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if len(s.pairs) > 0 {
		return fmt.Errorf("shm: close shared receive queue: %w: by %d queue pairs", rdma.ErrInUse, len(s.pairs))
	}
	s.closed = true
	s.domain.mu.Lock()
	delete(s.domain.shared, s)
	s.domain.mu.Unlock()
	return s.file.Close()
}
