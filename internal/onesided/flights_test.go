package onesided

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Random histories of batches beside a plain list. Sequence numbers wrap on the way.
func TestFlightsLandInOrder(t *testing.T) {
	type batch struct {
		name int
		last uint32
	}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 7))
		var q Flights[int]
		var want []batch
		seq := ^uint32(0) - uint32(random.IntN(100)) // the next operation's
		landed, operations := seq, 0
		for name := range 300 {
			if n := 1 + random.IntN(4); operations+n <= Most {
				seq += uint32(n)
				operations += n
				q.Post(name, seq-1)
				want = append(want, batch{name, seq - 1})
			}
			if got := q.Under(func(f int) bool { return f == name-1 }); got != slices.ContainsFunc(want, func(b batch) bool { return b.name == name-1 }) {
				t.Fatalf("seed %d: batch %d is under way: %v", seed, name-1, got)
			}
			if random.IntN(2) == 0 {
				continue
			}
			landed += uint32(random.IntN(int(seq-landed) + 1))
			for f, ok := q.Land(landed); ok; f, ok = q.Land(landed) {
				if f != want[0].name || int32(landed-want[0].last) <= 0 {
					t.Fatalf("seed %d: batch %d landed before sequence number %d, and the first is %+v", seed, f, landed, want[0])
				}
				want = want[1:]
			}
			if len(want) > 0 && int32(landed-want[0].last) > 0 || q.Any() != (len(want) > 0) {
				t.Fatalf("seed %d: %+v has not landed before sequence number %d", seed, want, landed)
			}
			operations = 0
			if len(want) > 0 {
				operations = int(seq - landed)
			}
		}
		for _, b := range want {
			if f, ok := q.Take(); !ok || f != b.name {
				t.Fatalf("seed %d: took %d, %v; want %d", seed, f, ok, b.name)
			}
		}
		if _, ok := q.Take(); ok {
			t.Fatalf("seed %d: more batches than were posted", seed)
		}
	}
}

func TestWhoWaitsGoesInTurn(t *testing.T) {
	var q Flights[string]
	if _, ok := q.Next(); ok || !q.Turn("a") {
		t.Fatal("somebody waits at first")
	}
	for _, f := range []string{"a", "b", "c"} {
		q.Wait(f)
	}
	if f, ok := q.Next(); !ok || f != "a" || !q.Turn("a") || q.Turn("b") || q.Turn("new") {
		t.Fatalf("%q is next", f)
	}
	q.Leave("b") // its context has ended
	q.Leave("nobody")
	q.Leave("a")
	if f, ok := q.Next(); !ok || f != "c" || !q.Turn("c") {
		t.Fatalf("%q is next; want c", f)
	}
	q.Leave("c")
	if !q.Turn("new") {
		t.Fatal("the line is empty, and a new batch has to wait")
	}
}

func TestDesertedByTheLastCall(t *testing.T) {
	var q Flights[int]
	q.Enter()
	q.Exit()
	if q.Deserted() != nil {
		t.Fatal("there is a channel to wait for, and no call")
	}
	q.Enter()
	q.Enter()
	deserted := q.Deserted()
	q.Exit()
	select {
	case <-deserted:
		t.Fatal("deserted with a call left")
	default:
	}
	q.Exit()
	<-deserted
}
