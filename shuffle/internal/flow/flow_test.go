package flow

import (
	"errors"
	"fmt"
	"testing"
)

// A world is two processes with a stream or two from one to the other, and the network
// between them, which keeps the order of messages. It is a state of the model.
type world struct {
	shape   Shape
	out     *Out[int]
	in      *In
	sent    []int          // blocks of each stream that its thread has handed on
	putting []Post[int]    // blocks that were taken out, and not Done
	there   [][3]int       // notifications on their way: sender, receiver, number
	back    [][2]int       // freed places on their way
	queue   [][][3]int     // by receiver: sender, number, place
	taken   []map[int]int  // by receiver: of each sender the numbers of the blocks, as bits
	places  map[int]int    // what lies in the memory, by offset
	busy    map[int]string // who uses a place
}

// blocksOf is how many blocks each stream carries in the model.
const blocksOf = 3

func start(shape Shape) *world {
	w := &world{
		shape: shape, out: NewOut[int](shape), in: NewIn(shape), sent: make([]int, shape.Streams()),
		queue: make([][][3]int, shape.Receivers), places: map[int]int{}, busy: map[int]string{},
	}
	for range shape.Receivers {
		w.taken = append(w.taken, map[int]int{})
	}
	return w
}

// A step is one that some process can take.
type step struct{ kind, a, b int }

const (
	handOn = iota // a thread's block is complete
	post          // the process takes out a block that has a place
	done          // it has gone
	arrive        // a notification
	take          // a receiver takes a block and frees it
	free          // a freed place is told
)

func (w *world) steps() (steps []step) {
	for s := range w.shape.Senders {
		for r := range w.shape.Receivers {
			i := s*w.shape.Receivers + r
			if w.sent[i] < blocksOf && w.out.Held(s, r) < 2 {
				steps = append(steps, step{handOn, s, r})
			}
		}
	}
	if w.out.Ready() && len(w.putting) < 2 {
		steps = append(steps, step{kind: post})
	}
	if len(w.putting) > 0 {
		steps = append(steps, step{kind: done})
	}
	if len(w.there) > 0 {
		steps = append(steps, step{kind: arrive})
	}
	if len(w.back) > 0 {
		steps = append(steps, step{kind: free})
	}
	for r, q := range w.queue {
		for i := range q { // also out of turn, as blocks are spilt while an older one is read
			if i < 2 {
				steps = append(steps, step{take, r, i})
			}
		}
	}
	return steps
}

func (w *world) do(s step) error {
	switch s.kind {
	case handOn:
		i := s.a*w.shape.Receivers + s.b
		n := w.sent[i]
		w.sent[i]++
		if offset, ok := w.out.Take(s.a, s.b); ok {
			return w.put(s.a, s.b, offset, n)
		}
		w.out.Queue(s.a, s.b, n)
	case post:
		p, ok := w.out.Next()
		if !ok {
			return errors.New("it was ready, and there is nothing")
		}
		w.putting = append(w.putting, p)
	case done:
		p := w.putting[0]
		w.putting = w.putting[1:]
		if err := w.put(p.Sender, p.Receiver, p.Offset, p.Block); err != nil {
			return err
		}
		w.out.Done(p.Sender, p.Receiver)
	case arrive:
		n := w.there[0]
		w.there = w.there[1:]
		place, err := w.in.Filled(n[0], n[1], w.shape.Block)
		if err != nil {
			return err
		}
		if got := w.places[w.shape.Offset(n[0], n[1], place)]; got != n[2] {
			return fmt.Errorf("block %d of %v lies where it should not: %d is there", n[2], n[:2], got)
		}
		w.queue[n[1]] = append(w.queue[n[1]], [3]int{n[0], n[2], place})
	case take:
		q := w.queue[s.a]
		it := q[s.b]
		w.queue[s.a] = append(append([][3]int{}, q[:s.b]...), q[s.b+1:]...)
		if w.taken[s.a][it[0]]&(1<<it[1]) != 0 {
			return fmt.Errorf("block %d came again", it[1])
		}
		w.taken[s.a][it[0]] |= 1 << it[1]
		delete(w.busy, w.shape.Offset(it[0], s.a, it[2]))
		for range w.in.Freed(it[0], s.a, it[2]) {
			w.back = append(w.back, [2]int{it[0], s.a})
		}
	case free:
		b := w.back[0]
		w.back = w.back[1:]
		return w.out.Free(b[0], b[1])
	}
	return nil
}

