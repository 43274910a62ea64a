package datanode

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// lengths are those of the packets in which a DataNode sends a block; the block is want.
func lengths(t *testing.T, n *node, id uint64, want []byte) (list []int) {
	t.Helper()
	c := dialNode(t, n)
	defer c.nc.Close()
	must(t, transfer.WriteRequest(c.nc, transfer.OpReadBlock, &hdfspb.OpReadBlockProto{
		Header: &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(id, 1001, 0), Token: c.token}, ClientName: proto.String("test")},
		Offset: proto.Uint64(0), Len: proto.Uint64(uint64(len(want))),
	}))
	must(t, c.r.ReadMessage(&hdfspb.BlockOpResponseProto{}))
	var got []byte
	for p := (transfer.Packet{}); !p.Last; {
		must(t, c.r.ReadPacket(transfer.CRC32C(), &p))
		must(t, transfer.CRC32C().Verify(p.Sums, p.Data))
		got, list = append(got, p.Data...), append(list, len(p.Data))
	}
	must(t, transfer.WriteMessage(c.nc, &hdfspb.ClientReadStatusProto{Status: hdfspb.Status_CHECKSUM_OK.Enum()}))
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes came, which are not those of the block, of %d", len(got), len(want))
	}
	return list
}

// Who reads much gets long packets, if there is memory for them.
func TestLongReadsHaveLongPackets(t *testing.T) {
	for _, test := range []struct {
		size   int
		memory int64 // PacketMemory
		taken  int64 // of it, by others
		long   int   // packets beyond sendBuffer
	}{
		{size: 2<<20 - 512, memory: 16 << 20, long: 0},
		{size: 5 << 20, memory: 16 << 20, long: 4},
		{size: 5 << 20, memory: 16 << 20, taken: 15<<20 + 1, long: 0},
		{size: 5 << 20, memory: 2*longBuffer - 1, long: 0}, // readers have half of it
	} {
		f := newFixture(t, 1, func(_ int, c *Config) { c.PacketMemory = test.memory })
		n := f.nodes[0]
		data := random(uint64(test.size), test.size)
		writeBlock(t, f.nodes, 7, 1001, data)
		if test.taken > 0 {
			must(t, n.budget.Acquire(test.taken))
		}
		for range 2 { // what the first reader has had is there again
			long := 0
			for i, size := range lengths(t, n, 7, data) {
				if size > sendBuffer {
					long++
					if i < 9 || size != 252*4096 && i != 12 || size > 252*4096 {
						t.Errorf("%+v: packet %d has %d bytes", test, i, size)
					}
				}
			}
			if long != test.long {
				t.Errorf("%+v: %d long packets", test, long)
			}
		}
	}
}
