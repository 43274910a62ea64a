package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ReadRequestSize is the length of a Read Request's payload.
const ReadRequestSize = 28

// Errors of the message codec.
var (
	ErrReadRequestSize = errors.New("rdmap: a Read Request has 28 bytes")
	ErrTerminateShort  = errors.New("rdmap: Terminate message is cut off")
)

// ReadRequest is the payload of a Read Request (RFC 5040 section 4.4).
type ReadRequest struct {
	SinkSTag     uint32 // where the response goes
	SinkOffset   uint64
	Length       uint32
	SourceSTag   uint32 // what is read
	SourceOffset uint64
}

// Append appends the encoded request.
func (r *ReadRequest) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.SinkSTag)
	dst = binary.BigEndian.AppendUint64(dst, r.SinkOffset)
	dst = binary.BigEndian.AppendUint32(dst, r.Length)
	dst = binary.BigEndian.AppendUint32(dst, r.SourceSTag)
	return binary.BigEndian.AppendUint64(dst, r.SourceOffset)
}

// ParseReadRequest decodes a request.
func ParseReadRequest(b []byte) (ReadRequest, error) {
	if len(b) != ReadRequestSize {
		return ReadRequest{}, ErrReadRequestSize
	}
	return ReadRequest{
		SinkSTag:     binary.BigEndian.Uint32(b),
		SinkOffset:   binary.BigEndian.Uint64(b[4:]),
		Length:       binary.BigEndian.Uint32(b[12:]),
		SourceSTag:   binary.BigEndian.Uint32(b[16:]),
		SourceOffset: binary.BigEndian.Uint64(b[20:]),
	}, nil
}

// Sizes of the messages of RFC 7306, in bytes.
const (
	ImmediateSize      = 8
	AtomicRequestSize  = 52
	AtomicResponseSize = 12
)

// AtomicOp is the operation of an Atomic Request.
type AtomicOp uint32

// The operations of RFC 7306 section 5.
const (
	AtomicFetchAdd    AtomicOp = 0
	AtomicCompareSwap AtomicOp = 2
)

// ErrAtomicSize is an Atomic Request or Response of the wrong length.
var ErrAtomicSize = errors.New("rdmap: an Atomic Request has 52 bytes, a Response 12")

// AtomicRequest is the payload of an Atomic Request (RFC 7306 section 5.1).
type AtomicRequest struct {
	Op     AtomicOp
	ID     uint32 // comes back in the response
	STag   uint32
	Offset uint64
	// AddSwap is what is added or stored. Of an addition, a bit of AddSwapMask
	// ends a field, which takes no carry to the next; of a swap, the bits set
	// are those that are replaced.
	AddSwap, AddSwapMask uint64
	// Compare is compared where CompareMask has bits.
	Compare, CompareMask uint64
}

// Append appends the encoded request.
func (r *AtomicRequest) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.Op))
	dst = binary.BigEndian.AppendUint32(dst, r.ID)
	dst = binary.BigEndian.AppendUint32(dst, r.STag)
	for _, v := range [...]uint64{r.Offset, r.AddSwap, r.AddSwapMask, r.Compare, r.CompareMask} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	return dst
}

// ParseAtomicRequest decodes a request.
func ParseAtomicRequest(b []byte) (AtomicRequest, error) {
	if len(b) != AtomicRequestSize {
		return AtomicRequest{}, ErrAtomicSize
	}
	return AtomicRequest{
		Op:          AtomicOp(binary.BigEndian.Uint32(b) & 0x0F), // the rest is reserved
		ID:          binary.BigEndian.Uint32(b[4:]),
		STag:        binary.BigEndian.Uint32(b[8:]),
		Offset:      binary.BigEndian.Uint64(b[12:]),
		AddSwap:     binary.BigEndian.Uint64(b[20:]),
		AddSwapMask: binary.BigEndian.Uint64(b[28:]),
		Compare:     binary.BigEndian.Uint64(b[36:]),
		CompareMask: binary.BigEndian.Uint64(b[44:]),
	}, nil
}

// Apply computes what the request makes of a value.
func (r *AtomicRequest) Apply(old uint64) uint64 {
	if r.Op == AtomicCompareSwap {
		if old&r.CompareMask != r.Compare&r.CompareMask {
			return old
		}
		return old&^r.AddSwapMask | r.AddSwap&r.AddSwapMask
	}
	if r.AddSwapMask == 0 {
		return old + r.AddSwap
	}
	var sum, carry uint64
	for bit := uint64(1); bit != 0; bit <<= 1 {
		x, y := old&bit, r.AddSwap&bit
		sum |= x ^ y ^ carry
		carry = (x&y | carry&(x|y)) << 1
		if r.AddSwapMask&bit != 0 {
			carry = 0
		}
	}
	return sum
}

