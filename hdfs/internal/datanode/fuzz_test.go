package datanode

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// FuzzConnection sends anything to the port of a DataNode that holds a block:
// the connection ends, and the block is as it was.
func FuzzConnection(f *testing.F) {
	write := func(st stage, id, gen, newGen, n uint64) []byte {
		b, err := transfer.AppendRequest(nil, transfer.OpWriteBlock, &hdfspb.OpWriteBlockProto{
			Header: &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(id, gen, 0)}, ClientName: proto.String("test")},
			Stage:  st.Enum(), PipelineSize: proto.Uint32(0), MinBytesRcvd: &n, MaxBytesRcvd: &n,
			LatestGenerationStamp: &newGen, RequestedChecksum: transfer.CRC32C().Proto(),
		})
		must(f, err)
		return b
	}
	sum := transfer.CRC32C()
	packets := append(encodePacket(sum, transfer.PacketHeader{}, make([]byte, 1000)), encodePacket(sum, transfer.PacketHeader{Seqno: 1, Offset: 1000, Last: true}, nil)...)
	f.Add(append(write(create, 2, 1001, 0, 0), packets...))
	f.Add(append(write(create, 2, 1001, 0, 0), packets[:700]...))
	f.Add(append(write(appendRecovery, 2, 1001, 1002, 0), packets...))
	f.Add([]byte("hrpc\x09\x00\x00\x00\x00\x00\x05\x01\x02\x03\x04\x05"))
	read, err := transfer.AppendRequest(nil, transfer.OpReadBlock, &hdfspb.OpReadBlockProto{
		Header: &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(1, 1001, 0)}, ClientName: proto.String("test")},
		Offset: proto.Uint64(100), Len: proto.Uint64(500),
	})
	must(f, err)
	f.Add(append(read, 2, 8, 6, 0, 28, 85, 0))
	data := random(1, 5000)
	f.Fuzz(func(t *testing.T, in []byte) {
		dn, err := Open(context.Background(), Config{Dirs: []Directory{{Path: "/dn"}}, FS: vfs.NewMem(), BootID: "b", Host: "127.0.0.1", Port: 1, ScanRate: -1,
			NameNode:  &fakeNameNode{away: true},
			Dial:      func(context.Context, string) (net.Conn, error) { return nil, errors.New("none") },
			KeepAlive: time.Second, HandshakeTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second})
		must(t, err)
		defer dn.Close()
		w, err := dn.store.Create(1, 1001, sum, false, nil, store.Want{})
		must(t, err)
		sums := make([]byte, 4*sum.Chunks(int64(len(data))))
		sum.Sum(sums, data)
		_, err = w.Write(0, data, sums, sum)
		must(t, err)
		must(t, w.Finalize(false))
		must(t, w.Close(false))

		near, far := net.Pipe()
		served := make(chan struct{})
		go func() { defer close(served); dn.ServeConn(far) }()
		answers := make(chan struct{})
		go func() { defer close(answers); _, _ = io.Copy(io.Discard, near) }()
		_, _ = near.Write(in)
		near.Close()
		<-served
		<-answers
		if r, err := dn.store.Get(1); err != nil {
			t.Fatal(err)
		} else if i := r.Info(); i.Generation == 1001 && i.Length != int64(len(data)) {
			t.Fatalf("%+v", i)
		} else if err := r.Verify(nil); err != nil {
			t.Fatal(err)
		}
	})
}
