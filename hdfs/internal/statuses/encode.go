package statuses

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// SizeRPC returns the encoded size in bytes.
func (r *FileInfo) SizeRPC() int {
	if !r.plain() {
		return proto.Size(&r.GetFileInfoResponseProto)
	}
	r.size = r.Status.size()
	return protowire.SizeTag(1) + protowire.SizeBytes(r.size)
}

// AppendRPC appends what protobuf's encoder would. SizeRPC was called before, and
// nothing has changed since.
func (r *FileInfo) AppendRPC(b []byte) ([]byte, error) {
	if !r.plain() {
		return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, &r.GetFileInfoResponseProto)
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.BytesType), uint64(r.size))
	return r.Status.append(b), nil
}

// plain tells whether the fields of the status are those that Set and what is beside it make.
func (r *FileInfo) plain() bool {
	p := &r.Status.Proto
	return r.Fs == p && r.Status.set && p.Symlink == nil && p.Locations == nil && p.FileEncryptionInfo == nil && p.EcPolicy == nil
}

// sizeNumber and sizeText return the size of a field with a number below 16.
func sizeNumber(v uint64) int { return 1 + protowire.SizeVarint(v) }

func sizeText(n int) int { return 1 + protowire.SizeBytes(n) }

func (s *Status) size() int {
	p := &s.Proto
	n := sizeNumber(uint64(*p.FileType)) + sizeText(len(p.Path)) + sizeNumber(*p.Length) + sizeText(sizeNumber(uint64(*p.Permission.Perm))) +
		sizeText(len(*p.Owner)) + sizeText(len(*p.Group)) + sizeNumber(*p.ModificationTime) + sizeNumber(*p.AccessTime) +
		sizeNumber(uint64(*p.BlockReplication)) + sizeNumber(*p.Blocksize) + sizeNumber(*p.FileId) + sizeNumber(uint64(int64(*p.ChildrenNum)))
	if p.StoragePolicy != nil {
		n += 1 + sizeNumber(uint64(*p.StoragePolicy))
	}
	if p.Flags != nil {
		n += 1 + sizeNumber(uint64(*p.Flags))
	}
	return n
}

func (s *Status) append(b []byte) []byte {
	number := func(field protowire.Number, v uint64) {
		b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
	}
	text := func(field protowire.Number, v string) {
		b = protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
	}
	p := &s.Proto
	number(1, uint64(*p.FileType))
	b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), p.Path)
	number(3, *p.Length)
	mode := uint64(*p.Permission.Perm)
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.BytesType), uint64(sizeNumber(mode)))
	number(1, mode)
	text(5, *p.Owner)
	text(6, *p.Group)
	number(7, *p.ModificationTime)
	number(8, *p.AccessTime)
	number(10, uint64(*p.BlockReplication))
	number(11, *p.Blocksize)
	number(13, *p.FileId)
	number(14, uint64(int64(*p.ChildrenNum)))
	if p.StoragePolicy != nil {
		number(16, uint64(*p.StoragePolicy))
	}
	if p.Flags != nil {
		number(18, uint64(*p.Flags))
	}
	return b
}
