// Package flow is the protocol of a stream between two processes as a machine without
// I/O: where in the ring the next block lies, and which room comes back. It knows no memory
// and no goroutines; whoever uses it has a lock.
//
// A stream goes from a process to a thread of another one. It has a ring, a circular
// buffer in the receiving process. Blocks are put into it one behind the other, each in one
// piece: one that has no room before the ring's end begins at offset 0, and the bytes
// that were skipped count as its own. [Out] is the side that fills, [In] the one that
// receives.
//
// # Why nobody waits for ever
//
// The receiving side keeps what has been freed until it is a quarter of the ring, so that
// few messages tell of it. When all that was filled has been read, less than a quarter
// is therefore in use as the filling side knows it. Then there is room in one piece for
// [Ring.MaxBlock], which is 3/8 of a ring: what is in use divides the rest, which is more
// than 3/4, into two pieces at most.
package flow

import (
	"errors"
	"fmt"
)

// ErrBreach is wrapped by errors that the peer's messages have caused.
var ErrBreach = errors.New("breach of the protocol")

// Unit is what the offsets of blocks, and the sizes of rings, are multiples of, in bytes.
const Unit = 64

// A Ring is the size of a circular buffer in bytes, a multiple of [Unit].
type Ring int

// MaxBlock is the longest block in bytes for which there is room sooner or later,
// whatever lies where.
func (r Ring) MaxBlock() int { return int(r) * 3 / 8 / Unit * Unit }

// returns is how many freed bytes are returned together.
func (r Ring) returns() int { return int(r) / 4 }

func (r Ring) at(position uint64) int { return int(position % uint64(r)) }

func align(n int) int { return (n + Unit - 1) / Unit * Unit }

// Out is the side of a stream that fills its ring.
type Out struct {
	ring       Ring
	head, tail uint64 // bytes used by sealed blocks, and of those the ones that are free again, from the beginning

	at, skip int // of the open block: where it begins, and how many bytes before the ring's end it leaves out
	open     int // its bytes; 0: there is none
}

// NewOut returns a stream whose ring is empty.
func NewOut(ring Ring) Out { return Out{ring: ring} }

// Open is the length of the open block, or 0.
func (o *Out) Open() int { return o.open }

// room tells whether there is room for a block of n bytes, which leaves out skip.
func (o *Out) room(skip, n int) bool { return int(o.head-o.tail)+skip+align(n) <= int(o.ring) }

// Begin opens a block of n bytes, and tells where it begins. There must be no other one. It
// reports false if there is no room.
func (o *Out) Begin(n int) (offset int, ok bool) {
	at, skip := o.ring.at(o.head), 0
	if at+n > int(o.ring) {
		at, skip = 0, int(o.ring)-at
	}
	if !o.room(skip, n) {
		return 0, false
	}
	o.at, o.skip, o.open = at, skip, n
	return at, true
}

// Extend makes the open block n bytes longer, and tells where they lie. It reports false
// if there is no open block, or no room behind it, or it would be longer than MaxBlock.
func (o *Out) Extend(n int) (offset int, ok bool) {
	if o.open == 0 || o.open+n > o.ring.MaxBlock() || o.at+o.open+n > int(o.ring) || !o.room(o.skip, o.open+n) {
		return 0, false
	}
	offset = o.at + o.open
	o.open += n
	return offset, true
}

// Seal closes the open block, and tells where it lies.
func (o *Out) Seal() (offset, length int) {
	offset, length = o.at, o.open
	o.head += uint64(o.skip + align(length))
	o.open = 0
	return offset, length
}

// Free says that the peer has freed n bytes.
func (o *Out) Free(n int) error {
	if n <= 0 || n%Unit != 0 || uint64(n) > o.head-o.tail {
		return fmt.Errorf("%w: %d bytes are free, %d were used", ErrBreach, n, o.head-o.tail)
	}
	o.tail += uint64(n)
	return nil
}

// Roomy tells whether half of the ring is free. That comes when all that was filled has been
// read, and so nobody has to be woken before.
func (o *Out) Roomy() bool { return int(o.head-o.tail) <= int(o.ring)/2 }

// In is the side of a stream that receives.
type In struct {
	ring       Ring
	head, tail uint64 // bytes filled, and of those the ones that have been returned
	kept       int    // that have been freed, and not returned

	// The blocks that are in use, and some that have been freed while an older one was in use:
	// that of number id is at id modulo the length, which is a power of 2.
	blocks      []filled
	first, next uint64
}

type filled struct {
	bytes int
	freed bool
}

// NewIn returns a stream whose ring is empty.
func NewIn(ring Ring) In { return In{ring: ring} }

// Filled says that the peer has filled a block, and returns its number, which Freed wants
// to know.
func (in *In) Filled(offset, length int) (id uint64, err error) {
	at, skip := in.ring.at(in.head), 0
	if offset != at {
		if offset != 0 || at+length <= int(in.ring) {
			return 0, fmt.Errorf("%w: a block of %d bytes at %d, the next one begins at %d", ErrBreach, length, offset, at)
		}
		skip = int(in.ring) - at
	}
	if length <= 0 || offset+length > int(in.ring) || uint64(skip+align(length)) > uint64(in.ring)-(in.head-in.tail) {
		return 0, fmt.Errorf("%w: a block of %d bytes at %d, and %d of %d are in use", ErrBreach, length, offset, in.head-in.tail, in.ring)
	}
	n := skip + align(length)
	in.head += uint64(n)
	if in.next-in.first == uint64(len(in.blocks)) {
		in.grow()
	}
	in.blocks[in.next&uint64(len(in.blocks)-1)] = filled{bytes: n}
	in.next++
	return in.next - 1, nil
}

func (in *In) grow() {
	more := make([]filled, max(8, 2*len(in.blocks)))
	for id := in.first; id < in.next; id++ {
		more[id&uint64(len(more)-1)] = in.blocks[id&uint64(len(in.blocks)-1)]
	}
	in.blocks = more
}

// Freed says that a block is not used any more. It tells how many bytes are to be returned
// to the peer, which may be none yet: they are returned in the order in which they were
// filled, many at a time.
func (in *In) Freed(id uint64) (n int) {
	mask := uint64(len(in.blocks) - 1)
	in.blocks[id&mask].freed = true
	for ; in.first < in.next && in.blocks[in.first&mask].freed; in.first++ {
		in.kept += in.blocks[in.first&mask].bytes
	}
	if in.kept < in.ring.returns() {
		return 0
	}
	n = in.kept
	in.kept = 0
	in.tail += uint64(n)
	return n
}

// Pressing tells whether the peer may be waiting for room.
func (in *In) Pressing() bool { return int(in.head-in.tail) >= in.ring.returns() }
