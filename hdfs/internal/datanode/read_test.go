package datanode

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
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

// over has a DataNode serve a connection that holds nothing, until use is done with it.
func over(t *testing.T, n *node, use func(c *client)) {
	t.Helper()
	mine, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		n.ServeConn(theirs)
	}()
	must(t, mine.SetDeadline(time.Now().Add(patient)))
	use(&client{t: t, nc: mine, r: transfer.NewReader(mine, nil), sum: transfer.CRC32C()})
	mine.Close()
	<-served
}

// reported tells whether a DataNode has found a replica to be corrupt.
func (n *node) reported(id uint64) bool {
	n.names.mu.Lock()
	defer n.names.mu.Unlock()
	_, found := n.names.corrupt[id]
	return found
}

// begin asks for all of a block, as Hadoop's client does.
func (c *client) begin(id uint64, length int, sums bool) {
	c.t.Helper()
	must(c.t, transfer.WriteRequest(c.nc, transfer.OpReadBlock, &hdfspb.OpReadBlockProto{
		Header: &hdfspb.ClientOperationHeaderProto{
			BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(id, 1001, 0), Token: c.token}, ClientName: proto.String("DFSClient_NONMAPREDUCE_-1234_1"),
		},
		Offset: proto.Uint64(0), Len: proto.Uint64(uint64(length)), SendChecksums: &sums,
	}))
	resp := &hdfspb.BlockOpResponseProto{}
	must(c.t, c.r.ReadMessage(resp))
	if resp.GetStatus() != hdfspb.Status_SUCCESS {
		c.t.Fatalf("%v", resp)
	}
	if !sums {
		c.sum = c.sum.Without()
	}
}

// rest reads packets, up to the last one or so many bytes of data.
func (c *client) rest(most int) (data, sums []byte, err error) {
	for p := (transfer.Packet{}); !p.Last && len(data) < most; {
		if err := c.r.ReadPacket(c.sum, &p); err != nil {
			return data, sums, err
		}
		data, sums = append(data, p.Data...), append(sums, p.Sums...)
	}
	return data, sums, nil
}

// Who asks for no checksums gets the bytes of a damaged replica as they are, whoever it is.
func TestRawReadsOfDamage(t *testing.T) {
	const damage = 3000 // of the data, or in the checksums
	for _, file := range []string{"data", "meta"} {
		f := newFixture(t, 1, nil)
		n, want := f.nodes[0], random(1, 300_001)
		writeBlock(t, f.nodes, 1, 1001, want)
		f.damage(n, 1, file, damage)
		if file == "data" {
			copy(want[damage:], []byte{0xa5, 0x5a, 0xa5})
		}
		over(t, n, func(c *client) {
			for _, r := range [][2]int64{{0, 300_001}, {1000, 5000}} {
				got, err := c.read(1, 1001, r[0], r[1], false)
				if must(t, err); !bytes.Equal(got, want[r[0]:r[0]+r[1]]) {
					t.Errorf("damaged %s: other bytes of %d at %d", file, r[1], r[0])
				}
			}
		})
		if n.reported(1) {
			t.Errorf("damaged %s: somebody has compared", file)
		}
	}
}

// A client that compares gets the bytes as they are, with the checksums with which they were stored,
// and finds the damage.
func TestReadsOfDamageWithChecksums(t *testing.T) {
	const damage = 200_000
	f := newFixture(t, 1, nil)
	n, want, sum := f.nodes[0], random(1, 300_001), transfer.CRC32C()
	writeBlock(t, f.nodes, 1, 1001, want)
	f.damage(n, 1, "data", damage)
	stored := make([]byte, 4*sum.Chunks(int64(len(want))))
	sum.Sum(stored, want)
	copy(want[damage:], []byte{0xa5, 0x5a, 0xa5})
	over(t, n, func(c *client) {
		c.begin(1, len(want), true)
		data, sums, err := c.rest(math.MaxInt)
		if must(t, err); !bytes.Equal(data, want) || !bytes.Equal(sums, stored) {
			t.Errorf("%d other bytes came, or checksums", len(data))
		}
		if err := sum.Verify(sums, data); !errors.Is(err, transfer.ErrChecksum) {
			t.Errorf("the comparison says %v", err)
		}
	})
	if n.reported(1) {
		t.Error("the DataNode has compared, too")
	}
}

// A read that is under way goes on when the replica is removed. Of one that is cut and written again
// it gets no other bytes.
func TestReadsOfWhatChanges(t *testing.T) {
	for _, sums := range []bool{true, false} {
		for _, cut := range []uint64{0, 1000} {
			f := newFixture(t, 1, nil)
			n, want := f.nodes[0], random(1, 800_001)
			writeBlock(t, f.nodes, 1, 1001, want)
			over(t, n, func(c *client) {
				c.begin(1, len(want), sums)
				first, _, err := c.rest(1)
				must(t, err)
				if cut == 0 {
					must(t, n.store.Delete(1, 1001))
				} else {
					f.recover(n, 1, 1001, 1002, &cut)
					w := openWrite(t, f.nodes, appending, 1, 1002, 1003, cut, 0)
					w.flush(int64(cut), random(2, 800_001-int(cut)), false, 1)
					w.finish(800_001, 1)
				}
				more, _, err := c.rest(math.MaxInt)
				got := slices.Concat(first, more)
				if !bytes.Equal(got, want[:len(got)]) {
					t.Errorf("checksums %v, cut to %d: other bytes", sums, cut)
				}
				if whole := err == nil && len(got) == len(want); whole != (cut == 0) {
					t.Errorf("checksums %v, cut to %d: %d bytes, %v", sums, cut, len(got), err)
				}
			})
			if n.reported(1) {
				t.Errorf("checksums %v, cut to %d: taken for damage", sums, cut)
			}
		}
	}
}

// A copy by HDFS's protocol is compared by who reads the replica, so that it is the one to be
// replaced.
func TestCopyOfDamageIsReported(t *testing.T) {
	f := newFixture(t, 2, nil)
	n, data := f.nodes[0], random(1, 300_001)
	writeBlock(t, f.nodes[:1], 1, 1001, data)
	f.damage(n, 1, "data", 200_000)
	block := &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001), Length: proto.Uint64(uint64(len(data)))}
	if err := n.replicate(&clusterpb.Command{Block: block, Targets: []*clusterpb.Datanode{f.nodes[1].proto()}}); !errors.Is(err, store.ErrCorrupt) || !n.reported(1) {
		t.Errorf("reported: %v; %v", n.reported(1), err)
	}
}
