// Package statuses makes and decodes what a NameNode tells of files and directories
// (hdfs.proto, HdfsFileStatusProto) with one allocation for each, where protobuf's own
// decoder needs one for each field. The messages are those of hdfspb.
package statuses

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// A Status is a message with the memory of its fields. It must not be copied.
type Status struct {
	Proto hdfspb.HdfsFileStatusProto

	permission                                    hdfspb.FsPermissionProto
	fileType                                      hdfspb.HdfsFileStatusProto_FileType
	length, modified, accessed, blockSize, fileID uint64
	mode, replication, policy, flags              uint32
	children                                      int32
	owner, group                                  string
	set                                           bool // by Set
}

// Values are the fields that every status has.
type Values struct {
	Type               hdfspb.HdfsFileStatusProto_FileType
	Path               []byte // the message refers to it
	Length             uint64 // bytes
	Mode               uint32 // nine bits and the sticky bit
	Owner, Group       string
	Modified, Accessed uint64 // milliseconds since 1970
	Replication        uint32
	BlockSize          uint64 // bytes
	ID                 uint64
	Children           int32
}

// Set makes the message one with these fields.
func (s *Status) Set(v *Values) {
	s.fileType, s.length, s.mode, s.owner, s.group = v.Type, v.Length, v.Mode, v.Owner, v.Group
	s.modified, s.accessed, s.replication, s.blockSize, s.fileID, s.children = v.Modified, v.Accessed, v.Replication, v.BlockSize, v.ID, v.Children
	s.permission.Perm, s.set = &s.mode, true
	p := &s.Proto
	p.FileType, p.Path, p.Length, p.Permission, p.Owner, p.Group = &s.fileType, v.Path, &s.length, &s.permission, &s.owner, &s.group
	p.ModificationTime, p.AccessTime, p.BlockReplication, p.Blocksize = &s.modified, &s.accessed, &s.replication, &s.blockSize
	p.FileId, p.ChildrenNum = &s.fileID, &s.children
}

// SetPolicy adds the number of a storage policy.
func (s *Status) SetPolicy(policy uint32) {
	s.policy = policy
	s.Proto.StoragePolicy = &s.policy
}

// SetFlags adds flags.
func (s *Status) SetFlags(flags hdfspb.HdfsFileStatusProto_Flags) {
	s.flags = uint32(flags)
	s.Proto.Flags = &s.flags
}

// A decoder decodes statuses that follow each other.
type decoder struct {
	paths        []byte // memory for paths, as long as there is some
	owner, group string // of the status before, most often those of the next
}

// decode decodes b into s, which is new. What is not simple is left to protobuf's decoder:
// fields that the memory has no room for, or of another type, or that come twice.
func (d *decoder) decode(b []byte, s *Status) error {
	if d.simple(b, s) && s.complete() {
		return nil
	}
	s.Proto.Reset()
	return proto.Unmarshal(b, &s.Proto)
}

// complete tells whether all required fields are there.
func (s *Status) complete() bool {
	p := &s.Proto
	return p.FileType != nil && p.Path != nil && p.Length != nil && p.Permission != nil && p.Owner != nil && p.Group != nil &&
		p.ModificationTime != nil && p.AccessTime != nil
}

// simple decodes b if it is simple.
func (d *decoder) simple(b []byte, s *Status) bool {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		var ok bool
		switch kind {
		case protowire.VarintType:
			var v uint64
			if v, n = protowire.ConsumeVarint(b); n >= 0 {
				ok = s.number(number, v)
			}
		case protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				ok = d.bytes(number, v, s)
			}
		}
		if !ok {
			return false
		}
		b = b[n:]
	}
	return true
}

// place has a field refer to its memory. It reports false if it does already.
func place[T any](field **T, memory *T, v T) bool {
	if *field != nil {
		return false
	}
	*field, *memory = memory, v
	return true
}

func (s *Status) number(number protowire.Number, v uint64) bool {
	p := &s.Proto
	switch number {
	case 1:
		t := hdfspb.HdfsFileStatusProto_FileType(v)
		return uint64(t) == v && hdfspb.HdfsFileStatusProto_IS_DIR <= t && t <= hdfspb.HdfsFileStatusProto_IS_SYMLINK && place(&p.FileType, &s.fileType, t)
	case 3:
		return place(&p.Length, &s.length, v)
	case 7:
		return place(&p.ModificationTime, &s.modified, v)
	case 8:
		return place(&p.AccessTime, &s.accessed, v)
	case 10:
		return place(&p.BlockReplication, &s.replication, uint32(v))
	case 11:
		return place(&p.Blocksize, &s.blockSize, v)
	case 13:
		return place(&p.FileId, &s.fileID, v)
	case 14:
		return place(&p.ChildrenNum, &s.children, int32(v))
	case 16:
		return place(&p.StoragePolicy, &s.policy, uint32(v))
	case 18:
		return place(&p.Flags, &s.flags, uint32(v))
	}
	return false
}

func (d *decoder) bytes(number protowire.Number, v []byte, s *Status) bool {
	p := &s.Proto
	switch number {
	case 2:
		if p.Path != nil {
			return false
		}
		p.Path = d.path(v)
		return true
	case 4:
		inner, kind, n := protowire.ConsumeTag(v)
		if n < 0 || inner != 1 || kind != protowire.VarintType {
			return false
		}
		mode, m := protowire.ConsumeVarint(v[n:])
		if m < 0 || n+m != len(v) || !place(&s.permission.Perm, &s.mode, uint32(mode)) {
			return false
		}
		p.Permission = &s.permission
		return true
	case 5:
		return place(&p.Owner, &s.owner, same(&d.owner, v))
	case 6:
		return place(&p.Group, &s.group, same(&d.group, v))
	}
	return false
}

// same is v as a string, the one before if that is equal.
func same(before *string, v []byte) string {
	if string(v) != *before {
		*before = string(v)
	}
	return *before
}

// path copies a path. The copy is not nil.
func (d *decoder) path(v []byte) []byte {
	if len(v) == 0 {
		return []byte{}
	}
	if len(v) > len(d.paths) {
		return append([]byte(nil), v...)
	}
	p := d.paths[:len(v):len(v)]
	d.paths = d.paths[len(v):]
	copy(p, v)
	return p
}
