package verbena

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
)

// Frames on a TCP connection. docs/endpoints.md has the layout.
const (
	frameHeader = 16
	// maxFragment is accepted in one frame. Tuning.Chunk is what is sent.
	maxFragment = 1 << 20
)

type frameKind uint8

const (
	frameOpening frameKind = 1
	frameData    frameKind = 2
	frameGoodbye frameKind = 3
	// Of one-sided operations, if both ends have them:
	frameOperation frameKind = 4
	frameAnswer    frameKind = 5
	// First on a lane, with the ticket, and back without it.
	frameLane frameKind = 6
)

const (
	fragmentFirst = 1 << 0
	fragmentLast  = 1 << 1
)

type frame struct {
	kind   frameKind
	flags  uint8
	tag    uint32
	length uint32 // of what follows
	total  uint32 // of the message, in each of its fragments
}

func (f frame) first() bool { return f.flags&fragmentFirst != 0 }

func (f frame) last() bool { return f.flags&fragmentLast != 0 }

func (f frame) put(b *[frameHeader]byte) {
	b[0], b[1], b[2], b[3] = byte(f.kind), f.flags, 0, 0
	binary.BigEndian.PutUint32(b[4:], f.tag)
	binary.BigEndian.PutUint32(b[8:], f.length)
	binary.BigEndian.PutUint32(b[12:], f.total)
}

func parseFrame(b *[frameHeader]byte) (frame, error) {
	f := frame{
		kind: frameKind(b[0]), flags: b[1],
		tag:    binary.BigEndian.Uint32(b[4:]),
		length: binary.BigEndian.Uint32(b[8:]),
		total:  binary.BigEndian.Uint32(b[12:]),
	}
	switch {
	case b[2] != 0 || b[3] != 0:
		return f, fmt.Errorf("%w: reserved bytes of a frame are not zero", ErrProtocol)
	case f.kind == frameData && f.length <= maxFragment && f.flags&^(fragmentFirst|fragmentLast) == 0:
		return f, nil
	case f.kind == frameOpening && f.length >= wire.ParametersSize && f.length <= 256:
		return f, nil
	case f.kind == frameGoodbye && f.length == 0:
		return f, nil
	case f.kind == frameOperation && f.operationFits():
		return f, nil
	case f.kind == frameAnswer && f.length <= maxFragment && f.total == 0:
		return f, nil
	}
	return f, fmt.Errorf("%w: frame of kind %d, flags %#02x and length %d", ErrProtocol, f.kind, f.flags, f.length)
}

// operationFits tells whether an operation's length goes with what it is.
func (f frame) operationFits() bool {
	switch operationKind(f.flags) {
	case opPut:
		return f.length > operationHead && f.length <= operationHead+maxFragment && f.total == 0
	case opGet:
		return f.length == operationHead && f.total > 0 && f.total <= maxFragment
	case opCompareSwap:
		return f.length == operationHead+16 && f.total == 0
	case opFetchAdd:
		return f.length == operationHead+8 && f.total == 0
	}
	return false
}

// An assembly is how far the message that is arriving has come.
type assembly struct {
	tag     uint32
	total   int
	arrived int
	open    bool // its last fragment is still to come
}

// add judges a data frame and takes it into account. begins tells that the frame
// begins a message. A message that was open then has been given up.
func (a *assembly) add(f frame, longest int) (begins bool, err error) {
	if f.first() {
		if int64(f.total) > int64(longest) {
			return true, fmt.Errorf("%w: message of %d bytes, at most %d are accepted", ErrProtocol, f.total, longest)
		}
		*a = assembly{tag: f.tag, total: int(f.total), open: true}
	}
	if !a.open {
		return false, fmt.Errorf("%w: a fragment of no message", ErrProtocol)
	}
	end := a.arrived + int(f.length)
	if a.tag != f.tag || a.total != int(f.total) || end > a.total || f.last() != (end == a.total) || (f.length == 0 && !f.last()) {
		return false, fmt.Errorf("%w: fragment of %d bytes with tag %d in a message of %d with tag %d, flags %#02x",
			ErrProtocol, f.length, f.tag, a.total, a.tag, f.flags)
	}
	a.arrived, a.open = end, !f.last()
	return f.first(), nil
}
