package rest

import (
	"fmt"
	"hash/maphash"
	"slices"
	"testing"
	"unsafe"

	"github.com/verbena-data/verbena/internal/fifo"
)

// The model is two processes of one host. Each has the three kinds of threads that leave and take entries: the watch
// (lookAfter of package shuffle), one that receives messages, and one that has something to tell. They take
// the steps of its board.go, peer.go and idle.go: what lies between two of them touches nothing that others see, or is done
// under a lock that a step holds on to.
//
// What a process writes into the other's memory goes through a buffer, and is seen at any time later; no lock hurries it. Writes
// and messages of a process are seen in their order, as on processors with a store buffer, and as an endpoint promises of a
// Put and a message behind it.
type world [2]side

// A side is one process.
type side struct {
	// What its threads share.
	watch            Watch
	bell             Bell
	armed, token     bool
	reading, sending bool  // locks that are held
	notes            uint8 // entries that its thread will have yet
	waiting          uint8 // of those that it has had, to be left
	left             uint8 // entries on the other's board
	seen             uint8 // entries of its own board that were taken
	known            uint8 // of those, the ones that it has told of

	// Its memory that the other one writes.
	tail, taken uint8
	word        uint64

	// On the way to the other one.
	buffer  [buffered]write
	written uint8

	messages uint8 // that have come and are not read

	threads [threads]thread
}

const (
	buffered = 2 // writes and messages that are not seen yet; who has more to write waits
	letters  = 1 // messages that are not read; one more does not come
	room     = 2 // entries of a board
)

type write struct {
	to    uint8
	value uint64
}

const (
	toTail uint8 = iota
	toTaken
	toWord
	toReceiver // a message
)

// A thread is at a step, within a turn, a look or a leave, which come back to where back and out say.
type thread struct {
	at, back, out step
	found         bool
	tail          uint8 // that it has read
}

const (
	watcher = iota
	receiver
	worker
	threads
)

type step uint8

const (
	idle   step = iota // between two of what follows
	turn               // try the lock of the reader, read the tail
	take               // take the entries, let go
	leave              // what waits: arm
	put                // try the lock of the writer, tell what was taken, leave entries
	left               // let go
	turned             // the end of a turn
	look               // what has waited
	unread             // has all been taken?
	ring               // try the lock of the writer, wake who rests, let go
	noted              // an entry waits: arm, or leave it at once
)

// defects are what is planted into the steps; what is planted into the machine is in other places of it.
type defects struct {
	leaverRests bool // who has left something does not look whether it was taken
	noLastTurn  bool // no turn and no look after it has said that it rests
	neverRings  bool
	overtakes   bool // a message is there before what was written before it: that does no harm
	tellsFirst  bool // it says that it rests before it is disarmed

	awake bool // no defect: the first process never rests, so that there are fewer states
}

// arm is idle.arm.
func (s *side) arm() {
	if !s.armed {
		s.armed, s.token = true, true
	}
}

// put writes to the other process. There is room.
func (s *side) put(to uint8, value uint64) {
	s.buffer[s.written] = write{to, value}
	s.written++
}

// next appends the states after a step of a thread; none if it waits.
func (w world) next(i int, n int, d *defects, after []world) []world {
	s := &w[i]
	t := &s.threads[n]
	keep := func() {
		kept := w
		kept.settle(i, n)
		after = append(after, kept)
	}
	switch t.at {
	case idle:
		switch n {
		case watcher:
			w.watch(i, d, keep)
		case receiver:
			if s.messages > 0 {
				s.messages--
				s.arm()
				*t = thread{at: turn}
				keep()
			}
		case worker:
			if s.notes > 0 {
				s.notes--
				s.waiting++
				t.at = noted
				keep()
			}
		}
		return after
	case turn:
		t.found, t.at, t.back = false, leave, turned
		if !s.reading {
			s.reading, t.tail, t.at = true, s.tail, take
		}
	case take:
		t.found = s.seen < t.tail
		s.seen = max(s.seen, t.tail)
		s.reading, t.at, t.tail = false, leave, 0
	case leave:
		if t.at = t.back; s.waiting > 0 || s.seen != s.known {
			s.arm()
			t.at = put
		}
	case put:
		if s.sending {
			t.at = t.back
			break
		}
		if s.written > buffered-2 {
			return after
		}
		s.sending, t.at, t.out = true, left, t.back
		if s.leave() {
			t.out = leave
		}
	case left:
		s.sending, t.at, t.out = false, t.out, 0
	case turned:
		if t.found {
			s.arm()
		}
		if t.at, t.back = idle, 0; n != watcher {
			t.found = false
		}
	case look:
		t.found, t.at = false, unread
		if s.waiting > 0 {
			t.found, t.at, t.back = true, leave, unread
		}
	case unread:
		if s.sending {
			return after
		}
		if t.at, t.back = idle, 0; s.left != s.taken && !d.leaverRests {
			t.found, t.at = true, ring
		}
	case ring:
		if t.at = idle; !s.sending && s.bell.Needed(s.word) && !d.neverRings {
			switch other := &w[1-i]; {
			case d.overtakes && other.messages == 0:
				other.messages++
				s.bell.Rung(s.word)
			case !d.overtakes && s.written < buffered:
				s.put(toReceiver, 0)
				s.bell.Rung(s.word)
			}
		}
	case noted:
		before := w
		*t = thread{at: leave, back: idle}
		keep()
		w = before
		s.arm()
		t.at = idle
	}
	keep()
	return after
}

