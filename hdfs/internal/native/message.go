package native

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// Service is the name under which endpoints carry these messages, CallService that of
// the calls by which blocks are read.
const (
	Service     = "hdfs-data/1"
	CallService = "hdfs-data-calls/1"
)

// Kind is what a message is, its first byte.
type Kind uint8

// The kinds. Those below 16 come from the end that has dialled.
const (
	SetUp  Kind = 1 // of a block's pipeline
	Packet Kind = 2
	Abort  Kind = 3 // nobody waits for the block any more
	Hello  Kind = 4 // asks the peer to prove that it is the DataNode of an address

	Answer Kind = 17 // to a set-up
	Ack    Kind = 18
	Proof  Kind = 19 // answers a hello
)

// Sizes in bytes.
const (
	HeaderLen       = 8
	PacketHeaderLen = 32
	ackHeaderLen    = 16
	// MaxRequest bounds the protobuf message of a set-up or an answer.
	MaxRequest = 64 << 10
	// MaxReplies bounds the DataNodes of an acknowledgement: it fits a message that
	// needs no memory of its own.
	MaxReplies = 32
	// MaxWindow is the greatest window.
	MaxWindow = 64 << 20
	// NonceLen and ProofLen are those of a hello and a proof.
	NonceLen, ProofLen = 32, 32
)

// ErrMalformed is wrapped by every error about bytes that are not the protocol. The
// endpoint has to be closed.
var ErrMalformed = errors.New("malformed message of " + Service)

// Verdict is what an answer says of a set-up.
type Verdict uint8

// The verdicts.
const (
	Accepted Verdict = iota
	// Refused for the reason in the response.
	Refused
	// Busy: there is no memory for the window now, or, with StatusNoRoom, the DataNode of
	// FirstBadLink has no room for an endpoint of the one before it. Nothing has been done;
	// the same pipeline may be had a little later.
	Busy
	// Unreachable: the DataNode of FirstBadLink takes no native pipelines. Nothing has
	// been done; the legacy protocol may do.
	Unreachable
	verdicts
)

// StatusNoRoom is in the response of an answer whose verdict is Busy for want of an endpoint,
// not of memory for the window. HDFS says it of nothing that has to do with pipelines.
const StatusNoRoom = hdfspb.Status_IN_PROGRESS

// KindOf is the kind of a message, 0 of one that is too short for any.
func KindOf(b []byte) Kind {
	if len(b) < HeaderLen {
		return 0
	}
	return Kind(b[0])
}

// AppendSetUp appends a set-up. window is how many bytes of packets, with their headers and
// checksums, may be on their way without an acknowledgement, 1 to MaxWindow.
func AppendSetUp(dst []byte, window int, op *hdfspb.OpWriteBlockProto) ([]byte, error) {
	dst = append(dst, byte(SetUp), 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(window))
	return proto.MarshalOptions{}.MarshalAppend(dst, op)
}

// ParseSetUp decodes a set-up.
func ParseSetUp(b []byte) (window int, op *hdfspb.OpWriteBlockProto, err error) {
	if err := header(b, SetUp, 0); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(b[4:])
	if b[3] != 0 {
		return 0, nil, fmt.Errorf("%w: set-up", ErrMalformed)
	}
	if n == 0 || n > MaxWindow {
		return 0, nil, fmt.Errorf("%w: a window of %d bytes, must be between 1 and %d", ErrMalformed, n, MaxWindow)
	}
	op = &hdfspb.OpWriteBlockProto{}
	if err := proto.Unmarshal(b[HeaderLen:], op); err != nil {
		return 0, nil, fmt.Errorf("%w: set-up: %w", ErrMalformed, err)
	}
	return int(n), op, nil
}

// lengths is how many bytes a message of each kind has, at least and at most.
var lengths = [...]struct{ least, most int }{
	SetUp:  {HeaderLen, HeaderLen + MaxRequest},
	Packet: {PacketHeaderLen, HeaderLen + transfer.MaxPacket},
	Abort:  {HeaderLen, HeaderLen},
	Hello:  {HeaderLen + NonceLen, HeaderLen + NonceLen},
	Answer: {HeaderLen, HeaderLen + MaxRequest},
	Ack:    {ackHeaderLen + 1, ackHeaderLen + MaxReplies},
	Proof:  {HeaderLen, HeaderLen + ProofLen},
}

