package shortcircuit

import (
	"fmt"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// The layout of a segment, in bytes.
const (
	SegmentSize = 8 << 10
	SlotSize    = 64
	// SegmentSlots is how many slots a DataNode's segment has.
	SegmentSlots = SegmentSize / SlotSize
)

const slotValid = uint64(1) << 63

// Versions of the second file that a client says it takes at most, and a DataNode says it
// gives.
const (
	// VersionHDFS is HDFS's meta file.
	VersionHDFS = 1
	// VersionOwn is a file that the response describes ([hdfspb.LocalReplicaProto]). The
	// number is far above what Hadoop counts.
	VersionOwn = 0x56420001
)

// ID names a segment. It is random, so that nobody can name another process's.
type ID struct{ Hi, Lo int64 }

func (id ID) String() string { return fmt.Sprintf("%016x%016x", uint64(id.Hi), uint64(id.Lo)) }

// Proto is the id as the protocol has it.
func (id ID) Proto() *hdfspb.ShortCircuitShmIdProto {
	return &hdfspb.ShortCircuitShmIdProto{Hi: &id.Hi, Lo: &id.Lo}
}

// IDOf reads an id.
func IDOf(p *hdfspb.ShortCircuitShmIdProto) ID { return ID{p.GetHi(), p.GetLo()} }

// SlotID names a slot.
type SlotID struct {
	Segment ID
	Index   int
}

func (s SlotID) String() string { return fmt.Sprintf("slot %d of segment %v", s.Index, s.Segment) }

// Proto is the name as the protocol has it.
func (s SlotID) Proto() *hdfspb.ShortCircuitShmSlotProto {
	index := int32(s.Index)
	return &hdfspb.ShortCircuitShmSlotProto{ShmId: s.Segment.Proto(), SlotIdx: &index}
}

// SlotIDOf reads a name.
func SlotIDOf(p *hdfspb.ShortCircuitShmSlotProto) SlotID {
	return SlotID{IDOf(p.GetShmId()), int(p.GetSlotIdx())}
}
