// Package wire encodes and decodes what the processes of an exchange say to each
// other: docs/shuffle.md has the layout. It is codec and nothing else: whether an
// entry may come where it came, package flow and the exchange tell.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Version is that of the protocol. Service is what dials ask for.
const (
	Version = 4
	Service = "shuffle/4"
)

// Tags of messages.
const (
	TagHello   uint32 = 1 // the first message of either side
	TagControl uint32 = 2 // entries
	TagBlock   uint32 = 3 // a block that travels as a message
	TagAbort   uint32 = 4 // the exchange has failed
	TagGather  uint32 = 5 // a contribution to a collective
	TagBye     uint32 = 6 // all that this process receives has arrived
)

// ErrFormat is wrapped by all errors of decoding.
var ErrFormat = errors.New("malformed message")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// Limits of what a Hello says.
const (
	MaxSize    = 1 << 16
	MaxThreads = 1 << 12
	MinPage    = 256
	MaxPage    = 1 << 20
	MaxPages   = 1 << 20
	MaxSlab    = 1 << 30
	MaxBlock   = 16 << 20
	MaxToken   = 64
)

// helloSize is the length of a Hello without its token.
const helloSize = 44

var magic = [4]byte{'V', 'S', 'H', 'F'}

// A Hello tells who a process is, and how it has laid out the memory that its peer fills.
type Hello struct {
	Rank, Size, Threads int
	Lanes               int   // of its threads, 1 to Threads
	Page, Pages         int   // of the slab: bytes of a page, and how many there are
	MaxRecord           int64 // bytes
	OneSided            bool  // it wishes that blocks are put, and not sent
	Token               []byte
}

// Append adds the message to b.
func (h *Hello) Append(b []byte) []byte {
	b = append(b, magic[:]...)
	var flags uint16
	if h.OneSided {
		flags = 1
	}
	b = binary.BigEndian.AppendUint16(b, Version)
	b = binary.BigEndian.AppendUint16(b, flags)
	for _, v := range []int{h.Rank, h.Size, h.Threads, h.Lanes, h.Page, h.Pages} {
		b = binary.BigEndian.AppendUint32(b, uint32(v))
	}
	b = binary.BigEndian.AppendUint64(b, uint64(h.MaxRecord))
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.Token)))
	return append(b, h.Token...)
}

