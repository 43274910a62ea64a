package onesided

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

var errRefused = errors.New("refused")

func noID(t *testing.T) func(uint32) {
	return func(id uint32) {
		t.Helper()
		t.Fatalf("id %d is free", id)
	}
}

func TestAnswersGoWhereTheyBelong(t *testing.T) {
	a, set := NewAsked(4), newSet()
	into, value := make([]byte, 5), uint64(0)
	a.Add(0, Query{Set: set, Want: 5, Into: into})
	a.Add(1, Query{Set: set, Want: 8, Number: true, Value: &value})
	a.Add(2, Query{Set: set, Want: 8, Number: true}) // nobody wants to know what was there
	a.Add(3, Query{Set: set})
	if a.Expected(0, 1, true, 5) {
		t.Fatal("an answer is expected before the operation was sent")
	}
	for id := range uint32(4) {
		a.Sent(id, 1)
	}
	for _, c := range []struct {
		id   uint32
		way  Way
		done bool
		n    int
		want bool
	}{
		{0, 1, true, 5, true}, {0, 1, true, 4, false}, {0, 1, false, 5, false}, {0, 1, false, 0, true}, {1, 1, true, 8, true}, {3, 1, true, 0, true},
		{0, 0, true, 5, false}, {0, 0, false, 0, false}, {0, 2, true, 5, false},
		{4, 1, true, 0, false}, {1 << 31, 1, false, 0, false},
	} {
		if got := a.Expected(c.id, c.way, c.done, c.n); got != c.want {
			t.Errorf("%+v: expected is %v", c, got)
		}
	}
	a.Take(0, 0, []byte("he"))
	a.Take(0, 2, []byte("llo"))
	a.Take(1, 0, []byte{0, 0, 0, 0, 0, 0, 1, 2})
	a.Take(2, 0, make([]byte, 8))
	if string(into) != "hello" || value != 0x102 || !a.Number(1) || a.Number(0) {
		t.Fatalf("%q and %#x", into, value)
	}
	for id := range uint32(3) {
		a.Answered(id, nil)
	}
	if set.Left() != 1 || len(set.Done) != 0 {
		t.Fatalf("%d left", set.Left())
	}
	a.Answered(3, errRefused)
	if <-set.Done; set.Left() != 0 || set.Err() != errRefused {
		t.Fatalf("%d left, %v", set.Left(), set.Err())
	}
	if a.Expected(3, 1, true, 0) {
		t.Fatal("a second answer is expected")
	}
}

// The memory of a caller that has gone is its own again. What was sent is still answered,
// and what was not gives its id back.
func TestForgottenOperations(t *testing.T) {
	a, gone, stays := NewAsked(3), newSet(), newSet()
	into := []byte("mine")
	a.Add(0, Query{Set: gone, Want: 4, Into: into})
	a.Add(1, Query{Set: gone, Want: 8, Number: true, Value: new(uint64)})
	a.Add(2, Query{Set: stays, Want: 4, Into: into})
	a.Sent(0, 0)
	a.Sent(2, 0)
	var freed []uint32
	a.Forget(gone, func(id uint32) { freed = append(freed, id) })
	if !slices.Equal(freed, []uint32{1}) {
		t.Fatalf("ids %v are free; want 1 alone", freed)
	}
	new(Sets).Put(gone)
	if !a.Expected(0, 0, true, 4) {
		t.Fatal("the answer is not expected any more")
	}
	a.Take(0, 0, []byte("la"))
	a.Take(0, 2, []byte("te"))
	a.Answered(0, nil)
	if string(into) != "mine" || gone.Left() != 0 || len(gone.Done) != 0 {
		t.Fatalf("a late answer wrote %q, and %d are left", into, gone.Left())
	}
	a.Take(2, 0, []byte("text"))
	a.Answered(2, nil)
	if <-stays.Done; string(into) != "text" || stays.Err() != nil {
		t.Fatalf("%q, %v", into, stays.Err())
	}
	a.Forget(stays, noID(t))
}

// Random histories: every operation ends once, with the first error of its set, and no id
// is lost or free twice.
func TestRandomAnswers(t *testing.T) {
	const ids = 8
	type asked struct {
		set  int // -1: forgotten
		sent bool
		way  Way
	}
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 11))
		a := NewAsked(ids)
		var spare Sets
		sets := []*Set{newSet(), newSet(), newSet()}
		left, errs := make([]int, len(sets)), make([]error, len(sets))
		under := map[uint32]asked{}
		free := []uint32{0, 1, 2, 3, 4, 5, 6, 7}
		put := func(id uint32) {
			if slices.Contains(free, id) {
				t.Fatalf("seed %d: id %d is free twice", seed, id)
			}
			free = append(free, id)
		}
		ended := func(id uint32, err error) {
			if o := under[id]; o.set >= 0 {
				left[o.set]--
				if errs[o.set] == nil {
					errs[o.set] = err
				}
			}
			delete(under, id)
		}
		for range 200 {
			var id uint32
			var o asked
			if all := slices.Sorted(maps.Keys(under)); len(all) > 0 {
				id = all[random.IntN(len(all))]
				o = under[id]
			}
			switch n := random.IntN(len(sets)); random.IntN(12) {
			case 0, 1, 2, 3:
				if len(free) > 0 {
					id, free = free[0], free[1:]
					a.Add(id, Query{Set: sets[n]})
					under[id] = asked{set: n}
					left[n]++
				}
			case 4, 5, 6:
				if len(under) > 0 {
					if !o.sent {
						o.sent, o.way = true, Way(random.IntN(2))
						a.Sent(id, o.way)
						under[id] = o
					}
				}
			case 7, 8, 9:
				if o.sent {
					var err error
					if random.IntN(3) == 0 {
						err = errRefused
					}
					a.Answered(id, err)
					ended(id, err)
					put(id)
				}
			case 10:
				a.Forget(sets[n], put)
				for id, o := range under {
					if o.set == n && o.sent {
						o.set = -1
						under[id] = o
					} else if o.set == n {
						delete(under, id)
					}
				}
				spare.Put(sets[n])
				sets[n] = spare.Take()
				left[n], errs[n] = 0, nil
			case 11:
				way := Way(random.IntN(2))
				a.Lose(way, errRefused, put)
				for id, o := range under {
					if o.sent && o.way == way {
						ended(id, errRefused)
					}
				}
			}
			for n, set := range sets {
				if set.Left() != left[n] || set.Err() != errs[n] {
					t.Fatalf("seed %d: set %d has %d left and %v; want %d and %v", seed, n, set.Left(), set.Err(), left[n], errs[n])
				}
			}
			if len(free)+len(under) != ids {
				t.Fatalf("seed %d: %d ids are free, %d used, of %d", seed, len(free), len(under), ids)
			}
		}
	}
}

// A set tells of each of a caller's operations whether one of its pieces has failed or was forgotten.
func TestUndone(t *testing.T) {
	a, set := NewAsked(4), newSet()
	for id, of := range []int{0, 1, 1, 2} {
		a.Add(uint32(id), Query{Set: set, Of: of})
		a.Sent(uint32(id), 1)
	}
	a.Answered(0, nil)
	a.Answered(1, errRefused)
	a.Answered(2, nil)
	a.Forget(set, noID(t))
	if set.Undone(0) || !set.Undone(1) || !set.Undone(2) {
		t.Errorf("undone: %t, %t, %t", set.Undone(0), set.Undone(1), set.Undone(2))
	}
	var sets Sets
	sets.Put(set)
	if sets.Take().Undone(1) {
		t.Error("a set that is taken again remembers")
	}
}