// CheckLength checks how many bytes a message of a kind has, before anybody looks at them or
// copies them.
func CheckLength(kind Kind, n int) error {
	if int(kind) >= len(lengths) || n < HeaderLen || n < lengths[kind].least || n > lengths[kind].most {
		return fmt.Errorf("%w: a message of kind %d with %d bytes", ErrMalformed, kind, n)
	}
	return nil
}

// header checks what begins a message of a kind, and its length. flags are those that it may
// have.
func header(b []byte, kind Kind, flags byte) error {
	if err := CheckLength(kind, len(b)); err != nil {
		return err
	}
	switch {
	case Kind(b[0]) != kind:
		return fmt.Errorf("%w: kind %d where %d is due", ErrMalformed, b[0], kind)
	case b[1]&^flags != 0 || b[2] != 0:
		return fmt.Errorf("%w: kind %d with flags %#x", ErrMalformed, kind, b[1])
	}
	return nil
}

// bare checks that the rest of a header is 0.
func bare(b []byte) error {
	if b[3] != 0 || binary.BigEndian.Uint32(b[4:]) != 0 {
		return fmt.Errorf("%w: a message of kind %d whose header has more", ErrMalformed, b[0])
	}
	return nil
}

// Flags of packets.
const (
	flagLast = 1 << iota // the block ends here; there is no data
	flagSync             // acknowledged when the block is on stable storage
)

// PutPacketHeader writes the header of a packet to the beginning of b: PacketHeaderLen
// bytes. The checksums follow it, sums bytes, and then the data.
func PutPacketHeader(b []byte, h *transfer.PacketHeader, sums int) {
	_ = b[PacketHeaderLen-1]
	var flags byte
	if h.Last {
		flags |= flagLast
	}
	if h.Sync {
		flags |= flagSync
	}
	b[0], b[1], b[2], b[3] = byte(Packet), flags, 0, 0
	binary.BigEndian.PutUint32(b[4:], uint32(h.DataLen))
	binary.BigEndian.PutUint64(b[8:], uint64(h.Offset))
	binary.BigEndian.PutUint64(b[16:], uint64(h.Seqno))
	binary.BigEndian.PutUint32(b[24:], uint32(sums))
	binary.BigEndian.PutUint32(b[28:], 0)
}

// ParsePacket decodes a packet whose checksums are as c tells. What it returns lies in b.
func ParsePacket(b []byte, c transfer.Checksum, p *transfer.Packet) error {
	if err := header(b, Packet, flagLast|flagSync); err != nil {
		return err
	}
	length, sums := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[24:])
	h := transfer.PacketHeader{
		Offset: int64(binary.BigEndian.Uint64(b[8:])), Seqno: int64(binary.BigEndian.Uint64(b[16:])),
		Last: b[1]&flagLast != 0, Sync: b[1]&flagSync != 0, DataLen: int32(length),
	}
	rest := b[PacketHeaderLen:]
	switch {
	case length > transfer.MaxPacket || uint64(length)+uint64(sums) != uint64(len(rest)):
		return fmt.Errorf("%w: a packet of %d bytes of checksums and %d of data in %d", ErrMalformed, sums, length, len(rest))
	case h.Offset < 0 || h.Seqno < 0 || b[3] != 0 || binary.BigEndian.Uint32(b[28:]) != 0:
		return fmt.Errorf("%w: a packet with offset %d and sequence number %d", ErrMalformed, h.Offset, h.Seqno)
	case h.Last && length > 0:
		return fmt.Errorf("%w: a last packet with %d bytes of data", ErrMalformed, length)
	case int64(sums) != c.Chunks(int64(length))*int64(c.Size()):
		return fmt.Errorf("%w: a packet of %d bytes of data with %d of checksums", ErrMalformed, length, sums)
	}
	*p = transfer.Packet{PacketHeader: h, Raw: b, Sums: rest[:sums:sums], Data: rest[sums:]}
	return nil
}

