package legacy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A source is a DataNode with one block, which it sends in packets of the lengths that packet
// tells. Its channel good gets a token for each read of which it has heard that it went well.
type source struct {
	block  []byte
	sum    transfer.Checksum
	packet func() int // whole chunks
	good   chan struct{}
	spoil  int // the byte that is not what its checksum says, -1 for none
	most   int // bytes that are sent, 0 for all
}

// serve answers the reads of one connection.
func (s *source) serve(nc net.Conn) error {
	defer nc.Close()
	r := transfer.NewReader(nc, nil)
	defer r.Release()
	for {
		if _, err := r.ReadOp(); err != nil {
			return err
		}
		var op hdfspb.OpReadBlockProto
		if err := r.ReadMessage(&op); err != nil {
			return err
		}
		bpc := int64(s.sum.BytesPerChunk)
		at, end := int64(op.GetOffset())/bpc*bpc, int64(op.GetOffset()+op.GetLen())
		end = min((end+bpc-1)/bpc*bpc, int64(len(s.block)))
		start := uint64(at)
		out, err := transfer.AppendMessage(nil, &hdfspb.BlockOpResponseProto{
			Status:             hdfspb.Status_SUCCESS.Enum(),
			ReadOpChecksumInfo: &hdfspb.ReadOpChecksumInfoProto{Checksum: s.sum.Proto(), ChunkOffset: &start},
		})
		if err != nil {
			return err
		}
		h := transfer.PacketHeader{}
		for ; at < end; h.Seqno++ {
			n := min(int64(s.packet()), end-at)
			sums := make([]byte, s.sum.Chunks(n)*int64(s.sum.Size()))
			s.sum.Sum(sums, s.block[at:at+n])
			h.Offset, h.DataLen = at, int32(n)
			out = append(append(transfer.AppendPacketPrefix(out, &h, len(sums)), sums...), s.block[at:at+n]...)
			if i := int64(s.spoil) - at; i >= 0 && i < n {
				out[len(out)-int(n-i)] ^= 1
			}
			at += n
		}
		out = transfer.AppendPacketPrefix(out, &transfer.PacketHeader{Offset: at, Seqno: h.Seqno, Last: true}, 0)
		if s.most > 0 {
			_, err := nc.Write(out[:s.most])
			return err
		}
		if _, err := nc.Write(out); err != nil {
			return err
		}
		var status hdfspb.ClientReadStatusProto
		if err := r.ReadMessage(&status); err != nil {
			return err
		}
		s.good <- struct{}{}
	}
}

// start returns a path to the source, and a request for n bytes of its block from off on.
func (s *source) start(t *testing.T) (*Path, func(off, n int) *data.ReadRequest) {
	t.Helper()
	var serving sync.WaitGroup
	p := New(Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		mine, theirs := net.Pipe()
		serving.Go(func() { _ = s.serve(theirs) }) // it ends with the client's connection
		return mine, nil
	}})
	t.Cleanup(func() {
		p.Close()
		serving.Wait()
	})
	return p, func(off, n int) *data.ReadRequest {
		return &data.ReadRequest{
			Client: "test", Node: &hdfspb.DatanodeInfoProto{Id: &hdfspb.DatanodeIDProto{IpAddr: proto.String("here"), XferPort: proto.Uint32(1)}},
			Offset: int64(off), Length: int64(n),
			Block: &hdfspb.ExtendedBlockProto{PoolId: proto.String("pool"), BlockId: proto.Uint64(1), GenerationStamp: proto.Uint64(1)},
		}
	}
}

// drain reads a range to its end, by Place into buffers of the lengths that size tells, and by
// Next where that has nothing. It tells how many bytes were placed.
func drain(r data.BlockReader, size func() int) (got []byte, placed int, err error) {
	for {
		p := make([]byte, size())
		n, err := r.(data.Placer).Place(p)
		placed += n
		b := p[:n]
		if n == 0 && err == nil {
			b, err = r.Next()
		}
		if err == io.EOF {
			return got, placed, nil
		}
		if err != nil {
			return got, placed, err
		}
		got = append(got, b...)
	}
}

