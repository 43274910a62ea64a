package verbena

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena/internal/patience"
	"github.com/verbena-data/verbena/rdma"
)

// A numberedQueue has the completions that a test puts there.
type numberedQueue struct {
	rdma.CompletionQueue
	waiting []rdma.Completion
	closed  chan struct{}
}

func (q *numberedQueue) Poll(into []rdma.Completion) (int, error) {
	n := copy(into, q.waiting)
	q.waiting = q.waiting[n:]
	return n, nil
}

func (q *numberedQueue) Arm(bool) error             { return nil }
func (q *numberedQueue) Wait(context.Context) error { <-q.closed; return rdma.ErrClosed }
func (q *numberedQueue) Close() error               { close(q.closed); return nil }

type numberedDomain struct {
	rdma.Domain
	queue *numberedQueue
}

func (d *numberedDomain) NewCompletionQueue(int) (rdma.CompletionQueue, error) { return d.queue, nil }

type countingConsumer struct{ got int }

func (c *countingConsumer) complete(batch []rdma.Completion) { c.got += len(batch) }
func (c *countingConsumer) fail(error)                       {}
func (c *countingConsumer) endIfStalled(time.Duration)       {}
func (c *countingConsumer) tidy()                            {}
func (c *countingConsumer) pay()                             {}

// A device gives the number of a queue pair that has been closed to the next one at once.
// What is left in the queue is the first one's, what comes later the second one's, and the
// removal of the first does not take the second away.
func TestNumberIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &numberedQueue{closed: make(chan struct{})}
		w, err := newWorker(&numberedDomain{queue: q}, workerQueue, func(*rdma.Completion) { t.Error("a completion is nobody's") })
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it sleeps
		const number = 1
		var first, second countingConsumer
		completes := func() {
			w.mu.Lock()
			q.waiting = append(q.waiting, rdma.Completion{QueuePair: number})
			w.mu.Unlock()
		}
		w.add(number, &first)
		completes() // and then the queue pair is closed
		added := make(chan struct{})
		go func() {
			w.add(number, &second)
			close(added)
		}()
		synctest.Wait()
		w.drain()
		w.remove(number)
		<-added
		completes()
		w.drain()
		if first.got != 1 || second.got != 1 {
			t.Errorf("the first got %d completions and the second %d, want one each", first.got, second.got)
		}
		w.remove(number)
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
}

// A payingConsumer owes with each completion.
type payingConsumer struct {
	countingConsumer
	w          *worker
	owed, most int
}

func (c *payingConsumer) complete([]rdma.Completion) {
	if c.owed++; c.owed == 1 {
		c.w.owe(c)
	}
	c.most = max(c.most, c.owed)
}
func (c *payingConsumer) pay() { c.owed = 0 }

// An owingQueue has a completion that a caller handles as soon as the worker has armed the
// queue, or many completions, one by one.
type owingQueue struct {
	wokenQueue
	armed func()
	busy  int // polls that find something
}

func (q *owingQueue) Arm(bool) error {
	if armed := q.armed; armed != nil {
		q.armed = nil
		armed()
	}
	return nil
}

func (q *owingQueue) Poll(into []rdma.Completion) (int, error) {
	if q.busy > 0 {
		into[0] = rdma.Completion{}
		q.busy--
		return 1, nil
	}
	return q.wokenQueue.Poll(into)
}

type owingDomain struct {
	rdma.Domain
	queue *owingQueue
}

func (d *owingDomain) NewCompletionQueue(int) (rdma.CompletionQueue, error) { return d.queue, nil }

// What is put off while a worker is at work is done before it rests, whoever has put it off,
// before it leaves its queue to callers, and when it has gone on for long.
func TestWorkerPays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &owingQueue{wokenQueue: wokenQueue{numberedQueue: numberedQueue{closed: make(chan struct{})}, woken: make(chan struct{})}}
		w, err := newWorker(&owingDomain{queue: q}, workerQueue, func(*rdma.Completion) { t.Error("a completion is nobody's") })
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it sleeps
		c := &payingConsumer{w: w}
		w.add(0, c)
		completes := func() {
			w.mu.Lock()
			q.waiting = append(q.waiting, rdma.Completion{})
			w.mu.Unlock()
		}
		completes()
		q.woken <- struct{}{}
		if synctest.Wait(); c.owed != 0 {
			t.Error("the worker sleeps and owes")
		}
		q.armed = func() {
			completes()
			w.pollNow()
		}
		q.woken <- struct{}{}
		if synctest.Wait(); c.owed != 0 {
			t.Error("the worker sleeps, and a caller that polled after the arming owes")
		}
		w.callers.others.Add(1)
		completes()
		w.pollNow()
		q.woken <- struct{}{}
		if synctest.Wait(); c.owed != 0 {
			t.Error("the worker leaves its queue to callers and owes")
		}
		w.callers.others.Add(-1)
		time.Sleep(2 * takeover) // of the bubble's time: the worker takes its queue back
		synctest.Wait()
		q.busy = 3 * payEvery
		q.woken <- struct{}{}
		synctest.Wait()
		if c.most > payEvery {
			t.Errorf("a worker that finds something all the time owes for %d rounds, want %d at most", c.most, payEvery)
		}
		w.remove(0)
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
}

