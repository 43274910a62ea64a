package shuffle

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/crc32c"
	"github.com/verbena-data/verbena/shuffle/internal/flow"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// An item is a block for a receiver: in a place that a peer has filled, in a block of this
// process, or in the spill file.
type item struct {
	data   []byte
	from   *peer
	sender int // its thread there
	place  int
	block  *block // that data lies in, or nil
	spilt  bool   // data is nil, and lies in the spill file
	offset int64  // there
	length int
}

// A Receiver takes the records of a partition. It belongs to one goroutine at a time.
type Receiver struct {
	x       *Exchange
	thread  int
	streams []receiving // by global thread of the sender

	mu      sync.Mutex
	queue   []item // blocks that have arrived, in order
	sleeper sleeper

	spilling sync.Mutex // held while blocks of the queue are written to file, and none is taken
	file     *spillFile

	taken   []item // that were queued
	nextOne int    // of taken

	// The block whose records Next hands out.
	current item
	rest    []byte // what is left of it
	left    uint32 // records in that
	long    []byte // a record in fragments, as far as it has come; by the stream's receiving
	reading bool   // current is one
	fetched []byte // from the spill file
	ended   int
	err     error // after which nothing more comes

	stats receiverStats
}

// receiving is the receiving end of a stream.
type receiving struct {
	totals wire.Totals
	ended  bool
	long   []byte // of a record in fragments, what has come
	want   uint64 // how long it is
	within bool   // a fragment must follow
}

func newReceiver(x *Exchange, thread int) *Receiver {
	return &Receiver{x: x, thread: thread, streams: make([]receiving, x.Partitions()), sleeper: newSleeper()}
}

// push adds a block that has arrived. full says that its stream has no place left.
func (r *Receiver) push(it item, full bool) {
	r.mu.Lock()
	r.queue = append(r.queue, it)
	r.mu.Unlock()
	r.sleeper.wake()
	if full && r.x.spill != nil {
		r.x.spill.wants(r)
	}
}

// Next returns the next record, whose bytes are valid until the next call of Next or
// NextBatch. The records of a sender come in the order in which they were sent; those of
// several come mixed. io.EOF itself says that all senders of all processes have closed,
// and that every record has come. ctx ends the wait, and the receiver goes on.
func (r *Receiver) Next(ctx context.Context) ([]byte, error) {
	if b := r.rest; len(b) > 0 && r.left > 0 {
		if n := int(b[0]); n < 0x80 && n < len(b) {
			r.rest = b[1+n:]
			r.left--
			return b[1 : 1+n : 1+n], nil
		}
	}
	return r.next(ctx)
}

func (r *Receiver) next(ctx context.Context) ([]byte, error) {
	for {
		if r.left > 0 {
			if r.long != nil {
				record := r.long
				r.long, r.left = nil, 0
				return record, nil
			}
			n, width := binary.Uvarint(r.rest)
			if width <= 0 || n > uint64(len(r.rest)-width) {
				return nil, r.corrupt(&r.current, "a record of %d bytes in %d bytes that are left of the block", n, len(r.rest))
			}
			record := r.rest[width : width+int(n) : width+int(n)]
			r.rest = r.rest[width+int(n):]
			r.left--
			return record, nil
		}
		if err := r.advance(ctx); err != nil {
			return nil, err
		}
	}
}

// advance gives the current block back and opens the next one.
func (r *Receiver) advance(ctx context.Context) error {
	if r.err != nil {
		return r.err
	}
	if err := r.giveBack(); err != nil {
		return err
	}
	if r.ended == len(r.streams) {
		r.err = io.EOF
		r.x.one()
		return io.EOF
	}
	it, err := r.take(ctx)
	if err != nil {
		return err
	}
	return r.open(it)
}

// giveBack is done with the current block.
func (r *Receiver) giveBack() error {
	if !r.reading {
		return nil
	}
	if len(r.rest) > 0 {
		return r.corrupt(&r.current, "%d bytes behind the last record of a block", len(r.rest))
	}
	r.reading, r.rest = false, nil
	r.free(&r.current)
	r.current = item{}
	return nil
}

