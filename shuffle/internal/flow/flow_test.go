package flow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"
)

// A process fills streams and receives as many: the model is two of them, and the network
// between them, which keeps the order of messages.
type process struct {
	out     *Out
	in      *In
	streams []stream
	posted  []entry // notifications, and what has been freed, on their way to the other one
}

// A stream is one that a process fills, and the one with the same number that it receives.
type stream struct {
	left    []int // bytes of parts that are still to be added
	open    block // length 0: there is none
	room    int   // of the open block
	blocked bool  // the last attempt to add found no room
	sealed  int   // blocks

	queue []block // that have come, and are not freed
	read  []bool  // which blocks have been read
	bytes int     // in them
}

type block struct{ number, offset, length int }

// An entry is a block that was filled, or freed.
type entry struct {
	block
	stream int
	free   bool
}

// A place is a stream that a process receives.
type place struct{ process, stream int }

// A world is a state of the model.
type world struct {
	slab    Slab
	want    int   // bytes for which a block begins
	total   []int // bytes of parts, by stream
	deaf    []place
	p       [2]process
	written [2][]string // by process that receives: which block uses a page of its slab
}

func start(slab Slab, want int, parts [][]int, deaf []place) *world {
	w := &world{slab: slab, want: want, deaf: deaf}
	for _, of := range parts {
		total := 0
		for _, n := range of {
			total += n
		}
		w.total = append(w.total, total)
	}
	for i := range w.p {
		w.p[i].out, w.p[i].in = NewOut(slab), NewIn(slab)
		for _, of := range parts {
			w.p[i].streams = append(w.p[i].streams, stream{left: of})
		}
		w.written[i] = make([]string, slab.Pages)
	}
	return w
}

// reuse is from's elements in the memory of what is over, which nobody else has.
func reuse[E any](over, from []E) []E { return append(over[:0], from...) }

// copyTo makes over a world in the same state, in the memory of its own that it has from
// before. What is left of streams is never changed in place, and shared.
func (w *world) copyTo(over *world) {
	before := over.p
	written := over.written
	*over = *w
	for i := range over.p {
		p, old := &over.p[i], &before[i]
		if old.out == nil {
			old.out, old.in, old.streams = new(Out), new(In), make([]stream, len(p.streams))
		}
		out, in := *p.out, *p.in
		out.used.words, out.runs = reuse(old.out.used.words, out.used.words), reuse(old.out.runs, out.runs)
		out.held, out.waiting = reuse(old.out.held, out.held), reuse(old.out.waiting, out.waiting)
		in.used.words, in.runs = reuse(old.in.used.words, in.used.words), reuse(old.in.runs, in.runs)
		*old.out, *old.in = out, in
		p.out, p.in = old.out, old.in
		p.posted = reuse(old.posted, p.posted)
		for n, s := range p.streams {
			s.queue, s.read = reuse(old.streams[n].queue, s.queue), reuse(old.streams[n].read, s.read)
			old.streams[n] = s
		}
		p.streams = old.streams
		over.written[i] = reuse(written[i], w.written[i])
	}
}

// A step is one that a process can take.
type step struct{ kind, process, stream, which int }

const (
	add    = iota // a thread adds a part, or finds no room, which seals the open block
	seal          // the open block goes out
	arrive        // a message from the other process
	read          // a thread reads a block, the oldest or the one behind it, and frees it
	kinds
)

func (w *world) steps() (steps []step) {
	for i := range w.p {
		if len(w.p[1-i].posted) > 0 {
			steps = append(steps, step{kind: arrive, process: i})
		}
		for n := range w.p[i].streams {
			s := &w.p[i].streams[n]
			if len(s.left) > 0 && !s.blocked {
				steps = append(steps, step{add, i, n, 0})
			}
			if s.open.length > 0 {
				steps = append(steps, step{seal, i, n, 0})
			}
			for q := range min(len(s.queue), 2) {
				if !slices.Contains(w.deaf, place{i, n}) {
					steps = append(steps, step{read, i, n, q})
				}
			}
		}
	}
	return steps
}

