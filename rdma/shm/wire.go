package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// Messages on the Unix socket are packets of at most maxPacket bytes, little
// endian. The first byte is the type; what follows is fixed, with text or private
// data at the end.
const (
	maxPacket      = 4096
	maxPrivateData = 2048
	maxText        = 1024
	maxConnected   = 1 + maxText // the longest packet of a connection that is set up

	versionMin = 2
	versionMax = 6
	// versionLent is the first in which a queue pair with a shared receive queue
	// lends its peer receives. Before, the peer took them by itself.
	versionLent = 3
	// versionFiles is the first in which a peer can ask for files.
	versionFiles = 4
	// versionAlarms is the first in which a peer may hand over the alarm of a queue.
	versionAlarms = 5
	// versionPassed is the first that reads regions which a peer passes on, and in which
	// a peer can ask to pass a region on.
	versionPassed = 6
)

type packetType uint8

const (
	packetHello   packetType = 1 + iota // a connection request, with descriptors
	packetAccept                        // the answer to it, with descriptors
	packetReject                        // private data: the application said no
	packetRefuse                        // text: the provider said no
	packetReady                         // the connecting side has mapped everything
	packetWant                          // asks for a region
	packetRegion                        // answers packetWant, with a descriptor if found
	packetRevoke                        // a region has been closed
	packetGoodbye                       // text: why the connection ends
	packetAlarm                         // how the queue is rung that takes receives, with a descriptor
	packetPassed                        // answers packetWant, with the descriptors of a region that is passed on and of its owner's table
)

var packetNames = [...]string{"", "hello", "accept", "reject", "refuse", "ready", "want", "region", "revoke", "goodbye", "alarm", "passed"}

func (t packetType) String() string {
	if int(t) < len(packetNames) && t > 0 {
		return packetNames[t]
	}
	return fmt.Sprintf("packet type %d", uint8(t))
}

var errPacket = errors.New("malformed packet")

var magic = [8]byte{'v', 'r', 'b', 'n', '-', 's', 'h', 'm'}

// hello describes one end of a connection. The descriptors beside it are, in
// this order, the inbox, the domain's table and the domain's doorbell.
type hello struct {
	least, greatest uint16 // versions
	domain          [16]byte
	queuePair       uint32
	inbox           inboxShape
	barriers        bool // the process takes part in barriers
	shared          bool // receives are lent
	bell            bellPlace
	retryBit        uint32
	private         []byte
}

const (
	helloShared   = 1
	helloBarriers = 2
)

const helloFixed = 1 + 8 + 2 + 2 + 16 + 4 + 12 + 1 + 8 + 8 + 4 + 2

func (h *hello) append(t packetType, b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, byte(t))
	b = append(b, magic[:]...)
	b = le.AppendUint16(b, h.least)
	b = le.AppendUint16(b, h.greatest)
	b = append(b, h.domain[:]...)
	b = le.AppendUint32(b, h.queuePair)
	b = le.AppendUint32(b, h.inbox.receives)
	b = le.AppendUint32(b, h.inbox.entries)
	b = le.AppendUint32(b, h.inbox.slots)
	var flags byte
	if h.shared {
		flags |= helloShared
	}
	if h.barriers {
		flags |= helloBarriers
	}
	b = append(b, flags)
	b = append(b, make([]byte, 8)...) // version 2 has the shape of a shared receive queue here
	b = le.AppendUint32(b, h.bell.queue)
	b = le.AppendUint32(b, h.bell.bit)
	b = le.AppendUint32(b, h.retryBit)
	b = le.AppendUint16(b, uint16(len(h.private)))
	return append(b, h.private...)
}

