package namenode

import (
	"math/rand/v2"
	"slices"
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

// However many have been satisfied in the meantime, a take passes by a bounded number.
func TestNeedsTakeIsBounded(t *testing.T) {
	s := newNeeds()
	const many = 3 * scanStep
	for id := range uint64(many) {
		s.add(id, someLeft)
	}
	for id := range uint64(many - 1) {
		s.remove(id)
	}
	takes := 0
	for {
		left := scanStep
		id, ok := s.take(someLeft, &left)
		takes++
		if ok {
			if id != many-1 {
				t.Fatalf("took %d", id)
			}
			break
		}
		if left != 0 {
			t.Fatalf("gave up with %d left", left)
		}
	}
	if takes != 3 {
		t.Errorf("%d takes", takes)
	}
	if s.most != many {
		t.Errorf("had %d at most", s.most)
	}
	s.most = manyBlocks
	s.add(1, oneLeft)
	s.remove(1)
	s.shrink()
	if s.most != 0 || slices.ContainsFunc(s.queues[:], func(q blockQueue) bool { return q.count > 0 }) {
		t.Errorf("%+v is kept", s.queues)
	}
}