// free gives an item's memory back.
func (r *Receiver) free(it *item) {
	if it.spilt {
		return // it had none any more
	}
	it.from.freed(r.thread, it)
}

// take waits for the next item.
func (r *Receiver) take(ctx context.Context) (item, error) {
	if it, ok := r.tryTake(); ok {
		return it, r.x.Err()
	}
	begin := time.Now()
	defer func() { r.stats.waits.add(time.Since(begin)) }()
	for {
		r.sleeper.sleeps()
		if it, ok := r.tryTake(); ok {
			r.sleeper.stays()
			return it, r.x.Err()
		}
		select {
		case <-r.sleeper.token:
		case <-ctx.Done():
			r.sleeper.stays()
			return item{}, fmt.Errorf("shuffle: receive: %w", context.Cause(ctx))
		case <-r.x.failed:
			r.sleeper.stays()
			return item{}, r.x.err
		}
	}
}

func (r *Receiver) tryTake() (it item, ok bool) {
	if r.x.spill != nil {
		return r.takeOne()
	}
	if r.nextOne == len(r.taken) {
		r.mu.Lock()
		clear(r.taken)
		r.taken, r.queue = r.queue, r.taken[:0]
		r.mu.Unlock()
		r.nextOne = 0
		if len(r.taken) == 0 {
			return it, false
		}
	}
	it = r.taken[r.nextOne]
	r.nextOne++
	return it, true
}

// open checks a block and makes it the current one.
func (r *Receiver) open(it item) error {
	if it.spilt {
		var err error
		if it.data, err = r.fetch(&it); err != nil {
			return r.x.fail(&ProcessError{Rank: r.x.c.Rank, Err: fmt.Errorf("%w: read what was spilt: %w", ErrAborted, err)})
		}
	} else if r.x.spill != nil {
		r.detach(&it)
	}
	h, contents, err := wire.ParseHeader(it.data)
	if err != nil {
		return r.corrupt(&it, "%w", err)
	}
	if sum := crc32c.Update(0, it.data[4:]); sum != h.Sum {
		return r.corrupt(&it, "the checksum of block %d is %08x, it says %08x", h.Sequence, sum, h.Sum)
	}
	s := &r.streams[it.from.rank*r.x.c.Threads+it.sender]
	switch {
	case s.ended:
		return r.corrupt(&it, "%w: a block behind the end", flow.ErrBreach)
	case h.Sequence != s.totals.Blocks:
		return r.corrupt(&it, "block %d came, %d was due", h.Sequence, s.totals.Blocks)
	case s.within != (h.Flags&wire.Fragment != 0 && h.Flags&wire.First == 0):
		return r.corrupt(&it, "%w: a record in fragments was broken off or begins in its middle", flow.ErrBreach)
	}
	r.current, r.reading, r.left, r.rest = it, true, 0, nil
	if h.Flags == wire.End {
		return r.end(s, contents)
	}
	s.totals.Records += uint64(h.Records)
	s.totals.Bytes += uint64(len(contents))
	s.totals.Blocks++
	s.totals.Sums += uint64(h.Sum)
	r.stats.all.add(uint64(h.Records), uint64(len(contents)))
	if h.Flags&wire.Fragment != 0 {
		return r.fragment(s, &h, contents)
	}
	r.left, r.rest = h.Records, contents
	return nil
}

// end compares what has come with what was sent.
func (r *Receiver) end(s *receiving, contents []byte) error {
	totals, err := wire.ParseTotals(contents)
	if err != nil {
		return r.corrupt(&r.current, "%w", err)
	}
	if totals != s.totals {
		return r.corrupt(&r.current, "%d records of %d bytes in %d blocks were sent, and %d of %d in %d have come",
			totals.Records, totals.Bytes, totals.Blocks, s.totals.Records, s.totals.Bytes, s.totals.Blocks)
	}
	s.ended = true
	r.ended++
	return nil
}

