package verbena

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

const (
	// movedAfter is how many uses of a receive lie between two looks whether it should
	// move to other memory.
	movedAfter = 16
	// Receives in use move out of a pool that is fragmented and has more than 4 MiB. The
	// last ones of a queue that gives receives back move out of one that has more than 64 KiB.
	fragmentedFrom, fragmentedFromIdle = 4 << 20, 64 << 10
)

// errNoReceive says that the pool has no memory for a receive right now. Who holds no
// lock can wait for some.
var errNoReceive = fmt.Errorf("memory of a receive: %w", slab.ErrExhausted)

// A buffer is the memory of a receive and the message that comes to lie in it.
type buffer struct {
	message Message
	slab    slab.Slab
	memory  []byte // of slab
	home    *receives
	holder  holder // the endpoint whose message lies here
	posted  bool   // the device has it
	uses    uint8  // since it got its memory, modulo 256
	request [1]rdma.RecvRequest
	entry   [1]rdma.SGE
}

// A holder is an endpoint to which a message in a buffer belongs.
type holder interface {
	// released takes the buffer back from the application.
	released(*buffer)
}

func (b *buffer) release() {
	if h := b.holder; h != nil {
		h.released(b)
		return
	}
	b.home.log.Error("a message was released twice; the second Release did nothing")
}

func (b *buffer) location() location {
	return location{pool: b.home.pool, slab: b.slab, offset: wire.HeaderSize}
}

// take returns a buffer with memory, of what was fetched or else of the pool. r.mu is
// held.
func (r *receives) take(fetched *[]slab.Slab) (*buffer, error) {
	var s slab.Slab
	if fetched != nil && len(*fetched) > 0 {
		last := len(*fetched) - 1
		s, *fetched = (*fetched)[last], (*fetched)[:last]
	} else {
		var ok bool
		var err error
		// Callers hold locks of endpoints and of workers: they do not wait for a region.
		if s, ok, err = r.pool.TryNow(r.size); err != nil {
			return nil, fmt.Errorf("memory of a receive: %w", err)
		} else if !ok {
			return nil, errNoReceive
		}
	}
	var b *buffer
	if n := len(r.spare); n > 0 {
		b = r.spare[n-1]
		r.spare = r.spare[:n-1]
	} else {
		slots := *r.slots.Load()
		b = &buffer{home: r}
		b.message.owner = b
		b.request[0] = rdma.RecvRequest{ID: idReceive | uint64(r.number)<<idQueue | uint64(len(slots)), SGEs: b.entry[:]}
		grown := append(slots[:len(slots):len(slots)], b)
		r.slots.Store(&grown)
	}
	r.place(b, s)
	return b, nil
}

// drop gives the memory of a buffer back to the pool. r.mu is held.
func (r *receives) drop(b *buffer) {
	r.pool.Put(b.slab)
	b.slab, b.memory = slab.Slab{}, nil
	r.spare = append(r.spare, b)
}

// fragmented tells that less than half of the pool's memory is used, and that it has more
// than from bytes. What is used may then keep each of its regions from going back.
func (r *receives) fragmented(from int64) bool {
	registered := r.pool.Registered()
	return registered > from && r.pool.Used() < registered/2
}

// move gives a buffer memory in a region that is fuller or smaller, if there is one, so
// that the region that it leaves can go back.
func (r *receives) move(b *buffer) {
	if memory, ok := r.pool.Denser(b.slab); ok {
		r.pool.Put(b.slab)
		r.place(b, memory)
	}
}

// place gives a buffer its memory.
func (r *receives) place(b *buffer, s slab.Slab) {
	b.slab, b.memory, b.uses = s, s.Bytes()[:r.size], 0
	b.entry[0] = rdma.SGE{Region: s.Region(), Offset: s.Offset(), Length: r.size}
}