// AtomicResponse is the payload of an Atomic Response (RFC 7306 section 5.2).
type AtomicResponse struct {
	ID    uint32
	Value uint64 // what was there before
}

// Append appends the encoded response.
func (r *AtomicResponse) Append(dst []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(dst, r.ID), r.Value)
}

// ParseAtomicResponse decodes a response.
func ParseAtomicResponse(b []byte) (AtomicResponse, error) {
	if len(b) != AtomicResponseSize {
		return AtomicResponse{}, ErrAtomicSize
	}
	return AtomicResponse{binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])}, nil
}

// Cause is what a Terminate message reports: the layer that found the error,
// the type of error within it and the code within that (RFC 5040 section 4.8).
type Cause struct {
	Layer, Type, Code uint8
}

// The causes that a Terminate can tell.
var (
	RDMAPCatastrophic        = Cause{0, 0, 0}
	RDMAPInvalidSTag         = Cause{0, 1, 0}
	RDMAPBounds              = Cause{0, 1, 1}
	RDMAPAccessRights        = Cause{0, 1, 2}
	RDMAPNotAssociated       = Cause{0, 1, 3}
	RDMAPWrap                = Cause{0, 1, 4}
	RDMAPProtectInvalidate   = Cause{0, 1, 9}
	RDMAPProtection          = Cause{0, 1, 0xFF}
	RDMAPBadVersion          = Cause{0, 2, 5}
	RDMAPUnexpectedOpcode    = Cause{0, 2, 6}
	RDMAPStreamCatastrophic  = Cause{0, 2, 7}
	RDMAPGlobalCatastrophic  = Cause{0, 2, 8}
	RDMAPCannotInvalidate    = Cause{0, 2, 9}
	RDMAPUnspecified         = Cause{0, 2, 0xFF}
	DDPCatastrophic          = Cause{1, 0, 0}
	DDPTaggedInvalidSTag     = Cause{1, 1, 0}
	DDPTaggedBounds          = Cause{1, 1, 1}
	DDPTaggedNotAssociated   = Cause{1, 1, 2}
	DDPTaggedWrap            = Cause{1, 1, 3}
	DDPTaggedVersion         = Cause{1, 1, 4}
	DDPUntaggedQueue         = Cause{1, 2, 1}
	DDPUntaggedNoBuffer      = Cause{1, 2, 2}
	DDPUntaggedMSN           = Cause{1, 2, 3}
	DDPUntaggedOffset        = Cause{1, 2, 4}
	DDPUntaggedTooLong       = Cause{1, 2, 5}
	DDPUntaggedVersion       = Cause{1, 2, 6}
	MPAConnectionLost        = Cause{2, 0, 1}
	MPACRC                   = Cause{2, 0, 2}
	MPALength                = Cause{2, 0, 3}
	MPASetup                 = Cause{2, 0, 4}
	MPACatastrophic          = Cause{2, 0, 5}
	MPAInsufficientIRD       = Cause{2, 0, 6}
	MPANoReadyToReceiveModes = Cause{2, 0, 7}
)

var causeTexts = map[Cause]string{
	RDMAPCatastrophic:        "RDMAP: local catastrophic error",
	RDMAPInvalidSTag:         "RDMAP protection error: invalid STag",
	RDMAPBounds:              "RDMAP protection error: base or bounds violation",
	RDMAPAccessRights:        "RDMAP protection error: access rights violation",
	RDMAPNotAssociated:       "RDMAP protection error: STag not associated with the stream",
	RDMAPWrap:                "RDMAP protection error: offset wraps around",
	RDMAPProtectInvalidate:   "RDMAP protection error: STag cannot be invalidated",
	RDMAPProtection:          "RDMAP protection error",
	RDMAPBadVersion:          "RDMAP operation error: invalid version",
	RDMAPUnexpectedOpcode:    "RDMAP operation error: unexpected opcode",
	RDMAPStreamCatastrophic:  "RDMAP operation error: catastrophic, of this stream",
	RDMAPGlobalCatastrophic:  "RDMAP operation error: catastrophic, of the whole device",
	RDMAPCannotInvalidate:    "RDMAP operation error: STag cannot be invalidated",
	RDMAPUnspecified:         "RDMAP operation error",
	DDPCatastrophic:          "DDP: local catastrophic error",
	DDPTaggedInvalidSTag:     "DDP tagged buffer error: invalid STag",
	DDPTaggedBounds:          "DDP tagged buffer error: base or bounds violation",
	DDPTaggedNotAssociated:   "DDP tagged buffer error: STag not associated with the stream",
	DDPTaggedWrap:            "DDP tagged buffer error: offset wraps around",
	DDPTaggedVersion:         "DDP tagged buffer error: invalid version",
	DDPUntaggedQueue:         "DDP untagged buffer error: invalid queue number",
	DDPUntaggedNoBuffer:      "DDP untagged buffer error: no buffer posted",
	DDPUntaggedMSN:           "DDP untagged buffer error: message sequence number out of range",
	DDPUntaggedOffset:        "DDP untagged buffer error: invalid message offset",
	DDPUntaggedTooLong:       "DDP untagged buffer error: message too long for the buffer",
	DDPUntaggedVersion:       "DDP untagged buffer error: invalid version",
	MPAConnectionLost:        "MPA: connection lost",
	MPACRC:                   "MPA: CRC error",
	MPALength:                "MPA: marker and length of a unit disagree",
	MPASetup:                 "MPA: invalid Request or Reply",
	MPACatastrophic:          "MPA: local catastrophic error",
	MPAInsufficientIRD:       "MPA: too few inbound Reads",
	MPANoReadyToReceiveModes: "MPA: no ready-to-receive message in common",
}