// ParseHello decodes one. The token is a copy.
func ParseHello(b []byte) (h Hello, err error) {
	if len(b) < helloSize {
		return h, malformed("a hello of %d bytes", len(b))
	}
	if [4]byte(b) != magic {
		return h, malformed("the peer is no process of a shuffle")
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != Version {
		return h, malformed("version %d, here it is %d", v, Version)
	}
	flags := binary.BigEndian.Uint16(b[6:])
	if flags > 1 {
		return h, malformed("flags %#x", flags)
	}
	number := func(at int) int { return int(binary.BigEndian.Uint32(b[at:])) }
	h = Hello{
		Rank: number(8), Size: number(12), Threads: number(16), Lanes: number(20), Page: number(24), Pages: number(28),
		MaxRecord: int64(binary.BigEndian.Uint64(b[32:])), OneSided: flags&1 != 0,
	}
	token := number(40)
	switch {
	case token > MaxToken || len(b) != helloSize+token:
		return h, malformed("a hello of %d bytes with a token of %d", len(b), token)
	case h.Size < 1 || h.Size > MaxSize || h.Rank >= h.Size:
		return h, malformed("rank %d of %d", h.Rank, h.Size)
	case h.Threads < 1 || h.Threads > MaxThreads:
		return h, malformed("%d threads", h.Threads)
	case h.Lanes < 1 || h.Lanes > h.Threads:
		return h, malformed("%d lanes of %d threads", h.Lanes, h.Threads)
	case h.Page < MinPage || h.Page > MaxPage || h.Page%64 != 0 || h.Pages < 1 || h.Pages > MaxPages || h.Page*h.Pages > MaxSlab:
		return h, malformed("a slab of %d pages of %d bytes", h.Pages, h.Page)
	case h.MaxRecord < 1:
		return h, malformed("records of at most %d bytes", h.MaxRecord)
	}
	h.Token = append([]byte(nil), b[helloSize:]...)
	return h, nil
}

// Kinds of entries.
const (
	// Filled says that a block lies in a slab, to the peer whose slab it is.
	Filled uint8 = 1
	// Free says that a block has been read, to the peer that has filled it.
	Free uint8 = 2
)

// EntrySize is the length of an entry.
const EntrySize = 12

// An Entry is about a stream: the one to a thread of the process that receives.
type Entry struct {
	Kind     uint8
	Receiver uint16 // that thread
	Offset   uint32 // where the block begins
	Length   uint32 // bytes of the block, with its header
}

// Append adds the entry to b.
func (e Entry) Append(b []byte) []byte {
	b = append(b, e.Kind, 0)
	b = binary.BigEndian.AppendUint16(b, e.Receiver)
	b = binary.BigEndian.AppendUint32(b, e.Offset)
	return binary.BigEndian.AppendUint32(b, e.Length)
}

// ParseEntry decodes the first entry of b, which is not empty, and returns the rest.
func ParseEntry(b []byte) (e Entry, rest []byte, err error) {
	if len(b) < EntrySize {
		return e, nil, malformed("%d bytes behind the last entry", len(b))
	}
	e = Entry{
		Kind: b[0], Receiver: binary.BigEndian.Uint16(b[2:]), Offset: binary.BigEndian.Uint32(b[4:]), Length: binary.BigEndian.Uint32(b[8:]),
	}
	switch {
	case b[1] != 0:
		return e, nil, malformed("an entry with a reserved byte %x", b[1])
	case e.Kind != Filled && e.Kind != Free:
		return e, nil, malformed("an entry of kind %d", e.Kind)
	case e.Length < HeaderSize || e.Length > MaxBlock || e.Offset > MaxSlab:
		return e, nil, malformed("an entry about %d bytes at %d", e.Length, e.Offset)
	}
	return e, b[EntrySize:], nil
}

// A board lies behind the slab in memory that a peer on the same host fills. Its words are u64
// in the host's byte order, each in a line of its own.
const (
	BoardTail    = 0   // how many entries the peer has left
	BoardTaken   = 64  // how many the peer has taken, of those that this process has left on its board
	BoardRest    = 128 // odd while the peer rests, and is to be woken by an empty message
	BoardFirst   = 192 // entries: that of number n is at n modulo BoardEntries
	BoardEntries = 256
	BoardSize    = BoardFirst + BoardEntries*EntrySize // a multiple of 64
)

// HeaderSize is the length of a block's header.
const HeaderSize = 24

// A Header stands in front of a block's contents, which are parts.
type Header struct {
	Sum      uint32 // CRC32C of the header behind it and, with Summed, of the contents
	Length   uint32 // of the contents
	Sequence uint32 // of the block in its stream, from 0, modulo 2^32
	Offset   uint32 // in the slab
	Receiver uint16
	Summed   bool
	Parts    uint32
}

// Put writes the header without its sum to the first bytes of b.
func (h *Header) Put(b []byte) {
	_ = b[HeaderSize-1]
	binary.BigEndian.PutUint32(b, 0)
	binary.BigEndian.PutUint32(b[4:], h.Length)
	binary.BigEndian.PutUint32(b[8:], h.Sequence)
	binary.BigEndian.PutUint32(b[12:], h.Offset)
	binary.BigEndian.PutUint16(b[16:], h.Receiver)
	b[18], b[19] = 0, 0
	if h.Summed {
		b[18] = 1
	}
	binary.BigEndian.PutUint32(b[20:], h.Parts)
}

// SetSum writes the sum.
func SetSum(b []byte, sum uint32) { binary.BigEndian.PutUint32(b, sum) }

// ParseHeader decodes the header of a block that takes the whole of b. Its sum is not
// checked: summed are the bytes that it is about.
func ParseHeader(b []byte) (h Header, summed, contents []byte, err error) {
	if len(b) < HeaderSize || len(b) > MaxBlock {
		return h, nil, nil, malformed("a block of %d bytes", len(b))
	}
	h = Header{
		Sum: binary.BigEndian.Uint32(b), Length: binary.BigEndian.Uint32(b[4:]), Sequence: binary.BigEndian.Uint32(b[8:]),
		Offset: binary.BigEndian.Uint32(b[12:]), Receiver: binary.BigEndian.Uint16(b[16:]), Summed: b[18] == 1, Parts: binary.BigEndian.Uint32(b[20:]),
	}
	summed, contents = b[4:HeaderSize], b[HeaderSize:]
	if h.Summed {
		summed = b[4:]
	}
	switch {
	case int64(h.Length) != int64(len(contents)):
		return h, nil, nil, malformed("a block of %d bytes says that it has %d", len(contents), h.Length)
	case b[18] > 1 || b[19] != 0:
		return h, nil, nil, malformed("a block with flags %x", b[18:20])
	}
	return h, summed, contents, nil
}

// PartSize is the length of a part's header.
const PartSize = 12

// Flags of parts.
const (
	// Fragment: the contents are a piece of one record, which is longer than a part.
	Fragment uint8 = 1
	// First: u64 length of the whole record stands before the piece.
	First uint8 = 2
	// End: all threads of the lane have closed. The contents are its Totals.
	End uint8 = 4
)

// A Part stands in front of the records of one lane of the sending process.
type Part struct {
	Sender  uint16 // the lane
	Flags   uint8
	Length  uint32 // of the contents
	Records uint32 // that end in the part
}

// Put writes the header to the first bytes of b.
func (p *Part) Put(b []byte) {
	_ = b[PartSize-1]
	binary.BigEndian.PutUint16(b, p.Sender)
	b[2], b[3] = p.Flags, 0
	binary.BigEndian.PutUint32(b[4:], p.Length)
	binary.BigEndian.PutUint32(b[8:], p.Records)
}

// ParsePart decodes the first part of b, and returns what follows it.
func ParsePart(b []byte) (p Part, contents, rest []byte, err error) {
	if len(b) < PartSize {
		return p, nil, nil, malformed("%d bytes behind the last part", len(b))
	}
	p = Part{
		Sender: binary.BigEndian.Uint16(b), Flags: b[2], Length: binary.BigEndian.Uint32(b[4:]), Records: binary.BigEndian.Uint32(b[8:]),
	}
	switch {
	case int64(p.Length) > int64(len(b)-PartSize):
		return p, nil, nil, malformed("a part of %d bytes in %d", p.Length, len(b)-PartSize)
	case p.Flags > 7, p.Flags&First != 0 && p.Flags&Fragment == 0, p.Flags&End != 0 && p.Flags != End, b[3] != 0:
		return p, nil, nil, malformed("a part with flags %x", b[2:4])
	}
	end := PartSize + int(p.Length)
	return p, b[PartSize:end:end], b[end:], nil
}

// TotalsSize is the length of Totals.
const TotalsSize = 20

// Totals are what a lane has sent to a thread.
type Totals struct {
	Records, Bytes uint64
	Parts          uint32 // before the one with the totals, modulo 2^32
}

// Append adds the totals to b.
func (t *Totals) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, t.Records)
	b = binary.BigEndian.AppendUint64(b, t.Bytes)
	return binary.BigEndian.AppendUint32(b, t.Parts)
}

