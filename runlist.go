package verbena

import (
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/fifo"
	"github.com/verbena-data/verbena/internal/latch"
)

// runBudget is how many requests of an endpoint are handled before the next one's turn.
const runBudget = 16

// A runnable has work that messages have brought and that needs no lock of the worker.
type runnable interface {
	// run does up to budget pieces of it. One goroutine at a time calls it, and then
	// more.
	run(budget int)
	// more tells whether there is some left. If there is none, the next that messages
	// bring is news again.
	more() bool
}

// A runList is the endpoints whose requests wait to be handled, in turn. The
// worker's own goroutine takes them from it, because handlers may take locks that
// callers who poll hold; when a caller has polled, a goroutine of the list's does.
type runList struct {
	waiting atomic.Int32
	kicked  atomic.Bool
	helpers sync.WaitGroup // goroutines of kick, one at most

	mu   latch.Latch
	line fifo.Queue[runnable]
}

// add puts r at the end of the list. It is on the list once at most.
func (l *runList) add(r runnable) {
	l.mu.Lock()
	l.line.Push(r)
	l.waiting.Store(int32(l.line.Len()))
	l.mu.Unlock()
}

func (l *runList) any() bool { return l.waiting.Load() > 0 }

// next takes the first of the list, or returns nil.
func (l *runList) next() runnable {
	if !l.any() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.line.Len() == 0 {
		return nil
	}
	r := l.line.Pop()
	l.waiting.Store(int32(l.line.Len()))
	return r
}

// one gives the first of the list a budget, and reports false if there is none. Before
// that one's next turn it polls: whoever has come meanwhile is first, in whatever order
// they came. If another goroutine polls, that is waited for only if there is a next turn,
// or nobody else's: what comes for r meanwhile would be news, and before the others.
func (l *runList) one(poll func(wait bool) bool) bool {
	r := l.next()
	if r == nil {
		return false
	}
	r.run(runBudget)
	if !poll(false) && (r.more() || !l.any()) {
		poll(true)
	}
	if r.more() {
		l.add(r)
	}
	return true
}

// kick sees to it that somebody takes what is on the list.
func (l *runList) kick(poll func(wait bool) bool) {
	if l.any() && !l.kicked.Load() && l.kicked.CompareAndSwap(false, true) {
		l.helpers.Go(func() { l.all(poll) })
	}
}

// all takes everything that is on the list.
func (l *runList) all(poll func(wait bool) bool) {
	for {
		for l.one(poll) {
		}
		l.kicked.Store(false)
		if !l.any() || !l.kicked.CompareAndSwap(false, true) {
			return
		}
	}
}
