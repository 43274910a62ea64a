package verbena

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/verbena-data/verbena/internal/onesided"
	"github.com/verbena-data/verbena/internal/patience"
	"github.com/verbena-data/verbena/internal/release"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// flights are a shell's one-sided operations that are under way, and who waits for
// room. There are none before the first operation. mu of the shell guards them.
type flights struct {
	onesided.Flights[*flight]
	idle []*flight

	requests [MaxBatch]rdma.SendRequest
	entries  [MaxBatch]rdma.SGE
}

// A flight is a batch on its way. It belongs to its caller until it is abandoned.
type flight struct {
	size      int // operations
	done      release.Flag
	ready     func() bool
	wake      chan struct{} // one token when done, or when there may be room
	asleep    bool
	abandoned bool // whoever lands it frees it
	told      bool // the notification has been posted with the operations
	spin      patience.Spinner
	staged    slab.Slab         // memory of all operations that have none, given to the device
	results   slab.Slab         // likewise 8 bytes for each atomic operation, kept for the next batch
	bytes     [MaxBatch][]byte  // of an operation, in one of these
	buffers   [MaxBatch]*Buffer // memory of the application, given to the device
	places    [MaxBatch]place   // where in the region an operation's memory is
}

// A place is where in a region the memory of an operation begins.
type place struct {
	region rdma.Region
	offset int
}

// wholeFlight is how many bytes the results of a flight need.
const wholeFlight = 8 * MaxBatch

func newFlight(e *Endpoint, spin patience.Spinner) *flight {
	f := &flight{wake: make(chan struct{}, 1), spin: spin}
	f.ready = func() bool { return f.done.Load() || e.over() }
	return f
}

// take takes a flight for a batch. mu is held.
func (fl *flights) take() *flight {
	n := len(fl.idle)
	if n == 0 {
		return nil
	}
	f := fl.idle[n-1]
	fl.idle = fl.idle[:n-1]
	return f
}

// park keeps a flight for the next batch. mu is held.
func (fl *flights) park(f *flight) {
	f.done.Clear()
	f.asleep, f.abandoned = false, false
	select {
	case <-f.wake:
	default:
	}
	fl.idle = append(fl.idle, f)
}

// use tells whether a buffer is that of an operation under way.
func (fl *flights) use(b *Buffer) bool {
	return fl.Under(func(f *flight) bool { return slices.Contains(f.buffers[:f.size], b) })
}

// inPlace uses the memory that there is already for an operation, and reports false if
// there is none.
func (f *flight) inPlace(n *domain, i int, o *operation) bool {
	if o.atomic() {
		if f.results.None() {
			return false
		}
		f.lay(i, f.results, 8*i, 8)
		return true
	}
	if o.buffer == nil {
		return false
	}
	at := o.buffer.owner.location()
	if !n.reaches(&at) {
		return false
	}
	f.buffers[i] = o.buffer
	f.places[i] = place{at.region(), at.place() + o.from}
	return true
}

// lay places an operation in memory of the flight.
func (f *flight) lay(i int, memory slab.Slab, offset, n int) {
	f.places[i] = place{memory.Region(), memory.Offset() + offset}
	f.bytes[i] = memory.Bytes()[offset : offset+n]
}

// stagingUnit is what the offsets of operations in staged memory are multiples of.
const stagingUnit = 64

// stage gets registered memory for the operations, with what is to be written. It takes
// all of it at once: who waits for memory holds none that others wait for.
func (s *operator) stage(ctx context.Context, f *flight, b *Batch) (err error) {
	var offsets [MaxBatch]int
	size, atomics, copies := 0, false, false
	for i := range b.ops[:b.count] {
		o := &b.ops[i]
		if offsets[i] = -1; f.inPlace(s.n, i, o) {
			continue
		}
		offsets[i] = (size + stagingUnit - 1) / stagingUnit * stagingUnit
		size = offsets[i] + o.length()
		atomics, copies = atomics || o.atomic(), copies || !o.atomic()
	}
	switch {
	case copies:
		if f.staged, err = s.takeStaged(ctx, size); err != nil {
			return err
		}
	case atomics:
		if f.results, err = s.take(ctx, s.n.sendPool, wholeFlight); err != nil {
			return err
		}
	}
	for i, offset := range offsets[:b.count] {
		switch o := &b.ops[i]; {
		case offset < 0:
		case !copies:
			f.inPlace(s.n, i, o) // there is memory for results now
		default:
			f.lay(i, f.staged, offset, o.length())
			if o.kind == opPut {
				copy(f.bytes[i], o.local)
				if o.buffer != nil && !intact(o.buffer.owner) {
					return errNotIntact
				}
			}
		}
	}
	return nil
}

// takeStaged waits for memory, and refuses at once what there will never be.
func (s *operator) takeStaged(ctx context.Context, size int) (slab.Slab, error) {
	if size > MaxOperation { // that is a region of its own
		most := s.n.sendPool.LargeLimit()
		if m := s.n.attributes.MaxRegion; m > 0 {
			most = min(most, m)
		}
		if n := slab.RegionFor(size); int64(n) > most {
			return slab.Slab{}, fmt.Errorf("%w: a batch that copies %d bytes takes %d of memory, and SendMemory and the device allow %d", ErrTooLong, size, n, most)
		}
	}
	memory, err := s.take(ctx, s.n.sendPool, size)
	if errors.Is(err, slab.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", ErrTooLong, err)
	}
	return memory, err
}

// freeStaged frees the memory of a flight's operations. spoilt tells that the device may
// still use it.
func (f *flight) freeStaged(pool *slab.Pool, spoilt bool) {
	clear(f.buffers[:f.size])
	clear(f.bytes[:f.size])
	giveBack(pool, f.staged, spoilt)
	f.staged = slab.Slab{}
}

// free frees the memory that a flight keeps for the next batch.
func (f *flight) free(pool *slab.Pool, spoilt bool) {
	giveBack(pool, f.results, spoilt)
	f.results = slab.Slab{}
}