// A worker that polls for requests, and finds other things all the time, does what is put off.
func TestWorkerPaysWhileItPolls(t *testing.T) {
	var now time.Duration
	clock := patience.NewCrowd(func() time.Duration { now += time.Microsecond; return now }, func() (time.Duration, bool) { return 0, false })
	q := &owingQueue{busy: 1000}
	w := &worker{cq: q, crowd: clock, consumers: map[uint32]consumer{}}
	c := &payingConsumer{w: w}
	w.consumers[0] = c
	w.spin(10*time.Microsecond, func() bool { return false }, true)
	if q.busy > 0 || c.most > spinBatch || c.owed > 0 {
		t.Errorf("%d completions are left; the worker owed for up to %d, want %d at most, and owes for %d", q.busy, c.most, spinBatch, c.owed)
	}
}

// Requests that never end keep nobody waiting for what is put off meanwhile.
func TestWorkerPaysBetweenRequests(t *testing.T) {
	q := &owingQueue{busy: 5000}
	w := &worker{cq: q, consumers: map[uint32]consumer{}}
	w.look = w.pollAll
	c := &payingConsumer{w: w}
	w.consumers[0] = c
	w.runs.add(&endlessRun{left: 1000})
	for w.runs.one(w.look) {
	}
	if q.busy > 4000 || c.most > pollBatch || c.owed > 0 {
		t.Errorf("%d of 5,000 completions are left; the worker owed for up to %d, want %d at most, and owes for %d", q.busy, c.most, pollBatch, c.owed)
	}
}

// An endlessRun has more requests each time.
type endlessRun struct{ left int }

func (r *endlessRun) run(int) bool { r.left--; return false }
func (r *endlessRun) waits() bool  { return r.left > 0 }
func (r *endlessRun) more() bool   { return r.left > 0 }

// A wokenQueue ends a wait when the test says so.
type wokenQueue struct {
	numberedQueue
	woken chan struct{}
}

func (q *wokenQueue) Wait(context.Context) error {
	select {
	case <-q.woken:
		return nil
	case <-q.closed:
		return rdma.ErrClosed
	}
}

type wokenDomain struct {
	rdma.Domain
	queue *wokenQueue
}

func (d *wokenDomain) NewCompletionQueue(int) (rdma.CompletionQueue, error) { return d.queue, nil }

// Whoever has polled to send an answer gives the worker its queue back: no request waits
// for the time after which it would be missed.
func TestWorkerServesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &wokenQueue{numberedQueue: numberedQueue{closed: make(chan struct{})}, woken: make(chan struct{})}
		w, err := newWorker(&wokenDomain{queue: q}, workerQueue, func(*rdma.Completion) {})
		if err != nil {
			t.Fatal(err)
		}
		w.serving.Store(1)
		count := func(f func()) {
			w.mu.Lock()
			f()
			w.mu.Unlock()
		}
		for range 2 {
			synctest.Wait() // it sleeps
			count(w.callers.comes)
			q.woken <- struct{}{}
			synctest.Wait()
			if !w.deferred.Load() {
				t.Fatal("the worker does not leave its queue to a caller that polls")
			}
			w.serveOn()
			synctest.Wait()
			if !w.deferred.Load() {
				t.Fatal("the worker takes its queue from a caller that polls")
			}
			count(w.callers.goes)
			w.serveOn()
			synctest.Wait()
			if w.deferred.Load() {
				t.Fatal("the worker leaves its queue to callers, of whom none is left")
			}
		}
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
}

// An eventQueue tells of events by a function.
type eventQueue struct {
	numberedQueue
	event   func() bool
	arms    int
	endless bool // there is always one more completion
	late    int  // completions that come just when the queue is armed
	holds   int
	raised  int // completions that were left when nobody held the queue any more
}

func (q *eventQueue) Hold()      { q.holds++ }
func (q *eventQueue) Held() bool { return q.holds > 0 && len(q.waiting) > 0 }

func (q *eventQueue) Release() {
	if q.holds--; q.holds == 0 {
		q.raised += len(q.waiting)
	}
}

func (q *eventQueue) OnEvent(f func() bool) { q.event = f }

func (q *eventQueue) Arm(bool) error {
	q.arms++
	q.waiting = append(q.waiting, make([]rdma.Completion, q.late)...)
	q.late = 0
	return nil
}

