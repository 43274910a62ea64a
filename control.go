package verbena

import (
	"encoding/binary"
	"fmt"
)

// Messages on a queue pair. docs/endpoints.md has the layout.
const (
	packetHeader = 16
	offerSize    = 28
	takenSize    = 4
)

type packetKind uint8

const (
	packetEager   packetKind = 1 // a whole message
	packetOffer   packetKind = 2 // a part of a long message, to be read
	packetTaken   packetKind = 3 // an offer has been read
	packetCredit  packetKind = 4 // nothing but the header
	packetGoodbye packetKind = 5 // nothing follows
)

// packetStarved says that the sender had to wait for a credit.
const packetStarved = 1 << 0

// A packet is the header of every message on a queue pair.
type packet struct {
	kind    packetKind
	flags   uint8
	credits uint16 // receives that are posted again, for eager messages and offers
	control uint16 // receives that are posted again, for credit messages
	tag     uint32
	length  uint32 // of what follows
}

func (p packet) put(b []byte) {
	_ = b[packetHeader-1]
	b[0], b[1] = byte(p.kind), p.flags
	binary.BigEndian.PutUint16(b[2:], p.credits)
	binary.BigEndian.PutUint16(b[4:], p.control)
	b[6], b[7] = 0, 0
	binary.BigEndian.PutUint32(b[8:], p.tag)
	binary.BigEndian.PutUint32(b[12:], p.length)
}

// parsePacket decodes a message of which nothing is known but its length.
func parsePacket(b []byte) (p packet, body []byte, err error) {
	if len(b) < packetHeader {
		return p, nil, fmt.Errorf("%w: message of %d bytes, shorter than its header", ErrProtocol, len(b))
	}
	p = packet{
		kind: packetKind(b[0]), flags: b[1],
		credits: binary.BigEndian.Uint16(b[2:]),
		control: binary.BigEndian.Uint16(b[4:]),
		tag:     binary.BigEndian.Uint32(b[8:]),
		length:  binary.BigEndian.Uint32(b[12:]),
	}
	body = b[packetHeader:]
	want := uint32(0)
	switch p.kind {
	case packetEager:
		want = uint32(len(body))
	case packetOffer:
		want = offerSize
	case packetTaken:
		want = takenSize
	case packetCredit, packetGoodbye:
	default:
		return p, nil, fmt.Errorf("%w: message of unknown kind %d", ErrProtocol, p.kind)
	}
	if p.length != want || int(want) != len(body) || b[6] != 0 || b[7] != 0 || p.flags&^packetStarved != 0 {
		return p, nil, fmt.Errorf("%w: message of kind %d with flags %#02x and length %d in %d bytes", ErrProtocol, p.kind, p.flags, p.length, len(b))
	}
	return p, body, nil
}

// An offer is a part of a long message in the sender's memory.
type offer struct {
	id      uint32 // comes back when it has been read
	key     uint32
	address uint64
	length  uint32 // of this part
	total   uint32 // of the message
	offset  uint32 // of this part in it
}

func (o offer) put(b []byte) {
	_ = b[offerSize-1]
	binary.BigEndian.PutUint64(b, o.address)
	binary.BigEndian.PutUint32(b[8:], o.key)
	binary.BigEndian.PutUint32(b[12:], o.id)
	binary.BigEndian.PutUint32(b[16:], o.length)
	binary.BigEndian.PutUint32(b[20:], o.total)
	binary.BigEndian.PutUint32(b[24:], o.offset)
}

// parseOffer decodes the body of an offer and checks what can be checked
// without knowing what came before.
func parseOffer(b []byte, maxMessage int) (offer, error) {
	_ = b[offerSize-1]
	o := offer{
		address: binary.BigEndian.Uint64(b),
		key:     binary.BigEndian.Uint32(b[8:]),
		id:      binary.BigEndian.Uint32(b[12:]),
		length:  binary.BigEndian.Uint32(b[16:]),
		total:   binary.BigEndian.Uint32(b[20:]),
		offset:  binary.BigEndian.Uint32(b[24:]),
	}
	switch {
	case int64(o.total) > int64(maxMessage):
		return o, fmt.Errorf("%w: offer of a message of %d bytes, at most %d are accepted", ErrProtocol, o.total, maxMessage)
	case o.length == 0 || o.length > maxChunk || o.offset > o.total || o.length > o.total-o.offset:
		return o, fmt.Errorf("%w: offer of bytes %d to %d of %d", ErrProtocol, o.offset, uint64(o.offset)+uint64(o.length), o.total)
	}
	return o, nil
}