func newSource(seed uint64, size, chunk int, packet func() int) *source {
	s := &source{block: make([]byte, size), packet: packet, good: make(chan struct{}, 1), spoil: -1}
	rand.NewChaCha8([32]byte{byte(seed)}).Read(s.block)
	s.sum, _ = transfer.NewChecksum(hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C, uint32(chunk)) // a sound one
	return s
}

// Ranges that begin and end anywhere come whole, in packets of any length, whether they are
// placed or not, and leave the connection for the next one.
func TestReadsPlaceLongPackets(t *testing.T) {
	const seeds = 40
	for seed := range uint64(seeds) {
		random := rand.New(rand.NewPCG(seed, 0))
		chunk := []int{512, 512, 1000, 64 << 10}[random.IntN(4)]
		longest := []int{1, 64 << 10, 252 << 10, 1008 << 10}[random.IntN(4)]
		s := newSource(seed, 1+random.IntN(5<<20), chunk, func() int { return max(1, random.IntN(longest)/chunk) * chunk })
		p, request := s.start(t)
		for range 4 {
			off := random.IntN(len(s.block))
			n := 1 + random.IntN(len(s.block)-off)
			r, err := p.Read(t.Context(), request(off, n))
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := drain(r, func() int { return random.IntN(1 << 20) })
			if err != nil || !bytes.Equal(got, s.block[off:off+n]) {
				t.Fatalf("seed %d: %d bytes at %d: %d came, %v", seed, n, off, len(got), err)
			}
			<-s.good
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if idle := len(p.idle.conns); idle != 1 {
			t.Fatalf("seed %d: %d connections are kept", seed, idle)
		}
	}
}

// Of long packets all goes straight to where it is wanted but the first one, of which nothing is
// known, and ends within chunks.
func TestLongPacketsArePlaced(t *testing.T) {
	s := newSource(1, 5<<20, 512, func() int { return 1008 << 10 })
	p, request := s.start(t)
	r, err := p.Read(t.Context(), request(0, len(s.block)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, placed, err := drain(r, func() int { return 1_000_000 })
	if err != nil || !bytes.Equal(got, s.block) {
		t.Fatalf("%d bytes came, %v", len(got), err)
	}
	if least := len(got) - piece - 512*8; placed < least {
		t.Errorf("%d of %d bytes were placed, want %d", placed, len(got), least)
	}
	<-s.good
}

// A byte that is wrong anywhere is found, by Place as by Next.
func TestPlacedBytesAreVerified(t *testing.T) {
	for _, size := range []int{0, 1 << 20} {
		for _, at := range []int{0, 131_071, 131_072, 1 << 20, 3<<20 - 1} {
			s := newSource(2, 3<<20, 512, func() int { return 1008 << 10 })
			s.spoil = at
			p, request := s.start(t)
			r, err := p.Read(t.Context(), request(0, len(s.block)))
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := drain(r, func() int { return size })
			if !errors.Is(err, transfer.ErrChecksum) || len(got) > at {
				t.Errorf("byte %d is wrong: %d bytes came, %v", at, len(got), err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A stream that ends inside a packet is an error that says so.
func TestPlaceMeetsTheEndOfTheStream(t *testing.T) {
	s := newSource(3, 4<<20, 512, func() int { return 1008 << 10 })
	s.most = 2 << 20
	p, request := s.start(t)
	r, err := p.Read(t.Context(), request(0, len(s.block)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, _, err := drain(r, func() int { return 1 << 20 }); !errors.Is(err, io.ErrUnexpectedEOF) || len(got) >= 2<<20 {
		t.Errorf("%d bytes came, %v", len(got), err)
	}
}
