package namespace

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A cache of calls remembers what a map and a list do, in all orders, with few places and with many.
func TestRetryCacheIsAMap(t *testing.T) {
	for _, most := range []int{1, 100, 129, 5000} {
		rng := rand.New(rand.NewPCG(1, uint64(most)))
		var (
			rc    = retryCache{places: newPlaceTable(), first: ^uint32(0) - 1000} // it passes 0
			model = make(map[callKey]call)
			order []callKey
		)
		for i := range 20 * (most + 100) {
			key := callKey{id: int32(rng.IntN(2 * most))}
			want, there := model[key]
			if got, ok := rc.get(key); ok != there || got != want {
				t.Fatalf("step %d: %+v, %t, want %+v, %t", i, got, ok, want, there)
			}
			switch {
			case len(order) > most || len(order) > 0 && rng.IntN(3) == 0:
				delete(model, order[0])
				order = order[1:]
				rc.dropFirst()
			case !there:
				c := call{time: int64(i), ok: i%2 == 0, inode: uint64(i)}
				model[key] = c
				order = append(order, key)
				rc.add(key, c)
			}
			if rc.places.used != len(order) {
				t.Fatalf("step %d: %d places are taken, want %d", i, rc.places.used, len(order))
			}
		}
		for key, want := range model {
			if got, ok := rc.get(key); !ok || got != want {
				t.Errorf("%+v is %+v, %t", key, got, ok)
			}
		}
		if n := len(rc.places.slots) - countOf(rc.places.slots, 0); n != len(order) {
			t.Errorf("%d places are taken of %d calls", n, len(order))
		}
	}
}

func countOf(list []uint64, of uint64) (n int) {
	for _, v := range list {
		if v == of {
			n++
		}
	}
	return n
}

// Places whose search begins at the table's end go on at its beginning.
func TestPlacesGoRound(t *testing.T) {
	tab := newPlaceTable()
	last := uint64(leastPlaces - 1)
	var all []uint64
	for number := range uint64(5) {
		s := taken | last<<32 | number
		tab.put(s)
		all = append(all, s)
	}
	tab.put(taken | 1<<32 | 77) // begins at 1, where another one is
	if got := tab.slots[:5]; !slices.Equal(got, []uint64{all[1], all[2], all[3], all[4], taken | 1<<32 | 77}) || tab.slots[last] != all[0] {
		t.Fatalf("%x", got)
	}
}
