package namenode

import (
	"math/rand/v2"
	"testing"
)

func TestBlockQueue(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var (
		q     blockQueue
		model []uint64
	)
	for i := range uint64(50_000) {
		if rng.IntN(5) < 3 {
			q.push(i)
			model = append(model, i)
		} else if id, ok := q.pop(); ok != (len(model) > 0) {
			t.Fatalf("something was there: %t", ok)
		} else if ok {
			if id != model[0] {
				t.Fatalf("popped %d, not %d", id, model[0])
			}
			model = model[1:]
		}
		if q.count != len(model) {
			t.Fatalf("%d there, not %d", q.count, len(model))
		}
	}
	for range model {
		q.pop()
	}
	if _, ok := q.pop(); ok || len(q.chunks) != 0 {
		t.Fatalf("%d chunks of nothing", len(q.chunks))
	}
}

// Blocks that lack replicas take turns: one that comes back is behind all others of its urgency.
func TestNeedsTakeTurns(t *testing.T) {
	var s needs
	for _, id := range []uint64{7, 3, 1 << 40, 5} {
		s.add(id, someLeft)
	}
	s.add(5, fewLeft)
	s.remove(7)
	for _, want := range []uint64{3, 1 << 40, 3, 1 << 40} {
		id, ok := s.take(someLeft)
		if !ok || id != want {
			t.Fatalf("took %d, %t, not %d", id, ok, want)
		}
		s.add(id, someLeft)
	}
	if id, ok := s.take(fewLeft); !ok || id != 5 || s.has(5) {
		t.Errorf("took %d, %t", id, ok)
	}
	if _, ok := s.take(fewLeft); ok || s.len() != 2 {
		t.Errorf("%d are left", s.len())
	}
}