func (w *world) do(st step) error {
	p, other := &w.p[st.process], &w.p[1-st.process]
	s := &p.streams[st.stream]
	switch st.kind {
	case add:
		n := s.left[0]
		if s.open.length == 0 || s.open.length+n > s.room {
			if err := w.seal(st.process, st.stream); err != nil {
				return err
			}
			offset, room, v := p.out.Begin(st.stream, n, max(n, w.want))
			switch v {
			case Full:
				s.blocked = true
				return nil
			case Cut:
				if n <= w.slab.Page {
					return errors.New("a part of a page is to be cut")
				}
				s.left = slices.Concat([]int{w.slab.Page, n - w.slab.Page}, s.left[1:])
				return nil
			}
			s.open, s.room = block{s.sealed, offset, 0}, room
		}
		s.left = s.left[1:]
		s.open.length += n
		return w.write(1-st.process, st.stream, s.open)
	case seal:
		return w.seal(st.process, st.stream)
	case arrive:
		e := other.posted[0]
		other.posted = other.posted[1:]
		if e.free {
			if err := p.out.Free(e.stream, e.offset, e.length); err != nil {
				return err
			}
			p.wake()
			return nil
		}
		if err := p.in.Filled(e.stream, e.offset, e.length); err != nil {
			return err
		}
		p.streams[e.stream].queue = append(p.streams[e.stream].queue, e.block)
	case read:
		b := s.queue[st.which]
		s.queue = slices.Delete(s.queue, st.which, st.which+1)
		want := name(st.stream, b)
		for page := range w.slab.pages(b.length) {
			at := &w.written[st.process][b.offset/w.slab.Page+page]
			if *at != want {
				return fmt.Errorf("block %s was overwritten by %s before it was read", want, *at)
			}
			*at = ""
		}
		for len(s.read) <= b.number {
			s.read = append(s.read, false)
		}
		if s.read[b.number] {
			return fmt.Errorf("block %s came twice", want)
		}
		s.read[b.number] = true
		s.bytes += b.length
		p.in.Freed(b.offset)
		p.posted = append(p.posted, entry{b, st.stream, true})
	}
	return nil
}

func name(stream int, b block) string { return fmt.Sprintf("%d of stream %d", b.number, stream) }

// write notes which block uses pages.
func (w *world) write(receiver, stream int, b block) error {
	for page := range w.slab.pages(b.length) {
		at := &w.written[receiver][b.offset/w.slab.Page+page]
		if *at != "" && *at != name(stream, b) {
			return fmt.Errorf("block %s overwrites block %s", name(stream, b), *at)
		}
		*at = name(stream, b)
	}
	return nil
}

func (w *world) seal(i, n int) error {
	p := &w.p[i]
	s := &p.streams[n]
	if s.open.length == 0 {
		return nil
	}
	p.out.Seal(s.open.offset, s.open.length)
	p.posted = append(p.posted, entry{s.open, n, false})
	s.sealed++
	s.open = block{}
	p.wake()
	return nil
}

func (p *process) wake() {
	for n := range p.streams {
		if p.out.Ready(n) {
			p.streams[n].blocked = false
		}
	}
}

// over tells whether all that was sent to who reads has been read.
func (w *world) over() bool {
	for i := range w.p {
		for n := range w.p[i].streams {
			if !slices.Contains(w.deaf, place{i, n}) && w.p[i].streams[n].bytes != w.total[n] {
				return false
			}
		}
	}
	return true
}

// consistent tells what is wrong with the books, if anything.
func (w *world) consistent() error {
	for i := range w.p {
		o := w.p[i].out
		sum, pages := 0, 0
		for _, held := range o.held {
			sum += max(1, held)
			pages += held
		}
		for _, r := range o.runs {
			pages -= r.pages
		}
		if o.free < 0 || sum+o.free != o.slab.Pages || pages != 0 {
			return fmt.Errorf("%d pages are free and %d held or in reserve, of %d; %d in no block", o.free, sum, o.slab.Pages, pages)
		}
	}
	return nil
}

