package verbena

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/latch"
	"github.com/verbena-data/verbena/internal/patience"
	"github.com/verbena-data/verbena/rdma"
)

const (
	pollBatch = 64
	// workerQueue is the depth of a completion queue. Endpoints are dealt to
	// queues that have room for all that they can have outstanding.
	workerQueue = 16 << 10
	// takeover is how long no caller may have polled before the worker watches the queue
	// itself again.
	takeover = time.Millisecond
	// lingering is how many times a worker polls in vain before it sleeps, also where
	// Spin is negative (decision 0029). That takes 2 us over shm, and 30 us over iwarp,
	// where a poll reads sockets.
	lingering = 60
	// lingeringBriefly is how many times it polls where polls are costly and seldom worth it:
	// where they have been in vain mostVain times more than not. Every retryLingering-th time it
	// polls as often as otherwise. What comes later wakes the worker in any case. Over shm that
	// would cost more than it saves: two ends that both sleep at once wake each other for every
	// message.
	lingeringBriefly         = 2
	mostVain, retryLingering = 8, 16
	// mostTurns is how often a worker lets callers run that can, before it sleeps. A worker
	// that sleeps in the kernel takes Go's processor along, until the monitor of Go's scheduler
	// notices, after up to 10 ms. Callers with a processor of another thread, which the kernel
	// does not run, are not worth more turns.
	mostTurns = 16
	// payEvery is how many rounds may find something before what was put off is done. Four
	// long messages of a relay bring as many.
	payEvery = 32
	// eventTurns is how often event looks for more before it leaves the rest to the worker's
	// goroutine. The connection that has called it is not read meanwhile.
	eventTurns = 8
	// A caller that polls lets others at the queue after 8 polls, and reads the clock
	// after 4 times 8: reading it takes as long as a few polls.
	spinBatch, clockBatches = 8, 4
	// A caller that has polled for 300 us without any completion rests for some 60 us. While it
	// polls on Go's only processor, Go looks at the network every 10 ms; whoever would grant
	// the region that all wait for is read from there.
	restEvery = 300 * time.Microsecond
)

// Completion IDs: what completes, and which.
const (
	idReceive = uint64(1) << 56 // | number of the receives << idQueue | slot of the buffer
	idSend    = uint64(2) << 56 // | sequence number in the send queue
	idKind    = uint64(0xff) << 56
	idQueue   = 32
	// maxQueueNumber is the greatest number of receives that an ID has room for.
	maxQueueNumber = 1<<24 - 1
)

// A consumer gets the completions of one queue pair, from one goroutine at a time.
type consumer interface {
	complete([]rdma.Completion)
	// fail tells that there will be no further completions.
	fail(error)
	// endIfStalled ends a connection whose peer has left a message unfinished for
	// so long.
	endIfStalled(time.Duration)
	// tidy posts receives whose messages have been released, if that has been put off.
	tidy()
	// pay tells the peer what has been put off while the worker was at work: see owe.
	pay()
}

// A worker is a completion queue with a poller. Where the queue is a [rdma.EventQueue], who
// brings completions to a worker that sleeps does its work, and nobody has to be woken. Whoever waits for something that arrives
// there may poll as well, and then needs no hand-over from one goroutine to another. While
// callers poll, the worker's own goroutine leaves the queue to them and arms nothing, so
// peers need not raise events. At all other times it watches the queue.
type worker struct {
	cq     rdma.CompletionQueue
	events rdma.EventQueue        // cq, or nil if it is none
	orphan func(*rdma.Completion) // takes those of queue pairs that have gone
	size   int                    // entries of the queue
	crowd  *patience.Crowd        // tells when nobody should poll

	// The domain's mu guards these.
	room      int            // entries of the queue that no endpoint has claimed
	endpoints int            // that have claimed some
	serves    map[uint32]int // how many of them use the shared receives of that number

	mu        sync.Mutex // held to poll
	consumers map[uint32]consumer
	removed   sync.Cond // one of them, on mu
	last      consumer  // of the completion before, whose number is lastNumber
	number    uint32
	polls     uint64     // that found something
	owing     []consumer // whose pay is due
	batch     [pollBatch]rdma.Completion

	look     func(wait bool) bool // pollAll
	runs     runList              // what completions have brought to be done without locks
	serving  atomic.Int32         // endpoints that bring some
	patience atomic.Int64         // the longest of their limits of polling, in nanoseconds
	patient  patience.Spinner     // of the worker's own goroutine
	driver   latch.Latch          // held by the one caller that polls for the answer to its call

	lingers  lingers // of the worker's own goroutine
	callers  callers
	sleepers atomic.Int32  // callers that wait for the worker
	runnable atomic.Int32  // callers that have been woken, or have let others run, and will run
	deferred atomic.Bool   // the queue is left to callers
	recalled atomic.Bool   // it is the worker's again, as soon as no caller polls
	wake     chan struct{} // ends that

	broken atomic.Bool // takes no more endpoints
	cancel context.CancelFunc
	done   chan struct{}
}

