package cq

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

func push(q *Queue, id uint64) { q.Push(rdma.Completion{ID: id}, false, nil, 0) }

func TestOrderAndRelease(t *testing.T) {
	q := New(3, nil, nil)
	var places atomic.Int32
	places.Store(9)
	into := make([]rdma.Completion, 2)
	next := uint64(0)
	for id := range uint64(50) {
		q.Push(rdma.Completion{ID: id}, false, &places, 3)
		if id%3 != 2 {
			continue
		}
		for _, want := range []int{2, 1, 0} {
			n, err := q.Poll(into)
			if n != want || err != nil {
				t.Fatalf("Poll: %d, %v; want %d", n, err, want)
			}
			for _, c := range into[:n] {
				if c.ID != next {
					t.Fatalf("completion %d, want %d", c.ID, next)
				}
				next++
			}
		}
		if got := places.Load(); got != 0 {
			t.Fatalf("%d places are still taken", got)
		}
		places.Store(9)
	}
}

func TestOverrun(t *testing.T) {
	told := 0
	q := New(2, func(*Queue) { told++ }, nil)
	if err := q.Arm(true); err != nil {
		t.Fatal(err)
	}
	for id := range uint64(5) {
		push(q, id)
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	if err := q.Wait(context.Background()); err != nil {
		t.Errorf("who waits is not woken: %v", err)
	}
	into := make([]rdma.Completion, 8)
	if n, err := q.Poll(into); n != 2 || !errors.Is(err, rdma.ErrOverrun) {
		t.Errorf("Poll: %d, %v", n, err)
	}
	if n, err := q.Poll(into); n != 0 || !errors.Is(err, rdma.ErrOverrun) {
		t.Errorf("second Poll: %d, %v", n, err)
	}
}

func TestArm(t *testing.T) {
	q := New(16, nil, nil)
	woken := func() bool {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return q.Wait(ctx) == nil
	}
	push(q, 1)
	if woken() {
		t.Error("an event without arming")
	}
	_ = q.Arm(false)
	if woken() {
		t.Error("an event for a completion that was there")
	}
	push(q, 2)
	push(q, 3)
	if !woken() || woken() {
		t.Error("not one event for one arming")
	}
	_ = q.Arm(true)
	push(q, 4)
	if woken() {
		t.Error("an unsolicited completion woke one who asked for solicited ones")
	}
	q.Push(rdma.Completion{ID: 5}, true, nil, 0)
	if !woken() {
		t.Error("a solicited completion did not wake")
	}
	_ = q.Arm(true)
	q.Push(rdma.Completion{Status: rdma.StatusFlushed}, false, nil, 0)
	if !woken() {
		t.Error("an error did not wake")
	}
	_ = q.Arm(false)
	push(q, 6)
	_ = q.Arm(false)
	if woken() {
		t.Error("an event of an earlier arming is left")
	}
}

// What is added while somebody collects is told by the function, and ends no Wait unless
// the function leaves something to do.
func TestEventsByFunction(t *testing.T) {
	q := New(8, nil, nil)
	calls, done := 0, true
	waits := q.waits
	arm := func() {
		t.Helper()
		if err := q.Arm(false); err != nil {
			t.Fatal(err)
		}
	}
	collect := func() bool {
		q.Collect()
		push(q, 1)
		return q.Collected()
	}
	arm()
	if collect() {
		t.Error("an event waits for a function that there is not")
	}
	if waits() {
		t.Error("without a function an event ends no Wait")
	}
	q.OnEvent(func() bool { calls++; return done })
	if collect() {
		t.Error("an event without Arm")
	}
	arm()
	push(q, 1)
	if waits() {
		t.Error("while nobody collects an event ends no Wait")
	}
	if arm(); !collect() {
		t.Fatal("who collects is told of no event")
	}
	if collect() {
		t.Error("two events for one Arm")
	}
	if q.Tell(); calls != 1 || !waits() {
		t.Errorf("%d calls of the function, want 1 and no more", calls)
	}
	done = false
	if arm(); !collect() {
		t.Fatal("who collects is told of no event")
	}
	if q.Tell(); calls != 2 || waits() {
		t.Errorf("%d calls of the function, want 2, and the end of a Wait", calls)
	}
}

// waits tells whether a Wait would not end at once.
func (q *Queue) waits() bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return q.Wait(ctx) != nil // an event comes before the context
}

