package shuffle

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/crc32c"
	"github.com/verbena-data/verbena/internal/fifo"
	"github.com/verbena-data/verbena/internal/prefetch"
	"github.com/verbena-data/verbena/shuffle/internal/flow"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// What the receiver asks for before it reads it, in bytes: another processor has written it, and where a record lies is
// told by the one before it.
const (
	headAhead    = 128     // of the next block: its header and that of its first part
	recordsAhead = 4 << 10 // of a part
	recordsStep  = 2 << 10 // of a longer one, when so much of it has been read
)

// An item is what has arrived for a receiver: a block in a slab or in the spill file, or a
// part of a thread of this process.
type item struct {
	data   []byte
	from   *peer
	sender int    // of a part: its lane
	block  *block // that the part lies in, or nil
	spilt  bool   // it holds no room any more; with data nil it lies in the spill file
	offset int    // of a block in the slab
	at     int64  // in the spill file
	length int    // there
}

// A holding is an item that is being read. It is given back when nobody reads it any more.
type holding struct {
	item
	readers atomic.Int32 // the receiver, and batches
}

// A Receiver takes the records of a partition. It belongs to one goroutine at a time.
type Receiver struct {
	x       *Exchange
	thread  int
	streams []receiving // by process, by lane of the sender
	blocks  []uint32    // that have come from each process

	mu      sync.Mutex
	queue   fifo.Queue[item] // that have arrived, in order, behind those in spilt
	sleeper sleeper

	spilling sync.Mutex       // held while items of the queue are written to file, and none is taken
	spilt    fifo.Queue[item] // that lie in the file
	file     *spillFile

	taken fifo.Queue[item] // that were queued, if there is no spill directory

	current *holding // or nil
	parts   []byte   // of it, that follow
	// The part whose records Next hands out.
	from    int    // its process and lane, as in streams
	rest    []byte // what is shown of what is left of it: a step more has been asked for, and its capacity tells where the part ends
	left    uint32 // records in that
	long    []byte // a record in fragments, as far as it has come; by the stream's receiving
	fetched []byte // from the spill file
	unused  *holding
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
	return &Receiver{x: x, thread: thread, streams: make([]receiving, x.Partitions()), blocks: make([]uint32, x.c.Size), sleeper: newSleeper()}
}

// push adds what has arrived; the receiver has to be woken then. full says that somebody may be waiting for room.
func (r *Receiver) push(it item, full bool) {
	r.mu.Lock()
	r.queue.Push(it)
	r.mu.Unlock()
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
			rest := r.rest[:cap(r.rest)]
			n, width := binary.Uvarint(rest)
			if width <= 0 || n > uint64(len(rest)-width) {
				return nil, r.corrupt("a record of %d bytes in %d bytes that are left of the part", n, len(rest))
			}
			end := width + int(n)
			if end > len(r.rest) {
				r.rest = show(r.rest, end+recordsStep)
			}
			r.rest = r.rest[end:]
			r.left--
			return rest[width:end:end], nil
		}
		if err := r.advance(ctx); err != nil {
			return nil, err
		}
	}
}

// show returns the first n bytes of what is left of a part, of which rest is shown, and asks for what lies up to a step behind
// them and has not been asked for. n is more than rest has. The bytes that are shown end where the part does at the latest.
func show(rest []byte, n int) []byte {
	shown, ask := uncover(rest, n)
	prefetch.ToRead(ask, len(ask))
	return shown
}

// uncover is what show returns, and what it asks for.
func uncover(rest []byte, n int) (shown, ask []byte) {
	whole := rest[:cap(rest)]
	shown = whole[:min(n, len(whole))]
	asked := min(len(rest)+recordsStep, len(whole))
	return shown, whole[asked:min(len(shown)+recordsStep, len(whole))]
}

// Each calls take with each record that is left, until the end. The bytes are valid until take returns. An error of take ends
// it and is returned as it is; the exchange goes on.
func (r *Receiver) Each(ctx context.Context, take func(record []byte) error) error {
	for {
		record, err := r.Next(ctx)
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = take(record)
		}
		if err != nil {
			return err
		}
	}
}