func parseHello(p []byte) (*hello, error) {
	if len(p) < helloFixed {
		return nil, fmt.Errorf("%w: hello of %d bytes", errPacket, len(p))
	}
	if [8]byte(p[1:9]) != magic {
		return nil, fmt.Errorf("%w: this is no shm hello", errPacket)
	}
	le := binary.LittleEndian
	h := &hello{least: le.Uint16(p[9:]), greatest: le.Uint16(p[11:]), domain: [16]byte(p[13:29])}
	// What follows may differ between versions, so this comes first.
	if h.least > h.greatest || h.least > versionMax || h.greatest < versionMin {
		return nil, fmt.Errorf("the peer speaks versions %d to %d, this side %d to %d: update the older program",
			h.least, h.greatest, versionMin, versionMax)
	}
	q := p[29:]
	h.queuePair = le.Uint32(q)
	h.inbox = inboxShape{receives: le.Uint32(q[4:]), entries: le.Uint32(q[8:]), slots: le.Uint32(q[12:])}
	if q[16]&^(helloShared|helloBarriers) != 0 {
		return nil, fmt.Errorf("%w: flags %#x in hello", errPacket, q[16])
	}
	h.shared, h.barriers = q[16]&helloShared != 0, q[16]&helloBarriers != 0
	if h.shared && h.greatest < versionLent {
		return nil, fmt.Errorf("the peer's shared receive queue is of version %d, this side needs %d: update the older program", h.greatest, versionLent)
	}
	if le.Uint64(q[17:]) != 0 {
		return nil, fmt.Errorf("%w: hello with something in its reserved bytes", errPacket)
	}
	h.bell = bellPlace{queue: le.Uint32(q[25:]), bit: le.Uint32(q[29:])}
	h.retryBit = le.Uint32(q[33:])
	length := int(le.Uint16(q[37:]))
	q = q[39:]
	if length > maxPrivateData || length != len(q) {
		return nil, fmt.Errorf("%w: hello tells of %d bytes of private data and has %d", errPacket, length, len(q))
	}
	h.private = append([]byte(nil), q...)
	return h, h.validate()
}

func (h *hello) validate() error {
	if err := h.inbox.validate(); err != nil {
		return err
	}
	if h.bell.queue >= bellQueues || h.bell.bit >= bellBits || h.retryBit >= bellBits {
		return fmt.Errorf("%w: doorbell %d, bits %d and %d, are out of range", errPacket, h.bell.queue, h.bell.bit, h.retryBit)
	}
	return nil
}

// helloDescriptors is how many descriptors are beside a hello.
const helloDescriptors = 3

// parseTail returns what follows the type: the private data of a reject, or the
// text of a refusal or goodbye.
func parseTail(p []byte, limit int) ([]byte, error) {
	if len(p) < 1 || len(p)-1 > limit {
		return nil, fmt.Errorf("%w: %d bytes", errPacket, len(p))
	}
	return p[1:], nil
}

func appendText(t packetType, text string) []byte {
	if len(text) > maxText {
		text = text[:maxText]
	}
	return append([]byte{byte(t)}, text...)
}

// want asks for a region, or a file, either by the key that a request names or by the
// handle that a posted receive names.
type want struct {
	byHandle bool
	file     bool // or for a file that is shared under a key
	pass     bool // or for a region, by its key, that the asker wants to pass on
	value    uint32
}

// How a want names what it asks for.
const (
	wantKey    = 0
	wantHandle = 1
	wantFile   = 2
	wantPass   = 3
)

func (w want) how() byte {
	switch {
	case w.file:
		return wantFile
	case w.pass:
		return wantPass
	case w.byHandle:
		return wantHandle
	}
	return wantKey
}

const wantLength = 6

func (w want) append(b []byte) []byte {
	b = append(b, byte(packetWant), w.how())
	return binary.LittleEndian.AppendUint32(b, w.value)
}

func parseWant(p []byte) (want, error) {
	if len(p) != wantLength || p[1] > wantPass {
		return want{}, fmt.Errorf("%w: want of %d bytes", errPacket, len(p))
	}
	return makeWant(p[1], binary.LittleEndian.Uint32(p[2:])), nil
}

func makeWant(how byte, value uint32) want {
	return want{byHandle: how == wantHandle, file: how == wantFile, pass: how == wantPass, value: value}
}