// String is the state as text.
func (w *world) String() string {
	var k []any
	for i := range w.p {
		p := &w.p[i]
		k = append(k, p.out.used, p.out.held, p.out.waiting, p.in.used, p.posted, p.streams)
	}
	return fmt.Sprint(k...)
}

// A key is all numbers of a state, each list behind its length.
type key []byte

// A sum tells states apart by 128 bits of their keys.
type sum [2]uint64

var sumSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func (k *key) add(numbers ...int) {
	for _, n := range numbers {
		*k = binary.AppendVarint(*k, int64(n))
	}
}

func (k *key) flag(b bool) {
	n := 0
	if b {
		n = 1
	}
	k.add(n)
}

func (k *key) bits(b *bits) {
	k.add(len(b.words))
	for _, word := range b.words {
		*k = binary.AppendUvarint(*k, word)
	}
}

// sum is of the state as String has it, which takes most of the time of a search. It uses
// memory for the key.
func (w *world) sum(memory *key) sum {
	k := (*memory)[:0]
	for i := range w.p {
		p := &w.p[i]
		k.bits(&p.out.used)
		k.add(len(p.out.held))
		k.add(p.out.held...)
		for _, t := range p.out.waiting { // as many as held
			k.add(t.pages, t.most)
		}
		k.bits(&p.in.used)
		k.add(len(p.posted))
		for _, e := range p.posted {
			k.add(e.number, e.offset, e.length, e.stream)
			k.flag(e.free)
		}
		for n := range p.streams {
			s := &p.streams[n]
			k.add(len(s.left))
			k.add(s.left...)
			k.add(s.open.number, s.open.offset, s.open.length, s.room, s.sealed, s.bytes, len(s.queue))
			k.flag(s.blocked)
			for _, q := range s.queue {
				k.add(q.number, q.offset, q.length)
			}
			k.add(len(s.read))
			for _, r := range s.read {
				k.flag(r)
			}
		}
	}
	*memory = k
	return sum{maphash.Bytes(sumSeeds[0], k), maphash.Bytes(sumSeeds[1], k)}
}

// Every order of all steps of two processes that send to each other by two streams is tried: nothing is
// overwritten before it has been freed, nothing is lost, and no state is stuck before all has
// arrived; also when some threads never read: then the others still get everything.
func TestAllSchedules(t *testing.T) {
	const page = Unit
	for _, c := range []struct {
		pages, want int
		parts       [][]int
		deaf        []place
		spare       int
		long        bool
	}{
		{6, page, [][]int{{page}, {page}}, nil, 0, false},
		{6, page, [][]int{{page, page}, {page}}, nil, 0, true},
		{3, page, [][]int{{page, page, page / 2, page}}, nil, 0, false},
		{12, 2 * page, [][]int{{2 * page}, {page, 2 * page}}, []place{{0, 0}}, 0, true},
		{18, page, [][]int{{2 * page}, {page, page}}, []place{{0, 0}}, 6, true},
		{6, page, [][]int{{page, page, page}, {page}}, []place{{0, 0}, {1, 0}}, 0, true},
		{3, page, [][]int{{page, 1, page, page, page}}, []place{{1, 0}}, 0, false},
	} {
		if c.long && testing.Short() {
			continue
		}
		t.Run(fmt.Sprintf("%d pages, parts %v, deaf %v", c.pages, c.parts, c.deaf), func(t *testing.T) {
			const most = 400_000
			first := start(Slab{Page: page, Pages: c.pages, Streams: len(c.parts), Spare: c.spare, Short: 1}, c.want, c.parts, c.deaf)
			var memory key
			seen := map[sum]bool{first.sum(&memory): true}
			frontier := []*world{first}
			next := new(world)
			var spare []*world
			for len(frontier) > 0 {
				w := frontier[len(frontier)-1]
				frontier = frontier[:len(frontier)-1]
				steps := w.steps()
				if len(steps) == 0 && !w.over() {
					t.Fatalf("stuck: %s", w)
				}
				for _, s := range steps {
					w.copyTo(next)
					if err := errors.Join(next.do(s), next.consistent()); err != nil {
						t.Fatalf("%+v after %s: %v", s, w, err)
					}
					if k := next.sum(&memory); !seen[k] {
						seen[k] = true
						frontier = append(frontier, next)
						if next = new(world); len(spare) > 0 {
							next, spare = spare[len(spare)-1], spare[:len(spare)-1]
						}
					}
				}
				spare = append(spare, w)
				if len(seen) > most {
					t.Fatalf("more than %d states: the model is no small one any more", most)
				}
			}
			t.Logf("%d states", len(seen))
		})
	}
}