func (q *eventQueue) Poll(into []rdma.Completion) (int, error) {
	if q.endless {
		q.waiting = append(q.waiting, rdma.Completion{})
	}
	return q.numberedQueue.Poll(into)
}

type eventDomain struct {
	rdma.Domain
	queue *eventQueue
}

func (d *eventDomain) NewCompletionQueue(int) (rdma.CompletionQueue, error) { return d.queue, nil }

// Who brings completions to a worker that sleeps takes all of them and arms the queue, or
// leaves that to the worker's goroutine.
func TestEventsOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &eventQueue{numberedQueue: numberedQueue{closed: make(chan struct{})}}
		w, err := newWorker(&eventDomain{queue: q}, workerQueue, func(*rdma.Completion) { t.Error("a completion is nobody's") })
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it sleeps
		var c countingConsumer
		w.add(0, &c)
		arms := q.arms
		q.waiting, q.late = make([]rdma.Completion, 3), 2
		if !q.event() {
			t.Error("something is left to the worker's goroutine")
		}
		if c.got != 5 || q.arms != arms+2 {
			t.Errorf("%d completions and %d times armed, want 5, of which 2 came with the first arming, and 2", c.got, q.arms-arms)
		}
		arms = q.arms
		w.callers.others.Add(1)
		if q.event() || q.arms != arms {
			t.Error("a queue that callers poll is armed, or not left to them")
		}
		w.callers.others.Add(-1)
		q.endless = true
		if q.event() {
			t.Error("whoever brings completions stays although more come all the time")
		}
		q.endless = false
		w.drain()

		// Who has posted takes what has completed at once.
		c.got, q.waiting = 0, make([]rdma.Completion, 1)
		w.hold()
		if w.settle(); c.got != 1 || q.holds != 0 || q.raised != 0 {
			t.Errorf("%d completions are taken by who has posted, %d hold the queue, and %d raise an event; want 1, 0 and 0", c.got, q.holds, q.raised)
		}
		q.waiting = make([]rdma.Completion, 1)
		w.hold()
		w.mu.Lock() // somebody polls
		if w.settle(); c.got != 1 || q.raised != 1 {
			t.Error("who has posted waits for another one who polls, or what that has not seen raises no event")
		}
		w.mu.Unlock()
		w.drain()
		w.remove(0)
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
}

// A rousingQueue brings one completion, and tells how many callers could run when the
// worker went to sleep after it.
type rousingQueue struct {
	numberedQueue
	begin  chan struct{}
	left   func() int32
	asleep chan int32
}

func (q *rousingQueue) Wait(ctx context.Context) error {
	if q.begin == nil {
		q.asleep <- q.left()
	}
	select {
	case <-q.begin:
		q.begin = nil
		q.waiting = []rdma.Completion{{QueuePair: 1}}
		return nil
	case <-q.closed:
		return rdma.ErrClosed
	}
}

type rousingDomain struct {
	rdma.Domain
	queue *rousingQueue
}

func (d *rousingDomain) NewCompletionQueue(int) (rdma.CompletionQueue, error) { return d.queue, nil }

// A rousingConsumer wakes callers.
type rousingConsumer struct {
	countingConsumer
	rouse func()
}

func (c *rousingConsumer) complete([]rdma.Completion) { c.rouse() }

// A worker that has woken callers does not sleep in the kernel, where it keeps Go's only
// processor, before they have run. Go's scheduler takes every 61st goroutine from behind
// them, and that is the worker.
func TestWorkerSleepsAfterCallers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const callers = 200
	q := &rousingQueue{numberedQueue: numberedQueue{closed: make(chan struct{})}, begin: make(chan struct{}), asleep: make(chan int32, 8)}
	w, err := newWorker(&rousingDomain{queue: q}, workerQueue, func(*rdma.Completion) {})
	if err != nil {
		t.Fatal(err)
	}
	q.left = w.runnable.Load
	wakes := make(chan struct{})
	var ran sync.WaitGroup
	for range callers {
		ran.Go(func() {
			w.sleep()
			<-wakes
			w.awake()
			w.runnable.Add(-1)
		})
	}
	for w.sleepers.Load() < callers {
		runtime.Gosched()
	}
	w.add(1, &rousingConsumer{rouse: func() {
		w.runnable.Add(callers)
		close(wakes)
	}})
	close(q.begin)
	if left := <-q.asleep; left != 0 {
		t.Errorf("the worker slept while %d callers could run", left)
	}
	ran.Wait()
	w.remove(1)
	if err := w.close(); err != nil {
		t.Error(err)
	}
}

