package namenode

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

func (nn *NameNode) getFsStats(context.Context, *hdfspb.GetFsStatusRequestProto) (*hdfspb.GetFsStatsResponseProto, error) {
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	var capacity, used, remaining, deletions uint64
	for _, n := range m.nodes {
		deletions += uint64(len(n.deletions))
		if n.alive {
			capacity, used, remaining = capacity+n.capacity, used+n.used, remaining+n.remaining
		}
	}
	under := m.lacking()
	return &hdfspb.GetFsStatsResponseProto{
		Capacity: &capacity, Used: &used, Remaining: &remaining,
		UnderReplicated:       proto.Uint64(uint64(under)),
		CorruptBlocks:         proto.Uint64(uint64(len(m.corrupt))),
		MissingBlocks:         proto.Uint64(uint64(len(m.missing))),
		PendingDeletionBlocks: &deletions,
	}, nil
}

// lacking is how many blocks have fewer replicas than wanted.
func (m *blockMap) lacking() int {
	under := len(m.copying) + len(m.held)
	for id := range m.needed.of {
		if len(m.copying[id]) == 0 {
			under++
		}
	}
	return under
}

func (nn *NameNode) getDatanodeReport(_ context.Context, req *hdfspb.GetDatanodeReportRequestProto) (*hdfspb.GetDatanodeReportResponseProto, error) {
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &hdfspb.GetDatanodeReportResponseProto{}
	for _, n := range m.byIndex {
		if m.nodes[n.dn.UUID] != n {
			continue
		}
		switch req.GetType() {
		case hdfspb.DatanodeReportTypeProto_ALL:
		case hdfspb.DatanodeReportTypeProto_LIVE:
			if !n.alive {
				continue
			}
		case hdfspb.DatanodeReportTypeProto_DEAD:
			if n.alive {
				continue
			}
		case hdfspb.DatanodeReportTypeProto_DECOMMISSIONING:
			if n.service != decommissioning {
				continue
			}
		case hdfspb.DatanodeReportTypeProto_ENTERING_MAINTENANCE:
			if n.service != enteringMaintenance {
				continue
			}
		case hdfspb.DatanodeReportTypeProto_IN_MAINTENANCE:
			if n.service != inMaintenance {
				continue
			}
		}
		out.Di = append(out.Di, m.infoPB(n))
	}
	return out, nil
}

func (nn *NameNode) reportBadBlocks(ctx context.Context, req *hdfspb.ReportBadBlocksRequestProto) (*hdfspb.ReportBadBlocksResponseProto, error) {
	for _, lb := range req.GetBlocks() {
		if err := nn.checkPool(lb.GetB()); err != nil {
			return nil, err
		}
	}
	nn.read(func(ns *namespace.Namespace) {
		m := nn.blocks
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, lb := range req.GetBlocks() {
			b, ok := ns.Block(lb.GetB().GetBlockId())
			if !ok || b.Generation != lb.GetB().GetGenerationStamp() {
				continue // of another time
			}
			for _, n := range m.nodesNamed(lb.GetLocs()) {
				m.markCorrupt(ns, b.ID, n)
			}
		}
	})
	nn.wakeMonitor()
	return &hdfspb.ReportBadBlocksResponseProto{}, nil
}

func (nn *NameNode) getDataEncryptionKey(context.Context, *hdfspb.GetDataEncryptionKeyRequestProto) (*hdfspb.GetDataEncryptionKeyResponseProto, error) {
	return &hdfspb.GetDataEncryptionKeyResponseProto{}, nil
}
