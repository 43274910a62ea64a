package shm

import (
	"sync"

	"github.com/verbena-data/verbena/rdma"
)

// An eventQueue calls back for events, one at a time, in order.
type eventQueue struct {
	call func(rdma.Event)
	done chan struct{}

	mu     sync.Mutex
	wake   sync.Cond
	events []rdma.Event
	closed bool
}

func newEventQueue(call func(rdma.Event)) *eventQueue {
	q := &eventQueue{call: call, done: make(chan struct{})}
	q.wake.L = &q.mu
	go q.run()
	return q
}

func (q *eventQueue) run() {
	defer close(q.done)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.events) == 0 {
			if q.closed {
				return
			}
			q.wake.Wait()
		}
		events := q.events
		q.events = nil
		q.mu.Unlock()
		for _, event := range events {
			q.call(event)
		}
		q.mu.Lock()
	}
}

// add never blocks. An object raises few events in its life, so the queue is as
// bounded as the objects are.
func (q *eventQueue) add(event rdma.Event) {
	if q == nil {
		return
	}
	q.mu.Lock()
	if !q.closed {
		q.events = append(q.events, event)
	}
	q.mu.Unlock()
	q.wake.Signal()
}

// close delivers what is queued and ends.
func (q *eventQueue) close() {
	if q == nil {
		return
	}
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.wake.Signal()
	<-q.done
}
