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
	Version = 1
	Service = "shuffle/1"
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
	MinBlock   = 512
	MaxBlock   = 1 << 20
	MaxDepth   = 64
	MaxToken   = 64
)

// helloSize is the length of a Hello without its token.
const helloSize = 40

var magic = [4]byte{'V', 'S', 'H', 'F'}

// A Hello tells who a process is, and how it has laid out the memory that its peer fills.
type Hello struct {
	Rank, Size, Threads int
	Block, Depth        int   // bytes of a place, and places of each stream
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
	for _, v := range []int{h.Rank, h.Size, h.Threads, h.Block, h.Depth} {
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
		Rank: number(8), Size: number(12), Threads: number(16), Block: number(20), Depth: number(24),
		MaxRecord: int64(binary.BigEndian.Uint64(b[28:])), OneSided: flags&1 != 0,
	}
	token := number(36)
	switch {
	case token > MaxToken || len(b) != helloSize+token:
		return h, malformed("a hello of %d bytes with a token of %d", len(b), token)
	case h.Size < 1 || h.Size > MaxSize || h.Rank >= h.Size:
		return h, malformed("rank %d of %d", h.Rank, h.Size)
	case h.Threads < 1 || h.Threads > MaxThreads:
		return h, malformed("%d threads", h.Threads)
	case h.Block < MinBlock || h.Block > MaxBlock || h.Block%64 != 0:
		return h, malformed("places of %d bytes", h.Block)
	case h.Depth < 1 || h.Depth > MaxDepth:
		return h, malformed("%d places", h.Depth)
	case h.MaxRecord < 1:
		return h, malformed("records of at most %d bytes", h.MaxRecord)
	}
	h.Token = append([]byte(nil), b[helloSize:]...)
	return h, nil
}

// Kinds of entries.
const (
	// Filled says that a block lies in the stream's oldest place, to the peer that has
	// granted the place.
	Filled uint8 = 1
	// Free grants the place that the stream used first of those in use, once more, to
	// the peer that fills it.
	Free uint8 = 2
)

// EntrySize is the length of an entry.
const EntrySize = 12

// An Entry is about a stream: the one from a thread of the process that fills to a
// thread of the process that receives.
type Entry struct {
	Kind     uint8
	Sender   uint16 // thread of the process that fills
	Receiver uint16 // thread of the process that receives
	Length   uint32 // of Filled: bytes of the block, with its header; otherwise 0
}

// Append adds the entry to b.
func (e Entry) Append(b []byte) []byte {
	b = append(b, e.Kind, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, e.Sender)
	b = binary.BigEndian.AppendUint16(b, e.Receiver)
	return binary.BigEndian.AppendUint32(b, e.Length)
}

// ParseEntry decodes the first entry of b, which is not empty, and returns the rest.
func ParseEntry(b []byte) (e Entry, rest []byte, err error) {
	if len(b) < EntrySize {
		return e, nil, malformed("%d bytes behind the last entry", len(b))
	}
	e = Entry{
		Kind: b[0], Sender: binary.BigEndian.Uint16(b[4:]), Receiver: binary.BigEndian.Uint16(b[6:]),
		Length: binary.BigEndian.Uint32(b[8:]),
	}
	switch {
	case b[1]|b[2]|b[3] != 0:
		return e, nil, malformed("an entry with reserved bytes %x", b[1:4])
	case e.Kind == Filled && e.Length >= HeaderSize && e.Length <= MaxBlock:
	case e.Kind == Free && e.Length == 0:
	default:
		return e, nil, malformed("an entry of kind %d with length %d", e.Kind, e.Length)
	}
	return e, b[EntrySize:], nil
}

// HeaderSize is the length of a block's header.
const HeaderSize = 24

// Flags of blocks.
const (
	// Fragment: the contents are a part of one record, which is longer than a block.
	Fragment uint8 = 1
	// First: u64 length of the whole record stands before the part.
	First uint8 = 2
	// End: the stream is over. The contents are its Totals.
	End uint8 = 4
)

