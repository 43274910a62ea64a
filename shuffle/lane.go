package shuffle

import (
	"encoding/binary"

	"github.com/verbena-data/verbena/internal/biased"
	"github.com/verbena-data/verbena/internal/prefetch"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// A lane is where records are collected on their way: a part for each partition. Each
// thread has its own, unless there are many more threads than processors. Then some
// share one, for that what is collected grows with the threads and not with their square,
// and stays in the caches. One of them at a time is the favourite, whose records go straight to it. The others give it
// short ones by the few dozen, until one of them has done so a few times with no other in between.
type lane struct {
	number  uint16
	shared  bool
	mu      biased.Mutex // held by the thread that uses the lane, or entered by the favourite, if it is shared
	streams []sending    // by partition
	short   int          // records below so many bytes are short

	unclosed int       // threads
	waiting  []*Sender // for a partition that another thread has acquired
}

// sending is the sending end for a partition. memory is that of the part that is being
// filled, from behind its header to its end.
type sending struct {
	memory  []byte
	n       int     // bytes of it that are used
	records uint32  // that end in it
	block   *block  // nil before the first record, and behind the end
	user    *Sender // who has acquired it: no other part may come between
	totals  wire.Totals
}

func (l *lane) lock(s *Sender) {
	if l.shared {
		l.mu.Lock(&s.user)
	}
}

func (l *lane) unlock() {
	if l.shared {
		l.mu.Unlock()
	}
}

// wakeAll wakes those who wait for a partition.
func (l *lane) wakeAll() {
	for i, s := range l.waiting {
		s.sleeper.wake()
		l.waiting[i] = nil
	}
	l.waiting = l.waiting[:0]
}

// mostShort is how long records are whose length takes a byte.
const mostShort = 0x7f

// short adds a record of at most mostShort bytes, if there is room.
func (o *sending) short(record []byte) bool {
	n, at := len(record), o.n
	if at+n >= len(o.memory) {
		return false
	}
	o.memory[at] = byte(n)
	copy(o.memory[at+1:], record)
	o.n = at + 1 + n
	o.records++
	return true
}

// nextAhead is how many bytes of a part are asked for behind those that are used: what a short record takes.
const nextAhead = 2 * prefetch.Line

// ask asks for where the next record will lie, when one has been added. Until that comes, others go to the parts for
// other partitions, which together are longer than what the second cache has left for them. A lane of one thread does
// not ask: with 32 partitions that cost 2 to 4 %.
func (o *sending) ask() {
	if at := o.n + prefetch.Line - 1; at < len(o.memory) {
		prefetch.ToWrite(o.memory[at:], nextAhead)
	}
}

// add adds a record, if there is room.
func (o *sending) add(record []byte) bool {
	size := uvarintSize(len(record)) + len(record)
	if o.n+size > len(o.memory) {
		return false
	}
	at := o.n + binary.PutUvarint(o.memory[o.n:], uint64(len(record)))
	o.n = at + copy(o.memory[at:], record)
	o.records++
	return true
}
