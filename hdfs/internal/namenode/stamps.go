package namenode

import (
	"context"
	"iter"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// stamps hands out generation stamps, each once, always rising, from ranges
// that the log has reserved. So a stamp costs no sync of its own.
type stamps struct {
	mu          sync.Mutex
	next, limit uint64
}

const (
	stampRange = 4096
	// maxJump bounds how far one report moves a counter, so that a damaged or
	// invented number does not use them up. Ids beyond it are in nobody's way.
	maxJump = 1 << 32
)

// outrun moves the counters of block ids and generation stamps past what a
// DataNode has reported. Replicas of blocks that were never allocated here are
// left over from a newer state of this namespace, or were put there by hand: the
// next block with their id could not be written where they are.
func (nn *NameNode) outrun(ctx context.Context, uuid string, reported iter.Seq[*clusterpb.Block]) error {
	var next uint64
	nn.read(func(ns *namespace.Namespace) { next = ns.NextBlock() })
	s := &nn.stamps
	s.mu.Lock()
	defer s.mu.Unlock()
	newNext, newStamp := next, s.next
	for b := range reported {
		if id := b.GetId(); id >= newNext && id < next+maxJump {
			newNext = id + 1
		}
		if g := b.GetGeneration(); g >= newStamp && g < s.next+maxJump {
			newStamp = g + 1
		}
	}
	if newNext == next && newStamp == s.next || !nn.blocks.knows(uuid) {
		return nil
	}
	nn.log.Error("namenode: a DataNode has block ids or generation stamps that were never given out here; the counters go on behind them. If this namespace is an old copy, stop it now and start the newer one: after safe mode replicas that no file has are deleted",
		"datanode", uuid, "blocks from", next, "to", newNext, "generations from", s.next, "until", newStamp)
	op := &nspb.ReserveGenerations{}
	if newNext > next {
		op.NextBlock = &newNext
	}
	if newStamp > s.limit {
		op.Limit = proto.Uint64(newStamp + stampRange)
	}
	if op.NextBlock != nil || op.Limit != nil {
		if _, err := nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_ReserveGenerations{ReserveGenerations: op}}); err != nil {
			return err
		}
	}
	s.next, s.limit = newStamp, max(s.limit, op.GetLimit())
	return nil
}

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