// advance opens the next part.
func (r *Receiver) advance(ctx context.Context) error {
	if r.err != nil {
		return r.err
	}
	if n := cap(r.rest); n > 0 {
		return r.corrupt("%d bytes behind the last record of a part", n)
	}
	r.rest = nil
	if len(r.parts) > 0 {
		return r.part()
	}
	r.giveBack()
	if r.ended == r.x.lanes {
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

// giveBack is done with the current item.
func (r *Receiver) giveBack() {
	h := r.current
	if h == nil {
		return
	}
	r.current, r.parts = nil, nil
	if h.readers.Load() == 1 {
		r.free(h)
		r.unused = h
		return
	}
	if h.spilt {
		r.fetched = nil // it is the batches'
	}
	r.done(h)
}

// done says that the receiver, or a batch, does not read an item any more.
func (r *Receiver) done(h *holding) {
	if h.readers.Add(-1) == 0 {
		r.free(h)
	}
}

// free gives an item's room back.
func (r *Receiver) free(h *holding) {
	if h.spilt {
		return // it had none any more
	}
	h.from.freed(r.thread, &h.item)
	if h.block == nil {
		r.x.mapped.release()
	}
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
		if r.x.turn() {
			r.sleeper.stays()
			continue
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
	if r.taken.Len() == 0 {
		r.mu.Lock()
		r.taken, r.queue = r.queue, r.taken
		r.mu.Unlock()
		if r.taken.Len() == 0 {
			return it, false
		}
	}
	it = r.taken.Pop()
	if r.taken.Len() > 0 {
		prefetch.ToRead(r.taken.Front().data, headAhead)
	}
	return it, true
}

// open makes an item the current one, and opens its first part.
func (r *Receiver) open(it item) error {
	if it.data == nil {
		var err error
		if it.data, err = r.fetch(&it); err != nil {
			return r.x.fail(&ProcessError{Rank: r.x.c.Rank, Err: fmt.Errorf("%w: read what was spilt: %w", ErrAborted, err)})
		}
	} else {
		if it.block == nil && !r.x.mapped.hold() {
			return ErrClosed
		}
		if r.x.spill != nil {
			r.detach(&it)
		}
	}
	h := r.unused
	if r.unused = nil; h == nil {
		h = &holding{}
	}
	h.item = it
	h.readers.Store(1)
	r.current, r.left, r.rest, r.parts = h, 0, nil, it.data
	r.from = it.from.rank * r.x.c.Threads
	if it.from.local {
		r.from += it.sender
		return r.part()
	}
	header, summed, contents, err := wire.ParseHeader(it.data)
	if err != nil {
		return r.corrupt("%w", err)
	}
	if sum := crc32c.Update(0, summed); sum != header.Sum {
		return r.corrupt("the checksum of block %d is %08x, it says %08x", header.Sequence, sum, header.Sum)
	}
	number := &r.blocks[it.from.rank]
	if header.Sequence != *number || int(header.Offset) != it.offset || int(header.Receiver) != r.thread {
		return r.corrupt("block %d for thread %d at %d came, %d at %d was due", header.Sequence, header.Receiver, header.Offset, *number, it.offset)
	}
	*number++
	r.parts = contents
	if len(contents) == 0 {
		return r.corrupt("%w: an empty block", flow.ErrBreach)
	}
	return r.part()
}

// part opens the next part of the current item.
func (r *Receiver) part() error {
	p, contents, rest, err := wire.ParsePart(r.parts)
	if err != nil {
		return r.corrupt("%w", err)
	}
	if int(p.Sender) >= r.current.from.lanes {
		return r.corrupt("%w: a part of lane %d", flow.ErrBreach, p.Sender)
	}
	r.parts = rest
	r.from = r.current.from.rank*r.x.c.Threads + int(p.Sender)
	s := &r.streams[r.from]
	switch {
	case s.ended:
		return r.corrupt("%w: a part behind the end", flow.ErrBreach)
	case s.within != (p.Flags&wire.Fragment != 0 && p.Flags&wire.First == 0):
		return r.corrupt("%w: a record in fragments was broken off or begins in its middle", flow.ErrBreach)
	}
	if p.Flags == wire.End {
		return r.end(s, contents)
	}
	s.totals.Records += uint64(p.Records)
	s.totals.Bytes += uint64(len(contents))
	s.totals.Parts++
	r.stats.all.add(uint64(p.Records), uint64(len(contents)))
	if p.Flags&wire.Fragment != 0 {
		return r.fragment(s, &p, contents)
	}
	r.left, r.rest = p.Records, contents[:min(len(contents), recordsAhead-recordsStep)]
	prefetch.ToRead(contents, recordsAhead)
	return nil
}

// end compares what has come with what was sent.
func (r *Receiver) end(s *receiving, contents []byte) error {
	totals, err := wire.ParseTotals(contents)
	if err != nil {
		return r.corrupt("%w", err)
	}
	if totals != s.totals {
		return r.corrupt("%d records of %d bytes in %d parts were sent, and %d of %d in %d have come",
			totals.Records, totals.Bytes, totals.Parts, s.totals.Records, s.totals.Bytes, s.totals.Parts)
	}
	s.ended = true
	r.ended++
	return nil
}

// fragment adds a piece to a record that is longer than a part.
func (r *Receiver) fragment(s *receiving, p *wire.Part, contents []byte) error {
	if p.Flags&wire.First != 0 {
		if len(contents) < 8 {
			return r.corrupt("%w: a first fragment of %d bytes", flow.ErrBreach, len(contents))
		}
		s.want = binary.BigEndian.Uint64(contents)
		if s.want > uint64(r.x.c.MaxRecord) {
			return r.corrupt("%w: a record of %d bytes, MaxRecord is %d", flow.ErrBreach, s.want, r.x.c.MaxRecord)
		}
		contents = contents[8:]
		if cap(s.long) > keepScratch {
			s.long = nil
		}
		s.long = s.long[:0]
		s.within = true
	}
	if uint64(len(s.long)+len(contents)) > s.want {
		return r.corrupt("%w: fragments of more than %d bytes", flow.ErrBreach, s.want)
	}
	if cap(s.long) == 0 { // not more at once than what has come suggests
		s.long = make([]byte, 0, min(int(s.want), keepScratch))
	}
	s.long = append(s.long, contents...)
	if whole := uint64(len(s.long)) == s.want; whole != (p.Records == 1) || p.Records > 1 {
		return r.corrupt("%w: a fragment in which %d records end", flow.ErrBreach, p.Records)
	} else if whole {
		s.within = false
		r.long, r.left = s.long, 1
	}
	return nil
}

// corrupt ends the exchange because of what the sender of the current part has sent.
func (r *Receiver) corrupt(format string, args ...any) error {
	return r.corruptBy(r.from, format, args...)
}

func (r *Receiver) corruptBy(from int, format string, args ...any) error {
	threads := r.x.c.Threads
	r.err = r.x.fail(&ProcessError{Rank: from / threads, Err: fmt.Errorf("%w: its lane %d to partition %d: %w", ErrCorrupt, from%threads,
		r.x.c.Rank*threads+r.thread, fmt.Errorf(format, args...))})
	return r.err
}

// A Batch is records that lie in one piece of memory, which nobody writes to until
// Release.
type Batch struct {
	r    *Receiver
	h    *holding
	from int    // the sender, as in streams
	rest []byte // as the receiver's
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
	b := &Batch{r: r, h: r.current, from: r.from, rest: r.rest, left: r.left}
	if r.long != nil {
		// The stream goes on, and needs its memory for the next long record.
		b.rest, b.long = append([]byte(nil), r.long...), true
		r.long = nil
	}
	r.current.readers.Add(1)
	r.left, r.rest = 0, nil
	return b, nil
}

// Len is how many records are left.
func (b *Batch) Len() int { return int(b.left) }

// Next returns the next record, which is valid until Release, and false behind the last
// one.
func (b *Batch) Next() ([]byte, bool) {
	if rest := b.rest; len(rest) > 0 && b.left > 1 {
		if n := int(rest[0]); n < 0x80 && n < len(rest) {
			b.rest = rest[1+n:]
			b.left--
			return rest[1 : 1+n : 1+n], true
		}
	}
	return b.next()
}

func (b *Batch) next() ([]byte, bool) {
	if b.left == 0 {
		return nil, false
	}
	b.left--
	if b.long {
		return b.rest, true
	}
	rest := b.rest[:cap(b.rest)]
	n, width := binary.Uvarint(rest)
	if width <= 0 || n > uint64(len(rest)-width) {
		b.left = 0
		_ = b.r.corruptBy(b.from, "a record of %d bytes in %d bytes that are left of the part", n, len(rest))
		return nil, false
	}
	end := width + int(n)
	if end > len(b.rest) {
		b.rest = show(b.rest, end+recordsStep)
	}
	b.rest = b.rest[end:]
	if left := len(rest) - end; b.left == 0 && left > 0 {
		_ = b.r.corruptBy(b.from, "%d bytes behind the last record of a part", left)
	}
	return rest[width:end:end], true
}

// Release gives the memory back. The receiver's goroutine calls it, or another one if the
// two agree. A batch that is released after [Exchange.Close] keeps the exchange's memory until then. A second call does
// nothing.
func (b *Batch) Release() {
	if b.r != nil {
		b.r.done(b.h)
		b.r, b.h, b.rest, b.left = nil, nil, nil, 0
	}
}
