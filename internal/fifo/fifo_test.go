package fifo

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
)

var seed = flag.Uint64("seed", 1, "of the random operations")

// A queue does what a slice does.
func TestAgainstSlice(t *testing.T) {
	rng := rand.New(rand.NewPCG(*seed, 0))
	var q Queue[*int]
	var model []*int
	for step := range 100_000 {
		switch n := rng.IntN(100); {
		case n < 50:
			v := &step
			q.Push(v)
			model = append(model, v)
		case n < 95 && len(model) > 0:
			if q.Front() == nil || *q.Front() != model[0] || q.Pop() != model[0] {
				t.Fatalf("seed %d, step %d: another value is first", *seed, step)
			}
			model = model[1:]
		case n < 99 && len(model) > 0:
			i := rng.IntN(len(model))
			q.Remove(func(v *int) bool { return v == model[i] })
			model = slices.Delete(slices.Clone(model), i, i+1)
		case n == 99 && rng.IntN(50) == 0:
			if cleared := q.Clear(); cleared != len(model) {
				t.Fatalf("seed %d, step %d: %d values were cleared of %d", *seed, step, cleared, len(model))
			}
			model = nil
		}
		if !slices.Equal(q.Values(), model) {
			t.Fatalf("seed %d, step %d: other values than those of a slice", *seed, step)
		}
		if q.Len() != len(model) {
			t.Fatalf("seed %d, step %d: %d values, want %d", *seed, step, q.Len(), len(model))
		}
		// What is not in the queue is not kept from the collector.
		for _, v := range q.items[:q.first] {
			if v != nil {
				t.Fatalf("seed %d, step %d: a value that was taken is kept", *seed, step)
			}
		}
		for _, v := range q.items[len(q.items):cap(q.items)] {
			if v != nil {
				t.Fatalf("seed %d, step %d: a value that was taken is kept behind the last", *seed, step)
			}
		}
	}
}

// A long queue that stays as long moves few values, and has not much more memory than it needs.
func TestLongQueue(t *testing.T) {
	const long, turns = 1 << 12, 1 << 16
	var q Queue[int]
	for i := range long {
		q.Push(i)
	}
	moved := 0
	for range turns {
		q.Pop()
		before := q.first
		if q.Push(0); q.first < before {
			moved += q.Len() - 1
		}
	}
	if moved > turns || q.Cap() > 4*long {
		t.Errorf("%d values were moved when %d were pushed, and there is room for %d where %d wait", moved, turns, q.Cap(), long)
	}
}

// A queue that is never empty does not grow, and allocates nothing.
func TestStaysShort(t *testing.T) {
	var q Queue[int]
	for i := range 10 {
		q.Push(i)
	}
	turn := func() {
		q.Push(0)
		q.Pop()
	}
	for range 100 {
		turn()
	}
	if n := testing.AllocsPerRun(100_000, turn); n != 0 || q.Cap() > 32 {
		t.Errorf("%v allocations, and room for %d values where 10 wait", n, q.Cap())
	}
}
