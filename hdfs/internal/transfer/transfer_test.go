package transfer

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"slices"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	must(t, err)
	return b
}

// Bytes as they stand on the wire: these never change.
func TestGolden(t *testing.T) {
	h := PacketHeader{Offset: 0x0102, Seqno: 3, DataLen: 5}
	for _, c := range []struct {
		name, want string
		got        []byte
	}{
		{"header", "090201000000000000" + "110300000000000000" + "1800" + "2505000000", AppendPacketHeader(nil, &h)},
		{"header with sync", "090201000000000000" + "110300000000000000" + "1801" + "2500000000" + "2801", AppendPacketHeader(nil, &PacketHeader{Offset: 0x0102, Seqno: 3, Last: true, Sync: true})},
		{"heartbeat", "00000004" + "0019" + "090000000000000000" + "11ffffffffffffffff" + "1800" + "2500000000", AppendPacketPrefix(nil, &PacketHeader{Seqno: HeartbeatSeqno}, 0)},
		{"packet", "0000000d" + "0019" + "090201000000000000" + "110300000000000000" + "1800" + "2505000000", AppendPacketPrefix(nil, &h, 4)},
		{"acknowledgement", "08" + "0806" + "1000" + "1001" + "1807", AppendAck(nil, &Ack{Seqno: 3, Replies: []hdfspb.Status{0, 1}, DownstreamNanos: 7})},
		{"heartbeat's acknowledgement", "06" + "0801" + "1000" + "1800", AppendAck(nil, &Ack{Seqno: HeartbeatSeqno, Replies: []hdfspb.Status{0}})},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
	status := hdfspb.Status_SUCCESS
	req, err := AppendRequest(nil, OpReadBlock, &hdfspb.ClientReadStatusProto{Status: &status})
	must(t, err)
	if got := hex.EncodeToString(req); got != "001c51020800" {
		t.Errorf("request %s", got)
	}
}

// A well-known client reads five bytes before it looks at a length.
func TestNoAnswerIsShorterThanFiveBytes(t *testing.T) {
	none := ""
	for _, m := range []proto.Message{
		&hdfspb.BlockOpResponseProto{Status: hdfspb.Status_SUCCESS.Enum(), FirstBadLink: &none},
		ErrorResponse(hdfspb.Status_ERROR, nil, ""),
		ErrorResponse(hdfspb.Status_ERROR, &none, "x"),
	} {
		b, err := AppendMessage(nil, m)
		must(t, err)
		if len(b) < 5 {
			t.Errorf("%v is %d bytes", m, len(b))
		}
	}
	for _, seqno := range []int64{HeartbeatSeqno, 0, 1} {
		if b := AppendAck(nil, &Ack{Seqno: seqno, Replies: []hdfspb.Status{0}}); len(b) < 5 {
			t.Errorf("acknowledgement of %d is %d bytes", seqno, len(b))
		}
	}
}

// The hand-written codec agrees with the generated one.
func TestAgreesWithProtobuf(t *testing.T) {
	for _, h := range []PacketHeader{{}, {Offset: 1 << 40, Seqno: -1, Last: true}, {Offset: 5, Seqno: 7, DataLen: 77, Sync: true}, {Seqno: math.MaxInt64, DataLen: math.MaxInt32}} {
		var m hdfspb.PacketHeaderProto
		must(t, proto.Unmarshal(AppendPacketHeader(nil, &h), &m))
		if m.GetOffsetInBlock() != h.Offset || m.GetSeqno() != h.Seqno || m.GetLastPacketInBlock() != h.Last || m.GetDataLen() != h.DataLen || m.GetSyncBlock() != h.Sync {
			t.Errorf("%+v became %v", h, &m)
		}
		b, err := proto.Marshal(&m)
		must(t, err)
		got, err := ParsePacketHeader(b)
		if err != nil || got != h {
			t.Errorf("%+v became %+v, %v", h, got, err)
		}
	}
	m := &hdfspb.PipelineAckProto{Seqno: proto.Int64(-1), Reply: []hdfspb.Status{0, 8, 1}, DownstreamAckTimeNanos: proto.Uint64(1 << 50), Flag: []uint32{1, 2, 3}}
	b, err := proto.Marshal(m)
	must(t, err)
	var a Ack
	must(t, ParseAck(b, &a))
	if a.Seqno != -1 || len(a.Replies) != 3 || a.Replies[1] != hdfspb.Status_OOB_RESTART || a.DownstreamNanos != 1<<50 || a.OK() {
		t.Errorf("%v became %+v", m, a)
	}
}

func appendPacket(dst []byte, c Checksum, h PacketHeader, data []byte) []byte {
	sums := make([]byte, int(c.Chunks(int64(len(data))))*c.Size())
	if len(sums) > 0 {
		c.Sum(sums, data)
	}
	h.DataLen = int32(len(data))
	dst = AppendPacketPrefix(dst, &h, len(sums))
	return append(append(dst, sums...), data...)
}

// What has come together is read together, up to the block's last packet, and a malformed
// packet does not spoil those before it.
func TestPacketsReadTogether(t *testing.T) {
	c := CRC32C()
	data := make([]byte, 64512)
	for i := range data {
		data[i] = byte(i * 7)
	}
	const ordinary = 7
	var stream []byte
	for i := range ordinary {
		stream = appendPacket(stream, c, PacketHeader{Seqno: int64(i), Offset: int64(i * len(data))}, data)
	}
	stream = appendPacket(stream, c, PacketHeader{Seqno: ordinary, Offset: int64(ordinary * len(data)), Last: true}, nil)
	behind := appendPacket(nil, c, PacketHeader{Seqno: 100}, data[:1])
	malformed := append([]byte{0, 0, 0, 3, 0, 25}, behind...)
	for name, rest := range map[string][]byte{"another block": behind, "malformed": malformed} {
		src := &counted{Reader: bytes.NewReader(append(slices.Clone(stream), rest...))}
		r := NewReader(src, nil)
		var packets [4]Packet
		var raw []byte
		for next := int64(0); next <= ordinary; {
			n, all, err := r.ReadPackets(c, packets[:], false)
			must(t, err)
			raw = append(raw, all...)
			for i := range packets[:n] {
				p := &packets[i]
				if p.Seqno != next || p.Last != (next == ordinary) || !p.Last && !bytes.Equal(p.Data, data) {
					t.Fatalf("%s: packet %+v with %d bytes where %d is due", name, p.PacketHeader, len(p.Data), next)
				}
				must(t, c.Verify(p.Sums, p.Data))
				next++
			}
		}
		if !bytes.Equal(raw, stream) {
			t.Errorf("%s: %d bytes to hand on, want %d", name, len(raw), len(stream))
		}
		if src.calls > 4 {
			t.Errorf("%s: %d reads of the stream for %d bytes", name, src.calls, len(stream))
		}
		switch n, _, err := r.ReadPackets(c, packets[:], false); {
		case name == "malformed" && !errors.Is(err, ErrMalformed):
			t.Errorf("a malformed packet is %v", err)
		case name != "malformed" && (err != nil || n != 1 || packets[0].Seqno != 100):
			t.Errorf("%d packets behind the last, %v", n, err)
		}
		r.Release()
	}
}

// A writer of small packets does not take a large buffer.
func TestSmallPacketsKeepASmallBuffer(t *testing.T) {
	c := CRC32C()
	var stream []byte
	for i := range 100 {
		stream = appendPacket(stream, c, PacketHeader{Seqno: int64(i)}, make([]byte, 4096))
	}
	r := NewReader(bytes.NewReader(stream), nil)
	defer r.Release()
	var packets [8]Packet
	for got := 0; got < 100; {
		n, _, err := r.ReadPackets(c, packets[:], false)
		must(t, err)
		got += n
	}
	if len(*r.buf) > 16<<10 {
		t.Errorf("%d bytes for packets of 4 KiB", len(*r.buf))
	}
}

func TestMessageBuffered(t *testing.T) {
	ack := AppendAck(nil, &Ack{Seqno: 1 << 40, Replies: []hdfspb.Status{0, 0, 0}})
	for n := range len(ack) + 2 {
		r := NewReader(bytes.NewReader(append(slices.Clone(ack), 0)[:n]), nil)
		if n > 0 {
			_, err := r.Peek(1)
			must(t, err)
		}
		if got := r.MessageBuffered(); got != (n >= len(ack)) {
			t.Errorf("%d bytes of %d: %v", n, len(ack), got)
		}
		r.Release()
	}
}

// counted counts the calls of Read.
type counted struct {
	io.Reader
	calls int
}

func (c *counted) Read(b []byte) (int, error) {
	c.calls++
	return c.Reader.Read(b)
}

func TestReaderOfManyPackets(t *testing.T) {
	c := CRC32C()
	data := make([]byte, 300_000)
	for i := range data {
		data[i] = byte(i * 7)
	}
	sizes := []int{0, 1, 511, 512, 513, 65536, 3, 300_000, 2, 4096, 70_000}
	var stream []byte
	for i, n := range sizes {
		stream = appendPacket(stream, c, PacketHeader{Seqno: int64(i), Offset: int64(i)}, data[:n])
	}
	for name, src := range map[string]io.Reader{
		"at once":   bytes.NewReader(stream),
		"bytewise":  iotest.OneByteReader(bytes.NewReader(stream)),
		"by halves": iotest.HalfReader(bytes.NewReader(stream)),
		"with EOF":  iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		r := NewReader(src, nil)
		var p Packet
		var raw []byte
		for i, n := range sizes {
			must(t, r.ReadPacket(c, &p))
			if p.Seqno != int64(i) || !bytes.Equal(p.Data, data[:n]) {
				t.Fatalf("%s: packet %d is %+v with %d bytes", name, i, p.PacketHeader, len(p.Data))
			}
			must(t, c.Verify(p.Sums, p.Data))
			raw = append(raw, p.Raw...)
			if i%3 == 0 {
				r.Shrink()
			}
		}
		if !bytes.Equal(raw, stream) {
			t.Errorf("%s: the raw packets are not the stream", name)
		}
		if err := r.ReadPacket(c, &p); err != io.EOF {
			t.Errorf("%s: at the end: %v", name, err)
		}
		r.Release()
	}
}

// countReads counts calls of Read on a stream that always has enough.
type countReads struct {
	io.Reader
	n int
}

func (c *countReads) Read(p []byte) (int, error) {
	c.n++
	return c.Reader.Read(p)
}

func TestOneReadAPacketAndNoAllocation(t *testing.T) {
	c := CRC32C()
	one := appendPacket(nil, c, PacketHeader{}, make([]byte, 65536))
	const packets = 200
	src := &countReads{Reader: bytes.NewReader(bytes.Repeat(one, packets))}
	r := NewReader(src, nil)
	defer r.Release()
	var p Packet
	must(t, r.ReadPacket(c, &p))
	must(t, r.ReadPacket(c, &p))
	src.n = 0
	if n := testing.AllocsPerRun(packets/2, func() { must(t, r.ReadPacket(c, &p)) }); n > 0 {
		t.Errorf("%v allocations a packet", n)
	}
	if src.n > packets/2+1 {
		t.Errorf("%d reads for %d packets", src.n, packets/2+1)
	}
}

type testBudget struct{ left, least int64 }

func (b *testBudget) Acquire(n int64) error {
	if n > b.left {
		return errors.New("no memory")
	}
	b.left -= n
	b.least = min(b.least, b.left)
	return nil
}
func (b *testBudget) Release(n int64) { b.left += n }

func TestBudget(t *testing.T) {
	c := CRC32C()
	b := &testBudget{left: 4 << 20, least: 4 << 20}
	stream := appendPacket(nil, c, PacketHeader{}, make([]byte, 1<<20))
	stream = appendPacket(stream, c, PacketHeader{}, make([]byte, 100))
	stream = appendPacket(stream, c, PacketHeader{}, make([]byte, 8<<20))
	r := NewReader(bytes.NewReader(stream), b)
	var p Packet
	must(t, r.ReadPacket(c, &p))
	must(t, r.ReadPacket(c, &p))
	if b.left == 4<<20 {
		t.Error("a packet of 1 MiB was free")
	}
	if err := r.ReadPacket(c, &p); err == nil {
		t.Error("a packet of 8 MiB in 4 MiB")
	}
	r.Release()
	if b.left != 4<<20 {
		t.Errorf("%d bytes left in the end", b.left)
	}
}

// Lengths that lie are refused before anything is allocated for them.
func TestHostileLengths(t *testing.T) {
	header := hex.EncodeToString(AppendPacketHeader(nil, &PacketHeader{DataLen: 100}))
	for _, s := range []string{
		"ffffffff0019", "000000030019", "010000010019", "00000004ffff", "000000040018",
		"000000040019" + header, // the header promises data
		"00ffffff0019" + header,
		"000000680019" + "09ffffffffffffffff" + "110300000000000000" + "1800" + "2564000000", // negative offset
		"000000680019" + "090000000000000000" + "11feffffffffffffff" + "1800" + "2564000000", // sequence number -2
		"000000680019" + "090000000000000000" + "110300000000000000" + "1801" + "2564000000", // last, with data
	} {
		var p Packet
		r := NewReader(bytes.NewReader(unhex(t, s)), &testBudget{})
		if err := r.ReadPacket(CRC32C(), &p); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", s, err)
		}
		if len(*r.buf) != smallBuffer {
			t.Errorf("%s: it bought %d bytes", s, len(*r.buf))
		}
		r.Release()
	}
	// A length that is allowed buys memory only for bytes that come.
	h := PacketHeader{DataLen: 16_000_000}
	b := &testBudget{left: 64 << 20, least: 64 << 20}
	r := NewReader(bytes.NewReader(append(AppendPacketPrefix(nil, &h, 125_000), make([]byte, 300_000)...)), b)
	var p Packet
	if err := r.ReadPacket(CRC32C(), &p); err != io.ErrUnexpectedEOF {
		t.Errorf("a packet that breaks off: %v", err)
	}
	if b.least < 62<<20 {
		t.Errorf("300,000 bytes bought %d", 64<<20-b.least)
	}
	r.Release()
	for _, s := range []string{"ffffffffff", "8180808080", "ffffff7f"} {
		r := NewReader(bytes.NewReader(unhex(t, s)), nil)
		if err := r.ReadMessage(&hdfspb.OpReadBlockProto{}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", s, err)
		}
		r.Release()
	}
	for _, s := range []string{"001b50", "011c50", "001c4f", "001c5b"} {
		r := NewReader(bytes.NewReader(unhex(t, s)), nil)
		if _, err := r.ReadOp(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", s, err)
		}
		r.Release()
	}
	if _, err := NewChecksum(hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C, 0); !errors.Is(err, ErrMalformed) {
		t.Errorf("chunks of nothing: %v", err)
	}
	if _, err := NewChecksum(9, 512); !errors.Is(err, ErrMalformed) {
		t.Errorf("unknown checksum: %v", err)
	}
}