// A Header stands in front of a block's contents.
type Header struct {
	Sum      uint32 // CRC32C of the header behind it and of the contents
	Length   uint32 // of the contents
	Sequence uint32 // of the block in its stream, from 0, modulo 2^32
	Records  uint32 // that end in the block
	Flags    uint8
}

// Put writes the header without its sum to the first bytes of b.
func (h *Header) Put(b []byte) {
	_ = b[HeaderSize-1]
	binary.BigEndian.PutUint32(b, 0)
	binary.BigEndian.PutUint32(b[4:], h.Length)
	binary.BigEndian.PutUint32(b[8:], h.Sequence)
	binary.BigEndian.PutUint32(b[12:], h.Records)
	b[16] = h.Flags
	clear(b[17:HeaderSize])
}

// SetSum writes the sum.
func SetSum(b []byte, sum uint32) { binary.BigEndian.PutUint32(b, sum) }

// ParseHeader decodes the header of a block that takes the whole of b. Its sum is not
// checked.
func ParseHeader(b []byte) (h Header, contents []byte, err error) {
	if len(b) < HeaderSize {
		return h, nil, malformed("a block of %d bytes", len(b))
	}
	h = Header{
		Sum: binary.BigEndian.Uint32(b), Length: binary.BigEndian.Uint32(b[4:]), Sequence: binary.BigEndian.Uint32(b[8:]),
		Records: binary.BigEndian.Uint32(b[12:]), Flags: b[16],
	}
	contents = b[HeaderSize:]
	switch {
	case int64(h.Length) != int64(len(contents)):
		return h, nil, malformed("a block of %d bytes says that it has %d", len(contents), h.Length)
	case h.Flags > 7, h.Flags&First != 0 && h.Flags&Fragment == 0, h.Flags&End != 0 && h.Flags != End:
		return h, nil, malformed("a block with flags %#x", h.Flags)
	case [7]byte(b[17:]) != [7]byte{}:
		return h, nil, malformed("a block with reserved bytes %x", b[17:HeaderSize])
	}
	return h, contents, nil
}

// TotalsSize is the length of Totals.
const TotalsSize = 28

// Totals are what a stream has carried.
type Totals struct {
	Records, Bytes uint64
	Blocks         uint32 // before the one with the totals, modulo 2^32
	Sums           uint64 // of all sums of those blocks
}

// Append adds the totals to b.
func (t *Totals) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, t.Records)
	b = binary.BigEndian.AppendUint64(b, t.Bytes)
	b = binary.BigEndian.AppendUint32(b, t.Blocks)
	return binary.BigEndian.AppendUint64(b, t.Sums)
}

// ParseTotals decodes totals.
func ParseTotals(b []byte) (t Totals, err error) {
	if len(b) != TotalsSize {
		return t, malformed("totals of %d bytes", len(b))
	}
	return Totals{
		Records: binary.BigEndian.Uint64(b), Bytes: binary.BigEndian.Uint64(b[8:]),
		Blocks: binary.BigEndian.Uint32(b[16:]), Sums: binary.BigEndian.Uint64(b[20:]),
	}, nil
}

// BlockPrefix is the length of what stands before a block that travels as a message: u16
// thread of the sender, u16 thread of the receiver, 4 bytes 0.
const BlockPrefix = 8

// AppendBlockPrefix adds it to b.
func AppendBlockPrefix(b []byte, sender, receiver uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, sender)
	b = binary.BigEndian.AppendUint16(b, receiver)
	return append(b, 0, 0, 0, 0)
}

// ParseBlock splits a message with a block.
func ParseBlock(b []byte) (sender, receiver uint16, block []byte, err error) {
	if len(b) < BlockPrefix+HeaderSize || len(b) > BlockPrefix+MaxBlock {
		return 0, 0, nil, malformed("a message with a block of %d bytes", len(b))
	}
	if [4]byte(b[4:]) != [4]byte{} {
		return 0, 0, nil, malformed("a message with a block and reserved bytes %x", b[4:8])
	}
	return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), b[BlockPrefix:], nil
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

// MaxUvarint is how many bytes the length of a record takes at most.
const MaxUvarint = binary.MaxVarintLen64
