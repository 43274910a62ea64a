package namenode

import (
	"context"
	"sync"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// stamps hands out generation stamps, each once, always rising, from ranges
// that the log has reserved. So a stamp costs no sync of its own.
type stamps struct {
	mu          sync.Mutex
	next, limit uint64
}

const stampRange = 4096

func (nn *NameNode) stamp(ctx context.Context) (uint64, error) {
	s := &nn.stamps
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == s.limit {
		limit := s.limit + stampRange
		_, err := nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_ReserveGenerations{ReserveGenerations: &nspb.ReserveGenerations{Limit: &limit}}})
		if err != nil {
			return 0, err
		}
		s.limit = limit
	}
	s.next++
	return s.next - 1, nil
}
