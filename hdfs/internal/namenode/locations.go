package namenode

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// fewBlocks is up to how many blocks of a file are looked up where a connection is read.
const fewBlocks = 64

func (nn *NameNode) getBlockLocations(ctx context.Context, req *hdfspb.GetBlockLocationsRequestProto) (*hdfspb.GetBlockLocationsResponseProto, error) {
	if req.GetOffset() > math.MaxInt64 || req.GetLength() > math.MaxInt64 {
		return nil, exception.New(exception.JavaIllegalArgument, "Negative offset or length is not supported. File: %s", req.GetSrc())
	}
	who := nn.readerFrom(ctx)
	nn.state.mu.RLock()
	f, err := nn.state.ns.Readable(who, req.GetSrc())
	nn.state.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	if len(f.Blocks) == 0 {
		return &hdfspb.GetBlockLocationsResponseProto{Locations: nn.locatedBlocks(f.Status, nil, 0, 0, place{})}, nil
	}
	c := nn.callFrom(ctx)
	if c.short && (len(f.Blocks) > fewBlocks || nn.InSafeMode() || !nn.topology.Known(c.host)) {
		return nil, rpc.ErrLong // it may wait for reports, or for a script
	}
	from := nn.placeOf(ctx, c.host)
	locate := func() *hdfspb.LocatedBlocksProto {
		return nn.locatedBlocks(f.Status, f.Blocks, req.GetOffset(), req.GetOffset()+req.GetLength(), from)
	}
	located := locate()
	if nn.InSafeMode() && nn.waitForReports(ctx, f.Blocks, located) {
		located = locate()
	}
	nn.grant(c, blocktoken.Read, located.GetBlocks()...)
	if last := located.GetLastBlock(); last != nil && last.BlockToken != nil && len(last.BlockToken.Identifier) == 0 {
		nn.grant(c, blocktoken.Read, last)
	}
	return &hdfspb.GetBlockLocationsResponseProto{Locations: located}, nil
}

// waitForReports gives DataNodes a moment after a start to report the blocks
// of which none is known yet. It tells whether something was reported.
func (nn *NameNode) waitForReports(ctx context.Context, blocks []namespace.Block, located *hdfspb.LocatedBlocksProto) (reported bool) {
	limit := time.NewTimer(nn.cfg.CompleteWait)
	defer limit.Stop()
	missing := make(map[uint64]bool)
	for _, lb := range located.GetBlocks() {
		if len(lb.GetLocs()) == 0 {
			missing[lb.GetB().GetBlockId()] = true
		}
	}
	for _, b := range blocks {
		if !missing[b.ID] || b.Construction != nil {
			continue
		}
		wait, cancel := nn.blocks.finalized(b.ID, b.Generation, b.Length)
		if wait != nil {
			select {
			case <-wait:
			case <-limit.C:
				cancel()
				return reported
			case <-ctx.Done():
				cancel()
				return reported
			}
		}
		reported = true
	}
	return reported
}

// locatedBlocks tells where the blocks of a file are that have bytes in
// [from, to), at least the one with the byte at from if there is one, and the
// last one anyway.
func (nn *NameNode) locatedBlocks(s namespace.Status, blocks []namespace.Block, from, to uint64, reader place) *hdfspb.LocatedBlocksProto {
	memory := new(struct {
		hdfspb.LocatedBlocksProto
		length         uint64
		open, complete bool // the last block
		one            [1]*hdfspb.LocatedBlockProto
	})
	memory.open, memory.complete = s.Open, len(blocks) > 0
	out := &memory.LocatedBlocksProto
	out.FileLength, out.UnderConstruction, out.IsLastBlockComplete = &memory.length, &memory.open, &memory.complete
	if len(blocks) == 0 {
		return out
	}
	out.Blocks = memory.one[:0]
	nn.blocks.mu.Lock()
	defer nn.blocks.mu.Unlock()
	var room [2 * usual]*node
	var at uint64
	for i, b := range blocks {
		end := at + b.Length
		// As in HDFS a first block of unknown length comes with every answer.
		first := len(out.Blocks) == 0 && (end > from || i == 0 && b.Length == 0)
		wanted := first || len(out.Blocks) > 0 && at < to
		last := i == len(blocks)-1
		if wanted || last {
			l := nn.blocks.locate(b.ID, b, reader, room[:0])
			lb := nn.blocks.locatedPB(b, at, l)
			if len(l.nodes) == 0 && b.Construction != nil {
				// As in HDFS: without a DataNode readers would take the block for one that
				// nobody has begun, whatever was flushed.
				lb = nn.blocks.pipelinePB(b, at)
			}
			if wanted {
				out.Blocks = append(out.Blocks, lb)
			}
			if last {
				out.LastBlock = lb
				memory.complete = b.Construction == nil
			}
		}
		if b.Construction == nil {
			memory.length += b.Length
		}
		at = end
	}
	return out
}

// located is a block's replicas as a client may use them.
type located struct {
	nodes   []*node
	corrupt bool // all of them
}

// locate returns where a block can be read, nearest to the reader first,
// or, while it is written, where that happens. The nodes may lie in room. The caller has m.mu.
func (m *blockMap) locate(id uint64, b namespace.Block, reader place, room []*node) located {
	out := located{nodes: room}
	if b.Construction != nil {
		for _, uuid := range b.Construction.Targets {
			if n := m.nodes[uuid]; n != nil && n.alive {
				out.nodes = append(out.nodes, n)
			}
		}
		for r := range m.replicas.of(id) {
			n := m.byIndex[r.node]
			if n.alive && !r.corrupt && r.generation >= b.Generation && !slices.Contains(out.nodes, n) {
				out.nodes = append(out.nodes, n)
			}
		}
		return out
	}
	info := namespace.BlockInfo{ID: id, Generation: b.Generation, Length: b.Length}
	var bad []*node
	for r := range m.replicas.of(id) {
		switch n := m.byIndex[r.node]; {
		case n.service == inMaintenance: // it may go at any time
		case m.good(info, r):
			out.nodes = append(out.nodes, n)
		case n.alive && r.corrupt && r.generation == b.Generation:
			bad = append(bad, n)
		}
	}
	if len(out.nodes) == 0 {
		out.nodes, out.corrupt = bad, len(bad) > 0
	}
	rand.Shuffle(len(out.nodes), func(i, j int) { out.nodes[i], out.nodes[j] = out.nodes[j], out.nodes[i] })
	// Those that leave the service and silent ones come last, wherever they are.
	now := m.cfg.now()
	last := func(n *node) int {
		switch {
		case n.service != inService:
			return 2
		case now.Sub(n.lastSeen) > m.cfg.StaleAfter:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(out.nodes, func(a, b *node) int {
		if d := last(a) - last(b); d != 0 || reader == (place{}) {
			return d
		}
		return distance(reader, a) - distance(reader, b)
	})
	return out
}