// heldQueue makes an armed queue, and what polls it.
func heldQueue() (q *Queue, waits func() bool, poll func()) {
	q = New(8, nil, nil)
	_ = q.Arm(false)
	return q, q.waits, func() { _, _ = q.Poll(make([]rdma.Completion, 8)) }
}

// What is added while somebody holds the queue ends a Wait when he lets go, unless it has been
// polled by then.
func TestHeldEvents(t *testing.T) {
	q, waits, poll := heldQueue()
	for range 3 {
		q.Hold()
		if q.Held() {
			t.Error("an event without a completion")
		}
		push(q, 1)
		if !q.Held() || !waits() {
			t.Error("an event is not held")
		}
		poll()
		q.Release()
		if q.Held() || !waits() {
			t.Error("what was polled raises an event")
		}
	}
	push(q, 2)
	if waits() {
		t.Error("a queue is not armed any more, although nothing that was held has raised an event")
	}
	poll()

	_ = q.Arm(false)
	q.Hold()
	q.Hold()
	push(q, 3)
	if q.Release(); !waits() {
		t.Error("an event while another one holds the queue")
	}
	if q.Release(); waits() || q.Held() {
		t.Error("what was not polled raises no event")
	}
	push(q, 4)
	if !waits() {
		t.Error("two events for one Arm")
	}
	poll()

	_ = q.Arm(true)
	q.Hold()
	push(q, 5)
	if q.Held() {
		t.Error("an unsolicited completion is held for one who asked for solicited ones")
	}
	q.Release()
}

// Who collects tells of what is added while somebody holds the queue.
func TestHeldAndCollectedEvents(t *testing.T) {
	q, waits, poll := heldQueue()
	calls := 0
	q.OnEvent(func() bool { calls++; return true })
	q.Collect()
	q.Hold()
	push(q, 6)
	q.Push(rdma.Completion{ID: 7}, true, nil, 0)
	if q.Release(); !waits() || !q.Held() {
		t.Error("who lets go takes an event from who collects")
	}
	if !q.Collected() || q.Held() {
		t.Fatal("who collects is told of no event")
	}
	if q.Tell(); calls != 1 {
		t.Errorf("%d calls of the function, want 1", calls)
	}
	poll()

	_ = q.Arm(false)
	q.Collect()
	q.Hold()
	push(q, 8)
	if !q.Collected() || q.Held() {
		t.Error("who collects is told of no event while somebody holds the queue")
	}
	poll()
	if q.Release(); !waits() {
		t.Error("two who see to one event")
	}
}

// A held queue may be armed again, and may fail.
func TestHeldQueues(t *testing.T) {
	q, waits, poll := heldQueue()
	q.Hold()
	push(q, 8)
	poll()
	if q.Held() {
		t.Error("an event is held of which nothing is left")
	}
	_ = q.Arm(false)
	if q.Release(); !waits() {
		t.Error("what was polled before the queue was armed again raises an event")
	}
	push(q, 8)
	if waits() {
		t.Error("a queue that was armed while it was held raises no event")
	}
	poll()

	_ = q.Arm(false)
	q.Hold()
	for range 9 {
		push(q, 8)
	}
	if poll(); !waits() {
		t.Error("an event is not held")
	}
	if q.Release(); waits() {
		t.Error("an overrun raises no event")
	}
}