// newWorker makes a worker whose queue has at most depth entries.
func newWorker(domain rdma.Domain, depth int, orphan func(*rdma.Completion)) (*worker, error) {
	cq, err := domain.NewCompletionQueue(depth)
	if err != nil {
		return nil, fmt.Errorf("completion queue of %d: %w", depth, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &worker{
		cq: cq, orphan: orphan, size: depth, crowd: patience.Processors, room: depth, serves: map[uint32]int{}, consumers: map[uint32]consumer{},
		wake: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}),
	}
	w.look, w.removed.L = w.pollAll, &w.mu
	if q, ok := cq.(rdma.EventQueue); ok {
		w.events = q
		q.OnEvent(w.event)
		w.lingers.costly = true // a poll reads sockets
	}
	go w.run(ctx)
	return w, nil
}

// close ends the worker's goroutine and the queue. If a queue pair that could not
// be closed still uses the queue, the goroutine ends with the domain.
func (w *worker) close() error {
	w.cancel()
	err := w.cq.Close()
	if err == nil {
		<-w.done
		w.runs.wait()
	}
	return err
}

func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	timer := time.NewTimer(takeover)
	defer timer.Stop()
	rounds := 0 // that found something
	for ctx.Err() == nil {
		if w.callers.any() && !w.leave(ctx, timer) {
			return
		}
		turns, polls := 0, w.lingers.next()
		for idle := 0; idle < polls && !w.callers.any(); idle++ {
			done := w.pollInTurn() > 0
			// New requests of others are seen between any two budgets.
			for w.runs.one(w.look) {
				done = true
			}
			if done {
				if rounds++; rounds%payEvery == 0 {
					w.pay()
				}
				w.lingers.found(idle)
				idle, turns = 0, 0
				w.yield()
			} else if idle == polls-1 && turns < mostTurns && w.runnable.Load() > 0 {
				// Callers can run.
				turns, idle = turns+1, 0
				w.pay()
				runtime.Gosched()
			} else if idle == polls-1 {
				w.lingers.vain(polls)
			}
		}
		w.pay()
		if w.callers.any() || w.serve() {
			continue
		}
		if err := w.cq.Arm(false); err != nil && ctx.Err() != nil {
			return
		} else if err != nil {
			w.fail(fmt.Errorf("arming the completion queue: %w", err))
			return
		}
		// What came before the arming raises no event.
		if w.pollInTurn() > 0 || w.runs.any() || w.owes() {
			continue
		}
		// Closing the queue ends the wait; with a context that can end, each wait
		// would cost allocations.
		if err := w.cq.Wait(context.Background()); err != nil && ctx.Err() == nil {
			w.fail(fmt.Errorf("waiting for completions: %w", err))
			return
		}
	}
}

// spinner returns one for who polls the queue for at most limit.
func (w *worker) spinner(limit time.Duration) patience.Spinner {
	if w.lingers.costly {
		return patience.NewCostlySpinner(limit)
	}
	return patience.NewSpinner(limit)
}

// lingers decide how many times a worker polls in vain before it sleeps.
type lingers struct {
	costly  bool // polls are
	failed  int  // how many more times it was in vain than worth it, 0 to mostVain
	briefly int  // times since it last was long
}

func (l *lingers) next() int {
	if !l.costly || l.failed < mostVain {
		return lingering
	}
	if l.briefly++; l.briefly < retryLingering {
		return lingeringBriefly
	}
	l.briefly = 0
	return lingering
}

// found notes that something came after so many polls in vain. What comes at once would
// have come otherwise.
func (l *lingers) found(polls int) {
	if polls >= lingeringBriefly {
		l.failed = max(l.failed-1, 0)
	}
}

// vain notes that nothing has come.
func (l *lingers) vain(polls int) {
	if polls > lingeringBriefly {
		l.failed = min(l.failed+1, mostVain)
	}
}

// event does the work of the worker's goroutine for who has brought completions, and arms
// the queue again. It reports false if something is left to that goroutine: callers poll,
// or more comes all the time.
func (w *worker) event() (done bool) {
	for range eventTurns {
		if w.callers.any() {
			return false
		}
		busy := w.pollInTurn() > 0
		for turns := 0; turns < eventTurns && w.runs.one(w.look); turns++ {
			busy = true
		}
		if busy {
			continue
		}
		w.pay()
		if w.cq.Arm(false) != nil {
			return false
		}
		// What came before the arming raises no event.
		if w.pollInTurn() == 0 && !w.runs.any() && !w.owes() {
			return true
		}
	}
	return false
}

// yield lets those run whom the worker has woken. If there are none, it would have Go wake
// a thread that finds nothing to do, and takes the worker's processor: a call of ends that
// sleep takes 31 us then, in place of 15 to 20.
func (w *worker) yield() {
	if w.sleepers.Load() > 0 || w.runs.handed.Swap(false) {
		runtime.Gosched()
	}
}

