package verbena

import (
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// A Message is what a peer sent: a tag, and a [Buffer] with the bytes. Whoever
// received it has one reference to it.
type Message struct {
	// Tag is what the sender gave to Send.
	Tag uint32
	Buffer
}

// A Buffer is memory of the runtime that the application uses: a message that was
// received, or memory of [Endpoint.Buffer]. It belongs to those who have a reference to it, and goes back to the
// runtime with the last one.
//
// References may be passed on and released by any goroutine. Whoever has one may
// read the bytes; who writes them agrees with the others about it.
type Buffer struct {
	data  []byte
	front int // bytes in front of data that have been cut off
	owner bufferOwner
	more  atomic.Int32 // references beyond the first
	held  bool         // the application has it; guarded by the owner's lock
}

// A bufferOwner is where the memory of a buffer comes from.
type bufferOwner interface {
	// release takes the memory back. The last reference has gone, or the
	// application has released once too often.
	release()
	// location tells where the bytes lie, while somebody has a reference.
	location() location
}

// cut takes n bytes off the front.
func (b *Buffer) cut(n int) { b.data, b.front = b.data[n:], b.front+n }

// A location is where a buffer lies in registered memory.
type location struct {
	pool   *slab.Pool // nil: the memory is not registered
	slab   slab.Slab
	offset int           // of the buffer's bytes in the slab
	owner  *slab.Private // of the slab's region, if it is an endpoint's own
	user   *registration // memory of the application: there is no slab

	passed  rdma.Region // of a peer, whose memory it is: there is no slab
	passage *passage    // with passed
}

// region is where a device finds the bytes.
func (at *location) region() rdma.Region {
	switch {
	case at.passed != nil:
		return at.passed
	case at.user != nil:
		return at.user.region
	}
	return at.slab.Region()
}

// place is where in it.
func (at *location) place() int {
	if at.user != nil || at.passed != nil {
		return at.offset
	}
	return at.slab.Offset() + at.offset
}

// Bytes is what the buffer holds. The slice may be used until the caller's
// reference is released, even when the endpoint or the runtime has been closed.
// It can be written to a file or a socket as it is: that needs no other copy.
func (b *Buffer) Bytes() []byte {
	if checksBuffers {
		b.check("Bytes")
	}
	return b.data
}

// Intact tells whether the bytes were, up to now, those of the message. They always are
// but for a message that lies in the peer's memory (see [DialConfig].InPlace) after this
// side's Close, or after the peer has ended the endpoint before the message was released:
// then what has been read of it may be anything. Who acts on what was read there asks
// first. It does not allocate.
func (b *Buffer) Intact() bool {
	if checksBuffers {
		b.check("Intact")
	}
	return intact(b.owner)
}

// intact is Intact for what the owner has.
func intact(owner bufferOwner) bool {
	o, ok := owner.(interface{ intact() bool })
	return !ok || o.intact()
}

// viewed returns the message in the peer's memory whose bytes the owner has, or nil.
func viewed(owner bufferOwner) *longMessage {
	if o, ok := owner.(interface{ viewed() *longMessage }); ok {
		return o.viewed()
	}
	return nil
}

// Retain adds a reference, with which Release has to be called once more. The
// caller has one.
func (b *Buffer) Retain() {
	if checksBuffers {
		b.check("Retain")
	}
	b.more.Add(1)
}

// Release drops a reference; what it was for must not use the buffer any more.
// The last one gives the memory back, and with that of a message the credit to
// send more to the peer. Receivers that hold many messages slow the sender down;
// one that holds them all stops it. A Release without a reference is an error of
// the program: it is logged and does nothing, as long as nobody else has got the
// memory. Programs that are built with the tag verbenadebug panic instead, and find
// uses after the last Release and buffers that are never released.
func (b *Buffer) Release() {
	if checksBuffers {
		b.check("Release")
	}
	if b.last() {
		b.owner.release()
	}
}

// check panics if the buffer has been released, in a build that looks for that.
func (b *Buffer) check(use string) {
	if c, ok := b.owner.(interface{ used(string) }); ok {
		c.used(use)
	}
}

// last drops a reference and tells whether it was the last one.
func (b *Buffer) last() bool {
	// Whoever finds no other reference has the only one, and nobody else can make
	// more. So the usual case costs no locked instruction.
	if b.more.Load() == 0 {
		return true
	}
	if b.more.Add(-1) >= 0 {
		return false
	}
	b.more.Store(0)
	return true
}
