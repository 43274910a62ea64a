package shuffle

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/internal/crc32c"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// A Sender pushes the records of a thread to partitions. It belongs to one goroutine at a
// time. Its waits end with the exchange's failure, and need no context.
type Sender struct {
	x       *Exchange
	thread  int
	streams []sending // by partition
	sleeper sleeper
	closed  bool

	reserved   int // bytes that Reserve has handed out to reservedTo
	reservedTo int
	scratch    []byte // of a reserved record that is longer than a block

	stats senderStats
}

// sending is the sending end of a stream. memory is that of the block that is being
// filled, from behind its header to its end.
type sending struct {
	memory  []byte
	n       int    // bytes of it that are used
	records uint32 // that end in it
	block   *block // nil before the first record, and behind the end
	totals  wire.Totals
}

func newSender(x *Exchange, thread int) *Sender {
	return &Sender{x: x, thread: thread, streams: make([]sending, x.Partitions()), sleeper: newSleeper(), reservedTo: -1}
}

// Send copies a record to the stream to a partition. It waits only while that stream has
// no room. Its errors are those of the exchange, ErrTooLong and ErrClosed.
func (s *Sender) Send(to int, record []byte) error {
	if uint(to) < uint(len(s.streams)) {
		o := &s.streams[to]
		if n, at := len(record), o.n; n < 0x80 && at+n < len(o.memory) {
			o.memory[at] = byte(n)
			copy(o.memory[at+1:], record)
			o.n = at + 1 + n
			o.records++
			return nil
		}
	}
	return s.send(to, record)
}

// SendKey sends a record to the partition of its key.
func (s *Sender) SendKey(p Partitioner, key, record []byte) error {
	return s.Send(p.Partition(key), record)
}

// send is Send of what is not short, or does not fit.
func (s *Sender) send(to int, record []byte) error {
	into, err := s.Reserve(to, len(record))
	if err != nil {
		return err
	}
	copy(into, record)
	return s.Commit(len(record))
}

// SendGather is Send of a record in several parts.
func (s *Sender) SendGather(to int, parts ...[]byte) error {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	into, err := s.Reserve(to, n)
	if err != nil {
		return err
	}
	for _, part := range parts {
		into = into[copy(into, part):]
	}
	return s.Commit(n)
}