// Whoever adds completions, holds the queue, collects and polls meanwhile: who sleeps until there
// is something gets all that nobody else has polled.
func TestNoEventIsLost(t *testing.T) {
	const rounds, adders = 5000, 4
	q := New(64, nil, nil)
	var polled atomic.Int64
	poll := func() bool {
		var into [16]rdma.Completion
		n, err := q.Poll(into[:])
		if err != nil {
			t.Error(err)
		}
		polled.Add(int64(n))
		return n > 0
	}
	drain := func() { // and arm
		for {
			for poll() {
			}
			if err := q.Arm(false); err != nil {
				t.Error(err)
			}
			if !poll() {
				return
			}
		}
	}
	q.OnEvent(func() bool {
		drain()
		return true
	})
	add := []func(id uint64){
		func(id uint64) { push(q, id) },
		func(id uint64) { // posts, and looks at what has completed
			q.Hold()
			push(q, id)
			if q.Held() {
				poll()
			}
			q.Release()
		},
		func(id uint64) { // posts, and finds that another one polls
			q.Hold()
			push(q, id)
			q.Release()
		},
		func(id uint64) { // reads a socket
			q.Collect()
			push(q, id)
			if q.Collected() {
				q.Tell()
			}
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var slept sync.WaitGroup
	slept.Go(func() {
		for {
			drain()
			if q.Wait(ctx) != nil {
				return
			}
		}
	})
	rng := rand.New(rand.NewPCG(1, 2))
	want := int64(0)
	for range rounds {
		var all sync.WaitGroup
		for range 1 + rng.IntN(adders) {
			f, times := add[rng.IntN(len(add))], 1+rng.IntN(3)
			want += int64(times)
			all.Go(func() {
				for id := range uint64(times) {
					f(id)
				}
			})
		}
		all.Wait()
		for began := time.Now(); polled.Load() < want; {
			if time.Since(began) > 20*time.Second {
				cancel()
				t.Fatalf("%d of %d completions have been polled, and who sleeps is not woken", polled.Load(), want)
			}
			runtime.Gosched()
		}
	}
	cancel()
	slept.Wait()
}

func TestClose(t *testing.T) {
	used := true
	q := New(1, nil, func(*Queue) error {
		if used {
			return rdma.ErrInUse
		}
		return nil
	})
	if err := q.Close(); !errors.Is(err, rdma.ErrInUse) {
		t.Errorf("Close of a used queue: %v", err)
	}
	if _, err := q.Poll(nil); err != nil {
		t.Errorf("Poll after a Close that was refused: %v", err)
	}
	used = false
	waited := make(chan error)
	go func() { waited <- q.Wait(context.Background()) }()
	for range 2 {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-waited; !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Wait over Close: %v", err)
	}
	if _, err := q.Poll(nil); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Poll after Close: %v", err)
	}
	if err := q.Arm(false); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Arm after Close: %v", err)
	}
}

type driver struct {
	q     *Queue
	calls int
	rests int
}

func (d *driver) Drive() { d.calls++ }
func (d *driver) Rest()  { d.rests++ }

// driven makes a queue with n drivers, and a function that tells which n polls in vain have called,
// by their numbers.
func driven(t *testing.T, n int) (*Queue, []Driver, func(polls int) []int) {
	q := New(4, nil, nil)
	ds := make([]Driver, n)
	for i := range ds {
		ds[i] = &driver{q: q}
		q.AddDriver(ds[i])
	}
	return q, ds, func(polls int) []int {
		t.Helper()
		for range polls {
			if n, err := q.Poll(make([]rdma.Completion, 8)); n != 0 || err != nil {
				t.Fatalf("Poll: %d, %v", n, err)
			}
		}
		calls := make([]int, len(ds))
		for i, d := range ds {
			calls[i], d.(*driver).calls = d.(*driver).calls, 0
		}
		return calls
	}
}

func sameCalls(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: the drivers were called %v times, want %v", what, got, want)
	}
}

// TestDrivers tells whom polls in vain call.
func TestDrivers(t *testing.T) {
	q, ds, calls := driven(t, 4)
	sameCalls(t, "in turn", calls(8), 2, 2, 2, 2)
	q.Posted(&ds[2])
	if got := calls(8); got[2] != 8 || got[0] < 2 || got[1] < 2 || got[3] < 2 || got[0]+got[1]+got[3] != 8 {
		t.Errorf("where one has posted: %v, want 8 of it and 8 of the others", got)
	}
	q.RemoveDriver(ds[2])
	if got := calls(6); got[2] != 0 || got[0] != 2 {
		t.Errorf("a removed driver is called, or others are not: %v", got)
	}
	for _, d := range ds {
		q.RemoveDriver(d)
	}
	sameCalls(t, "without drivers", calls(4), 0, 0, 0, 0)

	_, one, calls := driven(t, 1)
	sameCalls(t, "the only one", calls(3), 3)
	one[0].(*driver).q.Posted(&one[0])
	sameCalls(t, "the only one, which has posted", calls(3), 3)
}

