package domains

import (
	"sync"

	"github.com/verbena-data/verbena/rdma"
)

// mostEvents bounds a list whose application does not take its events: ports go up
// and down for ever.
const mostEvents = 1 << 16

// Events brings a domain's asynchronous events to the application. It is a list and
// the goroutine that delivers what is on it, one at a time and in order, so that who
// raises an event never waits. Its methods may be called concurrently, after Start.
type Events struct {
	mu      sync.Mutex
	list    []entry
	wake    chan struct{}
	done    chan struct{}
	stopped bool
}

type entry struct {
	rdma.Event
	before func()
}

// Start begins to deliver; nil drops the events. Stop must follow.
func (q *Events) Start(deliver func(rdma.Event)) {
	q.wake, q.done = make(chan struct{}, 1), make(chan struct{})
	go q.run(deliver)
}

func (q *Events) run(deliver func(rdma.Event)) {
	defer close(q.done)
	for range q.wake {
		for {
			q.mu.Lock()
			list, stopped := q.list, q.stopped
			q.list = nil
			q.mu.Unlock()
			if len(list) == 0 {
				if stopped {
					return
				}
				break
			}
			for _, e := range list {
				if e.before != nil {
					e.before()
				}
				if deliver != nil {
					deliver(e.Event)
				}
			}
		}
	}
}

// Add appends an event and does not wait. When 65,536 wait to be taken, further
// ones are lost.
func (q *Events) Add(event rdma.Event) { q.add(entry{Event: event}) }

// AddAfter is Add with something to do before, in the queue's goroutine. That is
// never lost: raise such events once for an object.
func (q *Events) AddAfter(before func(), event rdma.Event) { q.add(entry{event, before}) }

func (q *Events) add(e entry) {
	q.mu.Lock()
	if !q.stopped && (len(q.list) < mostEvents || e.before != nil) {
		q.list = append(q.list, e)
	}
	q.mu.Unlock()
	q.signal()
}

func (q *Events) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Stop delivers what is there, ends the goroutine and waits for it. What is added
// later is dropped.
func (q *Events) Stop() {
	q.mu.Lock()
	q.stopped = true
	q.mu.Unlock()
	q.signal()
	<-q.done
}
