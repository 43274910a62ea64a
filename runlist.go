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
	// run does up to budget pieces of it, and tells whether other goroutines have been
	// given something to do. One goroutine at a time calls it, and then more.
	run(budget int) (handed bool)
	// waits tells whether there is some left.
	waits() bool
	// more is waits of who is not on the list. If there is none left, the next that
	// messages bring puts it there again, and more is not asked before it has run.
	more() bool
}

// A runList is the endpoints whose requests wait to be handled, in turn. Callers who poll
// do not handle requests: a handler may take a lock that the caller holds. The worker's
// own goroutine does, or a helper when a caller has polled what it finds there.
type runList struct {
	waiting atomic.Int32
	kicked  atomic.Bool
	handed  atomic.Bool    // a run has given other goroutines something to do
	helpers sync.WaitGroup // goroutines of kick that wait waits for

	mu    latch.Latch
	line  fifo.Queue[runnable]
	ended bool // wait has been called
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

// one lets the first of the list, r, handle up to runBudget requests. It reports false if
// the list is empty.
//
// Then it polls, so that endpoints whose requests have come meanwhile get on the list
// before r does again. If another goroutine polls just now, one waits for it in two
// cases: if r has more to do, and if nobody else is on the list. In the second case r,
// off the list, would be put there as soon as something came for it, and before those
// whose requests came earlier and are still to be polled.
func (l *runList) one(poll func(wait bool) bool) bool {
	r := l.next()
	if r == nil {
		return false
	}
	if r.run(runBudget) {
		l.handed.Store(true)
	}
	if !poll(false) && (r.waits() || !l.any()) {
		poll(true)
	}
	if r.more() {
		l.add(r)
	}
	return true
}

// kick starts a helper, unless there is one, if something is on the list.
func (l *runList) kick(poll func(wait bool) bool) {
	if l.any() && !l.kicked.Load() && l.kicked.CompareAndSwap(false, true) {
		l.help(poll)
	}
}

// help starts a helper. Whoever calls it after wait outlives the worker, and its helper
// finds nothing there but requests to drop.
func (l *runList) help(poll func(wait bool) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		go l.all(poll)
		return
	}
	l.helpers.Go(func() { l.all(poll) })
}

// wait waits for the helpers that have been started so far.
func (l *runList) wait() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.helpers.Wait()
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