// Known tells whether the RFCs define the cause.
func (c Cause) Known() bool { _, ok := causeTexts[c]; return ok }

// Access tells whether the cause is a refused access to memory.
func (c Cause) Access() bool {
	return c.Layer == 0 && c.Type == 1 || c.Layer == 1 && c.Type == 1 && c != DDPTaggedVersion
}

// Mirrored is what Linux siw means by the cause where nothing else tells that it
// has written the layer and the type in each other's place.
func (c Cause) Mirrored() Cause { return Cause{c.Type, c.Layer, c.Code} }

func (c Cause) String() string {
	text, ok := causeTexts[c]
	if !ok {
		text = "unknown cause"
	}
	return fmt.Sprintf("%s (layer %d, type %d, code %d)", text, c.Layer, c.Type, c.Code)
}

// Sizes of a Terminate message, in bytes.
const (
	terminateControl = 4
	// MaxTerminateSize is the length of the longest: control, segment length,
	// an untagged header and a Read Request.
	MaxTerminateSize = terminateControl + 2 + UntaggedHeaderSize + ReadRequestSize
)

const (
	terminateHasLength  = 0x80
	terminateHasSegment = 0x40
	terminateHasRequest = 0x20
)

// Terminate is the last message of a stream that failed.
type Terminate struct {
	Cause Cause
	// HasSegment says that SegmentLength and Segment tell which segment of the
	// receiver's caused it.
	HasSegment    bool
	SegmentLength uint16 // of the whole segment, headers included
	Segment       Segment
	// HasRequest says that it was a Read Request, and this one.
	HasRequest bool
	Request    ReadRequest
}

// Append appends the encoded message.
func (t *Terminate) Append(dst []byte) []byte {
	var present byte
	if t.HasSegment {
		present |= terminateHasLength | terminateHasSegment
		if t.HasRequest {
			present |= terminateHasRequest
		}
	}
	dst = append(dst, t.Cause.Layer<<4|t.Cause.Type&0x0F, t.Cause.Code, present, 0)
	if t.HasSegment {
		dst = binary.BigEndian.AppendUint16(dst, t.SegmentLength)
		dst = t.Segment.Append(dst)
		if t.HasRequest {
			dst = t.Request.Append(dst)
		}
	}
	return dst
}

// ParseTerminate decodes a message. It also takes the layout of Linux siw, which
// writes the bit fields of the first three bytes from the other end: it is
// recognised by the place of the presence bits or, without any, by a cause that
// means something only that way around.
func ParseTerminate(b []byte) (Terminate, error) {
	if len(b) < terminateControl {
		return Terminate{}, ErrTerminateShort
	}
	t := Terminate{Cause: Cause{b[0] >> 4, b[0] & 0x0F, b[1]}}
	present := b[2] & (terminateHasLength | terminateHasSegment | terminateHasRequest)
	swapped := Cause{b[0] & 0x0F, b[0] >> 4, b[1]}
	if low := b[2] & 0x07; present == 0 && (low != 0 || !t.Cause.Known() && swapped.Known()) {
		t.Cause = swapped
		present = low&1<<7 | low&2<<5 | low&4<<3
	}
	rest := b[terminateControl:]
	if present&terminateHasLength != 0 {
		if len(rest) < 2 {
			return t, ErrTerminateShort
		}
		t.SegmentLength = binary.BigEndian.Uint16(rest)
		rest = rest[2:]
	}
	if present&terminateHasSegment != 0 {
		segment, err := ParseSegment(rest)
		if errors.Is(err, ErrSegmentShort) {
			return t, ErrTerminateShort
		}
		// A wrong version may be just what the message is about.
		t.HasSegment, t.Segment = true, segment
		rest = rest[segment.HeaderSize():]
	}
	if present&terminateHasRequest != 0 {
		if len(rest) < ReadRequestSize {
			return t, ErrTerminateShort
		}
		t.HasRequest = true
		t.Request, _ = ParseReadRequest(rest[:ReadRequestSize])
	}
	return t, nil
}
