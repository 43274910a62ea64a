package simulate

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// ambushes keeps them apart: machines that are away again and again are away for longer than
// recoveries wait, and that may be told to be a loss.
type ambushes struct{ after atomic.Int64 } // when there may be another one, in nanoseconds

// next tells whether there may be one now.
func (a *ambushes) next(rng *rand.Rand) bool {
	now, after := time.Now().UnixNano(), a.after.Load()
	return now >= after && a.after.CompareAndSwap(after, now+int64(10*time.Second)+rng.Int64N(int64(20*time.Second)))
}

// ambush has things go wrong at the very moment at which a client has heard that all is
// acknowledged. Whoever then says too early that others have the bytes is found out: what one
// of them says it has, it must have alone. At another moment the others nearly always have
// them, since packets take a millisecond, and faults come every few seconds.
func (u *user) ambush(ctx context.Context, o *output) {
	s := u.s
	rarely := 40
	if own, ok := o.line.(*ownLine); ok && own.lender != nil {
		rarely = 3 // what acknowledges there is not what others prove every day
	}
	if !s.cfg.faults.ambush || o.block == nil || u.rng.IntN(rarely) > 0 || !s.ambushes.next(u.rng) {
		return
	}
	var pipeline []*machine
	for _, n := range o.nodes {
		i := slices.IndexFunc(s.dataNodes, func(m *machine) bool { return m.host == n.GetId().GetIpAddr() })
		pipeline = append(pipeline, s.dataNodes[i])
	}
	s.h.count("ambushes", 1)
	spared := len(pipeline) - 1 - u.rng.IntN(len(pipeline))*u.rng.IntN(2) // the last one most often
	s.h.add("ambush: of the DataNodes of block %d all are cut off but %s", o.block.GetBlockId(), pipeline[spared].host)
	for i, m := range pipeline {
		if i != spared || len(pipeline) == 1 {
			s.net.lose(m.host)
		}
	}
	// Or their connections alone have broken.
	if u.rng.IntN(4) > 0 {
		power := s.cfg.faults.power && u.rng.IntN(2) == 0
		for i, m := range pipeline {
			if i != spared {
				u.fell(ctx, m, power)
			}
		}
	}
	if u.rng.IntN(2) == 0 {
		u.die()
		u.begin()
	}
}

// fell ends a DataNode, by a power cut or by its process's death alone, and starts it again
// later.
func (u *user) fell(ctx context.Context, m *machine, power bool) {
	s, down := u.s, time.Duration(u.rng.Int64N(int64(5*time.Second)))
	if power {
		s.h.add("power cut of DataNode %s", m.host)
		s.cutPower(m, u.rng)
	} else {
		s.h.add("kill -9 of DataNode %s", m.host)
		_ = s.kill(m, u.rng, nil)
	}
	s.now.Go(func() error { return s.startLater(ctx, m, down) })
}

// restart has a DataNode end as one does that is to be started again, by another release for
// example: it tells writers, some of whom wait for it.
func (s *system) restart(ctx context.Context, m *machine, down time.Duration) error {
	p := m.running()
	if p == nil {
		return nil
	}
	s.h.count("DataNodes restarted", 1)
	s.h.add("DataNode %s restarts", m.host)
	p.dn.AnnounceRestart()
	s.endInOrder(m, p)
	return s.startLater(ctx, m, down)
}

// endInOrder ends a DataNode's process as it does by itself, unless something else has ended it.
func (s *system) endInOrder(m *machine, p *process) {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	if m.running() != p {
		return
	}
	m.mu.Lock()
	m.process = nil
	m.mu.Unlock()
	_ = p.stop() // its disk may be full, or broken
	p.alive.Store(false)
	s.net.kill(m.host)
}