// TestDriversThatComplete has a driver add a completion, which the same poll finds.
func TestDriversThatComplete(t *testing.T) {
	q := New(4, nil, nil)
	q.AddDriver(pushing{q})
	if n, err := q.Poll(make([]rdma.Completion, 8)); n != 1 || err != nil {
		t.Errorf("Poll: %d, %v", n, err)
	}
}

type pushing struct{ q *Queue }

func (p pushing) Drive() { push(p.q, 7) }
func (p pushing) Rest()  {}

// TestQuietDrivers tells when drivers may keep quiet, whom polls call then, and when they are told
// not to.
func TestQuietDrivers(t *testing.T) {
	q, ds, calls := driven(t, 5)
	rests := func(want ...int) {
		t.Helper()
		for i, d := range ds {
			if n := d.(*driver).rests; n != want[i] {
				t.Errorf("driver %d was told %d times, want %d", i, n, want[i])
			}
		}
	}
	if q.Quiet(&driver{q: q}) {
		t.Error("one that polls do not call may keep quiet")
	}
	if !q.Quiet(ds[3]) {
		t.Error("the first of five may not keep quiet")
	}
	// Of 16 polls one takes one more: in five times as many each has its turn.
	const polls = turnEvery * 5
	sameCalls(t, "one keeps quiet", calls(polls), 1, 1, 1, polls, 1)
	q.Posted(&ds[3])
	sameCalls(t, "it has posted", calls(polls), 1, 1, 1, polls, 1)
	q.Posted(&ds[0])
	if got := calls(polls); got[0] != polls || got[3] != polls || got[1] == 0 || got[2] == 0 || got[4] == 0 {
		t.Errorf("another one has posted: %v", got)
	}
	if !q.Quiet(ds[0]) {
		t.Error("the second may not keep quiet")
	}
	sameCalls(t, "two keep quiet", calls(turnEvery/2), turnEvery/2, 0, 0, turnEvery/2, 0)
	if q.Quiet(ds[1]) {
		t.Error("a third may keep quiet")
	}
	q.Posted(&ds[4])
	if got := calls(polls); got[0] != polls || got[3] != polls || got[4] != polls || got[1] == 0 || got[2] == 0 {
		t.Errorf("a third one has posted: %v", got)
	}

	_ = q.Arm(false)
	rests(1, 0, 0, 1, 0)
	q.Quieted(ds[0])
	q.Quieted(ds[3])
	if q.Quiet(ds[0]) {
		t.Error("drivers of an armed queue may keep quiet")
	}
	push(q, 1)
	if n, err := q.Poll(make([]rdma.Completion, 1)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if !q.Quiet(ds[0]) {
		t.Error("drivers may not keep quiet after the event")
	}
	q.RemoveDriver(ds[4])
	q.Quieted(ds[0])
	q.Quieted(ds[0])
	_ = q.Arm(true)
	rests(1, 0, 0, 1, 0)
}

// TestNoLostWakeUp has a waiter arm, poll and wait against pushes from two sides.
func TestNoLostWakeUp(t *testing.T) {
	const each = 20000
	q := New(64, nil, nil)
	var room = make(chan struct{}, 64)
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for id := range uint64(each) {
				room <- struct{}{}
				push(q, id)
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	into := make([]rdma.Completion, 7)
	for got := 0; got < 2*each; {
		n, err := q.Poll(into)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			_ = q.Arm(false)
			if n, _ = q.Poll(into); n == 0 {
				if err := q.Wait(ctx); err != nil {
					t.Fatalf("after %d of %d: %v", got, 2*each, err)
				}
			}
		}
		for range n {
			<-room
		}
		got += n
	}
	group.Wait()
}

func TestPollAllocatesNothing(t *testing.T) {
	q := New(4, nil, nil)
	into := make([]rdma.Completion, 4)
	if n := testing.AllocsPerRun(100, func() {
		push(q, 1)
		_, _ = q.Poll(into)
		_, _ = q.Poll(into)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
