//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
	"github.com/verbena-data/verbena/rdma/internal/domains"
)

// sharedReceives implements [rdma.SharedReceiveQueue]. Receives have places;
// the place's number goes to the device and comes back. What a queue pair took and
// did not fill comes back flushed: see [queuePair.awaitShared].
type sharedReceives struct {
	usage
	maxSGE int
	index  uint32 // within the domain

	mu    sync.Mutex
	hw    *verbs.SRQ // nil once it is destroyed
	arena *verbs.Arena
	list  *verbs.RecvList
	ids   []uint64
	free  []uint32 // places
	taken []bool
	err   error // why nothing can be posted
	full  error
}

func (m *domain) NewSharedReceiveQueue(config rdma.SharedReceiveConfig) (rdma.SharedReceiveQueue, error) {
	a := &m.device.attributes
	fail := func(err error) (rdma.SharedReceiveQueue, error) {
		return nil, fmt.Errorf("ibverbs: shared receive queue on %s: %w", a.Name, err)
	}
	config, err := domains.SharedReceive(config, a, m.device.sharedDepth, m.device.sharedSGE)
	if err != nil {
		return fail(err)
	}
	m.members.Lock()
	defer m.members.Unlock()
	if err := m.members.Usable(); err != nil {
		return fail(err)
	}
	s := &sharedReceives{maxSGE: config.MaxSGE, arena: verbs.NewArena()}
	s.usage = usage{domain: m, cookie: m.newCookie(), destroy: s.destroyQueue}
	if err := s.create(config); err != nil {
		s.destroy()
		return fail(err)
	}
	s.full = fmt.Errorf("ibverbs: post to a shared receive queue on %s: %w", a.Name, rdma.ErrQueueFull)
	m.addShared(s)
	return s, nil
}

func (s *sharedReceives) create(config rdma.SharedReceiveConfig) (err error) {
	if s.list, err = s.arena.NewRecvList(min(chain, config.Depth), config.MaxSGE); err != nil {
		return err
	}
	if s.hw, err = s.domain.pd.CreateSRQ(config.Depth, config.MaxSGE, s.cookie); err != nil {
		return err
	}
	s.ids, s.taken = make([]uint64, config.Depth), make([]bool, config.Depth)
	for i := config.Depth; i > 0; i-- {
		s.free = append(s.free, uint32(i-1))
	}
	if config.LimitEvent > 0 {
		return s.hw.SetLimit(config.LimitEvent)
	}
	return nil
}

// PostRecv implements [rdma.SharedReceiveQueue].
func (s *sharedReceives) PostRecv(requests []rdma.RecvRequest) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := 0
	for taken < len(requests) {
		if s.err != nil {
			return taken, s.err
		}
		n, wrong := s.prepare(requests[taken:])
		if n > 0 {
			posted, err := s.hw.PostRecv(s.list, n)
			taken += posted
			for i := n - 1; i >= posted; i-- {
				s.release(uint32(s.list.At(i).ID))
			}
			if err != nil {
				var errno syscall.Errno
				if errors.As(err, &errno) && errno == syscall.ENOMEM {
					return taken, s.full
				}
				return taken, fmt.Errorf("ibverbs: post to a shared receive queue on %s: %w: %w", s.domain.device.attributes.Name, rdma.ErrInvalid, err)
			}
		}
		if wrong != nil {
			return taken, wrong
		}
	}
	return taken, s.err
}

func (s *sharedReceives) prepare(requests []rdma.RecvRequest) (int, error) {
	n := min(len(requests), s.list.Len())
	invalid := func(why string) error {
		return fmt.Errorf("ibverbs: post to a shared receive queue on %s: %w: %s", s.domain.device.attributes.Name, rdma.ErrInvalid, why)
	}
	for i := range n {
		if len(s.free) == 0 {
			return i, s.full
		}
		r := &requests[i]
		if len(r.SGEs) > s.maxSGE {
			return i, invalid("it has too many entries")
		}
		entries := s.list.SGEs(i)
		_, used, wrong := translateEntries(s.domain, entries, r.SGEs, true)
		if wrong != "" {
			return i, invalid(wrong)
		}
		used = s.domain.atLeastOne(entries, used)
		place := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		s.ids[place], s.taken[place] = r.ID, true
		wr := s.list.At(i)
		wr.ID = kindShared | uint64(s.index)<<indexShift | uint64(place)
		wr.NumSGE = int32(used)
	}
	return n, nil
}

func (s *sharedReceives) release(place uint32) {
	s.taken[place] = false
	s.free = append(s.free, place)
}

// redeem gives the place of a completion back and returns the receive's ID.
func (s *sharedReceives) redeem(place uint32) (id uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(place) >= len(s.taken) || !s.taken[place] {
		return 0, false
	}
	id = s.ids[place]
	s.release(place)
	return id, true
}

// outstanding is how many receives the device has not completed.
func (s *sharedReceives) outstanding() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids) - len(s.free)
}

// destroyQueue frees what the driver has.
func (s *sharedReceives) destroyQueue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = fmt.Errorf("ibverbs: shared receive queue: %w", rdma.ErrClosed)
	}
	var err error
	if s.hw != nil {
		err = s.hw.Destroy()
		s.hw = nil
	}
	if err = errors.Join(err, s.arena.Close()); err != nil {
		s.domain.device.provider.config.Logger.Warn("ibverbs cannot free a shared receive queue", "device", s.domain.device.attributes.Name, "error", err)
	}
}

// Close implements [rdma.SharedReceiveQueue].
func (s *sharedReceives) Close() error {
	return s.close("shared receive queue", func() (bool, error) { return s.domain.members.Shared.Remove(s) }, func() {
		s.mu.Lock()
		s.err = fmt.Errorf("ibverbs: shared receive queue: %w", rdma.ErrClosed)
		s.mu.Unlock()
	})
}
