package datanode

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

const benchBlock = 128 << 20

func benchFixture(b *testing.B, count int) *fixture {
	return newFixture(b, count, func(_ int, c *Config) { c.FS, c.Dirs = vfs.Default, []Directory{{Path: b.TempDir()}} })
}

// BenchmarkWrite streams blocks of 128 MiB over TCP on loopback.
func BenchmarkWrite(b *testing.B) {
	for count := 1; count <= 3; count += 2 {
		b.Run(fmt.Sprintf("replicas=%d", count), func(b *testing.B) {
			f := benchFixture(b, count)
			packet := encodePacket(transfer.CRC32C(), transfer.PacketHeader{}, random(1, 65536))
			b.SetBytes(benchBlock)
			b.ReportAllocs()
			id := uint64(0)
			for b.Loop() {
				id++
				c := openWrite(b, f.nodes, create, id, 1001, 0, 0, 0)
				acked := make(chan error)
				go func() {
					var a transfer.Ack
					for range benchBlock/65536 + 1 {
						if err := c.r.ReadAck(&a); err != nil || !a.OK() {
							acked <- fmt.Errorf("%+v %w", a, err)
							return
						}
					}
					acked <- nil
				}()
				for off := int64(0); off < benchBlock; off += 65536 {
					h := transfer.PacketHeader{Offset: off, Seqno: off / 65536, DataLen: 65536}
					transfer.AppendPacketPrefix(packet[:0], &h, 512)
					if _, err := c.nc.Write(packet); err != nil {
						b.Fatal(err)
					}
				}
				c.seq = benchBlock / 65536
				c.send(benchBlock, nil, true, false)
				must(b, <-acked)
				c.nc.Close()
				b.StopTimer()
				for _, n := range f.nodes {
					must(b, n.store.Delete(id, 1001))
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkRead reads a block of 128 MiB, which the page cache holds; the
// client throws the bytes away.
func BenchmarkRead(b *testing.B) {
	f := benchFixture(b, 1)
	writeBlock(b, f.nodes, 1, 1001, random(1, benchBlock))
	c := dialNode(b, f.nodes[0])
	b.SetBytes(benchBlock)
	b.ReportAllocs()
	sink := make([]byte, 256<<10)
	for b.Loop() {
		must(b, transfer.WriteRequest(c.nc, transfer.OpReadBlock, &hdfspb.OpReadBlockProto{
			Header: &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(1, 1001, 0)}, ClientName: proto.String("DFSClient_bench")},
			Offset: proto.Uint64(0), Len: proto.Uint64(benchBlock),
		}))
		// With its status sent ahead the client need not look for the last packet: the DataNode
		// closes behind that.
		must(b, transfer.WriteMessage(c.nc, &hdfspb.ClientReadStatusProto{Status: hdfspb.Status_CHECKSUM_OK.Enum()}))
		must(b, c.nc.(*net.TCPConn).CloseWrite())
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c.nc}, sink)
		if err != nil || n < benchBlock {
			b.Fatalf("%d bytes: %v", n, err)
		}
		c.nc.Close()
		c = dialNode(b, f.nodes[0])
	}
}

// BenchmarkSmallBlock writes and reads blocks of 1 KiB, a connection each.
func BenchmarkSmallBlock(b *testing.B) {
	f := benchFixture(b, 1)
	data := random(1, 1024)
	id := uint64(0)
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			id++
			writeBlock(b, f.nodes, id, 1001, data)
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := readAll(b, f.nodes[0], 1, 1001, len(data)); err != nil && err != io.EOF {
				b.Fatal(err)
			}
		}
	})
}
