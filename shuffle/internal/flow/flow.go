// Package flow is the protocol of the streams between two processes as a machine
// without I/O: which block may go out, into which place, and which place comes back.
// It knows no memory and no goroutines; whoever uses it has a lock.
//
// A stream goes from a thread of the process that fills to a thread of the process that
// receives. It has a ring of places in the receiving process, which are filled and freed
// in turn. [Out] is the side that fills, [In] the one that receives.
package flow

import (
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/internal/fifo"
)

// ErrBreach is wrapped by errors that the peer's messages have caused.
var ErrBreach = errors.New("breach of the protocol")

// A Shape is what both sides of the streams between two processes have agreed on.
type Shape struct {
	Senders, Receivers int // threads of the process that fills, and of the one that receives
	Depth              int // places of a stream
	Block              int // bytes of a place
}

// Streams is how many there are.
func (s Shape) Streams() int { return s.Senders * s.Receivers }

// Size is how many bytes all places have.
func (s Shape) Size() int { return s.Streams() * s.Depth * s.Block }

// MaxDepth is the greatest depth.
const MaxDepth = 64

// Offset is where a place of a stream begins.
func (s Shape) Offset(sender, receiver, place int) int {
	return ((sender*s.Receivers+receiver)*s.Depth + place) * s.Block
}

// place is the one that is used when so many have been used before.
func (s Shape) place(used uint64) int { return int(used % uint64(s.Depth)) }

func (s Shape) stream(sender, receiver int) int { return sender*s.Receivers + receiver }

// A Post is a block that goes out, and the place that it goes to.
type Post[T any] struct {
	Sender, Receiver int
	Offset           int // of the place
	Block            T
}

// Out has the streams of the process that fills.
type Out[T any] struct {
	shape   Shape
	streams []outgoing[T]
	ready   fifo.Queue[int32] // streams with a block that waits, and a place
}

type outgoing[T any] struct {
	head     uint64 // places used
	tail     uint64 // of them, those that are free again
	waiting  fifo.Queue[T]
	underway int // blocks that were taken out by Next and are not Done
	listed   bool
}

// NewOut returns streams whose places are all free.
func NewOut[T any](shape Shape) *Out[T] {
	return &Out[T]{shape: shape, streams: make([]outgoing[T], shape.Streams())}
}

// Take takes the stream's next place for a block that goes out at once. It reports false
// if there is none, or if blocks of the stream wait or are under way, which go first.
func (o *Out[T]) Take(sender, receiver int) (offset int, ok bool) {
	s := &o.streams[o.shape.stream(sender, receiver)]
	if s.underway > 0 || s.waiting.Len() > 0 || s.head-s.tail == uint64(o.shape.Depth) {
		return 0, false
	}
	offset = o.shape.Offset(sender, receiver, o.shape.place(s.head))
	s.head++
	return offset, true
}

// Queue lets a block wait for its turn and for a place.
func (o *Out[T]) Queue(sender, receiver int, block T) {
	i := o.shape.stream(sender, receiver)
	o.streams[i].waiting.Push(block)
	o.list(i)
}

// list puts a stream on the list of those that are ready, if it is.
func (o *Out[T]) list(i int) {
	s := &o.streams[i]
	if !s.listed && s.waiting.Len() > 0 && s.head-s.tail < uint64(o.shape.Depth) {
		s.listed = true
		o.ready.Push(int32(i))
	}
}

// Held is how many blocks of a stream wait or are under way.
func (o *Out[T]) Held(sender, receiver int) int {
	s := &o.streams[o.shape.stream(sender, receiver)]
	return s.waiting.Len() + s.underway
}

// Ready tells whether Next has a block.
func (o *Out[T]) Ready() bool { return o.ready.Len() > 0 }

// Next takes out a block that has a place. The streams take turns. Done must follow when
// it has gone.
func (o *Out[T]) Next() (p Post[T], ok bool) {
	if o.ready.Len() == 0 {
		return p, false
	}
	i := int(o.ready.Pop())
	s := &o.streams[i]
	s.listed = false
	p = Post[T]{Sender: i / o.shape.Receivers, Receiver: i % o.shape.Receivers, Block: s.waiting.Pop()}
	p.Offset = o.shape.Offset(p.Sender, p.Receiver, o.shape.place(s.head))
	s.head++
	s.underway++
	o.list(i)
	return p, true
}

// Done says that a block of Next has gone.
func (o *Out[T]) Done(sender, receiver int) { o.streams[o.shape.stream(sender, receiver)].underway-- }

// Free says that the peer has freed a place.
func (o *Out[T]) Free(sender, receiver int) error {
	if sender >= o.shape.Senders || receiver >= o.shape.Receivers {
		return fmt.Errorf("%w: a place of stream %d to %d", ErrBreach, sender, receiver)
	}
	i := o.shape.stream(sender, receiver)
	s := &o.streams[i]
	if s.tail == s.head {
		return fmt.Errorf("%w: a place of stream %d to %d is free that was not used", ErrBreach, sender, receiver)
	}
	s.tail++
	o.list(i)
	return nil
}

// In has the streams of the process that receives.
type In struct {
	shape   Shape
	streams []incoming
}

type incoming struct {
	head uint64 // places filled
	tail uint64 // of them, those that are free again
	done uint64 // bit i: the block in place i has been read, and an older one has not
}

// NewIn returns streams whose places are all free.
func NewIn(shape Shape) *In { return &In{shape: shape, streams: make([]incoming, shape.Streams())} }

// Filled says that the peer has filled the stream's next place with so many bytes, and
// tells which one that is: Freed wants to know it.
func (in *In) Filled(sender, receiver, length int) (place int, err error) {
	if sender >= in.shape.Senders || receiver >= in.shape.Receivers {
		return 0, fmt.Errorf("%w: a block of stream %d to %d", ErrBreach, sender, receiver)
	}
	if length > in.shape.Block {
		return 0, fmt.Errorf("%w: a block of %d bytes, places have %d", ErrBreach, length, in.shape.Block)
	}
	s := &in.streams[in.shape.stream(sender, receiver)]
	if s.head-s.tail == uint64(in.shape.Depth) {
		return 0, fmt.Errorf("%w: a block of stream %d to %d, whose places are all in use", ErrBreach, sender, receiver)
	}
	place = in.shape.place(s.head)
	s.head++
	return place, nil
}

// Freed says that the block in a place is not used any more. It tells how many of the
// stream's places are free by that: those are given back in the order in which they were
// filled.
func (in *In) Freed(sender, receiver, place int) (n int) {
	s := &in.streams[in.shape.stream(sender, receiver)]
	s.done |= 1 << place
	for s.tail < s.head {
		bit := uint64(1) << in.shape.place(s.tail)
		if s.done&bit == 0 {
			break
		}
		s.done &^= bit
		s.tail++
		n++
	}
	return n
}

// Full tells whether all places of a stream are in use.
func (in *In) Full(sender, receiver int) bool {
	s := &in.streams[in.shape.stream(sender, receiver)]
	return s.head-s.tail == uint64(in.shape.Depth)
}