// Random schedules of longer exchanges by more streams, with parts of all lengths, hold what the small ones do.
func TestRandomSchedules(t *testing.T) {
	seeds := 3000
	if testing.Short() {
		seeds = 300
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		streams := 1 + random.IntN(5)
		slab := Slab{Page: Unit, Pages: LeastPages*streams + random.IntN(100), Streams: streams, Short: 1 + random.IntN(3)}
		if random.IntN(2) == 0 {
			slab.Spare = random.IntN(100)
			slab.Pages += slab.Spare
		}
		parts := make([][]int, streams)
		for i := range parts {
			parts[i] = make([]int, random.IntN(60))
			for n := range parts[i] {
				parts[i][n] = 1 + random.IntN(slab.Longest())
				if random.IntN(3) > 0 {
					parts[i][n] = 1 + random.IntN(Unit)
				}
			}
		}
		var deaf []place
		for i := range 2 {
			for n := range streams {
				if random.IntN(4) == 0 {
					deaf = append(deaf, place{i, n})
				}
			}
		}
		w := start(slab, 1+random.IntN(slab.Longest()), parts, deaf)
		favourite := random.IntN(kinds) // some schedules starve a kind of step
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
			if err := errors.Join(w.do(s), w.consistent()); err != nil {
				t.Fatalf("seed %d: %+v: %v", seed, s, err)
			}
			if err := w.pressing(); err != nil {
				t.Fatalf("seed %d: %+v: %v", seed, s, err)
			}
		}
		if !w.over() {
			t.Fatalf("seed %d: stuck: %s", seed, w)
		}
	}
}

// pressing tells whether somebody waits although all that was filled has come, and the receiving side does not see that.
func (w *world) pressing() error {
	for i := range w.p {
		p, other := &w.p[i], &w.p[1-i]
		if len(p.posted)+len(other.posted) > 0 || other.in.Pressing() {
			continue
		}
		for n := range p.streams {
			if p.streams[n].open.length > 0 {
				return nil
			}
		}
		for n := range p.streams {
			if p.streams[n].blocked {
				return fmt.Errorf("stream %d waits, and %d of %d pages are in use", n, other.in.held, w.slab.Pages)
			}
		}
	}
	return nil
}

// A stream whose thread reads nothing leaves room for another, which gets at least a fifth of the slab at once.
func TestDeafStreamsLeaveRoom(t *testing.T) {
	o := NewOut(Slab{Page: Unit, Pages: 100, Streams: 4})
	takes := func(stream int) (pages int) {
		for {
			if _, _, v := o.Begin(stream, Unit, Unit); v != Begun {
				return pages
			}
			pages++
		}
	}
	if first, second, third := takes(0), takes(1), takes(2); first < 60 || first > 70 || second < 15 || third < 5 {
		t.Error(first, second, third)
	}
	if last := takes(3); last == 0 {
		t.Error("the last one has not even its reserve")
	}
}

