package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each level gets its weight as long as all have something, and none is left out.
func TestLevelsTakeTurns(t *testing.T) {
	var l levels[int]
	for level := range Levels {
		for range 30 {
			l.push(level, level)
		}
	}
	var got [Levels]int
	for range 15 {
		item, level, ok := l.pop()
		if !ok || item != level {
			t.Fatalf("%d of level %d, %v", item, level, ok)
		}
		got[level]++
	}
	if got != weights {
		t.Errorf("a round gave %v, want %v", got, weights)
	}
	for range 4*30 - 15 {
		if _, _, ok := l.pop(); !ok {
			t.Fatal("something is missing")
		}
	}
	if _, _, ok := l.pop(); ok {
		t.Error("an empty queue gave something")
	}
}

// A ring is a queue, whatever it went through.
func TestRingIsAQueue(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var r ring[int]
	var model []int
	for i := range 200_000 {
		if grow := i/20_000%2 == 0; random.IntN(10) < map[bool]int{true: 6, false: 4}[grow] || len(model) == 0 {
			r.push(i)
			model = append(model, i)
			continue
		}
		if got := r.pop(); got != model[0] {
			t.Fatalf("step %d: %d, want %d", i, got, model[0])
		}
		model = model[1:]
	}
	if r.n != len(model) {
		t.Errorf("%d items, want %d", r.n, len(model))
	}
}

func TestSharesDecideTheLevel(t *testing.T) {
	s := shares{users: map[string]float64{}}
	now := time.Unix(1000, 0)
	s.decayed = now
	for range 100 {
		s.level("heavy", now)
	}
	for i := range 20 {
		if level := s.level(fmt.Sprint("light", i), now); level != 0 {
			t.Errorf("a user with 1 call of %v is at level %d", s.total, level)
		}
	}
	if level := s.level("heavy", now); level != 3 {
		t.Errorf("a user with most of the calls is at level %d", level)
	}
	now = now.Add(10 * decayEvery) // all but nothing of it counts any more
	for i := range 8 {
		s.level(fmt.Sprint("other", i), now)
	}
	if level := s.level("heavy", now); level > 1 {
		t.Errorf("a user who was heavy 50 s ago is at level %d", level)
	}
	if len(s.users) > 12 {
		t.Errorf("%d users are remembered", len(s.users))
	}
	for i := range 2 * mostUsers {
		s.level(fmt.Sprint("flood", i), now)
	}
	if len(s.users) > mostUsers {
		t.Errorf("%d users are remembered", len(s.users))
	}
}

// One user can't take the places of others; a full queue takes nothing.
func TestBounds(t *testing.T) {
	release := make(chan struct{})
	var served sync.WaitGroup
	started := make(chan struct{}, 100)
	q := New(8, 1000, 1, func(int) { started <- struct{}{}; <-release; served.Done() })
	push := func(user string, urgent bool, size int64) bool {
		served.Add(1)
		ok, _ := q.Push(0, user, urgent, size)
		if !ok {
			served.Done()
		}
		return ok
	}
	if !push("heavy", false, 1) {
		t.Fatal("an empty queue takes nothing")
	}
	<-started // by the only worker
	for i := range 4 {
		if !push("heavy", false, 1) {
			t.Fatalf("call %d is refused", i)
		}
	}
	if push("heavy", false, 1) {
		t.Error("one user took more than half of the queue")
	}
	if push("heavy", false, 600) {
		t.Error("one user took more than half of the bytes")
	}
	for i := range 4 {
		if !push("heavy", true, 1) {
			t.Errorf("urgent call %d is refused", i)
		}
	}
	if push("other", true, 1) || q.Len() != 8 {
		t.Errorf("a full queue took a call, or holds %d", q.Len())
	}
	close(release)
	served.Wait()
	q.Close()
	if ok, _ := q.Push(0, "x", false, 1); ok {
		t.Error("a closed queue took a call")
	}
}

// All that is pushed is served once, by no more workers than allowed.
func TestWorkers(t *testing.T) {
	const workers, calls = 4, 5000
	var mu sync.Mutex
	var now, most int
	seen := make([]int, calls)
	var all sync.WaitGroup
	q := New(calls*2, 1<<30, workers, func(i int) {
		mu.Lock()
		now++
		most = max(most, now)
		seen[i]++
		mu.Unlock()
		mu.Lock()
		now--
		mu.Unlock()
		all.Done()
	})
	var pushers sync.WaitGroup
	for p := range 5 {
		pushers.Go(func() {
			for i := range calls / 5 {
				all.Add(1)
				if ok, _ := q.Push(p*calls/5+i, fmt.Sprint(p), i%7 == 0, 1); !ok {
					t.Error("refused")
					all.Done()
				}
			}
		})
	}
	pushers.Wait()
	all.Wait()
	q.Close()
	for i, n := range seen {
		if n != 1 {
			t.Fatalf("call %d was served %d times", i, n)
		}
	}
	if most > workers {
		t.Errorf("%d workers at once", most)
	}
}

// A call never waits while a worker has nothing to do.
func TestNoCallIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 200 {
			var done sync.WaitGroup
			q := New(100, 1000, 3, func(int) { done.Done() })
			for range 10 {
				done.Add(2)
				go q.Push(1, "a", false, 1)
				go q.Push(2, "b", true, 1)
				synctest.Wait()
				done.Wait()
			}
			q.Close()
		}
	})
}

