package locations

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// dataNode is what a NameNode of Hadoop tells of a DataNode.
func dataNode(i int) *hdfspb.DatanodeInfoProto {
	n := uint64(i)
	return &hdfspb.DatanodeInfoProto{
		Id: &hdfspb.DatanodeIDProto{
			IpAddr: proto.String(fmt.Sprintf("10.0.0.%d", i)), HostName: proto.String(fmt.Sprintf("host-%d", i)), DatanodeUuid: proto.String(fmt.Sprintf("uuid-%d", i)),
			XferPort: proto.Uint32(9866), InfoPort: proto.Uint32(9864), IpcPort: proto.Uint32(9867), InfoSecurePort: proto.Uint32(0),
		},
		Capacity: proto.Uint64(1 << 40), DfsUsed: proto.Uint64(n), Remaining: proto.Uint64(n + 1), BlockPoolUsed: proto.Uint64(n + 2), LastUpdate: proto.Uint64(1_700_000_000_000 + n),
		XceiverCount: proto.Uint32(3), Location: proto.String("/default-rack"), NonDfsUsed: proto.Uint64(n + 4), AdminState: hdfspb.DatanodeInfoProto_DECOMMISSIONED.Enum(),
		CacheCapacity: proto.Uint64(5), CacheUsed: proto.Uint64(6), LastUpdateMonotonic: proto.Uint64(7), UpgradeDomain: proto.String("domain"),
		LastBlockReportTime: proto.Uint64(8), LastBlockReportMonotonic: proto.Uint64(9), NumBlocks: proto.Uint32(10),
	}
}

// blockOn is block number i, with replicas on some DataNodes.
func blockOn(i int, nodes ...int) *hdfspb.LocatedBlockProto {
	n := uint64(i)
	b := &hdfspb.LocatedBlockProto{
		B:      &hdfspb.ExtendedBlockProto{PoolId: proto.String("BP-1"), BlockId: proto.Uint64(1<<30 + n), GenerationStamp: proto.Uint64(1001 + n), NumBytes: proto.Uint64(1 << 20)},
		Offset: proto.Uint64(n << 20), Corrupt: proto.Bool(i%2 == 1),
		BlockToken: &hdfspb.TokenProto{Identifier: []byte(fmt.Sprint("identifier", i)), Password: []byte("password"), Kind: proto.String("HDFS_BLOCK_TOKEN"), Service: proto.String("")},
	}
	for _, n := range nodes {
		b.Locs = append(b.Locs, dataNode(n))
		b.IsCached = append(b.IsCached, n%2 == 0)
		b.StorageTypes = append(b.StorageTypes, hdfspb.StorageTypeProto_SSD)
		b.StorageIDs = append(b.StorageIDs, fmt.Sprint("DS-", n))
	}
	return b
}

