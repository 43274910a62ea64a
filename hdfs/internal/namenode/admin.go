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
		CorruptBlocks:         proto.Uint64(uint64(m.corrupt.len())),
		MissingBlocks:         proto.Uint64(uint64(m.missing.len())),
		PendingDeletionBlocks: &deletions,
	}, nil
}

// lacking is how many blocks have fewer replicas than wanted.
func (m *blockMap) lacking() int {
	under := len(m.copying) + m.waits.len() + m.needed.len()
	for id := range m.copying {
		if m.needed.has(id) {
			under--
		}
	}
	return under
}

func (nn *NameNode) getFsReplicatedBlockStats(context.Context, *hdfspb.GetFsReplicatedBlockStatsRequestProto) (*hdfspb.GetFsReplicatedBlockStatsResponseProto, error) {
	var lostOnly int
	out := &hdfspb.GetFsReplicatedBlockStatsResponseProto{BlocksInFuture: proto.Uint64(0)}
	nn.read(func(ns *namespace.Namespace) {
		m := nn.blocks
		m.mu.Lock()
		defer m.mu.Unlock()
		var deletions int
		for _, n := range m.nodes {
			deletions += len(n.deletions)
		}
		for id := range m.missing.all() {
			if b, ok := ns.Block(id); ok && b.Replication == 1 {
				lostOnly++
			}
		}
		out.LowRedundancy = proto.Uint64(uint64(m.lacking()))
		out.CorruptBlocks = proto.Uint64(uint64(m.corrupt.len()))
		out.MissingBlocks = proto.Uint64(uint64(m.missing.len()))
		out.MissingReplOneBlocks = proto.Uint64(uint64(lostOnly))
		out.PendingDeletionBlocks = proto.Uint64(uint64(deletions))
		out.HighestPrioLowRedundancyBlocks = proto.Uint64(uint64(m.needed.sets[oneLeft].len()))
		out.BadlyDistributedBlocks = proto.Uint64(uint64(m.needed.sets[oneRack].len()))
	})
	return out, nil
}

// getFsECBlockGroupStats has nothing to tell: there is no erasure coding.
func (nn *NameNode) getFsECBlockGroupStats(context.Context, *hdfspb.GetFsECBlockGroupStatsRequestProto) (*hdfspb.GetFsECBlockGroupStatsResponseProto, error) {
	zero := proto.Uint64(0)
	return &hdfspb.GetFsECBlockGroupStatsResponseProto{
		LowRedundancy: zero, CorruptBlocks: zero, MissingBlocks: zero, BlocksInFuture: zero, PendingDeletionBlocks: zero, HighestPrioLowRedundancyBlocks: zero,
	}, nil
}

// getSlowDatanodeReport names none: as in HDFS, where dfs.datanode.peer.stats.enabled is
// false unless it is set.
func (nn *NameNode) getSlowDatanodeReport(context.Context, *hdfspb.GetSlowDatanodeReportRequestProto) (*hdfspb.GetSlowDatanodeReportResponseProto, error) {
	return &hdfspb.GetSlowDatanodeReportResponseProto{}, nil
}

// getDatanodeStorageReport tells of each DataNode's storages, with those that have failed.
func (nn *NameNode) getDatanodeStorageReport(ctx context.Context, req *hdfspb.GetDatanodeStorageReportRequestProto) (*hdfspb.GetDatanodeStorageReportResponseProto, error) {
	if err := nn.superuser(ctx, "getDatanodeStorageReport"); err != nil {
		return nil, err
	}
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &hdfspb.GetDatanodeStorageReportResponseProto{}
	m.eachNode(req.GetType(), func(n *node) {
		report := &hdfspb.DatanodeStorageReportProto{DatanodeInfo: m.infoPB(new(infoMemory), n, m.cfg.now())}
		n.storages.here(func(s *storage) {
			report.StorageReports = append(report.StorageReports, &hdfspb.StorageReportProto{
				StorageUuid: proto.String(s.id), Storage: &hdfspb.DatanodeStorageProto{StorageUuid: proto.String(s.id), StorageType: s.kind.Enum()}, Failed: proto.Bool(s.failed),
				Capacity: proto.Uint64(s.capacity), DfsUsed: proto.Uint64(s.used), Remaining: proto.Uint64(s.remaining), BlockPoolUsed: proto.Uint64(s.used),
				NonDfsUsed: proto.Uint64(s.capacity - min(s.capacity, s.used+s.remaining)),
			})
		})
		out.DatanodeStorageReports = append(out.DatanodeStorageReports, report)
	})
	return out, nil
}

func (nn *NameNode) getDatanodeReport(_ context.Context, req *hdfspb.GetDatanodeReportRequestProto) (*hdfspb.GetDatanodeReportResponseProto, error) {
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &hdfspb.GetDatanodeReportResponseProto{}
	m.eachNode(req.GetType(), func(n *node) { out.Di = append(out.Di, m.infoPB(new(infoMemory), n, m.cfg.now())) })
	return out, nil
}

// eachNode calls f for all DataNodes of a kind; m.mu is held.
func (m *blockMap) eachNode(kind hdfspb.DatanodeReportTypeProto, f func(*node)) {
	for _, n := range m.byIndex {
		if m.nodes[n.dn.UUID] != n {
			continue
		}
		switch kind {
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
		f(n)
	}
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
