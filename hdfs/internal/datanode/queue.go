package datanode

import (
	"slices"
	"sync"
)

// A queue runs tasks of one kind, a few at a time, and each of them once.
type queue struct {
	dn      *DataNode
	limit   int
	mu      sync.Mutex
	known   map[[2]uint64]struct{}
	waiting []task
	workers map[*worker]struct{} // those that count
}

// A task is for a block in a directory, or nowhere.
type task struct {
	key [2]uint64
	dir int
	run func()
}

// A worker runs one task after the other.
type worker struct{ dir int } // of its task

const nowhere = -1

func (q *queue) init(dn *DataNode, limit int) {
	q.dn, q.limit, q.known, q.workers = dn, limit, map[[2]uint64]struct{}{}, map[*worker]struct{}{}
}

// add has a task run soon, unless it is known already. Those for a directory that hangs are dropped:
// the NameNode orders them again.
func (q *queue) add(block, gen uint64, dir int, run func()) {
	key := [2]uint64{block, gen}
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.known[key]; ok || len(q.known) > maxChanges || dir != nowhere && q.dn.store.Hangs(dir) {
		return
	}
	q.known[key] = struct{}{}
	q.waiting = append(q.waiting, task{key, dir, run})
	q.hire()
}

// hire begins a worker if there may be one more. The caller has q.mu.
func (q *queue) hire() bool {
	w := &worker{dir: nowhere}
	if len(q.workers) >= q.limit || !q.dn.goBackground(func() { q.work(w) }) {
		return false
	}
	q.workers[w] = struct{}{}
	return true
}

func (q *queue) work(w *worker) {
	for {
		q.mu.Lock()
		_, counts := q.workers[w]
		if !counts || len(q.waiting) == 0 || q.dn.ctx.Err() != nil {
			delete(q.workers, w)
			q.mu.Unlock()
			return
		}
		t := q.waiting[0]
		q.waiting = q.waiting[1:]
		w.dir = t.dir
		q.mu.Unlock()
		t.run()
		q.mu.Lock()
		w.dir = nowhere
		delete(q.known, t.key)
		q.mu.Unlock()
	}
}

// passBy drops the tasks that wait for a directory, and begins a new worker for each that is at one:
// it may be there for ever.
func (q *queue) passBy(dir int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(t task) bool {
		if t.dir == dir {
			delete(q.known, t.key)
		}
		return t.dir == dir
	})
	for w := range q.workers {
		if w.dir == dir {
			delete(q.workers, w)
		}
	}
	for range q.waiting {
		if !q.hire() {
			break
		}
	}
}
