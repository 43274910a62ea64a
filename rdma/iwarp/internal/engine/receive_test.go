package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// TestReceivesInTurn has three engines wait for shared receives, each of which
// wants another as soon as it has one.
func TestReceivesInTurn(t *testing.T) {
	q := NewRecvQueue(&owner{}, 16, 1, 0, nil)
	var order []string
	waiters := map[string]*waiter{}
	for _, name := range []string{"a", "b", "c"} {
		w := &waiter{into: &receive{}}
		w.wake = func() {
			order = append(order, fmt.Sprint(name, w.into.id))
			if q.takeOrWait(w) {
				t.Errorf("%s takes a receive that others have waited for", name)
			}
		}
		waiters[name] = w
		if q.takeOrWait(w) {
			t.Fatal("there is no receive yet")
		}
	}
	post := func(ids ...uint64) {
		t.Helper()
		var requests []rdma.RecvRequest
		for _, id := range ids {
			requests = append(requests, rdma.RecvRequest{ID: id})
		}
		if n, err := q.Post(requests); n != len(ids) || err != nil {
			t.Fatal(n, err)
		}
	}
	post(1, 2)
	post(3, 4, 5)
	if want := []string{"a1", "b2", "c3", "a4", "b5"}; !slices.Equal(order, want) {
		t.Fatalf("%v, want %v", order, want)
	}
	// Who leaves gets nothing and holds nobody up. The order is c, a, b.
	if q.leave(waiters["a"]) {
		t.Error("a leaves and has a receive")
	}
	order = nil
	post(6, 7)
	if want := []string{"c6", "b7"}; !slices.Equal(order, want) {
		t.Fatalf("%v, want %v", order, want)
	}
	for _, name := range []string{"b", "c"} {
		q.leave(waiters[name])
	}
	post(8)
	var r receive
	if !q.take(&r) || r.id != 8 || q.first != nil || q.last != nil {
		t.Errorf("after all have left: %+v", q)
	}
}

// TestPostBesideWaiters posts more than was waited for, and a request that is
// refused behind one that is not.
func TestPostBesideWaiters(t *testing.T) {
	q := NewRecvQueue(&owner{}, 2, 1, 0, nil)
	woken := 0
	w := &waiter{into: &receive{}, wake: func() { woken++ }}
	q.takeOrWait(w)
	n, err := q.Post([]rdma.RecvRequest{{ID: 1}, {ID: 2, SGEs: make([]rdma.SGE, 2)}})
	if n != 1 || err == nil || woken != 1 || w.into.id != 1 {
		t.Fatalf("%d taken, %v, woken %d times for %d", n, err, woken, w.into.id)
	}
	if n, err := q.Post([]rdma.RecvRequest{{ID: 3}}); n != 1 || err != nil || !q.takeOrWait(w) || w.into.id != 3 || woken != 1 {
		t.Fatalf("%d taken, %v, woken %d times for %d", n, err, woken, w.into.id)
	}
}

// TestRecall takes back what no message has needed since the last time.
func TestRecall(t *testing.T) {
	q := NewRecvQueue(&owner{}, 8, 1, 0, nil)
	var requests []rdma.RecvRequest
	for id := range uint64(8) {
		requests = append(requests, rdma.RecvRequest{ID: id})
	}
	post := func(requests ...rdma.RecvRequest) {
		t.Helper()
		if n, err := q.Post(requests); n != len(requests) || err != nil {
			t.Fatal(n, err)
		}
	}
	into := make([]uint64, 8)
	recall := func(most, keep int, want ...uint64) {
		t.Helper()
		if n := q.Recall(into[:most], keep); !slices.Equal(into[:n], want) {
			t.Fatalf("recalled %v, want %v", into[:n], want)
		}
	}
	post(requests...)
	recall(8, 1) // they have only just come
	recall(2, 1, 7, 6)
	var r receive
	for id := range uint64(3) {
		if !q.take(&r) || r.id != id {
			t.Fatalf("took %d, want %d", r.id, id)
		}
		q.used.Add(-1) // its completion has been polled
		post(requests[6+id%2])
	}
	recall(8, 0, 6, 7, 6, 5, 4) // one of six was needed, and came back
	recall(8, 2)
	recall(8, 0, 3)
	recall(8, 0)
	post(requests...)
	if _, err := q.Post(requests[:1]); err == nil {
		t.Error("the queue takes more than its depth")
	}
	q.Recall(nil, 0)
	q.Close()
	recall(8, 0)
}