// serve polls for up to the greatest Spin of the endpoints whose requests are handled
// here, if there are any. It tells whether requests came.
func (w *worker) serve() bool {
	if w.serving.Load() == 0 || w.crowd.Dense() {
		return false
	}
	if limit := time.Duration(w.patience.Load()); limit != w.patient.Limit() {
		w.patient = w.spinner(limit)
	}
	budget := w.patient.Next()
	if budget <= 0 {
		return false
	}
	ok, waited := w.spin(budget, w.runs.any, true)
	if !ok {
		w.patient.Vain(budget)
		return false
	}
	w.patient.Helped(waited)
	for w.runs.one(w.look) {
	}
	w.yield()
	return true
}

// leave leaves the queue to polling callers until they stop, one goes to sleep, or one
// has answered a request.
func (w *worker) leave(ctx context.Context, timer *time.Timer) bool {
	w.deferred.Store(true)
	w.pay() // later polls put nothing off
	defer func() {
		w.deferred.Store(false)
		w.recalled.Store(false)
	}()
	for w.callers.any() || w.sleepers.Load() == 0 && !w.recalled.Load() {
		polls := w.polled()
		timer.Reset(takeover)
		select {
		case <-w.wake:
		case <-timer.C:
			if !w.callers.any() && w.polled() == polls {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (w *worker) polled() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.polls
}

// poll handles what has completed, unless another goroutine is at it already.
func (w *worker) poll() {
	if w.mu.TryLock() {
		defer w.mu.Unlock()
		w.pollLocked()
	}
}

// pollAll handles all that has completed so far, so that no endpoint's many messages hide
// those of others behind them. If another goroutine is at it, pollAll waits for its turn,
// or reports false. Requests may go on for long, so nothing stays put off.
func (w *worker) pollAll(wait bool) bool {
	if !w.mu.TryLock() {
		if !wait {
			return false
		}
		w.mu.Lock()
	}
	defer w.mu.Unlock()
	for range workerQueue / pollBatch {
		if w.pollLocked() < pollBatch {
			break
		}
	}
	w.payLocked()
	return true
}

// pollInTurn is poll for the worker's own goroutine, which waits for whoever is at it. A
// caller may copy a long message there, and trying again takes a processor meanwhile.
func (w *worker) pollInTurn() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pollLocked()
}

// owe has a consumer's pay called soon: between requests, before the worker rests, leaves its
// queue to others, or lets callers run, or when it has gone on for long. Its mu is held.
func (w *worker) owe(c consumer) { w.owing = append(w.owing, c) }

// owes tells whether owe was told of some.
func (w *worker) owes() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.owing) > 0
}

// pay has those called that owe was told of.
func (w *worker) pay() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.payLocked()
}

// payLocked is pay for who holds mu.
func (w *worker) payLocked() {
	for i, c := range w.owing {
		c.pay()
		w.owing[i] = nil
	}
	w.owing = w.owing[:0]
}

// drain handles all that has completed so far.
func (w *worker) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.runs.kick(w.look)
	for range workerQueue / pollBatch { // no longer, however busy the others are
		if w.pollLocked() == 0 {
			return
		}
	}
}

func (w *worker) pollLocked() int {
	n, err := w.cq.Poll(w.batch[:])
	if n == 0 && err == nil {
		return 0
	}
	return w.completed(n, err)
}

// completed hands out what a poll has found.
func (w *worker) completed(n int, err error) int {
	for next := 0; next < n; {
		first, number := next, w.batch[next].QueuePair
		for next++; next < n && w.batch[next].QueuePair == number; {
			next++
		}
		if w.last == nil || number != w.number {
			w.last, w.number = w.consumers[number], number
		}
		if w.last != nil {
			w.last.complete(w.batch[first:next])
			continue
		}
		for i := range w.batch[first:next] {
			w.orphan(&w.batch[first+i])
		}
	}
	if n > 0 {
		w.polls++
	}
	if err != nil {
		w.broken.Store(true)
		for _, q := range w.consumers {
			q.fail(fmt.Errorf("completion queue: %w", err))
		}
	}
	return n
}

func (w *worker) fail(err error) {
	w.broken.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.consumers {
		q.fail(err)
	}
}

// all lists the consumers.
func (w *worker) all() []consumer {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]consumer, 0, len(w.consumers))
	for _, c := range w.consumers {
		list = append(list, c)
	}
	return list
}

// add gives q the completions of a queue pair that is not connected yet. The device may
// have taken the number of one that has been closed, as siw takes the least that is
// free: then it waits until nothing of that one is left in the queue.
func (w *worker) add(number uint32, q consumer) {
	w.mu.Lock()
	for w.consumers[number] != nil {
		w.removed.Wait()
	}
	w.consumers[number] = q
	w.last = nil
	w.mu.Unlock()
}

// remove returns when no completion of a queue pair is being handled or will be,
// except by orphan.
func (w *worker) remove(number uint32) {
	w.mu.Lock()
	delete(w.consumers, number)
	w.last = nil
	w.removed.Broadcast()
	w.mu.Unlock()
}