// settle takes the steps of a thread that touch nothing of others.
func (w *world) settle(i, n int) {
	t := &w[i].threads[n]
	if t.at == turned && !t.found {
		t.at, t.back = idle, 0
	}
	if t.at == idle && n != watcher {
		t.found, t.back = false, 0
	}
}

// leave is leaveSome of a peer. There is room for what it writes.
func (s *side) leave() (some bool) {
	if s.known != s.seen {
		s.known, some = s.seen, true
		s.put(toTaken, uint64(s.seen))
	}
	had := s.left
	for free := room - (s.left - s.taken); free > 0 && s.waiting > 0; free-- {
		s.waiting--
		s.left++
	}
	if s.left != had {
		s.put(toTail, uint64(s.left))
	}
	return some || s.left != had
}

// watch takes the next action of a watch. An action that waits for something is taken when that has come.
func (w *world) watch(i int, d *defects, keep func()) {
	s := &w[i]
	t := &s.threads[watcher]
	action := s.watch.Next(t.found)
	if d.awake && i == 0 && action == Disarm {
		s.watch.last, action = Tell, Pause
	}
	if action == Pause { // nothing happens meanwhile that could not have before
		action = s.watch.Next(false)
	}
	if d.noLastTurn && action == Turn && s.watch.rests {
		s.watch.last, action = Wait, Wait
	}
	t.found = false
	if d.tellsFirst && s.watch.Word()&1 == 1 && action == Tell {
		action = Disarm
	} else if d.tellsFirst && action == Disarm {
		action = Tell
	}
	switch action {
	case Wait:
		if !s.token {
			if s.armed {
				panic(fmt.Sprintf("it waits for what nobody sends: %+v", *w))
			}
			return
		}
		s.token = false
	case Tell:
		if s.sending || s.written == buffered {
			return
		}
		s.put(toWord, s.watch.Word()+s.early(d))
	case Turn:
		t.at = turn
	case Look:
		t.at = look
	case Disarm:
		s.armed = false
	case Arm:
		s.arm()
	}
	keep()
}

// early is by how much the word is less than the one that is told, if it is told too early.
func (s *side) early(d *defects) uint64 {
	if d.tellsFirst && s.watch.last == Disarm {
		return 1
	}
	return 0
}

// reach is what the other process sees of what was written first.
func (w world) reach(i int) (world, bool) {
	s, other := &w[i], &w[1-i]
	if s.written == 0 {
		return w, false
	}
	switch first := s.buffer[0]; first.to {
	case toTail:
		other.tail = uint8(first.value)
	case toTaken:
		other.taken = uint8(first.value)
	case toWord:
		other.word = first.value
	case toReceiver:
		if other.messages == letters {
			return w, false
		}
		other.messages++
	}
	copy(s.buffer[:], s.buffer[1:])
	s.written--
	s.buffer[s.written] = write{}
	return w, true
}

// normalise makes of a state one that goes on as it does: words tell the same from each other when all are less by an even number,
// and one that was rung for and has passed does not come again.
func (w *world) normalise() {
	for i := range w {
		s, other := &w[i], &w[1-i]
		if other.bell.rung != other.word {
			other.bell.rung = 0
		}
		base := other.word&^1 - 2
		s.watch.word -= base
		other.word -= base
		if other.bell.rung > 0 {
			other.bell.rung -= base
		}
		for n := range s.buffer[:s.written] {
			if b := &s.buffer[n]; b.to == toWord {
				b.value -= base
			}
		}
	}
}

