package verbena

import (
	"context"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/rdma"
)

// Operations that a device carries out within a call, as shm does: they need no batch, no
// registered memory of this side, and no completion.

// prompt carries out one Get or Put at once, if the device does that and nothing at all
// is unusual. Otherwise it has done nothing, and the usual way tells why.
func (e *Endpoint) prompt(ctx context.Context, kind operationKind, t *Token, offset int, local []byte) bool {
	return len(local) > 0 && len(local) <= MaxOperation && t.ways&(byDevice|byDescriptor) == byDevice && e.features.has(hello.FeatureOneSided) &&
		t.check(offset, len(local), operationNeeds[kind]) == nil && ctx.Err() == nil &&
		e.carrier.prompt(kind, rdma.Remote{Address: t.address + uint64(offset), Key: t.key}, local)
}

// prompt implements carrier. Batches that wait for room go first.
func (s *operator) prompt(kind operationKind, remote rdma.Remote, local []byte) (done bool) {
	if s.device == nil {
		return false
	}
	s.mu.Lock()
	if !s.life.reached(stageGrounded) && !s.e.over() && !s.queue.broken && !s.m.PeerSaidGoodbye() && !s.flights.waits() {
		if kind == opGet {
			done = s.device.ReadNow(local, remote)
		} else {
			done = s.device.WriteNow(remote, local)
		}
		if done {
			s.operated.add(kind, len(local))
		}
	}
	s.mu.Unlock()
	return done
}

// waits tells whether a batch waits for room. mu is held.
func (fl *flights) waits() bool {
	if fl == nil {
		return false
	}
	_, waits := fl.Next()
	return waits
}
