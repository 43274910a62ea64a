package verbena

import (
	"sync"
	"testing"
)

// A stepped list: who handled how many requests, in order.
type steppedSink struct {
	name   int
	left   int
	queued bool // on the list, or running
	steps  *[]int
	ready  func() // is called at each request
}

func (s *steppedSink) run(budget int) (handed bool) {
	for ; budget > 0 && s.left > 0; budget-- {
		s.left--
		*s.steps = append(*s.steps, s.name)
		s.ready()
	}
	return false
}

func (s *steppedSink) waits() bool { return s.left > 0 }

func (s *steppedSink) more() bool {
	s.queued = s.left > 0
	return s.queued
}

// arrive is a request that a poll has found.
func (s *steppedSink) arrive(l *runList) {
	s.left++
	if !s.queued {
		s.queued = true
		l.add(s)
	}
}

// One endpoint floods; the requests of 63 others come at every point of its turn. None
// of them waits for more than one budget of it, however long it floods.
func TestFloodDelaysByOneBudget(t *testing.T) {
	const others = 63
	for at := range 3 * runBudget { // the flood's request during which they come
		var l runList
		var steps []int
		var arrived []runnable // not polled yet
		poll := func(bool) bool {
			for _, r := range arrived {
				l.add(r)
			}
			arrived = nil
			return true
		}
		seen := 0
		flood := &steppedSink{name: 0, left: 10 * others * runBudget, steps: &steps}
		flood.ready = func() {
			if seen == at {
				for i := range others {
					arrived = append(arrived, &steppedSink{name: i + 1, left: 1, steps: &steps, ready: func() {}})
				}
			}
			seen++
		}
		l.add(flood)
		for len(steps) < at+1+runBudget+others {
			if !l.one(poll) {
				t.Fatal("nobody is left")
			}
		}
		waited, handled := 0, 0
		for _, name := range steps[at+1:] {
			if name > 0 {
				handled++
			} else if handled < others {
				waited++
			}
		}
		if handled != others || waited > runBudget {
			t.Errorf("come at request %d: %d of %d others were handled, and %d requests of the flood before the last of them, at most %d", at, handled, others, waited, runBudget)
		}
	}
}

// A request that another goroutine polls while the list waits for it to be done puts its
// endpoint on the list once: twice there, two goroutines would handle its requests.
func TestArrivesWhileAnotherPolls(t *testing.T) {
	var l runList
	var steps []int
	r := &steppedSink{name: 1, steps: &steps, ready: func() {}}
	r.arrive(&l)
	l.one(func(wait bool) bool {
		if wait { // the other one has polled
			r.arrive(&l)
		}
		return wait
	})
	if n := l.line.Len(); n != 1 {
		t.Errorf("%d times on the list", n)
	}
}

// A caller may bring requests while the worker ends. They are handled, and the race
// detector has nothing to say.
func TestKickWhileTheWorkerEnds(t *testing.T) {
	for range 200 {
		var l runList
		var steps []int
		handled := make(chan struct{})
		r := &steppedSink{left: 1, queued: true, steps: &steps, ready: func() { close(handled) }}
		l.add(r)
		var both sync.WaitGroup
		both.Go(func() { l.kick(func(bool) bool { return true }) })
		both.Go(l.wait)
		both.Wait()
		<-handled
	}
}
