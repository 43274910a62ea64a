package verbena

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

const (
	pollBatch = 64
	// workerQueue is the depth of a completion queue. Endpoints are dealt to
	// queues that have room for all that they can have outstanding.
	workerQueue = 16 << 10
	// takeover is how long callers that poll may leave their worker alone before
	// it watches the queue itself again.
	takeover = time.Millisecond
	// lingering is how many times a worker polls in vain before it sleeps.
	lingering = 20
)

// Completion IDs: what completes, and which.
const (
	idReceive = uint64(1) << 56 // | buffer's slot
	idSend    = uint64(2) << 56 // | place in the send queue
	idKind    = uint64(0xff) << 56
)

// A worker is a completion queue with a poller. Whoever waits for something
// that arrives there may poll as well, and then needs no hand-over from one
// goroutine to another; the worker's own goroutine leaves the queue to such
// callers while there are any, so that peers need not raise events, and
// watches it at all other times.
type worker struct {
	d    *device
	cq   rdma.CompletionQueue
	room int // entries that no endpoint has claimed; guarded by d.mu

	mu       sync.Mutex // held to poll
	carriers map[uint32]*queue
	batch    [pollBatch]rdma.Completion

	callers  atomic.Int32  // that poll now
	turns    atomic.Uint64 // of callers that have polled
	sleepers atomic.Int32  // callers that wait for the worker
	deferred atomic.Bool   // the queue is left to callers
	wake     chan struct{} // ends that

	broken atomic.Bool // takes no more endpoints
	cancel context.CancelFunc
	done   chan struct{}
}

func newWorker(d *device, domain rdma.Domain) (*worker, error) {
	depth := workerQueue
	if m := d.attributes.MaxCompletions; m > 0 {
		depth = min(depth, m)
	}
	cq, err := domain.NewCompletionQueue(depth)
	if err != nil {
		return nil, fmt.Errorf("completion queue of %d: %w", depth, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &worker{
		d: d, cq: cq, room: depth, carriers: map[uint32]*queue{},
		wake: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}),
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
	}
	return err
}

func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	timer := time.NewTimer(takeover)
	defer timer.Stop()
	for ctx.Err() == nil {
		if w.callers.Load() > 0 && !w.leave(ctx, timer) {
			return
		}
		for idle := 0; idle < lingering && w.callers.Load() == 0; idle++ {
			if n, _ := w.poll(); n > 0 {
				idle = 0
			}
			runtime.Gosched()
		}
		if w.callers.Load() > 0 {
			continue
		}
		if err := w.cq.Arm(false); err != nil && ctx.Err() != nil {
			return
		} else if err != nil {
			w.fail(fmt.Errorf("arming the completion queue: %w", err))
			return
		}
		// What came before the arming raises no event.
		if n, busy := w.poll(); n > 0 || busy {
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

// leave leaves the queue to polling callers until they stop or one goes to sleep.
func (w *worker) leave(ctx context.Context, timer *time.Timer) bool {
	w.deferred.Store(true)
	defer w.deferred.Store(false)
	for w.sleepers.Load() == 0 || w.callers.Load() > 0 {
		turns := w.turns.Load()
		timer.Reset(takeover)
		select {
		case <-w.wake:
		case <-timer.C:
			if w.callers.Load() == 0 && w.turns.Load() == turns {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// poll handles what has completed. It tells how much that was, and whether
// another goroutine was at it already.
func (w *worker) poll() (n int, busy bool) {
	if !w.mu.TryLock() {
		return 0, true
	}
	defer w.mu.Unlock()
	return w.pollLocked(), false
}

// drain handles all that has completed so far.
func (w *worker) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range workerQueue / pollBatch { // no longer, however busy the others are
		if w.pollLocked() == 0 {
			return
		}
	}
}

func (w *worker) pollLocked() int {
	n, err := w.cq.Poll(w.batch[:])
	for i := range w.batch[:n] {
		c := &w.batch[i]
		if q := w.carriers[c.QueuePair]; q != nil {
			q.completed(c)
		}
	}
	if err != nil {
		w.broken.Store(true)
		for _, q := range w.carriers {
			q.fail(fmt.Errorf("completion queue: %w", err))
		}
	}
	return n
}

func (w *worker) fail(err error) {
	w.broken.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.carriers {
		q.fail(err)
	}
}

func (w *worker) add(q *queue) {
	w.mu.Lock()
	w.carriers[q.qp.Number()] = q
	w.mu.Unlock()
}

// remove returns when no completion of q is being handled or will be.
func (w *worker) remove(q *queue) {
	w.mu.Lock()
	delete(w.carriers, q.qp.Number())
	w.mu.Unlock()
}

// drive polls for as long as the spinner has it, until ready says that the
// caller's wait is over. It tells whether it is.
func (w *worker) drive(s *spinner, ready func() bool) bool {
	budget := s.next()
	start := processors.now()
	if budget <= 0 || processors.dense(start) {
		w.poll() // what has come already need not wait for the worker
		return ready()
	}
	w.callers.Add(1)
	var ok bool
	last := start
	for i := 1; ; i++ {
		n, _ := w.poll()
		if ok = ready(); ok {
			break
		}
		if n == 0 && i%8 == 0 {
			now := processors.now()
			if now-last > preempted {
				processors.pushed(now)
				break
			}
			if last = now; now-start > budget {
				break
			}
			runtime.Gosched()
		}
	}
	w.turns.Add(1)
	if w.callers.Add(-1) == 0 && w.sleepers.Load() > 0 {
		w.watch()
	}
	if !ok {
		s.vain(budget)
		return false
	}
	now := processors.now()
	if now-last > preempted {
		processors.pushed(now)
	}
	s.helped(now - start)
	return true
}

// watch makes the worker's own goroutine watch the queue.
func (w *worker) watch() {
	if w.deferred.Load() {
		notify(w.wake)
	}
}

// sleep announces a caller that waits without polling, until awake.
func (w *worker) sleep() {
	w.sleepers.Add(1)
	w.watch()
}

func (w *worker) awake() { w.sleepers.Add(-1) }
