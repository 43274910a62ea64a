package wire

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Sizes in bytes of the header of every message, and of the bodies of two kinds.
const (
	HeaderSize = 16
	OfferSize  = 28
	TakenSize  = 4
)

// Kind tells what a message is.
type Kind uint8

const (
	Eager   Kind = 1 // a whole message follows
	Offered Kind = 2 // an Offer follows: a part of a long message, to be read
	Taken   Kind = 3 // the id of an offer follows, which has been read
	Credit  Kind = 4 // nothing but the header
	Goodbye Kind = 5 // nothing follows from this end
	// If both ends have agreed on them:
	Asked    Kind = 6 // an Operation follows
	Answered Kind = 7 // an Answer follows, and its data
)

// Starved is the flag of a sender that had to wait for a credit.
const Starved = 1 << 0

// A Packet is the header of a message on a queue pair.
type Packet struct {
	Kind    Kind
	Flags   uint8
	Credits uint16 // receives posted again for eager messages and offers
	Control uint16 // receives posted again for credit messages
	Tag     uint32
	Length  uint32 // of what follows, in bytes
}

// Put encodes p into the first HeaderSize bytes of b.
func (p *Packet) Put(b []byte) { PutPacket(b, p.Kind, p.Flags, p.Credits, p.Control, p.Tag, p.Length) }

// PutPacket is Put for a header in pieces. A structure of so many lies in memory, and bytes
// that have just been stored there are loaded late where several are loaded at once.
func PutPacket(b []byte, kind Kind, flags uint8, credits, control uint16, tag, length uint32) {
	_ = b[HeaderSize-1]
	// Two stores: what is copied at once is faster loaded from as few as possible. Of a first
	// byte that is known the compiler would make a store of its own, but for the reversal.
	first := uint64(kind)<<56 | uint64(flags)<<48 | uint64(credits)<<32 | uint64(control)<<16
	binary.LittleEndian.PutUint64(b, bits.ReverseBytes64(first))
	binary.BigEndian.PutUint64(b[8:], uint64(tag)<<32|uint64(length))
}

// ParsePacket decodes a message of which nothing is known but its length. The
// body is part of b.
func ParsePacket(b []byte) (p Packet, body []byte, err error) {
	if len(b) < HeaderSize {
		return p, nil, fmt.Errorf("%w: message of %d bytes, shorter than its header", ErrProtocol, len(b))
	}
	p = Packet{
		Kind: Kind(b[0]), Flags: b[1],
		Credits: binary.BigEndian.Uint16(b[2:]),
		Control: binary.BigEndian.Uint16(b[4:]),
		Tag:     binary.BigEndian.Uint32(b[8:]),
		Length:  binary.BigEndian.Uint32(b[12:]),
	}
	body = b[HeaderSize:]
	want := uint32(0)
	switch p.Kind {
	case Eager:
		want = uint32(len(body))
	case Offered:
		want = OfferSize
	case Taken:
		want = TakenSize
	case Asked:
		want = OperationSize
	case Answered:
		want = uint32(max(len(body), AnswerSize))
	case Credit, Goodbye:
	default:
		return p, nil, fmt.Errorf("%w: message of unknown kind %d", ErrProtocol, p.Kind)
	}
	if p.Length != want || int(want) != len(body) || b[6] != 0 || b[7] != 0 || p.Flags&^Starved != 0 {
		return p, nil, fmt.Errorf("%w: message of kind %d with flags %#02x and length %d in %d bytes", ErrProtocol, p.Kind, p.Flags, p.Length, len(b))
	}
	return p, body, nil
}

// PlainEager decodes an eager message without flags that gives back no control
// credits. It reports false for any other, and for what ParsePacket refuses.
func PlainEager(b []byte) (credits int, tag uint32, ok bool) {
	if len(b) < HeaderSize {
		return 0, 0, false
	}
	const plain, credit = uint64(Eager) << 56, uint64(0xffff) << 32
	first, second := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	return int(first & credit >> 32), uint32(second >> 32), first&^credit == plain && uint64(uint32(second)) == uint64(len(b)-HeaderSize)
}

// An Offer is a part of a long message in the sender's memory.
type Offer struct {
	ID      uint32 // comes back in Taken
	Key     uint32
	Address uint64
	Length  uint32 // of this part, 1 to MaxChunk
	Total   uint32 // of the message
	Offset  uint32 // of this part in the message
}

// Put encodes o into the first OfferSize bytes of b.
func (o *Offer) Put(b []byte) {
	_ = b[OfferSize-1]
	binary.BigEndian.PutUint64(b, o.Address)
	binary.BigEndian.PutUint32(b[8:], o.Key)
	binary.BigEndian.PutUint32(b[12:], o.ID)
	binary.BigEndian.PutUint32(b[16:], o.Length)
	binary.BigEndian.PutUint32(b[20:], o.Total)
	binary.BigEndian.PutUint32(b[24:], o.Offset)
}

// End is the offset in the message of the first byte behind the part.
func (o *Offer) End() int { return int(o.Offset) + int(o.Length) }

// ParseOffer decodes the body of an offer, which ParsePacket has found to be
// OfferSize long. It checks what can be checked without knowing what came before.
func ParseOffer(b []byte, maxMessage int) (Offer, error) {
	_ = b[OfferSize-1]
	o := Offer{
		Address: binary.BigEndian.Uint64(b),
		Key:     binary.BigEndian.Uint32(b[8:]),
		ID:      binary.BigEndian.Uint32(b[12:]),
		Length:  binary.BigEndian.Uint32(b[16:]),
		Total:   binary.BigEndian.Uint32(b[20:]),
		Offset:  binary.BigEndian.Uint32(b[24:]),
	}
	switch {
	case int64(o.Total) > int64(maxMessage):
		return o, fmt.Errorf("%w: offer of a message of %d bytes, at most %d are accepted", ErrProtocol, o.Total, maxMessage)
	case o.Length == 0 || o.Length > MaxChunk || o.Offset > o.Total || o.Length > o.Total-o.Offset:
		return o, fmt.Errorf("%w: offer of bytes %d to %d of %d", ErrProtocol, o.Offset, uint64(o.Offset)+uint64(o.Length), o.Total)
	}
	return o, nil
}

// TakenID decodes the body of a Taken.
func TakenID(b []byte) uint32 { return binary.BigEndian.Uint32(b) }

// PutTaken encodes the body of a Taken into b.
func PutTaken(b []byte, id uint32) { binary.BigEndian.PutUint32(b, id) }
