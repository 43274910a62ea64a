package namenode

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
	"github.com/verbena-data/verbena/hdfs/internal/statuses"
)

// statusPB fills memory that is new. It names the file; the name is empty where the client
// knows it.
func statusPB(memory *statuses.Status, s *namespace.Status, name []byte) *hdfspb.HdfsFileStatusProto {
	kind := hdfspb.HdfsFileStatusProto_IS_FILE
	if s.Directory {
		kind = hdfspb.HdfsFileStatusProto_IS_DIR
	}
	memory.Set(&statuses.Values{
		Type: kind, Path: name, Length: s.Length, Mode: uint32(s.Mode), Owner: s.Owner, Group: s.Group,
		Modified: uint64(s.ModTime), Accessed: uint64(s.AccessTime), Replication: uint32(s.Replication), BlockSize: s.BlockSize,
		ID: s.ID, Children: int32(s.Children),
	})
	if s.Policy != storagepolicy.Unspecified {
		memory.SetPolicy(uint32(s.Policy))
	}
	if s.ACL {
		memory.SetFlags(hdfspb.HdfsFileStatusProto_HAS_ACL)
	}
	return &memory.Proto
}

// noName is the name in a status of what the client has named itself.
var noName = []byte{}

// namelessPB is statusPB with memory of its own.
func namelessPB(s *namespace.Status) *hdfspb.HdfsFileStatusProto {
	return statusPB(new(statuses.Status), s, noName)
}

// usual is how many replicas a block's location has memory for.
const usual = 3

// blockMemory is a block's location with the memory of its fields.
type blockMemory struct {
	located                        hdfspb.LocatedBlockProto
	extended                       hdfspb.ExtendedBlockProto
	token                          hdfspb.TokenProto
	id, generation, length, offset uint64
	corrupt                        bool
	tokenKind, tokenService        string

	nodes  [usual]*hdfspb.DatanodeInfoProto
	cached [usual]bool
	types  [usual]hdfspb.StorageTypeProto
	ids    [usual]string
}

// locatedPB needs m.mu held.
func (m *blockMap) locatedPB(b namespace.Block, offset uint64, l located) *hdfspb.LocatedBlockProto {
	x := &blockMemory{id: b.ID, generation: b.Generation, length: b.Length, offset: offset, corrupt: l.corrupt}
	x.extended.PoolId, x.extended.BlockId, x.extended.GenerationStamp, x.extended.NumBytes = &m.poolID, &x.id, &x.generation, &x.length
	x.token.Identifier, x.token.Password, x.token.Kind, x.token.Service = []byte{}, []byte{}, &x.tokenKind, &x.tokenService
	lb := &x.located
	lb.B, lb.Offset, lb.Corrupt, lb.BlockToken = &x.extended, &x.offset, &x.corrupt, &x.token
	if len(l.nodes) == 0 {
		return lb
	}
	infos := make([]infoMemory, len(l.nodes))
	lb.Locs, lb.IsCached, lb.StorageTypes, lb.StorageIDs = x.nodes[:], x.cached[:], x.types[:], x.ids[:]
	if n := len(l.nodes); n <= usual {
		lb.Locs, lb.IsCached, lb.StorageTypes, lb.StorageIDs = lb.Locs[:n], lb.IsCached[:n], lb.StorageTypes[:n], lb.StorageIDs[:n]
	} else {
		lb.Locs, lb.IsCached = make([]*hdfspb.DatanodeInfoProto, n), make([]bool, n)
		lb.StorageTypes, lb.StorageIDs = make([]hdfspb.StorageTypeProto, n), make([]string, n)
	}
	now := m.cfg.now()
	for i, n := range l.nodes {
		lb.Locs[i] = m.infoPB(&infos[i], n, now)
		index := uint8(unknownStorage)
		if r, ok := m.replicas.find(b.ID, n.index); ok {
			index = r.storage
		}
		lb.StorageIDs[i], lb.StorageTypes[i] = n.storages.named(index)
	}
	return lb
}

// pipelinePB is a block with the DataNodes of its pipeline, in order. Those that are away
// are among them: bytes that the others alone acknowledged would be lost with these, as
// the recovery goes by the word of any of the pipeline.
func (m *blockMap) pipelinePB(b namespace.Block, offset uint64) *hdfspb.LocatedBlockProto {
	var l located
	if b.Construction != nil {
		for _, uuid := range b.Construction.Targets {
			if n := m.nodes[uuid]; n != nil {
				l.nodes = append(l.nodes, n)
			}
		}
	}
	return m.locatedPB(b, offset, l)
}

func extended(b *hdfspb.ExtendedBlockProto) *nspb.Block {
	if b == nil {
		return nil
	}
	return &nspb.Block{Id: b.BlockId, Generation: b.GenerationStamp, Length: proto.Uint64(b.GetNumBytes())}
}

// infoMemory is what clients are told of a DataNode, with the memory of its fields.
type infoMemory struct {
	info                                                         hdfspb.DatanodeInfoProto
	id                                                           hdfspb.DatanodeIDProto
	ip, name, uuid, rack                                         string
	port, infoPort, transfers, replicas                          uint32
	capacity, used, poolUsed, remaining, others, updated, report uint64
	state                                                        hdfspb.DatanodeInfoProto_AdminState
}

// infoPB fills memory that is new, as things are now. It needs m.mu held.
func (m *blockMap) infoPB(x *infoMemory, n *node, now time.Time) *hdfspb.DatanodeInfoProto {
	seen := now.Sub(n.lastSeen)
	if n.lastSeen.IsZero() {
		seen = now.Sub(m.started)
	}
	x.ip, x.name, x.uuid, x.port, x.rack = n.dn.Host, n.dn.Hostname, n.dn.UUID, n.dn.Port, n.rack
	x.capacity, x.used, x.poolUsed, x.remaining = n.capacity, n.used, n.used, n.remaining
	x.others = n.capacity - min(n.capacity, n.used+n.remaining)
	x.updated, x.transfers, x.replicas, x.state = uint64(now.Add(-seen).UnixMilli()), n.transfers, uint32(n.replicas), n.service
	x.id.IpAddr, x.id.HostName, x.id.DatanodeUuid = &x.ip, &x.name, &x.uuid
	x.id.XferPort, x.id.InfoPort, x.id.IpcPort = &x.port, &x.infoPort, &x.port
	info := &x.info
	info.Id, info.Location, info.AdminState = &x.id, &x.rack, &x.state
	info.Capacity, info.DfsUsed, info.Remaining, info.BlockPoolUsed, info.NonDfsUsed = &x.capacity, &x.used, &x.remaining, &x.poolUsed, &x.others
	info.LastUpdate, info.XceiverCount, info.NumBlocks = &x.updated, &x.transfers, &x.replicas
	if !n.lastReport.IsZero() { // the dfsadmin command says "Never" of 0
		x.report = uint64(n.lastReport.UnixMilli())
		info.LastBlockReportTime = &x.report
	}
	return info
}

func blockPB(id, generation, length uint64) *clusterpb.Block {
	return &clusterpb.Block{Id: proto.Uint64(id), Generation: proto.Uint64(generation), Length: proto.Uint64(length)}
}

func datanodePB(dn namespace.Datanode) *clusterpb.Datanode {
	return &clusterpb.Datanode{Uuid: proto.String(dn.UUID), Host: proto.String(dn.Host), Port: proto.Uint32(dn.Port), Hostname: proto.String(dn.Hostname)}
}