// file is a file of blocks, the last of them told twice.
func file(blocks ...*hdfspb.LocatedBlockProto) *hdfspb.GetBlockLocationsResponseProto {
	out := &hdfspb.LocatedBlocksProto{FileLength: proto.Uint64(uint64(len(blocks)) << 20), UnderConstruction: proto.Bool(false), IsLastBlockComplete: proto.Bool(true), Blocks: blocks}
	if n := len(blocks); n > 0 {
		out.LastBlock = blocks[n-1]
	}
	return &hdfspb.GetBlockLocationsResponseProto{Locations: out}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{AllowPartial: true, Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func many(n int) *hdfspb.GetBlockLocationsResponseProto {
	var blocks []*hdfspb.LocatedBlockProto
	for i := range n {
		blocks = append(blocks, blockOn(i, i%20, (i+1)%20, (i+2)%20))
	}
	return file(blocks...)
}

func seeds(t testing.TB) [][]byte {
	changed := func(change func(r *hdfspb.LocatedBlocksProto)) []byte {
		r := file(blockOn(0, 1, 2), blockOn(1, 2, 3))
		r.Locations.LastBlock = blockOn(1, 2, 3)
		change(r.Locations)
		return encode(t, r)
	}
	out := [][]byte{
		nil, encode(t, file()), encode(t, file(blockOn(0))), encode(t, file(blockOn(0, 1))), encode(t, file(blockOn(0, 1, 2, 3, 4, 5))),
		encode(t, many(2)), encode(t, many(together)), encode(t, many(together+1)), encode(t, many(3*together+2)),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.LastBlock.Offset = proto.Uint64(9) }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.LastBlock = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.UnderConstruction = proto.Bool(true) }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.FileLength = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.UnderConstruction = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.IsLastBlockComplete = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.EcPolicy = &hdfspb.ErasureCodingPolicyProto{Id: proto.Uint32(1)} }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[0].B = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[0].B.PoolId = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[0].B.NumBytes = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[0].BlockToken.Identifier = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[0].BlockToken = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[0].Corrupt = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[0].BlockIndices = []byte{1} }),
		changed(func(r *hdfspb.LocatedBlocksProto) {
			r.Blocks[0].BlockTokens = []*hdfspb.TokenProto{r.Blocks[0].BlockToken}
		}),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[0].StorageTypes[0] = 77 }),
		changed(func(r *hdfspb.LocatedBlocksProto) {
			r.Blocks[0].Locs[0].AdminState = hdfspb.DatanodeInfoProto_AdminState(77).Enum()
		}),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[0].Locs[0].Id = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[0].Locs[0].Id.IpcPort = nil }),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[1].Locs[0].Remaining = proto.Uint64(99) }), // the one before has another
		changed(func(r *hdfspb.LocatedBlocksProto) {
			r.Blocks[1].Locs[0] = &hdfspb.DatanodeInfoProto{Id: dataNode(2).Id}
		}),
		changed(func(r *hdfspb.LocatedBlocksProto) { r.Blocks[1].B.ProtoReflect().SetUnknown([]byte{0x48, 1}) }),
	}
	one := encode(t, file(blockOn(0, 1)))
	body, _ := protowire.ConsumeBytes(one[1:])
	wrap := func(b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
	}
	return append(out, one[:len(one)-1], append(bytes.Clone(one), one...), wrap(append(bytes.Clone(body), body...)), wrap(append(bytes.Clone(body), 0x50, 1)), []byte{0x08, 1})
}

// compare compares an answer that has decoded itself with protobuf's decoder.
func compare(t *testing.T, b []byte) {
	t.Helper()
	var got Blocks
	var want hdfspb.GetBlockLocationsResponseProto
	in := bytes.Clone(b)
	failed, wanted := got.UnmarshalRPC(in), proto.Unmarshal(b, &want)
	if (failed == nil) != (wanted == nil) {
		t.Fatalf("%x: %v, protobuf says %v", b, failed, wanted)
	}
	clear(in) // the memory was lent
	if failed == nil && !proto.Equal(&got.GetBlockLocationsResponseProto, &want) {
		t.Fatalf("%x:\n%v, protobuf says\n%v", b, &got.GetBlockLocationsResponseProto, &want)
	}
}

// What is decoded is what protobuf's decoder makes of it.
func TestDecode(t *testing.T) {
	for _, b := range seeds(t) {
		compare(t, b)
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
	}
	f.Fuzz(compare)
}

// Who appends to what a message has does not change what is next to it.
func TestMessagesDoNotShareRoom(t *testing.T) {
	var r Blocks
	if err := r.UnmarshalRPC(encode(t, many(2))); err != nil {
		t.Fatal(err)
	}
	for _, b := range r.Locations.Blocks {
		_ = append(b.BlockToken.Identifier, "much more than it has"...)
		_ = append(b.Locs, nil)
		_ = append(b.StorageIDs, "x")
	}
	if !proto.Equal(&r.GetBlockLocationsResponseProto, many(2)) {
		t.Error("a message has changed another one")
	}
}

// A block takes an allocation or two, however often a DataNode and the last block are told of.
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		blocks int
		most   float64
	}{{1, 5}, {2, 8}, {10 * together, 200}} {
		answer := many(c.blocks)
		for i, b := range answer.Locations.Blocks { // of three DataNodes
			b.Locs = slices.Clone(answer.Locations.Blocks[0].Locs)
			if i%2 == 1 {
				slices.Reverse(b.Locs)
			}
		}
		b := encode(t, answer)
		var r Blocks
		n := testing.AllocsPerRun(100, func() {
			if err := r.UnmarshalRPC(b); err != nil {
				t.Fatal(err)
			}
		})
		if n > c.most {
			t.Errorf("%v allocations for %d blocks, want %v at most", n, c.blocks, c.most)
		}
		t.Logf("%v allocations for %d blocks", n, c.blocks)
	}
}
