package shuffle

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/internal/biased"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// A Sender pushes the records of a thread to partitions. It belongs to one goroutine at a
// time. Its waits end with the exchange's failure, and need no context.
type Sender struct {
	x       *Exchange
	lane    *lane
	user    biased.User // of the lane, if it is shared
	short   int         // records below so many bytes are short: as in the lane, but 0 while one is reserved
	sleeper sleeper
	closed  bool

	// Short records that the thread has sent and not yet given to its lane, if it shares that:
	// u32 partition, u8 length, record. None while it is the lane's favourite, and nil behind Close.
	pending []byte
	pended  int  // bytes of it
	gave    bool // it has given its lane something, which it shares

	reserved   int // bytes that Reserve has handed out to reservedTo
	reservedTo int
	inPlace    bool                                        // they lie in the part
	block      *block                                      // in which they lie, if the record is long and goes by reference
	head       [wire.PartSize + binary.MaxVarintLen64]byte // of a part that is a long record
	scratch    []byte                                      // of a reserved record that does not lie in its part

	stats senderStats
}

func newSender(x *Exchange, l *lane) *Sender {
	s := &Sender{x: x, lane: l, short: l.short, sleeper: newSleeper(), reservedTo: -1}
	if l.shared {
		s.pending = make([]byte, x.c.pending)
	}
	return s
}

// Send copies a record to the part for a partition. It waits only while the stream there
// has no room. Its errors are those of the exchange, ErrTooLong and ErrClosed.
func (s *Sender) Send(to int, record []byte) error {
	l := s.lane
	if uint(to) < uint(len(l.streams)) && len(record) < s.short {
		switch o := &l.streams[to]; {
		case !l.shared:
			if o.short(record) {
				return nil
			}
		case l.mu.Enter(&s.user):
			if o.short(record) {
				o.ask()
				s.user.Leave()
				return nil
			}
			s.user.Leave()
		case s.pend(to, record):
			return nil
		}
	}
	return s.send(to, record)
}

// pendHead is what stands before a pending record: its partition and its length.
const pendHead = 5

// pend keeps a short record back, if there is room. To lock the lane for each would cost more than to copy it
// twice: the processor waits at a lock until what it has written has reached the caches.
func (s *Sender) pend(to int, record []byte) bool {
	end := s.pended + pendHead + len(record)
	if end > len(s.pending) {
		return false
	}
	b := s.pending[s.pended:end]
	binary.NativeEndian.PutUint32(b, uint32(to))
	b[pendHead-1] = byte(len(record))
	copy(b[pendHead:], record)
	s.pended = end
	return true
}

// drain gives the lane what is pending.
func (s *Sender) drain() error {
	streams := s.lane.streams
	s.gave = s.gave || s.pended > 0
	for b := s.pending[:s.pended]; len(b) > 0; {
		to, n := binary.NativeEndian.Uint32(b), int(b[pendHead-1])
		record := b[pendHead : pendHead+n]
		o := &streams[to]
		for !o.short(record) {
			if err := s.next(int(to)); err != nil {
				return err // the exchange has failed, and nothing more is sent
			}
		}
		o.ask()
		b = b[pendHead+n:]
	}
	s.pended = 0
	return nil
}

// SendKey sends a record to the partition of its key.
func (s *Sender) SendKey(p Partitioner, key, record []byte) error {
	return s.Send(p.Partition(key), record)
}

// check tells why a record of n bytes cannot be sent.
func (s *Sender) check(to, n int) error {
	switch {
	case to < 0 || to >= len(s.lane.streams):
		return fmt.Errorf("shuffle: send to partition %d of %d", to, len(s.lane.streams))
	case s.closed:
		return fmt.Errorf("shuffle: send to partition %d: %w", to, ErrClosed)
	case n < 0 || n > s.x.c.MaxRecord:
		return fmt.Errorf("%w: %d bytes, MaxRecord is %d", ErrTooLong, n, s.x.c.MaxRecord)
	case s.reservedTo >= 0:
		return fmt.Errorf("shuffle: send to partition %d: a record to %d was reserved and not committed", to, s.reservedTo)
	}
	return nil
}

