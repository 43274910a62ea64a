package iwarp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/internal/domains"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/cq"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
)

var pageSize = os.Getpagesize()

// domain implements [rdma.Domain]. Its goroutine delivers events.
type domain struct {
	device  *device
	members domains.Members[*queuePair, *sharedReceives, *cq.Queue, *mem.Region]
	events  domains.Events
}

func (d *device) OpenDomain(config rdma.DomainConfig) (rdma.Domain, error) {
	if err := available(); err != nil {
		return nil, fmt.Errorf("iwarp: open domain: %w: %w", rdma.ErrUnavailable, err)
	}
	m := &domain{device: d}
	m.events.Start(config.OnEvent)
	return m, nil
}

func (m *domain) Device() rdma.Device { return m.device }

func (m *domain) Allocate(size int, access rdma.Access) (rdma.Region, error) {
	a := m.device.Attributes()
	if err := domains.Region(size, access, &a); err != nil {
		return nil, fmt.Errorf("iwarp: allocate: %w", err)
	}
	m.members.Lock()
	defer m.members.Unlock()
	if err := m.members.Usable(); err != nil {
		return nil, fmt.Errorf("iwarp: allocate: %w", err)
	}
	r, err := m.device.regions.Allocate(m, size, access)
	if err != nil {
		return nil, fmt.Errorf("iwarp: allocate: %w", err)
	}
	m.members.Regions.Add(r)
	return r, nil
}

// Register implements [rdma.RegisteringDomain].
func (m *domain) Register(memory rdma.UserMemory) (rdma.Region, error) {
	a := m.device.Attributes()
	size := len(memory.Bytes)
	if err := domains.Region(size, memory.Access, &a); err != nil {
		return nil, fmt.Errorf("iwarp: register: %w", err)
	}
	m.members.Lock()
	defer m.members.Unlock()
	if err := m.members.Usable(); err != nil {
		return nil, fmt.Errorf("iwarp: register: %w", err)
	}
	r, err := m.device.regions.Register(m, memory.Bytes[:size:size], memory.Access)
	if err != nil {
		return nil, fmt.Errorf("iwarp: register: %w", err)
	}
	m.members.Regions.Add(r)
	return r, nil
}

// Pins implements [rdma.RegisteringDomain]: this process copies from the mapping.
func (m *domain) Pins() bool { return false }

// Forget implements [mem.Owner].
func (m *domain) Forget(r *mem.Region) {
	m.members.Lock()
	defer m.members.Unlock()
	_, _ = m.members.Regions.Remove(r)
}

// BreakPins implements [mem.Owner]: a peer that does not take what it asked
// for, or the middle of a request of this side, holds the region up.
func (m *domain) BreakPins(r *mem.Region) {
	for _, q := range m.queuePairs() {
		q.breakPins(r)
	}
}

func (m *domain) queuePairs() []*queuePair {
	m.members.Lock()
	defer m.members.Unlock()
	return m.members.Pairs.List()
}

func (m *domain) NewCompletionQueue(depth int) (rdma.CompletionQueue, error) {
	a := m.device.Attributes()
	if err := domains.CompletionQueue(depth, &a); err != nil {
		return nil, fmt.Errorf("iwarp: completion queue: %w", err)
	}
	m.members.Lock()
	defer m.members.Unlock()
	if err := m.members.Usable(); err != nil {
		return nil, fmt.Errorf("iwarp: completion queue: %w", err)
	}
	q := cq.New(depth, m.overrun, m.forgetCompletions)
	m.members.Completions.Add(q)
	return q, nil
}

// forgetCompletions comes before a queue is closed, which it may refuse.
func (m *domain) forgetCompletions(q *cq.Queue) error {
	m.members.Lock()
	defer m.members.Unlock()
	_, err := m.members.Completions.Remove(q)
	return err
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

// sharedReceives implements [rdma.RecallingReceiveQueue].
type sharedReceives struct {
	domain *domain
	queue  *engine.RecvQueue
}

func (m *domain) NewSharedReceiveQueue(config rdma.SharedReceiveConfig) (rdma.SharedReceiveQueue, error) {
	fail := func(err error) (rdma.SharedReceiveQueue, error) {
		return nil, fmt.Errorf("iwarp: shared receive queue: %w", err)
	}
	a := m.device.Attributes()
	config, err := domains.SharedReceive(config, &a, maxQueueDepth, maxSGE)
	if err != nil {
		return fail(err)
	}
	m.members.Lock()
	defer m.members.Unlock()
	if err := m.members.Usable(); err != nil {
		return fail(err)
	}
	s := &sharedReceives{domain: m}
	s.queue = engine.NewRecvQueue(m, config.Depth, config.MaxSGE, config.LimitEvent, func() {
		m.events.Add(rdma.Event{Kind: rdma.EventReceiveLimit, SharedReceive: s})
	})
	m.members.Shared.Add(s)
	return s, nil
}

func (s *sharedReceives) PostRecv(requests []rdma.RecvRequest) (int, error) {
	return s.queue.Post(requests)
}

func (s *sharedReceives) Recall(ids []uint64, keep int) int {
	return s.queue.Recall(ids, keep)
}

func (s *sharedReceives) Close() error {
	m := s.domain
	m.members.Lock()
	defer m.members.Unlock()
	if _, err := m.members.Shared.Remove(s); err != nil {
		return fmt.Errorf("iwarp: close a shared receive queue: %w", err)
	}
	s.queue.Close()
	return nil
}

func (m *domain) NewQueuePair(config rdma.QueuePairConfig) (rdma.QueuePair, error) {
	fail := func(err error) (rdma.QueuePair, error) { return nil, fmt.Errorf("iwarp: queue pair: %w", err) }
	a := m.device.Attributes()
	config, err := domains.QueuePair(config, &a)
	if err != nil {
		return fail(err)
	}
	m.members.Lock()
	defer m.members.Unlock()
	uses, err := m.members.Find(&config)
	if err != nil {
		return fail(err)
	}
	q := &queuePair{domain: m, config: config, uses: uses, number: m.device.numbers.Next(), shared: uses.Shared}
	var receives *engine.RecvQueue
	if q.shared != nil {
		receives = q.shared.queue
	} else {
		receives = engine.NewRecvQueue(m, config.RecvDepth, config.MaxSGE, 0, nil)
	}
	var tag [4]byte
	_, _ = rand.Read(tag[:])
	q.start(engine.Config{
		Number: q.number, Owner: m, Regions: m.device.regions,
		SendCompletions: uses.Send, RecvCompletions: uses.Recv,
		Receives: receives, SharedReceives: q.shared != nil,
		Extensions: m.device.config.extensions,
		SendDepth:  config.SendDepth, MaxSGE: config.MaxSGE, MaxInline: config.MaxInline,
		SinkTag: binary.LittleEndian.Uint32(tag[:]),
	})
	m.members.AddPair(q, uses)
	return q, nil
}

// forgetPair drops a closed queue pair and what it used.
func (m *domain) forgetPair(q *queuePair) {
	m.members.Lock()
	defer m.members.Unlock()
	m.members.DropPair(q, q.uses)
}

func (m *domain) Close() error {
	// A pair may have to wait for its peer to hang up.
	first, err := m.members.Close((*queuePair).Close)
	if !first {
		return nil
	}
	m.events.Stop()
	if err != nil {
		return fmt.Errorf("iwarp: close domain: %w", err)
	}
	return nil
}
