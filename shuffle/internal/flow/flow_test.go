package flow

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// A process fills a stream and receives one: the model is two of them, and the network
// between them, which keeps the order of messages. Lengths are in units.
type process struct {
	out     Out
	in      In
	sent    int     // parts that its threads have added
	sealed  []int   // lengths of blocks that have been sealed, by number
	posted  []entry // notifications, and what has been freed, on their way to the other one
	queue   []block // that have come, and are not freed
	came    int     // blocks
	bytes   int     // in them
	counted []bool  // which blocks have been read
	blocked bool    // the last attempt to add found no room
}

type block struct {
	number int
	id     uint64
	offset int
	length int
}

// An entry is a block, or n bytes that are free.
type entry struct {
	block
	free int
}

// A world is a state of the model.
type world struct {
	ring    Ring
	parts   []int // bytes of the parts that each process sends, one after the other
	deaf    int   // process that never reads, or -1
	p       [2]process
	written [2][]int // by process that receives: the number of the block that uses a unit of its ring, or -1
}

func start(ring Ring, parts []int, deaf int) *world {
	w := &world{ring: ring, parts: parts, deaf: deaf}
	for i := range w.p {
		w.p[i].out, w.p[i].in = NewOut(ring), NewIn(ring)
		w.written[i] = make([]int, int(ring)/Unit)
		for u := range w.written[i] {
			w.written[i][u] = -1
		}
	}
	return w
}

func (w *world) clone() *world {
	c := *w
	for i := range c.p {
		p := &c.p[i]
		p.sealed = append([]int(nil), p.sealed...)
		p.posted = append([]entry(nil), p.posted...)
		p.queue = append([]block(nil), p.queue...)
		p.counted = append([]bool(nil), p.counted...)
		p.in.blocks = append([]filled(nil), p.in.blocks...)
		c.written[i] = append([]int(nil), c.written[i]...)
	}
	return &c
}

// A step is one that a process can take.
type step struct{ kind, process, which int }

const (
	add    = iota // a thread adds a part, or finds no room, which seals the open block
	seal          // the open block goes out
	arrive        // a message from the other process
	read          // a thread reads a block, the oldest or the one behind it, and frees it
)

func (w *world) steps() (steps []step) {
	for i := range w.p {
		p := &w.p[i]
		if p.sent < len(w.parts) && !p.blocked {
			steps = append(steps, step{add, i, 0})
		}
		if p.out.Open() > 0 {
			steps = append(steps, step{seal, i, 0})
		}
		if len(w.p[1-i].posted) > 0 {
			steps = append(steps, step{arrive, i, 0})
		}
		for q := range min(len(p.queue), 2) {
			if w.deaf != i {
				steps = append(steps, step{read, i, q})
			}
		}
	}
	return steps
}

func (w *world) do(s step) error {
	p, other := &w.p[s.process], &w.p[1-s.process]
	switch s.kind {
	case add:
		n := w.parts[p.sent]
		offset, ok := p.out.Extend(n)
		if !ok {
			if err := w.seal(s.process); err != nil {
				return err
			}
			if offset, ok = p.out.Begin(n); !ok {
				p.blocked = true // until something is free
				return nil
			}
		}
		p.sent++
		return w.write(1-s.process, len(p.sealed), offset, n)
	case seal:
		return w.seal(s.process)
	case arrive:
		e := other.posted[0]
		other.posted = other.posted[1:]
		if e.free > 0 {
			err := p.out.Free(e.free)
			p.blocked = p.blocked && !p.out.Roomy()
			return err
		}
		id, err := p.in.Filled(e.offset, e.length)
		if err != nil {
			return err
		}
		e.id = id
		p.queue = append(p.queue, e.block)
		p.came++
	case read:
		b := p.queue[s.which]
		p.queue = append(append([]block(nil), p.queue[:s.which]...), p.queue[s.which+1:]...)
		for u := b.offset / Unit; u < (b.offset+b.length+Unit-1)/Unit; u++ {
			if got := w.written[s.process][u]; got != b.number {
				return fmt.Errorf("block %d was overwritten by %d before it was read", b.number, got)
			}
			w.written[s.process][u] = -1
		}
		for len(p.counted) <= b.number {
			p.counted = append(p.counted, false)
		}
		if p.counted[b.number] {
			return fmt.Errorf("block %d came twice", b.number)
		}
		p.counted[b.number] = true
		p.bytes += b.length
		if n := p.in.Freed(b.id); n > 0 {
			p.posted = append(p.posted, entry{free: n})
		}
	}
	return nil
}

// write notes which block uses a part of a ring.
func (w *world) write(receiver, number, offset, n int) error {
	for u := offset / Unit; u < (offset+n+Unit-1)/Unit; u++ {
		if got := w.written[receiver][u]; got != -1 && got != number {
			return fmt.Errorf("block %d overwrites block %d", number, got)
		}
		w.written[receiver][u] = number
	}
	return nil
}

func (w *world) seal(i int) error {
	p := &w.p[i]
	if p.out.Open() == 0 {
		return nil
	}
	offset, length := p.out.Seal()
	p.posted = append(p.posted, entry{block: block{number: len(p.sealed), offset: offset, length: length}})
	p.sealed = append(p.sealed, length)
	return nil
}

