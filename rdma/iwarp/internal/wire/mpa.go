package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/internal/crc32c"
)

// Sizes of the set-up frames (RFC 5044 section 7.1), in bytes.
const (
	SetupHeaderSize = 20  // key, flags, revision, length of the private data
	MaxPrivateData  = 512 // what may follow, the enhanced header included
	EnhancedSize    = 4   // the enhanced header (RFC 6581 section 9) before the rest
)

// Revisions of MPA.
const (
	Revision1 = 1 // RFC 5044
	Revision2 = 2 // RFC 6581
)

const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"

	setupMarkers  = 0x80
	setupCRC      = 0x40
	setupReject   = 0x20
	setupEnhanced = 0x10
)

// Errors of the set-up codec.
var (
	ErrSetupKey     = errors.New("mpa: not a set-up frame of the expected kind")
	ErrSetupPrivate = errors.New("mpa: private data of a set-up frame is out of range")
	ErrSetupShort   = errors.New("mpa: set-up frame is cut off")
)

// Setup is an MPA Request or Reply.
type Setup struct {
	Reply    bool
	Markers  bool // the sender wants to receive markers
	CRC      bool // the sender wants checksums; one side is enough
	Reject   bool // of a Reply: the connection is refused
	Revision uint8
	// Enhanced is the header of RFC 6581, nil without one.
	Enhanced *Enhanced
	// Private is what the application gave, without the enhanced header.
	Private []byte
}

// NotNegotiated stands in Enhanced for a depth that the sender leaves open.
const NotNegotiated = 0x3FFF

// Enhanced is the header that RFC 6581 puts before the private data.
type Enhanced struct {
	// PeerToPeer asks for (or grants) a first FPDU of the initiator that
	// carries no data and lets the responder send: the ready-to-receive message.
	PeerToPeer bool
	// The kinds of ready-to-receive message that are offered, or the one chosen.
	ReadySend, ReadyWrite, ReadyRead bool
	// IRD and ORD are the sender's own depths, 14 bits each: Reads that it
	// serves at a time and Reads that it will have outstanding.
	IRD, ORD uint16
}

// AppendSetup appends the frame to dst. It fails if the private data does not fit.
func AppendSetup(dst []byte, s *Setup) ([]byte, error) {
	length := len(s.Private)
	key, flags := requestKey, byte(0)
	if s.Reply {
		key = replyKey
	}
	for _, f := range [...]struct {
		on  bool
		bit byte
	}{{s.Markers, setupMarkers}, {s.CRC, setupCRC}, {s.Reject, setupReject}, {s.Enhanced != nil, setupEnhanced}} {
		if f.on {
			flags |= f.bit
		}
	}
	if s.Enhanced != nil {
		length += EnhancedSize
	}
	if length > MaxPrivateData {
		return dst, fmt.Errorf("%w: %d bytes, at most %d fit", ErrSetupPrivate, length, MaxPrivateData)
	}
	dst = append(dst, key...)
	dst = append(dst, flags, s.Revision)
	dst = binary.BigEndian.AppendUint16(dst, uint16(length))
	if e := s.Enhanced; e != nil {
		ird, ord := e.IRD&NotNegotiated, e.ORD&NotNegotiated
		if e.PeerToPeer {
			ird |= 0x8000
		}
		if e.ReadySend {
			ird |= 0x4000
		}
		if e.ReadyWrite {
			ord |= 0x8000
		}
		if e.ReadyRead {
			ord |= 0x4000
		}
		dst = binary.BigEndian.AppendUint16(dst, ird)
		dst = binary.BigEndian.AppendUint16(dst, ord)
	}
	return append(dst, s.Private...), nil
}

// SetupPrivateLength checks the key of a set-up frame's first [SetupHeaderSize]
// bytes and returns how many bytes follow them.
func SetupPrivateLength(header []byte, reply bool) (int, error) {
	if len(header) < SetupHeaderSize {
		return 0, ErrSetupShort
	}
	key := requestKey
	if reply {
		key = replyKey
	}
	if string(header[:16]) != key {
		return 0, fmt.Errorf("%w: it begins with %q", ErrSetupKey, header[:16])
	}
	n := int(binary.BigEndian.Uint16(header[18:]))
	if n > MaxPrivateData {
		return 0, fmt.Errorf("%w: %d bytes announced, at most %d are allowed", ErrSetupPrivate, n, MaxPrivateData)
	}
	return n, nil
}

// ParseSetup decodes a whole frame. Private aliases b.
func ParseSetup(b []byte, reply bool) (Setup, error) {
	n, err := SetupPrivateLength(b, reply)
	if err != nil {
		return Setup{}, err
	}
	if len(b) != SetupHeaderSize+n {
		return Setup{}, ErrSetupShort
	}
	flags := b[16]
	s := Setup{
		Reply:    reply,
		Markers:  flags&setupMarkers != 0,
		CRC:      flags&setupCRC != 0,
		Reject:   flags&setupReject != 0,
		Revision: b[17],
		Private:  b[SetupHeaderSize:],
	}
	// Revision 1 reserves the bit and asks receivers not to look at it.
	if flags&setupEnhanced != 0 && s.Revision >= Revision2 {
		if n < EnhancedSize {
			return Setup{}, fmt.Errorf("%w: %d bytes leave no room for the enhanced header", ErrSetupPrivate, n)
		}
		ird, ord := binary.BigEndian.Uint16(s.Private), binary.BigEndian.Uint16(s.Private[2:])
		s.Enhanced = &Enhanced{
			PeerToPeer: ird&0x8000 != 0,
			ReadySend:  ird&0x4000 != 0,
			ReadyWrite: ord&0x8000 != 0,
			ReadyRead:  ord&0x4000 != 0,
			IRD:        ird & NotNegotiated,
			ORD:        ord & NotNegotiated,
		}
		s.Private = s.Private[EnhancedSize:]
	}
	return s, nil
}

// Sizes of an FPDU (RFC 5044 section 4), in bytes.
const (
	LengthSize     = 2     // before the ULPDU
	CRCSize        = 4     // after the padding
	MaxULPDU       = 65535 // what the length can tell
	MarkerInterval = 512   // of the stream, between the starts of two markers
	MarkerSize     = 4
)

// UpdateCRC adds data to the CRC32C of an FPDU, which begins with 0.
func UpdateCRC(crc uint32, data []byte) uint32 { return crc32c.Update(crc, data) }

// PutCRC writes a finished CRC as it goes on the wire, little-endian.
func PutCRC(dst []byte, crc uint32) { binary.LittleEndian.PutUint32(dst, crc) }

// CRC reads what PutCRC wrote.
func CRC(src []byte) uint32 { return binary.LittleEndian.Uint32(src) }

// Padding is the number of zero bytes between a ULPDU and the CRC.
func Padding(ulpdu int) int { return -(ulpdu + LengthSize) & 3 }

// LargestULPDU is the largest ULPDU whose FPDU fits into one TCP segment with
// emss bytes of payload (RFC 5044 section 4.5).
func LargestULPDU(emss int, markers bool) int {
	n := emss - (LengthSize + CRCSize + emss%4)
	if markers {
		n -= MarkerSize * ((emss + MarkerInterval - 1) / MarkerInterval)
	}
	return min(max(n, 0), MaxULPDU)
}