func uvarintSize(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

// room is how many bytes of records, with their lengths, fit into a block.
func (s *Sender) room() int { return s.x.c.block - wire.HeaderSize }

// Reserve returns n bytes in which a record to a partition can be put together. Commit
// must follow before anything else. The bytes hold anything at first.
func (s *Sender) Reserve(to, n int) ([]byte, error) {
	switch {
	case to < 0 || to >= len(s.streams):
		return nil, fmt.Errorf("shuffle: send to partition %d of %d", to, len(s.streams))
	case s.closed:
		return nil, fmt.Errorf("shuffle: send to partition %d: %w", to, ErrClosed)
	case n < 0 || n > s.x.c.MaxRecord:
		return nil, fmt.Errorf("%w: %d bytes, MaxRecord is %d", ErrTooLong, n, s.x.c.MaxRecord)
	case s.reservedTo >= 0:
		return nil, fmt.Errorf("shuffle: send to partition %d: a record to %d was reserved and not committed", to, s.reservedTo)
	}
	o := &s.streams[to]
	size := uvarintSize(n) + n
	if size > s.room() { // in fragments
		if cap(s.scratch) < n {
			s.scratch = make([]byte, n)
		}
		s.reservedTo, s.reserved = to, n
		return s.scratch[:n], nil
	}
	if o.n+size > len(o.memory) {
		if err := s.next(to); err != nil {
			return nil, err
		}
	}
	at := o.n + size - n
	s.reservedTo, s.reserved = to, n
	return o.memory[at : at+n : at+n], nil
}

// Commit sends the first n of the bytes that Reserve has returned.
func (s *Sender) Commit(n int) error {
	to := s.reservedTo
	if to < 0 || n < 0 || n > s.reserved {
		return fmt.Errorf("shuffle: commit %d bytes, %d were reserved", n, s.reserved)
	}
	reserved := s.reserved
	s.reservedTo, s.reserved = -1, 0
	o := &s.streams[to]
	if uvarintSize(reserved)+reserved > s.room() {
		record := s.scratch[:n]
		if cap(s.scratch) > keepScratch {
			s.scratch = nil
		}
		if uvarintSize(n)+n > s.room() {
			return s.fragments(to, record)
		}
		return s.send(to, record)
	}
	width := uvarintSize(reserved)
	at := o.n + width
	if now := uvarintSize(n); now != width {
		copy(o.memory[o.n+now:], o.memory[at:at+n])
	}
	o.n += binary.PutUvarint(o.memory[o.n:], uint64(n)) + n
	o.records++
	return nil
}

// keepScratch is how many bytes a sender and a receiver keep for the next long record.
const keepScratch = 1 << 20

// fragments sends a record that is longer than a block, in blocks of its own.
func (s *Sender) fragments(to int, record []byte) error {
	if err := s.flush(to); err != nil {
		return err
	}
	o := &s.streams[to]
	for first := true; first || len(record) > 0; first = false {
		if err := s.open(to); err != nil {
			return err
		}
		flags := wire.Fragment
		if first {
			flags |= wire.First
			binary.BigEndian.PutUint64(o.memory, uint64(len(record)))
			o.n = 8
		}
		n := copy(o.memory[o.n:], record)
		o.n += n
		record = record[n:]
		if len(record) == 0 {
			o.records = 1
		}
		if err := s.seal(to, flags); err != nil {
			return err
		}
	}
	return nil
}

// next makes the stream's block an empty one.
func (s *Sender) next(to int) error {
	if s.streams[to].n > 0 {
		if err := s.seal(to, 0); err != nil {
			return err
		}
	}
	return s.open(to)
}

// open gives a stream a block, if it has none.
func (s *Sender) open(to int) error {
	o := &s.streams[to]
	if o.block == nil {
		o.block = s.x.blocks.get()
		o.memory = o.block.memory[wire.BlockPrefix+wire.HeaderSize:]
	}
	return nil
}

// flush seals a block that is not empty.
func (s *Sender) flush(to int) error {
	if s.streams[to].n == 0 {
		return nil
	}
	return s.seal(to, 0)
}

// Flush lets everything go out that has been sent. It does not wait until it has arrived.
func (s *Sender) Flush() error {
	for to := range s.streams {
		if err := s.flush(to); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the thread's streams to all partitions. Every sender must be closed, also one
// that has sent nothing: receivers come to the end when all are. A second call does
// nothing.
func (s *Sender) Close() error {
	if s.closed {
		return nil
	}
	if s.reservedTo >= 0 {
		return fmt.Errorf("shuffle: close a sender: a record to %d was reserved and not committed", s.reservedTo)
	}
	own := s.x.c.Rank * s.x.c.Threads
	for i := range s.streams {
		to := (own + i) % len(s.streams) // not all begin with the same receiver
		if err := s.flush(to); err != nil {
			return err
		}
		if err := s.open(to); err != nil {
			return err
		}
		o := &s.streams[to]
		o.n = len(o.totals.Append(o.memory[:0]))
		if err := s.seal(to, wire.End); err != nil {
			return err
		}
		if o.block != nil {
			s.x.blocks.put(o.block)
			o.block, o.memory = nil, nil
		}
	}
	s.closed = true
	s.x.one()
	return nil
}

// seal completes a stream's block and hands it on. It waits until it can: until the
// stream has a place, or the block may wait for one.
func (s *Sender) seal(to int, flags uint8) error {
	o := &s.streams[to]
	b := o.block
	whole := b.memory[wire.BlockPrefix : wire.BlockPrefix+wire.HeaderSize+o.n]
	h := wire.Header{Length: uint32(o.n), Sequence: o.totals.Blocks, Records: o.records, Flags: flags}
	h.Put(whole)
	sum := crc32c.Update(0, whole[4:])
	wire.SetSum(whole, sum)
	b.length = len(whole)

	rank, receiver := to/s.x.c.Threads, to%s.x.c.Threads
	p := s.x.peers[rank]
	kept, err := s.handOver(p, receiver, b)
	if err != nil {
		return err
	}
	if flags != wire.End {
		o.totals.Records += uint64(o.records)
		o.totals.Bytes += uint64(o.n)
		o.totals.Blocks++
		o.totals.Sums += uint64(sum)
		s.stats.add(uint64(o.records), uint64(o.n), p.local)
	}
	o.n, o.records = 0, 0
	if !kept {
		o.block, o.memory = nil, nil
	}
	return nil
}

// handOver hands a complete block on, and tells whether it can be filled anew.
func (s *Sender) handOver(p *peer, receiver int, b *block) (kept bool, err error) {
	if done, kept, err := s.tryHandOver(p, receiver, b); done || err != nil {
		return kept, err
	}
	begin := time.Now()
	defer func() { s.stats.stalls.add(time.Since(begin)) }()
	for {
		s.sleeper.sleeps()
		if done, kept, err := s.tryHandOver(p, receiver, b); done || err != nil {
			s.sleeper.stays()
			return kept, err
		}
		select {
		case <-s.sleeper.token:
		case <-s.x.failed:
			s.sleeper.stays()
			return false, s.x.err
		}
	}
}

// waitingAtMost is how many blocks of a stream wait for a place, or are under way.
const waitingAtMost = 2

func (s *Sender) tryHandOver(p *peer, receiver int, b *block) (done, kept bool, err error) {
	select {
	case <-s.x.failed:
		return false, false, s.x.err
	default:
	}
	if p.local {
		p.mu.Lock()
		_, ok := p.out.Take(s.thread, receiver)
		var place int
		if ok {
			place, err = p.in.Filled(s.thread, receiver, b.length)
		}
		full := p.in.Full(s.thread, receiver)
		p.mu.Unlock()
		if !ok || err != nil {
			return false, false, err
		}
		s.x.receivers[receiver].push(item{
			data: b.memory[wire.BlockPrefix : wire.BlockPrefix+b.length], from: p, sender: s.thread, place: place, block: b,
		}, full)
		return true, false, nil
	}
	if p.direct {
		p.mu.Lock()
		offset, ok := p.out.Take(s.thread, receiver)
		p.mu.Unlock()
		if ok {
			if err := p.ep.Put(s.x.ctx, p.token, offset, b.memory[wire.BlockPrefix:wire.BlockPrefix+b.length]); err != nil {
				return false, false, p.undone(err)
			}
			p.mu.Lock()
			p.notes = append(p.notes, wire.Entry{Kind: wire.Filled, Sender: uint16(s.thread), Receiver: uint16(receiver), Length: uint32(b.length)})
			p.mu.Unlock()
			p.poke()
			return true, true, nil
		}
	}
	p.mu.Lock()
	if p.out.Held(s.thread, receiver) >= waitingAtMost || !s.x.blocks.wait() {
		p.mu.Unlock()
		return false, false, nil
	}
	p.out.Queue(s.thread, receiver, b)
	ready := p.out.Ready()
	p.mu.Unlock()
	if ready {
		p.poke()
	}
	return true, false, nil
}