// over tells whether all that was sent to who reads has been read.
func (w *world) over() bool {
	total := 0
	for _, n := range w.parts {
		total += n
	}
	for i := range w.p {
		if i != w.deaf && w.p[i].bytes != total {
			return false
		}
	}
	return true
}

// key is the state as text.
func (w *world) key() string {
	var k []any
	for i := range w.p {
		p := &w.p[i]
		var in []filled
		for id := p.in.first; id < p.in.next; id++ {
			in = append(in, p.in.blocks[id&uint64(len(p.in.blocks)-1)])
		}
		k = append(k, p.out.head, p.out.tail, p.out.at, p.out.skip, p.out.open, p.in.head, p.in.tail, p.in.kept, in,
			p.sent, p.posted, p.queue, p.blocked, p.bytes)
	}
	return fmt.Sprint(k...)
}

// Every order of all steps of two processes that send to each other is tried: nothing is
// overwritten before it has been freed, nothing is lost, and no state is stuck before all has
// arrived; also when one of them never reads: then the other still gets everything.
func TestAllSchedules(t *testing.T) {
	for _, c := range []struct {
		ring  Ring
		parts []int
		deaf  int
	}{
		{8 * Unit, []int{Unit, 3 * Unit, 2 * Unit}, -1},
		{8 * Unit, []int{3 * Unit, 3 * Unit, 3 * Unit}, -1},
		{8 * Unit, []int{3 * Unit, Unit / 2, 3*Unit - 1, 2 * Unit}, 1},
		{8 * Unit, []int{3 * Unit, 3 * Unit, 3 * Unit, 3 * Unit, Unit}, 0},
	} {
		t.Run(fmt.Sprintf("ring %d parts %v deaf %d", c.ring, c.parts, c.deaf), func(t *testing.T) {
			const most = 400_000
			first := start(c.ring, c.parts, c.deaf)
			seen := map[string]bool{first.key(): true}
			frontier := []*world{first}
			for len(frontier) > 0 {
				w := frontier[len(frontier)-1]
				frontier = frontier[:len(frontier)-1]
				steps := w.steps()
				if len(steps) == 0 && !w.over() {
					t.Fatalf("stuck: %s", w.key())
				}
				for _, s := range steps {
					next := w.clone()
					if err := next.do(s); err != nil {
						t.Fatalf("%+v after %s: %v", s, w.key(), err)
					}
					if k := next.key(); !seen[k] {
						seen[k] = true
						frontier = append(frontier, next)
					}
				}
				if len(seen) > most {
					t.Fatalf("more than %d states: the model is no small one any more", most)
				}
			}
			t.Logf("%d states", len(seen))
		})
	}
}

// Random schedules of longer exchanges with parts of all lengths hold what the small ones do.
func TestRandomSchedules(t *testing.T) {
	seeds := 3000
	if testing.Short() {
		seeds = 300
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		ring := Ring((8 + random.IntN(60)) * Unit)
		parts := make([]int, 20+random.IntN(60))
		for i := range parts {
			parts[i] = 1 + random.IntN(ring.MaxBlock())
			if random.IntN(3) > 0 {
				parts[i] = 1 + random.IntN(Unit)
			}
		}
		w := start(ring, parts, random.IntN(3)-1)
		favourite := random.IntN(4) // some schedules starve a kind of step
		for {
			steps := w.steps()
			if len(steps) == 0 {
				break
			}
			s := steps[random.IntN(len(steps))]
			for range 3 {
				if s.kind != favourite {
					s = steps[random.IntN(len(steps))]
				}
			}
			if err := w.do(s); err != nil {
				t.Fatalf("seed %d: %+v: %v", seed, s, err)
			}
		}
		if !w.over() {
			t.Fatalf("seed %d: stuck: %s", seed, w.key())
		}
	}
}

// What a peer must not say is refused.
func TestBreaches(t *testing.T) {
	in, out := NewIn(8*Unit), NewOut(8*Unit)
	filled := func(offset, n int) error { _, err := in.Filled(offset, n); return err }
	for i, err := range []error{
		filled(Unit, 1), filled(0, 0), filled(0, 8*Unit+1), out.Free(Unit), out.Free(0), out.Free(-Unit),
	} {
		if !errors.Is(err, ErrBreach) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := errors.Join(filled(0, 5*Unit-1), filled(5*Unit, 1)); err != nil {
		t.Fatal(err)
	}
	for i, err := range []error{
		filled(0, Unit),          // there is room before the end
		filled(0, 3*Unit),        // over what is in use
		filled(6*Unit, 2*Unit+1), // beyond the end
	} {
		if !errors.Is(err, ErrBreach) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, ok := out.Begin(3 * Unit); !ok {
		t.Fatal("no room in an empty ring")
	}
	out.Seal()
	if err := out.Free(Unit + 1); !errors.Is(err, ErrBreach) {
		t.Error(err)
	}
	if err := out.Free(4 * Unit); !errors.Is(err, ErrBreach) {
		t.Error(err)
	}
}

// What is read out of turn is returned in turn, and a quarter of the ring at a time.
func TestFreedOutOfOrder(t *testing.T) {
	in := NewIn(8 * Unit)
	var ids []uint64
	for i := range 4 {
		id, err := in.Filled(i*Unit, Unit)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	var got []int
	for _, i := range []int{2, 1, 0, 3} {
		got = append(got, in.Freed(ids[i])/Unit)
	}
	if fmt.Sprint(got) != "[0 0 3 0]" {
		t.Error(got)
	}
}