// put writes a block into a place and notifies.
func (w *world) put(sender, receiver, offset, n int) error {
	if who, ok := w.busy[offset]; ok {
		return fmt.Errorf("block %d of %d to %d overwrites %s", n, sender, receiver, who)
	}
	w.busy[offset] = fmt.Sprintf("block %d of %d to %d", n, sender, receiver)
	w.places[offset] = n
	w.there = append(w.there, [3]int{sender, receiver, n})
	return nil
}

// over tells whether all blocks of the receivers that are not deaf have been taken.
func (w *world) over(deaf int) bool {
	for i, n := range w.sent {
		r := i % w.shape.Receivers
		if r != deaf && (n < blocksOf || w.taken[r][i/w.shape.Receivers] != 1<<blocksOf-1) {
			return false
		}
	}
	return true
}

// key is the state as text.
func (w *world) key() string {
	return fmt.Sprint(w.sent, w.putting, w.there, w.back, w.queue, w.taken, w.out.streams, w.in.streams, w.out.ready)
}

// Every order of all steps is tried, by replaying them: no place is overwritten before it
// has been freed, none is lost, and no state is stuck before all has arrived, also when a
// receiver takes nothing for ever: then what goes to the others gets through.
func TestAllSchedules(t *testing.T) {
	for _, shape := range []Shape{
		{Senders: 1, Receivers: 1, Depth: 1, Block: 1},
		{Senders: 1, Receivers: 1, Depth: 2, Block: 1},
		{Senders: 1, Receivers: 2, Depth: 1, Block: 1},
		{Senders: 2, Receivers: 1, Depth: 1, Block: 1},
	} {
		for deafOne := -1; deafOne < shape.Receivers; deafOne++ {
			if deafOne >= 0 && shape.Receivers == 1 {
				continue
			}
			t.Run(fmt.Sprintf("%+v deaf %d", shape, deafOne), func(t *testing.T) {
				states := explore(t, shape, deafOne)
				t.Logf("%d states", states)
			})
		}
	}
}

func replay(t *testing.T, shape Shape, path []step) *world {
	w := start(shape)
	for i, s := range path {
		if err := w.do(s); err != nil {
			t.Fatalf("after %v: %v", path[:i+1], err)
		}
	}
	return w
}

func explore(t *testing.T, shape Shape, deafOne int) int {
	const most = 60_000
	seen := map[string]bool{start(shape).key(): true}
	frontier := [][]step{nil}
	for len(frontier) > 0 {
		path := frontier[len(frontier)-1]
		frontier = frontier[:len(frontier)-1]
		w := replay(t, shape, path)
		moved := false
		for _, s := range w.steps() {
			if s.kind == take && s.a == deafOne {
				continue
			}
			moved = true
			next := append(append([]step{}, path...), s)
			w := replay(t, shape, next)
			if k := w.key(); !seen[k] {
				seen[k] = true
				if len(seen) > most {
					t.Fatalf("more than %d states: the model is no small one any more", most)
				}
				frontier = append(frontier, next)
			}
		}
		if !moved && !w.over(deafOne) {
			t.Fatalf("nothing can be done after %v", path)
		}
	}
	return len(seen)
}

// What a peer must not say is refused.
func TestBreaches(t *testing.T) {
	shape := Shape{Senders: 2, Receivers: 3, Depth: 2, Block: 100}
	in, out := NewIn(shape), NewOut[int](shape)
	filled := func(s, r, n int) error { _, err := in.Filled(s, r, n); return err }
	for _, err := range []error{
		filled(2, 0, 1), filled(0, 3, 1), filled(0, 0, 101), out.Free(0, 0), out.Free(2, 0), out.Free(0, 3),
	} {
		if !errors.Is(err, ErrBreach) {
			t.Error(err)
		}
	}
	for range shape.Depth {
		if err := filled(1, 2, 100); err != nil {
			t.Error(err)
		}
	}
	if err := filled(1, 2, 100); !errors.Is(err, ErrBreach) {
		t.Error(err)
	}
}

// Places are given back in the order in which they were filled, whatever is read first.
func TestFreedOutOfOrder(t *testing.T) {
	in := NewIn(Shape{Senders: 1, Receivers: 1, Depth: 4, Block: 1})
	for i := range 4 {
		if place, err := in.Filled(0, 0, 1); err != nil || place != i {
			t.Fatal(place, err)
		}
	}
	var got []int
	for _, place := range []int{2, 1, 0, 3} {
		got = append(got, in.Freed(0, 0, place))
	}
	if fmt.Sprint(got) != "[0 0 3 1]" {
		t.Error(got)
	}
}
