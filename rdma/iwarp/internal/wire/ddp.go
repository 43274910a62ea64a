package wire

import (
	"encoding/binary"
	"errors"
)

// Opcode is the operation in RDMAP's control byte.
type Opcode uint8

// The operations of RFC 5040 section 4.3 and RFC 7306 section 4.
const (
	OpWrite Opcode = iota
	OpReadRequest
	OpReadResponse
	OpSend
	OpSendInvalidate
	OpSendSolicited
	OpSendSolicitedInvalidate
	OpTerminate
	OpImmediate
	OpImmediateSolicited
	OpAtomicRequest
	OpAtomicResponse
)

var opcodeNames = [...]string{
	"Write", "Read Request", "Read Response", "Send", "Send with Invalidate",
	"Send with Solicited Event", "Send with Solicited Event and Invalidate", "Terminate",
	"Immediate Data", "Immediate Data with Solicited Event", "Atomic Request", "Atomic Response",
}

func (o Opcode) String() string {
	if int(o) < len(opcodeNames) {
		return opcodeNames[o]
	}
	return "reserved opcode"
}

// The queues of untagged messages (RFC 5040 section 4.1, RFC 7306 section 4).
const (
	QueueSend            = 0
	QueueReadRequest     = 1 // atomic requests, too
	QueueTerminate       = 2
	QueueAtomicResponse  = 3
	FirstMSN             = 1 // message sequence numbers of a queue begin here
	TaggedHeaderSize     = 14
	UntaggedHeaderSize   = 18
	MaxSegmentHeaderSize = UntaggedHeaderSize
	ControlSize          = 2 // tells which of the two headers it is
)

const (
	ddpTagged    = 0x80
	ddpLast      = 0x40
	ddpVersion   = 0x01
	ddpVerMask   = 0x03
	rdmapVersion = 0x40
	rdmapVerMask = 0xC0
	rdmapOpcode  = 0x0F
)

// Errors of the segment codec.
var (
	ErrSegmentShort = errors.New("ddp: segment is shorter than its header")
	ErrDDPVersion   = errors.New("ddp: unknown version")
	ErrRDMAPVersion = errors.New("rdmap: unknown version")
)

// Segment is the header of a DDP segment with RDMAP's control byte.
type Segment struct {
	Tagged bool
	Last   bool // of its message
	Opcode Opcode
	// STag is the tag that a tagged segment goes to. In an untagged one it is
	// the tag to invalidate.
	STag uint32
	// Offset is the target offset of a tagged segment, the offset within the
	// message (32 bits) of an untagged one.
	Offset uint64
	Queue  uint32 // untagged only
	MSN    uint32 // untagged only
}

// HeaderSize is the length of the encoded header.
func (s *Segment) HeaderSize() int {
	if s.Tagged {
		return TaggedHeaderSize
	}
	return UntaggedHeaderSize
}

// HeaderSize tells from the first byte of a segment how long its header is.
func HeaderSize(control byte) int {
	if control&ddpTagged != 0 {
		return TaggedHeaderSize
	}
	return UntaggedHeaderSize
}

// Append appends the encoded header.
func (s *Segment) Append(dst []byte) []byte {
	control := byte(ddpVersion)
	if s.Last {
		control |= ddpLast
	}
	if s.Tagged {
		dst = append(dst, control|ddpTagged, rdmapVersion|byte(s.Opcode))
		dst = binary.BigEndian.AppendUint32(dst, s.STag)
		return binary.BigEndian.AppendUint64(dst, s.Offset)
	}
	dst = append(dst, control, rdmapVersion|byte(s.Opcode))
	dst = binary.BigEndian.AppendUint32(dst, s.STag)
	dst = binary.BigEndian.AppendUint32(dst, s.Queue)
	dst = binary.BigEndian.AppendUint32(dst, s.MSN)
	return binary.BigEndian.AppendUint32(dst, uint32(s.Offset))
}

// ParseSegment decodes a header. With [ErrDDPVersion] and [ErrRDMAPVersion] the
// fields are still filled, as far as the layout of version 1 tells.
func ParseSegment(b []byte) (Segment, error) {
	if len(b) < ControlSize || len(b) < HeaderSize(b[0]) {
		return Segment{}, ErrSegmentShort
	}
	s := Segment{
		Tagged: b[0]&ddpTagged != 0,
		Last:   b[0]&ddpLast != 0,
		Opcode: Opcode(b[1] & rdmapOpcode),
		STag:   binary.BigEndian.Uint32(b[2:]),
	}
	if s.Tagged {
		s.Offset = binary.BigEndian.Uint64(b[6:])
	} else {
		s.Queue = binary.BigEndian.Uint32(b[6:])
		s.MSN = binary.BigEndian.Uint32(b[10:])
		s.Offset = uint64(binary.BigEndian.Uint32(b[14:]))
	}
	if b[0]&ddpVerMask != ddpVersion {
		return s, ErrDDPVersion
	}
	if b[1]&rdmapVerMask != rdmapVersion {
		return s, ErrRDMAPVersion
	}
	return s, nil
}
