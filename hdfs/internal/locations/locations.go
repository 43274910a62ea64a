// Package locations decodes what a NameNode tells of a file's blocks (hdfs.proto,
// LocatedBlocksProto) with one allocation for each DataNode and for sixteen blocks, where protobuf's
// own decoder needs one for each field. The messages are those of hdfspb.
package locations

import (
	"bytes"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Blocks is the answer to getBlockLocations. What is told in the same words of a DataNode of
// several blocks is one message, and so is the last block if it is among the others: messages
// are not to be changed. Strings share memory. It must not be copied.
type Blocks struct {
	hdfspb.GetBlockLocationsResponseProto

	locations      hdfspb.LocatedBlocksProto
	length         uint64
	open, complete bool

	// Of a file with one block.
	list  [1]*hdfspb.LocatedBlockProto
	first block
}

// Reset makes it empty.
func (r *Blocks) Reset() { *r = Blocks{} }

// UnmarshalRPC decodes b, to which nothing refers afterwards.
func (r *Blocks) UnmarshalRPC(b []byte) error {
	r.Reset()
	d := decoder{text: string(b), bytes: bytes.Clone(b)}
	if d.answer(r) {
		return nil
	}
	r.Reset()
	return proto.Unmarshal(b, &r.GetBlockLocationsResponseProto)
}

// usual is how many replicas a block has memory for.
const usual = 3

// A block is a message with the memory of its fields.
type block struct {
	proto hdfspb.LocatedBlockProto

	extended                       hdfspb.ExtendedBlockProto
	token                          hdfspb.TokenProto
	pool, kind, service            string
	id, generation, length, offset uint64
	corrupt                        bool

	nodes  [usual]*hdfspb.DatanodeInfoProto
	cached [usual]bool
	types  [usual]hdfspb.StorageTypeProto
	ids    [usual]string
}

// A node is a message with the memory of its fields.
type node struct {
	proto hdfspb.DatanodeInfoProto

	id                                        hdfspb.DatanodeIDProto
	ip, name, uuid, rack, domain              string
	port, infoPort, ipcPort, infoSecurePort   uint32
	transfers, blocks                         uint32
	capacity, used, remaining, poolUsed       uint64
	updated, others, cacheCapacity, cacheUsed uint64
	updatedClock, report, reportClock         uint64
	state                                     hdfspb.DatanodeInfoProto_AdminState
}
