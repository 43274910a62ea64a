package namenode

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestBlockSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	number := func() uint64 {
		switch rng.IntN(20) {
		case 0:
			return rng.Uint64()
		case 1:
			return math.MaxUint64 - rng.Uint64N(3)
		}
		return 1<<30 + rng.Uint64N(500)
	}
	var s blockSet
	model := make(map[uint64]bool)
	for range 20_000 {
		id, in := number(), rng.IntN(2) == 0
		s.set(id, in)
		if in {
			model[id] = true
		} else {
			delete(model, id)
		}
		if s.has(id) != in || s.len() != len(model) {
			t.Fatalf("%d is there %t; %d blocks, not %d", id, s.has(id), s.len(), len(model))
		}
		if rng.IntN(500) > 0 {
			continue
		}
		want := slices.Sorted(maps.Keys(model))
		if got := slices.Collect(s.all()); !slices.Equal(got, want) {
			t.Fatalf("it has %d, not %d", got, want)
		}
		start := number()
		i, _ := slices.BinarySearch(want, start)
		if got, ok := s.next(start); ok != (i < len(want)) || ok && got != want[i] {
			t.Fatalf("the next from %d is %d, %t", start, got, ok)
		}
	}
	for id := range model {
		s.remove(id)
	}
	if _, ok := s.next(0); ok || s.words.Len() != 0 {
		t.Errorf("%d words are left of an empty set", s.words.Len())
	}
	var none *blockSet
	none.remove(1)
	if none.has(1) || none.len() != 0 || len(slices.Collect(none.all())) != 0 {
		t.Error("something is in no set")
	}
}

// Neither growing nor shrinking costs one block more than a page.
func TestBlockSetAllocatesPages(t *testing.T) {
	var s blockSet
	id := uint64(1 << 30)
	const page = 64 * 64
	if n := testing.AllocsPerRun(100, func() {
		for range page {
			s.add(id)
			id++
		}
	}); n > 2 {
		t.Errorf("%v allocations for %d blocks", n, page)
	}
}
