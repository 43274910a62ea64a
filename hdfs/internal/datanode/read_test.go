package datanode

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

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

// A reader of long packets may be as slow as one of short ones: the time to write is that of a
// short packet.
func TestLongPacketsWaitForSlowReaders(t *testing.T) {
	const limit, pause = time.Second, 200 * time.Millisecond // a long packet takes 1.6 s
	f := newFixture(t, 1, func(_ int, c *Config) { c.WriteTimeout = limit })
	n := f.nodes[0]
	data := random(3, 5<<19)
	writeBlock(t, f.nodes, 7, 1001, data)
	mine, theirs := net.Pipe() // it holds nothing
	defer mine.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		n.ServeConn(theirs)
	}()
	must(t, mine.SetDeadline(time.Now().Add(patient)))
	slow := &slowReader{r: mine}
	c := &client{t: t, nc: mine, r: transfer.NewReader(slow, nil), sum: transfer.CRC32C()}
	must(t, transfer.WriteRequest(mine, transfer.OpReadBlock, &hdfspb.OpReadBlockProto{
		Header: &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(7, 1001, 0), Token: c.token}, ClientName: proto.String("test")},
		Offset: proto.Uint64(0), Len: proto.Uint64(uint64(len(data))),
	}))
	must(t, c.r.ReadMessage(&hdfspb.BlockOpResponseProto{}))
	var got []byte
	longest := 0
	for p := (transfer.Packet{}); !p.Last; {
		must(t, c.r.ReadPacket(transfer.CRC32C(), &p))
		got, longest = append(got, p.Data...), max(longest, len(p.Data))
		if len(got) >= longAfter {
			slow.every = pause
		}
	}
	if !bytes.Equal(got, data) || longest <= sendBuffer {
		t.Errorf("%d bytes came in packets of up to %d", len(got), longest)
	}
	mine.Close()
	<-served
}

// slowReader waits for every before each 128 KiB, if that is set.
type slowReader struct {
	r     io.Reader
	every time.Duration
	since int // bytes since the last pause
}

func (s *slowReader) Read(b []byte) (int, error) {
	if s.since >= sendBuffer {
		time.Sleep(s.every)
		s.since = 0
	}
	n, err := s.r.Read(b[:min(len(b), sendBuffer-s.since)])
	s.since += n
	return n, err
}
