// Package queue is a bounded queue of calls with levels of priority, and the
// workers that serve it. A user with a large share of the calls has to stand
// behind those with small ones, and can't fill the queue for them.
//
// It knows nothing of calls, and imports nothing of the project.
package queue

import (
	"container/list"
	"context"
	"runtime"
	"sync"
	"time"
)

// Queue is a queue with its workers. Its methods may be called concurrently.
type Queue[T any] struct {
	work    func(T)
	length  int
	bytes   int64
	workers int
	keep    int // idle workers that stay, with the stacks that have grown

	mu      sync.Mutex
	ready   sync.Cond
	levels  levels[entry[T]]
	shares  shares
	queued  [Levels]load
	total   load
	outside [Levels]list.List // of *outsider, who wait for room
	waiting int               // in outside
	running int               // workers, idle ones included
	away    int               // items that count as being worked on, see Begin
	idle    int
	woken   int // idle ones that have been told to look
	closed  bool
	wg      sync.WaitGroup
}

type load struct {
	calls int
	bytes int64
}

func (l *load) add(calls int, bytes int64) { l.calls += calls; l.bytes += bytes }

type entry[T any] struct {
	item T
	size int64
}

// outsider is an item that waits for room.
type outsider[T any] struct {
	entry[T]
	in chan struct{} // closed when it has got in
}

// idleWorkers is how many idle workers stay at least. A new one grows its stack with its
// first item, which was 6 % of the processor time of a NameNode's deletes by 32 callers when
// 8 stayed. An idle one holds some 8 to 16 KiB.
const idleWorkers = 64

// New returns a queue of at most length items of together at most bytes bytes,
// served by at most workers goroutines at once. A level gets at most half of
// the length and of the bytes. work is called with each item.
func New[T any](length int, bytes int64, workers int, work func(T)) *Queue[T] {
	q := &Queue[T]{work: work, length: length, bytes: bytes, workers: workers, keep: max(idleWorkers, 4*runtime.GOMAXPROCS(0))}
	q.ready.L = &q.mu
	q.shares.users = map[string]float64{}
	return q
}

// Push adds an item of a size in bytes. An urgent one stands in the first level,
// any other where its user belongs. It reports false, and does nothing, if there is no
// room, or after Close; the level is for PushWait.
func (q *Queue[T]) Push(item T, user string, urgent bool, size int64) (ok bool, level int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !urgent {
		level = q.shares.level(user, time.Now())
	}
	return q.enter(level, entry[T]{item, size}), level
}

// PushWait goes on where Push found no room: it waits behind those of the level
// that wait already, not longer than most and not beyond the end of ctx.
func (q *Queue[T]) PushWait(ctx context.Context, item T, level int, size int64, most time.Duration) bool {
	e := entry[T]{item, size}
	q.mu.Lock()
	if q.enter(level, e) {
		q.mu.Unlock()
		return true
	}
	if q.closed {
		q.mu.Unlock()
		return false
	}
	o := &outsider[T]{e, make(chan struct{})}
	place := q.outside[level].PushBack(o)
	q.waiting++
	q.mu.Unlock()

	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-o.in:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-o.in:
		return true
	default:
	}
	q.outside[level].Remove(place)
	q.waiting--
	q.letIn() // those behind it may be smaller
	return false
}

// enter adds an entry if there is room and nobody waits for it. The caller
// holds mu.
func (q *Queue[T]) enter(level int, e entry[T]) bool {
	if q.closed || q.outside[level].Len() > 0 || !q.fits(level, e.size) {
		return false
	}
	q.push(level, e)
	return true
}

// fits tells whether there is room. What is alone in its level is taken whatever
// its size. The caller holds mu.
func (q *Queue[T]) fits(level int, size int64) bool {
	l := &q.queued[level]
	return q.total.calls < q.length && l.calls < max(q.length/2, 1) &&
		(l.calls == 0 || q.total.bytes+size <= q.bytes && l.bytes+size <= q.bytes/2)
}

// letIn lets those in who wait and fit, in their order. The caller holds mu.
func (q *Queue[T]) letIn() {
	for level := range q.outside {
		l := &q.outside[level]
		for first := l.Front(); first != nil; first = l.Front() {
			o := first.Value.(*outsider[T])
			if !q.fits(level, o.size) {
				break
			}
			l.Remove(first)
			q.waiting--
			q.push(level, o.entry)
			close(o.in)
		}
	}
}

// push adds an entry and has it served. The caller holds mu.
func (q *Queue[T]) push(level int, e entry[T]) {
	q.queued[level].add(1, e.size)
	q.total.add(1, e.size)
	q.levels.push(level, e)
	q.rouse()
}

// rouse has an item served that nobody has been told of, if there is a worker for it. The
// caller holds mu.
func (q *Queue[T]) rouse() {
	switch {
	case q.running-q.idle+q.woken+q.away >= q.workers: // who is done looks
	case q.idle > q.woken:
		q.woken++
		q.ready.Signal()
	default:
		q.running++
		q.wg.Add(1)
		go q.serve()
	}
}

// Begin counts an item of a user, or an urgent one, as one that a worker works on, until End. It reports false, and
// does nothing, where an item that is pushed would have to wait: others wait, or all workers
// have work.
func (q *Queue[T]) Begin(user string, urgent bool, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.total.calls > 0 || q.running-q.idle+q.away >= q.workers {
		return false
	}
	if !urgent {
		q.shares.level(user, now)
	}
	q.away++
	return true
}

// End ends what Begin began.
func (q *Queue[T]) End() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.away--
	if q.total.calls > 0 {
		q.rouse()
	}
}

func (q *Queue[T]) serve() {
	defer q.wg.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		e, level, ok := q.levels.pop()
		if !ok {
			if q.closed || q.idle >= q.keep {
				q.running--
				return
			}
			q.idle++
			q.ready.Wait()
			q.idle--
			q.woken = max(q.woken-1, 0)
			continue
		}
		q.queued[level].add(-1, -e.size)
		q.total.add(-1, -e.size)
		if q.waiting > 0 {
			q.letIn()
		}
		q.mu.Unlock()
		q.work(e.item)
		q.mu.Lock()
	}
}

// Len returns how many items wait.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total.calls
}

// Waiting returns how many items wait for room in the queue.
func (q *Queue[T]) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// Close takes no more items, has those that wait served, and waits for that. No
// PushWait may be under way.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	q.closed = true
	q.ready.Broadcast()
	q.mu.Unlock()
	q.wg.Wait()
}