func FuzzReadOp(f *testing.F) {
	req, _ := AppendRequest(nil, OpReadBlock, &hdfspb.OpReadBlockProto{
		Header: &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: &hdfspb.ExtendedBlockProto{
			PoolId: proto.String("p"), BlockId: proto.Uint64(1), GenerationStamp: proto.Uint64(2)}}, ClientName: proto.String("c")},
		Offset: proto.Uint64(0), Len: proto.Uint64(1),
	})
	f.Add(req)
	f.Add([]byte{0, 28, 80, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b), nil)
		defer r.Release()
		op, err := r.ReadOp()
		if err != nil {
			return
		}
		if !op.Known() {
			t.Fatalf("unknown operation %d", op)
		}
		for _, m := range []proto.Message{&hdfspb.OpWriteBlockProto{}, &hdfspb.OpReadBlockProto{}, &hdfspb.OpBlockChecksumProto{}, &hdfspb.OpTransferBlockProto{}} {
			if r.ReadMessage(m) != nil {
				return
			}
		}
	})
}

func FuzzPacketHeader(f *testing.F) {
	f.Add(AppendPacketHeader(nil, &PacketHeader{Offset: 1, Seqno: 2, DataLen: 3, Sync: true}))
	f.Add(AppendPacketHeader(nil, &PacketHeader{Seqno: -1}))
	f.Add([]byte{9})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParsePacketHeader(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := ParsePacketHeader(AppendPacketHeader(nil, &h))
		if err != nil || again != h {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
		// What is taken, the generated code takes as well and means the same.
		var m hdfspb.PacketHeaderProto
		if err := proto.Unmarshal(b, &m); err == nil && (m.GetOffsetInBlock() != h.Offset || m.GetSeqno() != h.Seqno || m.GetDataLen() != h.DataLen || m.GetLastPacketInBlock() != h.Last || m.GetSyncBlock() != h.Sync) {
			t.Fatalf("%+v, generated code says %v", h, &m)
		}
	})
}