// Those who wait for room get in in their order; who gives up makes way for what
// is smaller.
func TestWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		step := make(chan struct{})
		var served []int
		q := New(4, 200, 1, func(i int) { <-step; served = append(served, i) })
		push := func(i int, size int64) bool {
			ok, _ := q.Push(i, "", true, size)
			synctest.Wait()
			return ok
		}
		var waits sync.WaitGroup
		wait := func(ctx context.Context, i int, size int64, want bool) {
			waits.Go(func() {
				if got := q.PushWait(ctx, i, 0, size, time.Minute); got != want {
					t.Errorf("%d got in: %v, want %v", i, got, want)
				}
			})
			synctest.Wait()
		}
		if !push(0, 1) || !push(1, 50) { // 0 is being served
			t.Fatal("no room in an empty queue")
		}
		gone, cancel := context.WithCancel(t.Context())
		wait(gone, 2, 90, false) // a level has 100 bytes
		wait(t.Context(), 3, 20, true)
		wait(t.Context(), 4, 20, true)
		if push(5, 1) || q.Waiting() != 3 || q.Len() != 1 {
			t.Errorf("%d wait outside, want 3; %d inside, want 1", q.Waiting(), q.Len())
		}
		cancel()
		synctest.Wait()
		if q.Waiting() != 1 || q.Len() != 2 { // as many as a level has
			t.Errorf("%d wait outside, want 1; %d inside, want 2", q.Waiting(), q.Len())
		}
		step <- struct{}{}
		synctest.Wait()
		if q.Waiting() != 0 {
			t.Errorf("%d wait outside, want none", q.Waiting())
		}
		wait(t.Context(), 6, 1, false)
		start := time.Now()
		waits.Wait()
		if took := time.Since(start); took != time.Minute {
			t.Errorf("the last one gave up after %v", took)
		}
		close(step)
		q.Close()
		if want := []int{0, 1, 3, 4}; !slices.Equal(served, want) {
			t.Errorf("served %v, want %v", served, want)
		}
		if q.PushWait(t.Context(), 7, 0, 1, time.Hour) {
			t.Error("a closed queue took something")
		}
	})
}

// Whoever gets in is served once, whoever does not never.
func TestManyWaitForRoom(t *testing.T) {
	const callers, each = 32, 200
	var mu sync.Mutex
	served := map[int]int{}
	q := New(8, 100, 2, func(i int) {
		mu.Lock()
		defer mu.Unlock()
		served[i]++
	})
	var wg sync.WaitGroup
	in := make([]bool, callers*each)
	for c := range callers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 1))
			for k := range each {
				i := c*each + k
				size := random.Int64N(60)
				ok, level := q.Push(i, fmt.Sprint(c%5), k%7 == 0, size)
				if !ok {
					ok = q.PushWait(t.Context(), i, level, size, time.Duration(random.Int64N(int64(50*time.Microsecond))))
				}
				in[i] = ok
			}
		})
	}
	wg.Wait()
	q.Close()
	for i, ok := range in {
		if n := served[i]; ok && n != 1 || !ok && n != 0 {
			t.Errorf("%d got in: %v, and was served %d times", i, ok, n)
		}
	}
	if q.waiting != 0 || q.total != (load{}) {
		t.Errorf("%d wait, %+v is counted", q.waiting, q.total)
	}
}

// What is worked on elsewhere takes a worker's place, but not that of those who wait.
func TestWorkElsewhereCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, goOn := make(chan int, 10), make(chan struct{})
		q := New(10, 100, 2, func(i int) {
			running <- i
			<-goOn
		})
		for _, want := range []bool{true, true, false} {
			if got := q.Begin("ada", false, time.Now()); got != want {
				t.Fatalf("Begin: %v, want %v", got, want)
			}
		}
		for i := range 3 {
			q.Push(i, "ada", false, 1)
		}
		synctest.Wait()
		if len(running) != 0 || q.Len() != 3 {
			t.Fatalf("%d run beside two elsewhere, of two", len(running))
		}
		q.End()
		if i := <-running; i != 0 {
			t.Errorf("item %d runs first", i)
		}
		synctest.Wait()
		if len(running) != 0 {
			t.Error("three are worked on at once")
		}
		if q.Begin("bob", true, time.Now()) {
			t.Error("something passed by those who wait")
		}
		q.End()
		if i := <-running; i != 1 {
			t.Errorf("item %d runs second", i)
		}
		for range 3 {
			goOn <- struct{}{}
		}
		if i := <-running; i != 2 {
			t.Errorf("item %d runs third", i)
		}
		synctest.Wait() // two workers are idle now
		for i, want := range []bool{true, true, false} {
			if q.Begin("ada", false, time.Now()) != want {
				t.Errorf("Begin beside two idle workers, number %d: want %t", i, want)
			}
		}
		q.Push(3, "ada", false, 1)
		synctest.Wait()
		if len(running) != 0 {
			t.Error("an idle worker came in beside two elsewhere")
		}
		q.End()
		q.End()
		if i := <-running; i != 3 {
			t.Errorf("item %d runs last", i)
		}
		goOn <- struct{}{}
		q.Close()
		if q.Begin("ada", false, time.Now()) {
			t.Error("Begin after Close")
		}
	})
}