// WindowPackets is how many packets may be on their way in a window of some bytes without an
// acknowledgement: one for each 512 bytes, and 8 more. The listener keeps 100 bytes of each.
func WindowPackets(window int64) int64 { return 8 + window/512 }

// AppendAbort appends an abort.
func AppendAbort(dst []byte) []byte { return append(dst, byte(Abort), 0, 0, 0, 0, 0, 0, 0) }

// AppendAnswer appends the answer to a set-up. The response may be nil.
func AppendAnswer(dst []byte, v Verdict, resp *hdfspb.BlockOpResponseProto) ([]byte, error) {
	dst = append(dst, byte(Answer), 0, 0, byte(v), 0, 0, 0, 0)
	if resp == nil {
		return dst, nil
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, resp)
}

// ParseAnswer decodes the answer to a set-up.
func ParseAnswer(b []byte) (Verdict, *hdfspb.BlockOpResponseProto, error) {
	if err := header(b, Answer, 0); err != nil {
		return 0, nil, err
	}
	v := Verdict(b[3])
	if v >= verdicts || binary.BigEndian.Uint32(b[4:]) != 0 {
		return 0, nil, fmt.Errorf("%w: an answer with verdict %d", ErrMalformed, v)
	}
	resp := &hdfspb.BlockOpResponseProto{}
	if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(b[HeaderLen:], resp); err != nil {
		return 0, nil, fmt.Errorf("%w: answer: %w", ErrMalformed, err)
	}
	return v, resp, nil
}

// AppendAck appends an acknowledgement: of all packets up to a.Seqno if all replies are
// SUCCESS, and otherwise of why the block goes no further. There are 1 to MaxReplies of
// them, that of the sender first.
func AppendAck(dst []byte, a *transfer.Ack) []byte {
	dst = append(dst, byte(Ack), 0, 0, byte(len(a.Replies)), 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(a.Seqno))
	for _, s := range a.Replies {
		dst = append(dst, byte(s))
	}
	return dst
}

// ParseAck decodes an acknowledgement into a, reusing a.Replies. A status that is not
// known counts as ERROR.
func ParseAck(b []byte, a *transfer.Ack) error {
	if err := header(b, Ack, 0); err != nil {
		return err
	}
	*a = transfer.Ack{Seqno: int64(binary.BigEndian.Uint64(b[8:])), Replies: a.Replies[:0]}
	replies := b[ackHeaderLen:]
	if int(b[3]) != len(replies) || a.Seqno < 0 || binary.BigEndian.Uint32(b[4:]) != 0 {
		return fmt.Errorf("%w: an acknowledgement of packet %d by %d DataNodes with %d replies", ErrMalformed, a.Seqno, b[3], len(replies))
	}
	for _, s := range replies {
		status := hdfspb.Status(s)
		if _, known := hdfspb.Status_name[int32(s)]; !known {
			status = hdfspb.Status_ERROR
		}
		a.Replies = append(a.Replies, status)
	}
	return nil
}

// AppendHello appends a hello.
func AppendHello(dst []byte, nonce [NonceLen]byte) []byte {
	return append(append(dst, byte(Hello), 0, 0, 0, 0, 0, 0, 0), nonce[:]...)
}

// ParseHello decodes a hello.
func ParseHello(b []byte) (nonce [NonceLen]byte, err error) {
	if err := header(b, Hello, 0); err != nil {
		return nonce, err
	}
	return [NonceLen]byte(b[HeaderLen:]), bare(b)
}

// AppendProof appends a proof. It is nil of who has no secret.
func AppendProof(dst []byte, proof []byte) []byte {
	return append(append(dst, byte(Proof), 0, 0, 0, 0, 0, 0, 0), proof...)
}

// ParseProof decodes a proof.
func ParseProof(b []byte) ([]byte, error) {
	if err := header(b, Proof, 0); err != nil {
		return nil, err
	}
	return b[HeaderLen:], bare(b)
}
