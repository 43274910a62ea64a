package verbena

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

const (
	// movedAfter is after how many uses a receive may move to other memory.
	movedAfter = 16
	// sparseFrom is how many bytes a pool may hold, used or not, before receives move.
	sparseFrom = 4 << 20
)

// errNoReceive says that there is no memory for a receive, but for what might be had
// without the locks that are held.
var errNoReceive = fmt.Errorf("memory of a receive: %w", slab.ErrExhausted)

// A buffer is the memory of a receive and the message that comes to lie in it.
type buffer struct {
	message Message
	slab    slab.Slab
	memory  []byte // of slab
	home    *receives
	holder  holder // the endpoint whose message lies here
	posted  bool   // the device has it
	uses    uint8  // since it got its memory, in a circle
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

// take returns a buffer with memory. r.mu is held.
func (r *receives) take(fetched *[]slab.Slab) (*buffer, error) {
	var s slab.Slab
	if fetched != nil && len(*fetched) > 0 {
		last := len(*fetched) - 1
		s, *fetched = (*fetched)[last], (*fetched)[:last]
	} else {
		var ok bool
		var err error
		// Whoever calls may hold locks that others want.
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
	r.lie(b, s)
	return b, nil
}

// drop gives the memory of a buffer back to the pool. r.mu is held.
func (r *receives) drop(b *buffer) {
	r.pool.Put(b.slab)
	b.slab, b.memory = slab.Slab{}, nil
	r.spare = append(r.spare, b)
}

// sparse tells that the pool holds much more than is used, here and there.
func (r *receives) sparse() bool {
	registered := r.pool.Registered()
	return registered > sparseFrom && r.pool.Used() < registered/2
}

// move gives a buffer other memory, so that what lies here and there comes together
// and the rest can go back.
func (r *receives) move(b *buffer) {
	if memory, ok := r.pool.Denser(b.slab); ok {
		r.pool.Put(b.slab)
		r.lie(b, memory)
	}
}

// lie gives a buffer its memory.
func (r *receives) lie(b *buffer, s slab.Slab) {
	b.slab, b.memory, b.uses = s, s.Bytes()[:r.size], 0
	b.entry[0] = rdma.SGE{Region: s.Region(), Offset: s.Offset(), Length: r.size}
}