func FuzzPacket(f *testing.F) {
	f.Add(appendPacket(nil, CRC32C(), PacketHeader{Offset: 1, Seqno: 2}, make([]byte, 1000)))
	f.Add(appendPacket(nil, CRC32C(), PacketHeader{Seqno: -1}, nil))
	f.Add([]byte{0, 0, 0, 4, 0, 25})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b), &testBudget{left: 64 << 20})
		defer r.Release()
		c := CRC32C()
		var p Packet
		for r.ReadPacket(c, &p) == nil {
			if len(p.Data) != int(p.DataLen) || len(p.Sums) != 4*int(c.Chunks(int64(p.DataLen))) {
				t.Fatalf("%+v with %d bytes of data, %d of checksums", p.PacketHeader, len(p.Data), len(p.Sums))
			}
			_ = c.Verify(p.Sums, p.Data)
		}
	})
}

func FuzzAck(f *testing.F) {
	f.Add(AppendAck(nil, &Ack{Seqno: 5, Replies: []hdfspb.Status{0, 1, 2}, DownstreamNanos: 9})[1:])
	f.Add([]byte{0x08, 0x01, 0x12, 0x02, 0x00, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		var a Ack
		if err := ParseAck(b, &a); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("%v", err)
			}
			return
		}
		enc := AppendAck(nil, &a)
		r := NewReader(bytes.NewReader(enc), nil)
		defer r.Release()
		var again Ack
		if err := r.ReadAck(&again); err != nil || again.Seqno != a.Seqno || len(again.Replies) != len(a.Replies) {
			t.Fatalf("%+v became %+v, %v", a, again, err)
		}
	})
}

// Every chunk is compared with its checksum, the last one also where it is not whole.
func TestVerifyComparesEveryChunk(t *testing.T) {
	for _, kind := range []hdfspb.ChecksumTypeProto{hdfspb.ChecksumTypeProto_CHECKSUM_CRC32, hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C} {
		c, err := NewChecksum(kind, 512)
		must(t, err)
		for _, length := range []int{1, 511, 512, 513, 64 * 512, 64*512 + 1, 130*512 + 100} {
			data := make([]byte, length)
			for i := range data {
				data[i] = byte(i * 7)
			}
			sums := make([]byte, 4*c.Chunks(int64(length)))
			c.Sum(sums, data)
			must(t, c.Verify(sums, data))
			for _, at := range []int{0, length / 2, length - 1} {
				data[at] ^= 1
				if err := c.Verify(sums, data); !errors.Is(err, ErrChecksum) {
					t.Errorf("%v: byte %d of %d is another one: %v", kind, at, length, err)
				}
				data[at] ^= 1
			}
			sums[len(sums)-1] ^= 1
			if err := c.Verify(sums, data); !errors.Is(err, ErrChecksum) {
				t.Errorf("%v: the last checksum of %d bytes is another one: %v", kind, length, err)
			}
		}
	}
}
