package hdfs

import (
	"io/fs"
	"path"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// FileInfo is what the NameNode tells of a file or directory. It is an [fs.FileInfo] and
// does not change.
type FileInfo struct {
	name string
	s    *hdfspb.HdfsFileStatusProto
}

func newInfo(name string, s *hdfspb.HdfsFileStatusProto) FileInfo {
	return FileInfo{path.Base(name), s}
}

// Name is the last part of the path.
func (i *FileInfo) Name() string { return i.name }

// Size is the length in bytes: of a file that is being written, without its last block.
func (i *FileInfo) Size() int64 { return int64(i.s.GetLength()) }

// Mode has the permissions, the sticky bit and what it is.
func (i *FileInfo) Mode() fs.FileMode {
	m := modeOf(i.s.GetPermission().GetPerm())
	switch i.s.GetFileType() {
	case hdfspb.HdfsFileStatusProto_IS_DIR:
		m |= fs.ModeDir
	case hdfspb.HdfsFileStatusProto_IS_SYMLINK:
		m |= fs.ModeSymlink
	}
	return m
}

const sticky = 0o1000

func modeOf(bits uint32) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	if bits&sticky != 0 {
		m |= fs.ModeSticky
	}
	return m
}

// bitsOf is a mode as HDFS has it: nine bits and the sticky bit.
func bitsOf(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	if m&fs.ModeSticky != 0 {
		bits |= sticky
	}
	return bits
}

// ModTime is when the content changed last, to the millisecond.
func (i *FileInfo) ModTime() time.Time { return time.UnixMilli(int64(i.s.GetModificationTime())) }

// AccessTime is when a file was read last, as exactly as the NameNode keeps it (an hour).
func (i *FileInfo) AccessTime() time.Time { return time.UnixMilli(int64(i.s.GetAccessTime())) }

// IsDir tells whether it is a directory.
func (i *FileInfo) IsDir() bool { return i.s.GetFileType() == hdfspb.HdfsFileStatusProto_IS_DIR }

// Sys is nil.
func (i *FileInfo) Sys() any { return nil }

// Owner is the user that owns it.
func (i *FileInfo) Owner() string { return i.s.GetOwner() }

// Group is the group that owns it.
func (i *FileInfo) Group() string { return i.s.GetGroup() }

// Replication is how many replicas blocks are to have; 0 for a directory.
func (i *FileInfo) Replication() int { return int(i.s.GetBlockReplication()) }

// BlockSize is the size of blocks but the last, in bytes; 0 for a directory.
func (i *FileInfo) BlockSize() int64 { return int64(i.s.GetBlocksize()) }

// ID is the number of the inode.
func (i *FileInfo) ID() uint64 { return i.s.GetFileId() }

// Children is how many entries a directory has, -1 if the NameNode does not tell.
func (i *FileInfo) Children() int { return int(i.s.GetChildrenNum()) }

// HasACL tells whether there is more to its permissions than the mode.
func (i *FileInfo) HasACL() bool {
	return i.s.GetFlags()&uint32(hdfspb.HdfsFileStatusProto_HAS_ACL) != 0 || i.s.GetPermission().GetPerm()&(1<<12) != 0
}

// ErasureCodingPolicy is the name of the policy by which blocks are coded, or empty.
func (i *FileInfo) ErasureCodingPolicy() string { return i.s.GetEcPolicy().GetName() }

// Link is what a symbolic link points to.
func (i *FileInfo) Link() string { return string(i.s.GetSymlink()) }

// Summary counts what is in a directory, or a file alone.
type Summary struct {
	Length, Files, Directories int64 // bytes; counts, with the directory itself
	Space                      int64 // bytes with all replicas
	// Quota is how many files and directories may be there, SpaceQuota how many bytes
	// with all replicas; -1 for any number.
	Quota, SpaceQuota   int64
	ErasureCodingPolicy string
	Types               []TypeQuota
	// Of all these, what is in snapshots alone.
	SnapshotLength, SnapshotFiles, SnapshotDirectories, SnapshotSpace int64
}

// TypeQuota is a quota of one type of storage.
type TypeQuota struct {
	Type            string // SSD, DISK, ARCHIVE ...
	Quota, Consumed int64  // bytes; -1 for any number
}

func typeQuotas(p *hdfspb.StorageTypeQuotaInfosProto) []TypeQuota {
	var out []TypeQuota
	for _, q := range p.GetTypeQuotaInfo() {
		out = append(out, TypeQuota{q.GetType().String(), int64(q.GetQuota()), int64(q.GetConsumed())})
	}
	return out
}

// Status is the capacity of the file system, in bytes, and the health of its blocks.
type Status struct {
	Capacity, Used, Remaining       int64
	UnderReplicated, Corrupt, Gone  int64 // blocks; those gone have no replica left
	GoneWithOneReplica, ToBeDeleted int64
}

// DataNodeInfo is what the NameNode tells of a DataNode.
type DataNodeInfo struct {
	UUID, Address, HostName, Rack string // Address is host:port of transfers
	State                         string // NORMAL, DECOMMISSIONED ...
	Capacity, Used, Remaining     int64  // bytes
	LastContact                   time.Time
}

func dataNodeInfo(d *hdfspb.DatanodeInfoProto) DataNodeInfo {
	return DataNodeInfo{
		UUID: d.GetId().GetDatanodeUuid(), Address: joinPort(d.GetId().GetIpAddr(), d.GetId().GetXferPort()), HostName: d.GetId().GetHostName(),
		Rack: d.GetLocation(), State: d.GetAdminState().String(),
		Capacity: int64(d.GetCapacity()), Used: int64(d.GetDfsUsed()), Remaining: int64(d.GetRemaining()), LastContact: time.UnixMilli(int64(d.GetLastUpdate())),
	}
}

// BlockLocation tells where a block of a file is.
type BlockLocation struct {
	ID             uint64
	Generation     uint64
	Offset, Length int64 // in the file, bytes
	Corrupt        bool  // all replicas are
	DataNodes      []DataNodeInfo
}

var _ fs.FileInfo = (*FileInfo)(nil)
