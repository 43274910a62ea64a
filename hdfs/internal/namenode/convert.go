package namenode

import (
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

// statusPB names the file; the name is empty where the client knows it.
func statusPB(s namespace.Status, name string) *hdfspb.HdfsFileStatusProto {
	fs := &hdfspb.HdfsFileStatusProto{
		FileType:         hdfspb.HdfsFileStatusProto_IS_FILE.Enum(),
		Path:             []byte(name),
		Length:           proto.Uint64(s.Length),
		Permission:       &hdfspb.FsPermissionProto{Perm: proto.Uint32(uint32(s.Mode))},
		Owner:            proto.String(s.Owner),
		Group:            proto.String(s.Group),
		ModificationTime: proto.Uint64(uint64(s.ModTime)),
		AccessTime:       proto.Uint64(uint64(s.AccessTime)),
		BlockReplication: proto.Uint32(uint32(s.Replication)),
		Blocksize:        proto.Uint64(s.BlockSize),
		FileId:           proto.Uint64(s.ID),
		ChildrenNum:      proto.Int32(int32(s.Children)),
	}
	if s.Directory {
		fs.FileType = hdfspb.HdfsFileStatusProto_IS_DIR.Enum()
	}
	if s.Policy != storagepolicy.Unspecified {
		fs.StoragePolicy = proto.Uint32(uint32(s.Policy))
	}
	if s.ACL {
		fs.Flags = proto.Uint32(uint32(hdfspb.HdfsFileStatusProto_HAS_ACL))
	}
	return fs
}

// locatedPB needs m.mu held.
func (m *blockMap) locatedPB(b namespace.Block, offset uint64, l located) *hdfspb.LocatedBlockProto {
	lb := &hdfspb.LocatedBlockProto{
		B:          m.extendedPB(b.ID, b.Generation, b.Length),
		Offset:     proto.Uint64(offset),
		Corrupt:    proto.Bool(l.corrupt),
		BlockToken: &hdfspb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: proto.String(""), Service: proto.String("")},
	}
	for _, n := range l.nodes {
		lb.Locs = append(lb.Locs, m.infoPB(n))
		lb.IsCached = append(lb.IsCached, false)
		lb.StorageTypes = append(lb.StorageTypes, hdfspb.StorageTypeProto_DISK)
		lb.StorageIDs = append(lb.StorageIDs, storageID(n))
	}
	return lb
}

// storageID names what a DataNode keeps replicas in.
func storageID(n *node) string { return "DS-" + n.dn.UUID }

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

func (m *blockMap) extendedPB(id, generation, length uint64) *hdfspb.ExtendedBlockProto {
	return &hdfspb.ExtendedBlockProto{PoolId: proto.String(m.poolID), BlockId: proto.Uint64(id), GenerationStamp: proto.Uint64(generation), NumBytes: proto.Uint64(length)}
}

func extended(b *hdfspb.ExtendedBlockProto) *nspb.Block {
	if b == nil {
		return nil
	}
	return &nspb.Block{Id: b.BlockId, Generation: b.GenerationStamp, Length: proto.Uint64(b.GetNumBytes())}
}

func (m *blockMap) infoPB(n *node) *hdfspb.DatanodeInfoProto {
	now := m.cfg.now()
	seen := now.Sub(n.lastSeen)
	if n.lastSeen.IsZero() {
		seen = now.Sub(m.started)
	}
	info := &hdfspb.DatanodeInfoProto{
		Id: &hdfspb.DatanodeIDProto{
			IpAddr:       proto.String(n.dn.Host),
			HostName:     proto.String(n.dn.Hostname),
			DatanodeUuid: proto.String(n.dn.UUID),
			XferPort:     proto.Uint32(n.dn.Port),
			InfoPort:     proto.Uint32(0),
			IpcPort:      proto.Uint32(n.dn.Port),
		},
		Capacity:      proto.Uint64(n.capacity),
		DfsUsed:       proto.Uint64(n.used),
		Remaining:     proto.Uint64(n.remaining),
		BlockPoolUsed: proto.Uint64(n.used),
		LastUpdate:    proto.Uint64(uint64(now.Add(-seen).UnixMilli())),
		XceiverCount:  proto.Uint32(n.transfers),
		Location:      proto.String(n.rack),
		NonDfsUsed:    proto.Uint64(n.capacity - min(n.capacity, n.used+n.remaining)),
		AdminState:    n.service.Enum(),
		NumBlocks:     proto.Uint32(uint32(n.replicas)),
	}
	if !n.lastReport.IsZero() { // the dfsadmin command says "Never" of 0
		info.LastBlockReportTime = proto.Uint64(uint64(n.lastReport.UnixMilli()))
	}
	return info
}

func blockPB(id, generation, length uint64) *clusterpb.Block {
	return &clusterpb.Block{Id: proto.Uint64(id), Generation: proto.Uint64(generation), Length: proto.Uint64(length)}
}

func datanodePB(dn namespace.Datanode) *clusterpb.Datanode {
	return &clusterpb.Datanode{Uuid: proto.String(dn.UUID), Host: proto.String(dn.Host), Port: proto.Uint32(dn.Port), Hostname: proto.String(dn.Hostname)}
}