// reserve notes that a record of n bytes has been reserved, and that nothing else may be sent.
func (s *Sender) reserve(to, n int) { s.reservedTo, s.reserved, s.short = to, n, 0 }

// unreserve ends that.
func (s *Sender) unreserve() { s.reservedTo, s.reserved, s.short = -1, 0, s.lane.short }

// send is Send of what is not short, or does not fit.
func (s *Sender) send(to int, record []byte) error {
	if err := s.check(to, len(record)); err != nil {
		return err
	}
	if s.lane.mu.Enter(&s.user) {
		ok := s.lane.streams[to].add(record)
		s.user.Leave()
		if ok {
			return nil
		}
	}
	s.lane.lock(s)
	defer s.lane.unlock()
	if err := s.drain(); err != nil {
		return err
	}
	favoured := s.lane.mu.Favour(&s.user)
	if !favoured && len(record) < s.lane.short && s.pend(to, record) {
		return nil
	}
	s.gave = true
	if uvarintSize(len(record))+len(record) > s.room() {
		return s.long(to, record)
	}
	o := &s.lane.streams[to]
	for !o.add(record) {
		if err := s.next(to); err != nil {
			return err
		}
	}
	return nil
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

// room is how many bytes of records, with their lengths, fit into a part.
func (s *Sender) room() int { return s.x.c.part - wire.PartSize }

// Reserve returns n bytes in which a record to a partition can be put together. Commit
// must follow: every other call fails until then. The bytes hold anything at first.
func (s *Sender) Reserve(to, n int) ([]byte, error) {
	if err := s.check(to, n); err != nil {
		return nil, err
	}
	s.reserve(to, n)
	if places := s.longPlaces(to, n); places > 0 {
		s.block = s.x.blocks.get(places)
		at := wire.PartSize + uvarintSize(n)
		return s.block.memory[at : at+n : at+n], nil
	}
	o := &s.lane.streams[to]
	size := uvarintSize(n) + n
	if s.inPlace = !s.lane.shared && size <= s.room(); !s.inPlace {
		if cap(s.scratch) < n {
			s.scratch = make([]byte, n)
		}
		return s.scratch[:n], nil
	}
	if o.n+size > len(o.memory) {
		if err := s.next(to); err != nil {
			s.unreserve()
			return nil, err
		}
	}
	at := o.n + size - n
	return o.memory[at : at+n : at+n], nil
}

// Commit sends the first n of the bytes that Reserve has returned.
func (s *Sender) Commit(n int) error {
	to := s.reservedTo
	if to < 0 || n < 0 || n > s.reserved {
		return fmt.Errorf("shuffle: commit %d bytes, %d were reserved", n, s.reserved)
	}
	reserved := s.reserved
	s.unreserve()
	if s.block != nil {
		return s.commitLong(to, reserved, n)
	}
	if !s.inPlace {
		record := s.scratch[:n]
		if cap(s.scratch) > keepScratch {
			s.scratch = nil
		}
		return s.send(to, record)
	}
	o := &s.lane.streams[to]
	width := uvarintSize(reserved)
	at := o.n + width
	if now := uvarintSize(n); now != width {
		copy(o.memory[o.n+now:], o.memory[at:at+n])
	}
	o.n += binary.PutUvarint(o.memory[o.n:], uint64(n)) + n
	o.records++
	return nil
}

// commitLong is Commit of a record that lies in a block of its own, which goes by reference.
func (s *Sender) commitLong(to, reserved, n int) error {
	b := s.block
	s.block = nil
	if before, now := uvarintSize(reserved), uvarintSize(n); now != before {
		copy(b.memory[wire.PartSize+now:], b.memory[wire.PartSize+before:][:n])
	}
	s.lane.lock(s)
	defer s.lane.unlock()
	if err := s.drain(); err != nil {
		return err
	}
	s.gave = true
	if err := s.acquire(to); err != nil {
		return err
	}
	defer s.release(to)
	return s.longReference(to, n, func() *block { return b }, b.places)
}

// keepScratch is how many bytes a sender and a receiver keep for the next long record.
const keepScratch = 1 << 20

// Flush lets everything go out that has been sent. It does not wait until it has arrived.
func (s *Sender) Flush() error {
	if s.reservedTo >= 0 {
		return fmt.Errorf("shuffle: flush: a record to %d was reserved and not committed", s.reservedTo)
	}
	s.lane.lock(s)
	defer s.lane.unlock()
	if err := s.drain(); err != nil {
		return err
	}
	return s.flushAll()
}

// flushAll is Flush. The lane is locked, here and in all that follows, and given back while
// the sender waits.
func (s *Sender) flushAll() error {
	for to := range s.lane.streams {
		if err := s.flush(to); err != nil {
			return err
		}
		if p := s.x.peers[to/s.x.c.Threads]; !p.local {
			if err := p.out[to%s.x.c.Threads].flush(); err != nil {
				return s.refused(p, err)
			}
		}
	}
	for _, p := range s.x.peers {
		if p.local {
			continue
		}
		p.urge()
		if p.direct {
			p.ring()
		}
	}
	return nil
}

// Close ends the thread's sending to all partitions. Every sender must be closed, also one
// that has sent nothing: receivers come to the end when all are. A second call does
// nothing.
func (s *Sender) Close() error {
	if s.closed {
		return nil
	}
	if s.reservedTo >= 0 {
		return fmt.Errorf("shuffle: close a sender: a record to %d was reserved and not committed", s.reservedTo)
	}
	l := s.lane
	l.lock(s)
	defer l.unlock()
	if err := s.drain(); err != nil {
		return err
	}
	s.closed, s.pending = true, nil
	l.mu.Disfavour(&s.user)
	finish := s.flushAll
	switch l.unclosed--; {
	case l.unclosed > 0 && l.shared && !s.gave: // what lies in the lane is that of others, for which this thread must not wait
		finish = func() error { return nil }
	case l.shared && !s.gave:
		finish = func() error { s.x.loops.Go(s.endLater); return nil }
	case l.unclosed == 0: // others of the lane may be flushing still
		finish = s.end
	}
	if err := finish(); err != nil {
		return err
	}
	s.x.one()
	return nil
}

// endLater is end for a thread that must not wait: it may be the one that receives what others of the lane have sent.
func (s *Sender) endLater() {
	s.lane.lock(s)
	defer s.lane.unlock()
	_ = s.end() // it fails with the exchange
}

// end tells all partitions what the lane has sent.
func (s *Sender) end() error {
	streams := s.lane.streams
	own := s.x.c.Rank * s.x.c.Threads
	for i := range streams {
		to := (own + i) % len(streams) // not all begin with the same receiver
		if err := s.acquire(to); err != nil {
			return err
		}
		o := &streams[to]
		s.open(to)
		o.n = len(o.totals.Append(o.memory[:0]))
		if err := s.wait(to, func() (bool, error) { return s.seal(to, wire.End) }); err != nil {
			return err
		}
		if o.block != nil {
			s.x.blocks.put(o.block)
			o.block, o.memory = nil, nil
		}
		s.release(to)
	}
	if s.x.unended.Add(-1) > 0 {
		return nil
	}
	return s.flushAll()
}

// next hands on the part for a partition, if there is anything in it, and begins one.
func (s *Sender) next(to int) error {
	if err := s.flush(to); err != nil {
		return err
	}
	s.open(to)
	return nil
}

// open gives a partition a block, if it has none.
func (s *Sender) open(to int) {
	o := &s.lane.streams[to]
	if o.block == nil {
		o.block = s.x.blocks.get(1)
		o.memory = o.block.memory[wire.PartSize:]
	}
}

// flush hands on a part that is not empty.
func (s *Sender) flush(to int) error {
	if s.lane.streams[to].n == 0 {
		return nil
	}
	if ok, err := s.seal(to, 0); err != nil {
		p, _ := s.where(to)
		return s.refused(p, err)
	} else if ok {
		return nil
	}
	return s.wait(to, func() (bool, error) {
		if s.lane.streams[to].n == 0 {
			return true, nil // another thread has done it
		}
		return s.seal(to, 0)
	})
}

// seal completes a part and hands it on. It reports false if it has to be tried again
// when the sender is woken.
func (s *Sender) seal(to int, flags uint8) (ok bool, err error) {
	o := &s.lane.streams[to]
	if !s.mayUse(o) {
		return false, nil
	}
	b := o.block
	b.length = wire.PartSize + o.n
	part := wire.Part{Sender: s.lane.number, Flags: flags, Length: uint32(o.n), Records: o.records}
	part.Put(b.memory)
	p, receiver := s.where(to)
	if p.local {
		if !s.reference(p, receiver, b) {
			return false, nil
		}
		o.block, o.memory = nil, nil
	} else if ok, err := p.out[receiver].add(b.memory[:b.length], nil, s); !ok || err != nil {
		return ok, err
	}
	s.count(o, &part, p.local)
	o.n, o.records = 0, 0
	return true, nil
}

// where is who receives a partition.
func (s *Sender) where(to int) (p *peer, receiver int) {
	return s.x.peers[to/s.x.c.Threads], to % s.x.c.Threads
}

// acquire hands on the part for a partition, and keeps other threads from handing one on
// until release.
func (s *Sender) acquire(to int) error {
	o := &s.lane.streams[to]
	return s.wait(to, func() (bool, error) {
		if o.n > 0 {
			if ok, err := s.seal(to, 0); !ok || err != nil {
				return ok, err
			}
		}
		if !s.mayUse(o) {
			return false, nil
		}
		o.user = s
		return true, nil
	})
}

func (s *Sender) release(to int) {
	s.lane.streams[to].user = nil
	s.lane.wakeAll()
}

// mayUse tells whether no other thread has acquired the partition. Otherwise the sender
// is woken when it has been released.
func (s *Sender) mayUse(o *sending) bool {
	if o.user == nil || o.user == s {
		return true
	}
	s.lane.waiting = append(s.lane.waiting, s)
	return false
}

// long sends a record that is longer than a part: as a part of its own if there is room for one of its length, to
// another process from where it lies; and otherwise in fragments.
func (s *Sender) long(to int, record []byte) error {
	if err := s.acquire(to); err != nil {
		return err
	}
	defer s.release(to)
	if places := s.longPlaces(to, len(record)); places > 0 {
		return s.longReference(to, len(record), func() *block {
			b := s.x.blocks.get(places)
			copy(b.memory[wire.PartSize+uvarintSize(len(record)):], record)
			return b
		}, places)
	}
	if !s.x.long.Load() {
		s.x.long.Store(true)
	}
	p, _ := s.where(to)
	most := s.room()
	if !p.local {
		if width := uvarintSize(len(record)); wire.HeaderSize+wire.PartSize+width+len(record) <= s.x.c.slab().Longest() {
			head := s.head[:wire.PartSize+width]
			binary.PutUvarint(head[wire.PartSize:], uint64(len(record)))
			if err := s.hand(to, wire.Part{Records: 1}, head, record); err != errCut {
				return err
			}
		} else {
			most = max(most, s.x.c.full-wire.HeaderSize-wire.PartSize)
		}
	}
	for first := true; first || len(record) > 0; {
		part := wire.Part{Flags: wire.Fragment}
		head := s.head[:wire.PartSize]
		if first {
			part.Flags |= wire.First
			head = binary.BigEndian.AppendUint64(head, uint64(len(record)))
		}
		n := min(len(record), most-(len(head)-wire.PartSize))
		if n == len(record) {
			part.Records = 1
		}
		err := s.hand(to, part, head, record[:n])
		if err == errCut && most > s.room() {
			most = s.room() // for which there is always room, sooner or later
			continue
		}
		if err != nil {
			return err
		}
		first, record = false, record[n:]
	}
	return nil
}

// hand hands on a part that lies in two pieces: head, which begins with room for the
// part's header, and body.
func (s *Sender) hand(to int, part wire.Part, head, body []byte) error {
	part.Sender, part.Length = s.lane.number, uint32(len(head)+len(body)-wire.PartSize)
	part.Put(head)
	p, receiver := s.where(to)
	var b *block
	if p.local {
		b = s.x.blocks.get(1)
		b.length = copy(b.memory, head)
		b.length += copy(b.memory[b.length:], body)
	}
	err := s.wait(to, func() (bool, error) {
		if p.local {
			return s.reference(p, receiver, b), nil
		}
		return p.out[receiver].add(head, body, s)
	})
	if err == nil {
		s.count(&s.lane.streams[to], &part, p.local)
	}
	return err
}

// longPlaces is how many places a record of n bytes takes as a part that goes by reference, or 0 if it cannot.
func (s *Sender) longPlaces(to, n int) int {
	if p, _ := s.where(to); !p.local || uvarintSize(n)+n <= s.room() {
		return 0
	}
	if places := max(2, s.x.blocks.places(n)); places <= s.x.c.longPlaces() {
		return places
	}
	return 0
}

// longReference hands a record of n bytes to a thread of this process. The block in which it lies, behind its length, comes
// when there is room for it, for which the places are asked.
func (s *Sender) longReference(to, n int, get func() *block, places int) error {
	p, receiver := s.where(to)
	width := uvarintSize(n)
	part := wire.Part{Sender: s.lane.number, Length: uint32(width + n), Records: 1}
	err := s.wait(to, func() (bool, error) {
		return s.refer(p, receiver, places, func() *block {
			b := get()
			part.Put(b.memory)
			binary.PutUvarint(b.memory[wire.PartSize:], uint64(n))
			b.length = wire.PartSize + width + n
			return b
		}), nil
	})
	if err == nil {
		s.count(&s.lane.streams[to], &part, true)
	}
	return err
}

// count counts a part that has been handed on.
func (s *Sender) count(o *sending, part *wire.Part, local bool) {
	if part.Flags == wire.End {
		return
	}
	o.totals.Records += uint64(part.Records)
	o.totals.Bytes += uint64(part.Length)
	o.totals.Parts++
	s.stats.add(uint64(part.Records), uint64(part.Length), local)
}

// reference hands a part to a thread of this process.
func (s *Sender) reference(p *peer, receiver int, b *block) bool {
	return s.refer(p, receiver, b.places, func() *block { return b })
}

// refer is reference of a block that comes when there is room.
func (s *Sender) refer(p *peer, receiver, places int, get func() *block) bool {
	r := s.x.receivers[receiver]
	ok, full := p.take(s, receiver, places)
	switch {
	case ok:
		b := get()
		r.push(item{data: b.memory[:b.length], from: p, sender: int(s.lane.number), block: b}, full)
		r.sleeper.wake()
	case s.x.spill != nil:
		s.x.spill.wants(r)
	}
	return ok
}

// refused is what a call fails with when a part cannot be handed on any more.
func (s *Sender) refused(p *peer, err error) error {
	if failed := s.x.Err(); failed != nil {
		return failed
	}
	return p.undone(err)
}

// wait waits until try has been able to do something for a partition. Who makes room
// wakes this thread.
func (s *Sender) wait(to int, try func() (bool, error)) error {
	var begin time.Time
	for {
		if failed := s.x.Err(); failed != nil {
			return failed
		}
		s.sleeper.sleeps()
		ok, err := try()
		if ok || err != nil {
			s.sleeper.stays()
			if !begin.IsZero() {
				s.stats.stalls.add(time.Since(begin))
			}
			if err != nil && err != errCut {
				p, _ := s.where(to)
				return s.refused(p, err)
			}
			return err
		}
		if begin.IsZero() {
			begin = time.Now()
		}
		s.lane.unlock()
		if s.x.turn() {
			s.sleeper.stays()
			s.lane.lock(s)
			continue
		}
		select {
		case <-s.sleeper.token:
		case <-s.x.failed:
			s.sleeper.stays()
		}
		s.lane.lock(s)
	}
}