// A worker lingers as long as something comes meanwhile half of the times. When it does not,
// the worker sleeps soon, tries again now and then, and lingers again when that is worth it.
func TestWorkerLingers(t *testing.T) {
	for _, c := range []struct {
		name   string
		worth  func(time int) bool // whether something comes within a long one
		times  int
		longAt func(time int) bool
	}{
		{"always worth it", func(int) bool { return true }, 200, func(int) bool { return true }},
		{"mostly", func(time int) bool { return time%3 > 0 }, 200, func(int) bool { return true }},
		{"never", func(int) bool { return false }, 200, func(time int) bool { return time < mostVain || (time-mostVain)%retryLingering == retryLingering-1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := lingers{costly: true}
			for time := range c.times {
				polls := l.next()
				if long := polls == lingering; long != c.longAt(time) {
					t.Fatalf("time %d: %d polls", time, polls)
				}
				if polls == lingering && c.worth(time) {
					l.found(lingering / 3)
				}
				l.found(0) // what wakes the worker is there at once, and says nothing
				if polls != lingering || !c.worth(time) {
					l.vain(polls)
				}
			}
		})
	}
	if l := (lingers{failed: mostVain}); l.next() != lingering {
		t.Error("it sleeps soon where polls cost nothing")
	}
	l := lingers{costly: true, failed: mostVain}
	for range retryLingering {
		if l.next() == lingering {
			l.found(lingeringBriefly)
		}
	}
	if l.next() != lingering {
		t.Error("it does not linger again when that was worth it")
	}
}

// A worker that was woken in vain sleeps soon.
func TestWorkerSleepsSoon(t *testing.T) {
	q := &lingeringQueue{numberedQueue: numberedQueue{closed: make(chan struct{})}, round: make(chan int)}
	w := &worker{cq: q, crowd: patience.Processors, wake: make(chan struct{}, 1), done: make(chan struct{}), lingers: lingers{costly: true}}
	ctx, cancel := context.WithCancel(t.Context())
	go w.run(ctx)
	for round := range mostVain + 3 {
		want := lingering
		if round >= mostVain {
			want = lingeringBriefly
		}
		if polls := <-q.round; polls != want {
			t.Errorf("round %d: %d polls in vain before it sleeps, want %d", round, polls, want)
		}
	}
	cancel()
	close(q.closed)
	<-w.done
}

// A lingeringQueue tells of the polls before each arming, and ends each wait at once.
type lingeringQueue struct {
	numberedQueue
	polls int
	round chan int
}

func (q *lingeringQueue) Poll(into []rdma.Completion) (int, error) {
	q.polls++
	return q.numberedQueue.Poll(into)
}

func (q *lingeringQueue) Arm(bool) error {
	select {
	case q.round <- q.polls:
	case <-q.closed:
	}
	q.polls = -1 // one follows
	return nil
}

func (q *lingeringQueue) Wait(context.Context) error { return nil }

// Who polls stops where threads have waited for processors for more than half of the time,
// and nobody polls for a while.
func TestPollerStopsInCrowd(t *testing.T) {
	const (
		step  = 20 * time.Microsecond // of the clock, from one look at it to the next
		limit = 100 * time.Millisecond
		up    = time.Hour // the machine has been when the clock began
	)
	for _, c := range []struct {
		name  string
		age   time.Duration // of the process
		share float64       // of the time some thread waits
		known bool
		want  time.Duration // for how long one polls
	}{
		{"nobody waits", time.Hour, 0, true, limit},
		{"others wait seldom", time.Hour, 0.45, true, limit},
		{"others wait more than half of the time", time.Hour, 0.55, true, 2 * time.Millisecond},
		{"a process has just begun", 2 * time.Millisecond, 0, true, limit},
		{"there is no account", time.Hour, 1, false, limit},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := c.age
			w := &worker{cq: &numberedQueue{}, crowd: patience.NewCrowd(
				func() time.Duration { now += step; return now },
				func() (time.Duration, bool) { return up + time.Duration(c.share*float64(now)), c.known },
			)}
			began := now
			if ok, _ := w.spin(limit, func() bool { return false }, false); ok {
				t.Fatal("somebody was there")
			}
			spent := now - began
			if spent < c.want/2 || spent > c.want+2*step {
				t.Errorf("polls for %v, want %v", spent, c.want)
			}
			if stopped := c.want < limit; w.crowd.Dense() != stopped {
				t.Errorf("nobody polls from then on: %v, want %v", !stopped, stopped)
			}
		})
	}
}

// Who polls in vain tries again sooner where a poll makes no system calls.
func TestSpinnersOfAQueue(t *testing.T) {
	tries := func(costly bool) (n int) {
		w := worker{lingers: lingers{costly: costly}}
		spin := w.spinner(time.Millisecond)
		for range 10_000 {
			d := spin.Next()
			if d > 0 {
				n++
			}
			spin.Vain(d)
		}
		return n
	}
	if cheap, costly := tries(false), tries(true); cheap < 500 || costly > 100 {
		t.Errorf("%d tries in 10,000 waits, and %d where polls are costly", cheap, costly)
	}
}