// Spare pages are for long blocks.
func TestSparePages(t *testing.T) {
	o := NewOut(Slab{Page: Unit, Pages: 100, Streams: 2, Spare: 50, Short: 2})
	short := 0
	for {
		if _, _, v := o.Begin(0, 2*Unit, 2*Unit); v != Begun {
			break
		}
		short += 2
	}
	long := 0
	for {
		if _, _, v := o.Begin(1, 3*Unit, 3*Unit); v != Begun {
			break
		}
		long += 3
	}
	if short < 30 || short > 34 || long < 39 {
		t.Error(short, long)
	}
}

// The lowest pages are used again before others are touched.
func TestLowestPagesFirst(t *testing.T) {
	o := NewOut(Slab{Page: Unit, Pages: 64, Streams: 2})
	for range 100 {
		a, _, _ := o.Begin(0, Unit, 4*Unit)
		b, _, _ := o.Begin(1, Unit, 4*Unit)
		if a >= 12*Unit || b >= 12*Unit {
			t.Fatal(a, b)
		}
		o.Seal(a, Unit)
		o.Seal(b, 3*Unit)
		if err := errors.Join(o.Free(1, b, 3*Unit), o.Free(0, a, Unit)); err != nil {
			t.Fatal(err)
		}
	}
}

// What a peer must not say is refused.
func TestBreaches(t *testing.T) {
	slab := Slab{Page: Unit, Pages: 8, Streams: 2}
	in, out := NewIn(slab), NewOut(slab)
	for i, err := range []error{
		in.Filled(2, 0, 1), in.Filled(0, 1, 1), in.Filled(0, 0, 0), in.Filled(0, 0, 8*Unit+1), in.Filled(0, 8*Unit, 1), in.Filled(0, 7*Unit, Unit+1),
		out.Free(0, 0, Unit), out.Free(0, 0, 0), out.Free(0, 8*Unit, Unit),
	} {
		if !errors.Is(err, ErrBreach) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := errors.Join(in.Filled(0, 0, 3*Unit-1), in.Filled(1, 4*Unit, 1)); err != nil {
		t.Fatal(err)
	}
	at, _, v := out.Begin(0, 2*Unit, 2*Unit)
	if v != Begun {
		t.Fatal(v)
	}
	for i, err := range []error{
		in.Filled(0, 2*Unit, Unit), in.Filled(0, 3*Unit, 2*Unit), in.Filled(1, 4*Unit, 1),
		out.Free(1, at, 2*Unit), out.Free(0, at, Unit), out.Free(0, at+Unit, Unit), out.Free(0, at+1, 2*Unit),
	} {
		if !errors.Is(err, ErrBreach) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := errors.Join(in.Filled(0, 3*Unit, Unit), out.Free(0, at, 2*Unit)); err != nil {
		t.Error(err)
	}
	in.Freed(0)
	if err := in.Filled(1, 0, 3*Unit); err != nil {
		t.Error(err)
	}
}

// Pieces are found as a search through all pages finds them.
func TestFind(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		b := newBits(1 + random.IntN(200))
		used := make([]bool, b.n)
		for range random.IntN(20) {
			first := random.IntN(b.n)
			n := 1 + random.IntN(b.n-first)
			set := random.IntN(2) == 0
			if set {
				b.set(first, n)
			} else {
				b.clear(first, n)
			}
			for i := first; i < first+n; i++ {
				used[i] = set
			}
		}
		want := 1 + random.IntN(20)
		var first, length int
		for at := 0; at < b.n && length < want; at++ {
			n := 0
			for at+n < b.n && n < want && !used[at+n] {
				n++
			}
			if n > length {
				first, length = at, n
			}
		}
		if f, n := b.find(want); f != first || n != length {
			t.Fatalf("seed %d: %d pages at %d, not %d at %d", seed, n, f, length, first)
		}
	}
}