// fragment adds a part to a record that is longer than a block.
func (r *Receiver) fragment(s *receiving, h *wire.Header, contents []byte) error {
	if h.Flags&wire.First != 0 {
		if len(contents) < 8 {
			return r.corrupt(&r.current, "%w: a first fragment of %d bytes", flow.ErrBreach, len(contents))
		}
		s.want = binary.BigEndian.Uint64(contents)
		if s.want > uint64(r.x.c.MaxRecord) {
			return r.corrupt(&r.current, "%w: a record of %d bytes, MaxRecord is %d", flow.ErrBreach, s.want, r.x.c.MaxRecord)
		}
		contents = contents[8:]
		if cap(s.long) > keepScratch {
			s.long = nil
		}
		s.long = s.long[:0]
		s.within = true
	}
	if uint64(len(s.long)+len(contents)) > s.want {
		return r.corrupt(&r.current, "%w: fragments of more than %d bytes", flow.ErrBreach, s.want)
	}
	if cap(s.long) == 0 { // not more at once than what has come suggests
		s.long = make([]byte, 0, min(int(s.want), keepScratch))
	}
	s.long = append(s.long, contents...)
	if whole := uint64(len(s.long)) == s.want; whole != (h.Records == 1) || h.Records > 1 {
		return r.corrupt(&r.current, "%w: a fragment in which %d records end", flow.ErrBreach, h.Records)
	} else if whole {
		s.within = false
		r.long, r.left = s.long, 1
	}
	return nil
}

// corrupt ends the exchange because of what a peer has sent.
func (r *Receiver) corrupt(it *item, format string, args ...any) error {
	r.err = r.x.fail(&ProcessError{Rank: it.from.rank, Err: fmt.Errorf("%w: its thread %d to partition %d: %w", ErrCorrupt, it.sender,
		r.x.c.Rank*r.x.c.Threads+r.thread, fmt.Errorf(format, args...))})
	return r.err
}

// A Batch is records that lie in one piece of memory, which nobody writes to until
// Release.
type Batch struct {
	r    *Receiver
	it   item
	rest []byte
	left uint32
	long bool // rest is one record as it is
}

// NextBatch returns a batch of at least one record, as Next returns one record. It holds
// memory that the sender's thread waits for, so that a receiver which holds many batches
// stops those who send to it.
func (r *Receiver) NextBatch(ctx context.Context) (*Batch, error) {
	for r.left == 0 {
		if err := r.advance(ctx); err != nil {
			return nil, err
		}
	}
	b := &Batch{r: r, it: r.current, rest: r.rest, left: r.left}
	if r.long != nil {
		// The stream goes on, and needs its memory for the next long record.
		b.rest, b.long = append([]byte(nil), r.long...), true
		r.long = nil
	} else if r.current.spilt {
		r.fetched = nil // it is the batch's now
	}
	r.left, r.rest, r.reading, r.current = 0, nil, false, item{}
	return b, nil
}

// Len is how many records are left.
func (b *Batch) Len() int { return int(b.left) }

// Next returns the next record, which is valid until Release, and false behind the last
// one.
func (b *Batch) Next() ([]byte, bool) {
	if b.left == 0 {
		return nil, false
	}
	b.left--
	if b.long {
		return b.rest, true
	}
	var n uint64
	var width int
	if len(b.rest) > 0 && b.rest[0] < 0x80 {
		n, width = uint64(b.rest[0]), 1
	} else {
		n, width = binary.Uvarint(b.rest)
	}
	if width <= 0 || n > uint64(len(b.rest)-width) {
		b.left = 0
		_ = b.r.corrupt(&b.it, "a record of %d bytes in %d bytes that are left of the block", n, len(b.rest))
		return nil, false
	}
	record := b.rest[width : width+int(n) : width+int(n)]
	b.rest = b.rest[width+int(n):]
	if b.left == 0 && len(b.rest) > 0 {
		_ = b.r.corrupt(&b.it, "%d bytes behind the last record of a block", len(b.rest))
	}
	return record, true
}

// Release gives the memory back. The receiver's goroutine calls it, or another one if the
// two agree; all batches must be released before the exchange is closed.
func (b *Batch) Release() {
	if b.r != nil {
		b.r.free(&b.it)
		b.r, b.rest, b.left = nil, nil, 0
	}
}
