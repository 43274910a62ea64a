// Package queue is a bounded queue of calls with levels of priority, and the
// workers that serve it. A user with a large share of the calls has to stand
// behind those with small ones, and can't fill the queue for them.
//
// It knows nothing of calls, and imports nothing of the project.
package queue

import (
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
	keep    int // idle ones that stay

	mu      sync.Mutex
	ready   sync.Cond
	levels  levels[entry[T]]
	shares  shares
	queued  [Levels]load
	total   load
	running int // workers, idle ones included
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

// New returns a queue of at most length items of together at most bytes bytes,
// served by at most workers goroutines at once. A level gets at most half of
// the length and of the bytes. work is called with each item.
func New[T any](length int, bytes int64, workers int, work func(T)) *Queue[T] {
	q := &Queue[T]{work: work, length: length, bytes: bytes, workers: workers, keep: 4 * runtime.GOMAXPROCS(0)}
	q.ready.L = &q.mu
	q.shares.users = map[string]float64{}
	return q
}

// Push adds an item of a size in bytes. An urgent one stands in the first level,
// any other where its user belongs. It reports false, and does nothing, if there is no
// room, or after Close.
func (q *Queue[T]) Push(item T, user string, urgent bool, size int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	level := 0
	if !urgent {
		level = q.shares.level(user, time.Now())
	}
	l := &q.queued[level]
	// What is alone in its level is taken whatever its size.
	if q.total.calls >= q.length || l.calls >= max(q.length/2, 1) ||
		l.calls > 0 && (q.total.bytes+size > q.bytes || l.bytes+size > q.bytes/2) {
		return false
	}
	l.add(1, size)
	q.total.add(1, size)
	q.levels.push(level, entry[T]{item, size})
	switch {
	case q.idle > q.woken:
		q.woken++
		q.ready.Signal()
	case q.running < q.workers:
		q.running++
		q.wg.Add(1)
		go q.serve()
	}
	return true
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

// Close takes no more items, has those that wait served, and waits for that.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	q.closed = true
	q.ready.Broadcast()
	q.mu.Unlock()
	q.wg.Wait()
}
