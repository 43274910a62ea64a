package native

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

func packet(h transfer.PacketHeader, sums, data []byte) []byte {
	h.DataLen = int32(len(data))
	b := make([]byte, PacketHeaderLen, PacketHeaderLen+len(sums)+len(data))
	PutPacketHeader(b, &h, len(sums))
	return append(append(b, sums...), data...)
}

// The bytes that docs/hdfs-data.md describes.
func TestGolden(t *testing.T) {
	ack := AppendAck(nil, &transfer.Ack{Seqno: 258, Replies: []hdfspb.Status{hdfspb.Status_SUCCESS, hdfspb.Status_ERROR_CHECKSUM}})
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"packet": {packet(transfer.PacketHeader{Offset: 1024, Seqno: 3, Sync: true}, []byte{1, 2, 3, 4}, []byte("hello")),
			"02020000" + "00000005" + "0000000000000400" + "0000000000000003" + "00000004" + "00000000" + "01020304" + "68656c6c6f"},
		"last":  {packet(transfer.PacketHeader{Offset: 5, Seqno: 4, Last: true}, nil, nil), "02010000" + "00000000" + "0000000000000005" + "0000000000000004" + "00000000" + "00000000"},
		"ack":   {ack, "12000002" + "00000000" + "0000000000000102" + "0002"},
		"abort": {AppendAbort(nil), "0300000000000000"},
		"proof": {AppendProof(nil, []byte{9}), "1300000000000000" + "09"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	b, err := AppendAnswer(nil, Busy, nil)
	if err != nil || hex.EncodeToString(b) != "1100000200000000" {
		t.Errorf("answer: %x, %v", b, err)
	}
	b, err = AppendSetUp(nil, 1<<20, &hdfspb.OpWriteBlockProto{Header: &hdfspb.ClientOperationHeaderProto{
		BaseHeader: &hdfspb.BaseHeaderProto{Block: &hdfspb.ExtendedBlockProto{PoolId: proto.String("p"), BlockId: proto.Uint64(1), GenerationStamp: proto.Uint64(2)}}, ClientName: proto.String("c"),
	}, Stage: hdfspb.OpWriteBlockProto_PIPELINE_SETUP_CREATE.Enum(), PipelineSize: proto.Uint32(1), MinBytesRcvd: proto.Uint64(0), MaxBytesRcvd: proto.Uint64(0),
		LatestGenerationStamp: proto.Uint64(0), RequestedChecksum: transfer.CRC32C().Proto()})
	if err != nil || hex.EncodeToString(b[:8]) != "0100000000100000" {
		t.Errorf("set-up: %x, %v", b, err)
	}
	window, op, err := ParseSetUp(b)
	if err != nil || window != 1<<20 || op.GetHeader().GetBaseHeader().GetBlock().GetBlockId() != 1 {
		t.Errorf("set-up came back as %d, %v, %v", window, op, err)
	}
}

func TestPacketsAreChecked(t *testing.T) {
	sum := transfer.CRC32C()
	good := packet(transfer.PacketHeader{Offset: 0, Seqno: 1}, make([]byte, 8), make([]byte, 513))
	var p transfer.Packet
	if err := ParsePacket(good, sum, &p); err != nil || len(p.Data) != 513 || len(p.Sums) != 8 || !bytes.Equal(p.Raw, good) {
		t.Fatalf("%+v %v", p.PacketHeader, err)
	}
	for name, spoil := range map[string]func(b []byte) []byte{
		"short":            func(b []byte) []byte { return b[:31] },
		"empty":            func([]byte) []byte { return nil },
		"one byte less":    func(b []byte) []byte { return b[:len(b)-1] },
		"one byte more":    func(b []byte) []byte { return append(b, 0) },
		"flags":            func(b []byte) []byte { b[1] = 4; return b },
		"kind":             func(b []byte) []byte { b[0] = 1; return b },
		"last with data":   func(b []byte) []byte { b[1] = 1; return b },
		"negative offset":  func(b []byte) []byte { b[8] = 0x80; return b },
		"negative seqno":   func(b []byte) []byte { b[16] = 0x80; return b },
		"length":           func(b []byte) []byte { b[4] = 0xff; return b },
		"sums":             func(b []byte) []byte { b[27], b[7] = 4, b[7]+4; return b },
		"reserved":         func(b []byte) []byte { b[28] = 1; return b },
		"reserved, third":  func(b []byte) []byte { b[2] = 1; return b },
		"reserved, fourth": func(b []byte) []byte { b[3] = 1; return b },
	} {
		if err := ParsePacket(spoil(bytes.Clone(good)), sum, &p); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever is decoded is encoded to the same bytes, and nothing else passes.
func FuzzMessages(f *testing.F) {
	f.Add(packet(transfer.PacketHeader{Seqno: 1}, make([]byte, 4), make([]byte, 100)))
	f.Add(AppendAck(nil, &transfer.Ack{Seqno: 1, Replies: []hdfspb.Status{0, 1, 2}}))
	f.Add(AppendAbort(nil))
	f.Add(AppendHello(nil, [NonceLen]byte{1}))
	f.Add(AppendProof(nil, make([]byte, ProofLen)))
	f.Add(AppendReadRequest(nil, &ReadRequest{Offset: 5, Length: 7}, nil))
	f.Add(append(make([]byte, 0, 64), 1, 0, 0, 0, 0, 16, 0, 0))
	answer := make([]byte, ReadHeaderLen+4+10)
	PutReadHeader(answer, &ReadAnswer{Sum: transfer.CRC32C(), Offset: 512}, 4, 10)
	f.Add(answer)
	f.Fuzz(func(t *testing.T, b []byte) {
		sum := transfer.CRC32C()
		var p transfer.Packet
		if ParsePacket(b, sum, &p) == nil {
			if again := packet(p.PacketHeader, p.Sums, p.Data); !bytes.Equal(again, b) {
				t.Errorf("a packet came back as %x", again)
			}
		}
		var a transfer.Ack
		if ParseAck(b, &a) == nil && !bytes.Equal(AppendAck(nil, &a)[:ackHeaderLen], b[:ackHeaderLen]) {
			t.Errorf("an acknowledgement came back as %x", AppendAck(nil, &a))
		}
		if window, op, err := ParseSetUp(b); err == nil && (window < 1 || window > MaxWindow || op == nil) {
			t.Errorf("a window of %d", window)
		}
		if v, resp, err := ParseAnswer(b); err == nil && (v >= verdicts || resp == nil) {
			t.Errorf("verdict %d", v)
		}
		if nonce, err := ParseHello(b); err == nil && !bytes.Equal(AppendHello(nil, nonce), b) {
			t.Error("another hello came back")
		}
		if proof, err := ParseProof(b); err == nil && !bytes.Equal(AppendProof(nil, proof), b) {
			t.Error("another proof came back")
		}
		if q, header, err := ParseReadRequest(b); err == nil && (q.Offset < 0 || q.Length < 1 || q.Length > MaxRead || len(header) > MaxRequest) {
			t.Errorf("%+v", q)
		}
		if r, err := ParseReadAnswer(b); err == nil && (r.Offset < 0 || r.Sum.BytesPerChunk < 1 || int64(len(r.Sums)) != r.Sum.Chunks(int64(len(r.Data)))*int64(r.Sum.Size())) {
			t.Errorf("%+v", r)
		}
	})
}

// What each kind of message may have is known before anybody looks at it.
func TestLengthsOfKinds(t *testing.T) {
	for kind := range Kind(math.MaxUint8) {
		least, most := -1, -1
		switch kind {
		case SetUp, Answer:
			least, most = 8, 8+64<<10
		case Packet:
			least, most = 32, 8+transfer.MaxPacket
		case Abort:
			least, most = 8, 8
		case Hello:
			least, most = 40, 40
		case Ack:
			least, most = 17, 48
		case Proof:
			least, most = 8, 40
		}
		for _, n := range []int{0, least - 1, least, most, most + 1, 1 << 30} {
			if err := CheckLength(kind, n); (err == nil) != (n >= least && n <= most && most > 0) || err != nil && !errors.Is(err, ErrMalformed) {
				t.Errorf("kind %d with %d bytes: %v", kind, n, err)
			}
		}
	}
}
