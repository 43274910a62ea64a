package transfer

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// MaxPacket is the largest packet accepted, its length field as on the wire.
const MaxPacket = 16 << 20

const (
	packetPrefixLen = 6   // the two lengths
	maxPacketHeader = 512 // bytes
)

// HeartbeatSeqno is the sequence number of packets that carry nothing and keep
// the pipeline alive.
const HeartbeatSeqno = -1

// UnknownSeqno is the sequence number of acknowledgements that are out of band: of no packet,
// but of why the pipeline ends.
const UnknownSeqno = -2

// PacketHeader is a PacketHeaderProto.
type PacketHeader struct {
	Offset  int64 // of the data in the block
	Seqno   int64
	Last    bool  // the block ends before this packet, which has no data
	DataLen int32 // bytes
	Sync    bool  // acknowledge only after the block is on stable storage
}

// PacketHeaderLen is the encoded length of a header without Sync, which is the
// only optional field: the other fields have a fixed size.
const PacketHeaderLen = 25

// AppendPacketHeader appends the protobuf encoding of h to dst.
func AppendPacketHeader(dst []byte, h *PacketHeader) []byte {
	dst = append(dst, 1<<3|byte(protowire.Fixed64Type))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Offset))
	dst = append(dst, 2<<3|byte(protowire.Fixed64Type))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Seqno))
	dst = append(dst, 3<<3|byte(protowire.VarintType), bit(h.Last))
	dst = append(dst, 4<<3|byte(protowire.Fixed32Type))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.DataLen))
	if h.Sync {
		dst = append(dst, 5<<3|byte(protowire.VarintType), 1)
	}
	return dst
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// AppendPacketPrefix appends everything of a packet that stands before its
// checksums. sumsLen is the total length of the checksums in bytes.
func AppendPacketPrefix(dst []byte, h *PacketHeader, sumsLen int) []byte {
	hlen := PacketHeaderLen
	if h.Sync {
		hlen += 2
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+sumsLen+int(h.DataLen)))
	dst = binary.BigEndian.AppendUint16(dst, uint16(hlen))
	return AppendPacketHeader(dst, h)
}

// ParsePacketHeader reads a PacketHeaderProto and checks what can be checked
// without knowing the block. Unknown fields are ignored.
func ParsePacketHeader(b []byte) (PacketHeader, error) {
	var h PacketHeader
	const required = 1<<1 | 1<<2 | 1<<3 | 1<<4
	seen := 0
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return h, fmt.Errorf("%w: packet header: %w", ErrMalformed, protowire.ParseError(n))
		}
		b = b[n:]
		switch {
		case num <= 2 && typ == protowire.Fixed64Type:
			v, n := protowire.ConsumeFixed64(b)
			if n < 0 {
				return h, fmt.Errorf("%w: packet header's field %d: %w", ErrMalformed, num, protowire.ParseError(n))
			}
			if num == 1 {
				h.Offset = int64(v)
			} else {
				h.Seqno = int64(v)
			}
			b = b[n:]
		case (num == 3 || num == 5) && typ == protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return h, fmt.Errorf("%w: packet header's field %d: %w", ErrMalformed, num, protowire.ParseError(n))
			}
			if num == 3 {
				h.Last = v != 0
			} else {
				h.Sync = v != 0
			}
			b = b[n:]
		case num == 4 && typ == protowire.Fixed32Type:
			v, n := protowire.ConsumeFixed32(b)
			if n < 0 {
				return h, fmt.Errorf("%w: packet header's data length: %w", ErrMalformed, protowire.ParseError(n))
			}
			h.DataLen, b = int32(v), b[n:]
		default:
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				return h, fmt.Errorf("%w: packet header's field %d: %w", ErrMalformed, num, protowire.ParseError(n))
			}
			b = b[n:]
			continue
		}
		seen |= 1 << num
	}
	if seen&required != required {
		return h, fmt.Errorf("%w: packet header lacks a required field", ErrMalformed)
	}
	if h.DataLen < 0 || h.Offset < 0 || h.Seqno < HeartbeatSeqno {
		return h, fmt.Errorf("%w: packet header with offset %d, sequence number %d, data length %d", ErrMalformed, h.Offset, h.Seqno, h.DataLen)
	}
	if (h.Last || h.Seqno == HeartbeatSeqno) && h.DataLen != 0 {
		return h, fmt.Errorf("%w: last or heartbeat packet with %d bytes of data", ErrMalformed, h.DataLen)
	}
	return h, nil
}

// A Packet is one packet in the buffer of the [Reader] that returned it: valid
// until the reader's next method call.
type Packet struct {
	PacketHeader
	Raw  []byte // the whole packet as it came, to hand on
	Sums []byte // checksums, big-endian, one for each chunk of Data from its start
	Data []byte
}