// over tells whether all was taken, and both rest, unless one never does.
func (w *world) over(d *defects) bool {
	for i := range w {
		s, other := &w[i], &w[1-i]
		if s.notes+s.waiting > 0 || s.left != other.seen || s.written > 0 || s.messages > 0 {
			return false
		}
		if (s.armed || s.token || s.watch.Word()&1 == 0) && !(d.awake && i == 0) {
			return false
		}
	}
	return true
}

// A sum tells states apart by 128 bits of them.
type sum [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// sum is of all bytes of a state. Those between its fields stay 0, as in every copy of the first one.
func (w *world) sum() sum {
	b := unsafe.Slice((*byte)(unsafe.Pointer(w)), unsafe.Sizeof(*w))
	return sum{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}
}

// A table numbers the states in the order in which they come. It is open addressing, at most half full: a look costs one
// miss of the processor's caches, and the search is looks for most of its time.
type table struct {
	slots []slot
	used  int32
}

type slot struct {
	key    sum
	number int32 // and one more; 0 is free
}

// find returns the slot that has a state, or is free for it.
func (t *table) find(key sum) *slot {
	last := uint64(len(t.slots) - 1)
	for at := key[0] & last; ; at = (at + 1) & last {
		if s := &t.slots[at]; s.number == 0 || s.key == key {
			return s
		}
	}
}

// number returns a state's number, and whether it has it from now on.
func (t *table) number(key sum) (n int32, fresh bool) {
	if 2*int(t.used) >= len(t.slots) {
		full := t.slots
		t.slots = make([]slot, max(1<<16, 4*len(full)))
		for _, s := range full {
			if s.number != 0 {
				*t.find(s.key) = s
			}
		}
	}
	s := t.find(key)
	if s.number != 0 {
		return s.number - 1, false
	}
	t.used++
	*s = slot{key, t.used}
	return t.used - 1, true
}

// search finds all states, and returns how many there are, and the number of one from which nothing leads to the end, or -1.
func search(first world, d *defects) (states, stuck int) {
	var numbers table
	var unseen fifo.Queue[world]
	var over []bool
	var from, to []int32 // of each step
	add := func(w *world) int32 {
		w.normalise()
		n, fresh := numbers.number(w.sum())
		if fresh {
			over = append(over, w.over(d))
			unseen.Push(*w)
		}
		return n
	}
	add(&first)
	var after []world
	for n := int32(0); unseen.Len() > 0; n++ {
		w := unseen.Pop()
		for i := range w {
			if after, ok := w.reach(i); ok {
				from, to = append(from, n), append(to, add(&after))
			}
			for t := range threads {
				after = w.next(i, t, d, after[:0])
				for a := range after {
					from, to = append(from, n), append(to, add(&after[a]))
				}
			}
		}
	}
	leads := over
	for some := true; some; { // most steps lead on in the order in which they were found
		some = false
		for i := len(from) - 1; i >= 0; i-- {
			if leads[to[i]] && !leads[from[i]] {
				leads[from[i]], some = true, true
			}
		}
	}
	return len(leads), slices.Index(leads, false)
}

// start is a world in which the first process will have entries for the other.
func start(entries uint8) (w world) {
	for i := range w {
		s := &w[i]
		s.watch = Watch{Looks: 1, Calm: 1}
		s.armed = true // as Join does, and the watch has begun
		// As if it had rested once: words tell states apart the less, the fewer there are.
		s.watch.word, s.word = 2, 2
	}
	w[0].notes = entries
	return w
}

// TestNothingIsLeftForEver searches all states of two processes, one of which leaves an entry for the other, or two, of which the second may
// come when the other has been woken for the first and says that it rests. From each of them the
// end can be reached, in which all was taken and both rest: nobody rests while it is there, unless it is being woken. What is
// planted into the handshake is found.
func TestNothingIsLeftForEver(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 13 s of processor time, and what is tested has one goroutine")
	}
	for _, c := range []struct {
		name    string
		entries uint8
		d       defects
		found   bool
	}{
		{"as it is", 1, defects{}, false},
		{"who has left something rests", 1, defects{leaverRests: true}, true},
		{"nobody is woken", 1, defects{neverRings: true}, true},
		{"no turn behind the last word", 1, defects{noLastTurn: true}, true},
		{"messages overtake writes", 1, defects{overtakes: true}, false},
		{"two entries", 2, defects{awake: true}, false},
		{"the word comes first", 2, defects{awake: true, tellsFirst: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			states, stuck := search(start(c.entries), &c.d)
			if stuck >= 0 != c.found {
				t.Errorf("of %d states, the end cannot be reached from that of number %d", states, stuck)
			}
			t.Logf("%d states", states)
		})
	}
}
