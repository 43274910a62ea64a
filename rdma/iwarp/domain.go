package iwarp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/internal/events"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/cq"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
)

var pageSize = os.Getpagesize()

// domain implements [rdma.Domain]. Its goroutine delivers events.
type domain struct {
	device *device

	mu          sync.Mutex
	closed      bool
	regions     map[*mem.Region]struct{}
	completions map[*cq.Queue]struct{}
	shared      map[*sharedReceives]struct{}
	pairs       map[*queuePair]struct{}

	events events.Queue
}

func (d *device) OpenDomain(config rdma.DomainConfig) (rdma.Domain, error) {
	if err := available(); err != nil {
		return nil, fmt.Errorf("iwarp: open domain: %w: %w", rdma.ErrUnavailable, err)
	}
	m := &domain{
		device:      d,
		regions:     make(map[*mem.Region]struct{}),
		completions: make(map[*cq.Queue]struct{}),
		shared:      make(map[*sharedReceives]struct{}),
		pairs:       make(map[*queuePair]struct{}),
	}
	m.events.Start(config.OnEvent)
	return m, nil
}

func (m *domain) Device() rdma.Device { return m.device }

func (m *domain) Allocate(size int, access rdma.Access) (rdma.Region, error) {
	if size <= 0 || size > maxRegion {
		return nil, fmt.Errorf("iwarp: allocate: %w: %d bytes, must be 1 to %d", rdma.ErrInvalid, size, maxRegion)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("iwarp: allocate: domain: %w", rdma.ErrClosed)
	}
	r, err := m.device.regions.Allocate(m, size, access)
	if err != nil {
		return nil, fmt.Errorf("iwarp: allocate: %w", err)
	}
	m.regions[r] = struct{}{}
	return r, nil
}

// Forget implements [mem.Owner].
func (m *domain) Forget(r *mem.Region) {
	m.mu.Lock()
	delete(m.regions, r)
	m.mu.Unlock()
}

// BreakPins implements [mem.Owner]: a peer that does not take what it asked
// for, or the middle of a request of this side, holds the region up.
func (m *domain) BreakPins(r *mem.Region) {
	for _, q := range m.queuePairs() {
		q.breakPins(r)
	}
}

func (m *domain) queuePairs() []*queuePair {
	m.mu.Lock()
	defer m.mu.Unlock()
	pairs := make([]*queuePair, 0, len(m.pairs))
	for q := range m.pairs {
		pairs = append(pairs, q)
	}
	return pairs
}

func (m *domain) NewCompletionQueue(depth int) (rdma.CompletionQueue, error) {
	if depth < 1 || depth > maxCompletions {
		return nil, fmt.Errorf("iwarp: completion queue: %w: depth %d, must be 1 to %d", rdma.ErrInvalid, depth, maxCompletions)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("iwarp: completion queue: domain: %w", rdma.ErrClosed)
	}
	q := cq.New(depth, m.overrun, m.forgetCompletions)
	m.completions[q] = struct{}{}
	return q, nil
}

func (m *domain) forgetCompletions(q *cq.Queue) {
	m.mu.Lock()
	delete(m.completions, q)
	m.mu.Unlock()
}

// overrun is called with the queue locked, so the event's goroutine does the rest.
func (m *domain) overrun(q *cq.Queue) {
	m.events.AddAfter(func() {
		for _, p := range m.queuePairs() {
			if p.config.SendCompletions == rdma.CompletionQueue(q) || p.config.RecvCompletions == rdma.CompletionQueue(q) {
				if p.engine.Abort(rdma.ErrOverrun) {
					p.pump()
				}
			}
		}
	}, rdma.Event{Kind: rdma.EventCompletionOverrun, Completions: q, Err: rdma.ErrOverrun})
}

// sharedReceives implements [rdma.SharedReceiveQueue].
type sharedReceives struct {
	domain *domain
	queue  *engine.RecvQueue
	users  int // by the domain's lock
	closed bool
}

func (m *domain) NewSharedReceiveQueue(config rdma.SharedReceiveConfig) (rdma.SharedReceiveQueue, error) {
	if config.MaxSGE == 0 {
		config.MaxSGE = 1
	}
	if config.Depth < 1 || config.Depth > maxQueueDepth || config.MaxSGE < 1 || config.MaxSGE > maxSGE || config.LimitEvent < 0 {
		return nil, fmt.Errorf("iwarp: shared receive queue: %w: depth %d (1 to %d), entries %d (1 to %d)",
			rdma.ErrInvalid, config.Depth, maxQueueDepth, config.MaxSGE, maxSGE)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("iwarp: shared receive queue: domain: %w", rdma.ErrClosed)
	}
	s := &sharedReceives{domain: m}
	s.queue = engine.NewRecvQueue(m, config.Depth, config.MaxSGE, config.LimitEvent, func() {
		m.events.Add(rdma.Event{Kind: rdma.EventReceiveLimit, SharedReceive: s})
	})
	m.shared[s] = struct{}{}
	return s, nil
}