// ParseTotals decodes totals.
func ParseTotals(b []byte) (t Totals, err error) {
	if len(b) != TotalsSize {
		return t, malformed("totals of %d bytes", len(b))
	}
	return Totals{Records: binary.BigEndian.Uint64(b), Bytes: binary.BigEndian.Uint64(b[8:]), Parts: binary.BigEndian.Uint32(b[16:])}, nil
}

// MaxReason is how many bytes of text an abort has at most.
const MaxReason = 1024

// Kinds of ends.
const (
	AbortedByProgram uint8 = 0
	AbortedByLoss    uint8 = 1 // a process was lost
	AbortedByData    uint8 = 2 // what arrived was not what had been sent, or a breach of the protocol
)

// An Abort tells why the exchange has failed.
type Abort struct {
	Kind   uint8
	Rank   int // of the process that failed
	Reason string
}

// Append adds the message to b. A longer reason is cut at a character.
func (a *Abort) Append(b []byte) []byte {
	b = append(b, a.Kind, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(a.Rank))
	reason := strings.ToValidUTF8(a.Reason, "?")
	if len(reason) > MaxReason {
		reason = strings.ToValidUTF8(reason[:MaxReason], "")
	}
	return append(b, reason...)
}

// ParseAbort decodes one.
func ParseAbort(b []byte) (a Abort, err error) {
	switch {
	case len(b) < 8 || len(b) > 8+MaxReason:
		return a, malformed("an abort of %d bytes", len(b))
	case b[0] > AbortedByData || b[1]|b[2]|b[3] != 0:
		return a, malformed("an abort of kind %x", b[:4])
	}
	a = Abort{Kind: b[0], Rank: int(binary.BigEndian.Uint32(b[4:])), Reason: string(b[8:])}
	switch {
	case a.Rank >= MaxSize:
		return a, malformed("an abort of rank %d", a.Rank)
	case !utf8.ValidString(a.Reason):
		return a, malformed("an abort with a reason that is no UTF-8")
	}
	return a, nil
}

// MaxGather is how many bytes a contribution to a collective has at most.
const MaxGather = 1 << 20

// AppendGather adds the message to b: the number of the collective, from 0, and a contribution.
func AppendGather(b []byte, round uint32, data []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, round)
	return append(b, data...)
}

// ParseGather decodes one. data lies in b.
func ParseGather(b []byte) (round uint32, data []byte, err error) {
	if len(b) < 4 || len(b) > 4+MaxGather {
		return 0, nil, malformed("a contribution of %d bytes", len(b))
	}
	return binary.BigEndian.Uint32(b), b[4:], nil
}