// grant answers want. If found is false there is no such region, or none for
// this peer, and the rest is zero.
type grant struct {
	want
	found   bool
	handle  uint32
	key     uint32
	access  uint8
	address uint64
	length  uint64
	state   uint64 // of the region's entry in the table
}

const grantLength = 7 + 4 + 4 + 1 + 24

func (g grant) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, byte(packetRegion), g.how(), 0)
	if g.found {
		b[len(b)-1] = 1
	}
	b = le.AppendUint32(b, g.value)
	b = le.AppendUint32(b, g.handle)
	b = le.AppendUint32(b, g.key)
	b = append(b, g.access)
	b = le.AppendUint64(b, g.address)
	b = le.AppendUint64(b, g.length)
	return le.AppendUint64(b, g.state)
}

func parseGrant(p []byte) (grant, error) {
	if len(p) != grantLength || p[1] > wantPass || p[2] > 1 {
		return grant{}, fmt.Errorf("%w: region of %d bytes", errPacket, len(p))
	}
	le := binary.LittleEndian
	g := grant{
		want:  makeWant(p[1], le.Uint32(p[3:])),
		found: p[2] == 1, handle: le.Uint32(p[7:]), key: le.Uint32(p[11:]), access: p[15],
		address: le.Uint64(p[16:]), length: le.Uint64(p[24:]), state: le.Uint64(p[32:]),
	}
	if g.found {
		if g.length == 0 || g.length > maxRegion || g.address+g.length < g.address {
			return grant{}, fmt.Errorf("%w: region of length %d at %#x", errPacket, g.length, g.address)
		}
		if g.byHandle && g.handle != g.value || !g.byHandle && g.key != g.value {
			return grant{}, fmt.Errorf("%w: region is not the one that was asked for", errPacket)
		}
	}
	return g, nil
}

// A promise is an entry of a domain's table that is open for as long as the domain's end of
// one connection keeps what its peer may view. It stands for no region.
type promise struct {
	handle uint32
	state  uint64 // while it is kept
}

const passedLength = grantLength + 4 + 8

// appendPassed appends a packetPassed: a grant, and the promise under which the memory
// stays as it is.
func appendPassed(b []byte, g grant, p promise) []byte {
	at := len(b)
	b = g.append(b)
	b[at] = byte(packetPassed)
	b = binary.LittleEndian.AppendUint32(b, p.handle)
	return binary.LittleEndian.AppendUint64(b, p.state)
}

func parsePassed(b []byte) (grant, promise, error) {
	if len(b) != passedLength {
		return grant{}, promise{}, fmt.Errorf("%w: region that is passed on of %d bytes", errPacket, len(b))
	}
	g, err := parseGrant(b[:grantLength])
	if err != nil {
		return grant{}, promise{}, err
	}
	le := binary.LittleEndian
	p := promise{handle: le.Uint32(b[grantLength:]), state: le.Uint64(b[grantLength+4:])}
	if !g.found || g.file || g.byHandle || rdma.Access(g.access) != rdma.AccessRemoteRead || p.state&1 == 0 {
		return grant{}, promise{}, fmt.Errorf("%w: region that is passed on with rights %#x, under a promise of state %d", errPacket, g.access, p.state)
	}
	return g, p, nil
}

func appendRevoke(b []byte, handle uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(b, byte(packetRevoke)), handle)
}

func parseRevoke(p []byte) (handle uint32, err error) {
	if len(p) != 5 {
		return 0, fmt.Errorf("%w: revoke of %d bytes", errPacket, len(p))
	}
	return binary.LittleEndian.Uint32(p[1:]), nil
}

// appendAlarm appends a packetAlarm. Two of one queue with the same number have descriptors
// of the same alarm.
func appendAlarm(b []byte, number uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(b, byte(packetAlarm)), number)
}

func parseAlarm(p []byte) (number uint32, err error) {
	if len(p) != 5 {
		return 0, fmt.Errorf("%w: alarm of %d bytes", errPacket, len(p))
	}
	return binary.LittleEndian.Uint32(p[1:]), nil
}