func (s *sharedReceives) PostRecv(requests []rdma.RecvRequest) (int, error) {
	return s.queue.Post(requests)
}

func (s *sharedReceives) Close() error {
	s.domain.mu.Lock()
	defer s.domain.mu.Unlock()
	if s.users > 0 {
		return rdma.ErrInUse
	}
	s.closed = true
	s.queue.Close()
	delete(s.domain.shared, s)
	return nil
}

func (m *domain) NewQueuePair(config rdma.QueuePairConfig) (rdma.QueuePair, error) {
	fail := func(err error, format string, args ...any) (rdma.QueuePair, error) {
		return nil, fmt.Errorf("iwarp: queue pair: %w: "+format, append([]any{err}, args...)...)
	}
	if config.MaxSGE == 0 {
		config.MaxSGE = 1
	}
	if config.MaxReads == 0 {
		config.MaxReads = defaultReads
	}
	if config.SendDepth == 0 {
		config.SendDepth = 1
	}
	if config.RecvDepth == 0 {
		config.RecvDepth = 1
	}
	for _, limit := range []struct {
		name              string
		value, from, upTo int
	}{
		{"SendDepth", config.SendDepth, 1, maxQueueDepth}, {"RecvDepth", config.RecvDepth, 1, maxQueueDepth},
		{"MaxSGE", config.MaxSGE, 1, maxSGE}, {"MaxInline", config.MaxInline, 0, maxInline},
		{"MaxReads", config.MaxReads, 1, maxReads},
	} {
		if limit.value < limit.from || limit.value > limit.upTo {
			return fail(rdma.ErrInvalid, "%s is %d, must be %d to %d", limit.name, limit.value, limit.from, limit.upTo)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fail(rdma.ErrClosed, "domain")
	}
	var queues [2]*cq.Queue
	for i, c := range []rdma.CompletionQueue{config.SendCompletions, config.RecvCompletions} {
		q, ok := c.(*cq.Queue)
		if ok {
			_, ok = m.completions[q]
		}
		if !ok {
			return fail(rdma.ErrInvalid, "a completion queue is missing, closed or of another domain")
		}
		queues[i] = q
	}
	q := &queuePair{domain: m, config: config, number: m.device.numbers.Add(1)}
	var receives *engine.RecvQueue
	if config.SharedReceive != nil {
		s, ok := config.SharedReceive.(*sharedReceives)
		if !ok || s.domain != m || s.closed {
			return fail(rdma.ErrInvalid, "the shared receive queue is closed or of another domain")
		}
		q.shared, receives = s, s.queue
	} else {
		receives = engine.NewRecvQueue(m, config.RecvDepth, config.MaxSGE, 0, nil)
	}
	for i, c := range queues {
		// forgetCompletions follows a Close without the domain's lock.
		if !c.Use() {
			if i == 1 {
				queues[0].Unuse()
			}
			return fail(rdma.ErrClosed, "completion queue")
		}
	}
	if q.shared != nil {
		q.shared.users++
	}
	var tag [4]byte
	_, _ = rand.Read(tag[:])
	q.start(engine.Config{
		Number: q.number, Owner: m, Regions: m.device.regions,
		SendCompletions: queues[0], RecvCompletions: queues[1],
		Receives: receives, SharedReceives: q.shared != nil,
		Extensions: m.device.config.Extensions,
		SendDepth:  config.SendDepth, MaxSGE: config.MaxSGE, MaxInline: config.MaxInline,
		SinkTag: binary.LittleEndian.Uint32(tag[:]),
	})
	m.pairs[q] = struct{}{}
	return q, nil
}

// forgetPair drops a closed queue pair and what it used.
func (m *domain) forgetPair(q *queuePair) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pairs, q)
	q.config.SendCompletions.(*cq.Queue).Unuse()
	q.config.RecvCompletions.(*cq.Queue).Unuse()
	if q.shared != nil {
		q.shared.users--
	}
}

func (m *domain) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.mu.Unlock()

	// Each may have to wait for its peer to hang up: all at once.
	var group sync.WaitGroup
	for _, q := range m.queuePairs() {
		group.Go(func() { _ = q.Close() })
	}
	group.Wait()
	m.events.Stop()

	m.mu.Lock()
	var closers []interface{ Close() error }
	for s := range m.shared {
		closers = append(closers, s)
	}
	for c := range m.completions {
		closers = append(closers, c)
	}
	for r := range m.regions {
		closers = append(closers, r)
	}
	m.mu.Unlock()
	var first error
	for _, c := range closers {
		if err := c.Close(); err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		return fmt.Errorf("iwarp: close domain: %w", first)
	}
	return nil
}
