// Package cq is a completion queue in the memory of one process: a ring with a
// lock around it and an event that a waiter arms.
package cq

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena/rdma"
)

// A Driver makes progress that may add completions. Drive does what can be done
// without waiting. A driver that is driven often may keep quiet, if [Queue.Quiet] lets it:
// it then makes no progress by itself until Rest. Both may be called concurrently.
//
// Drivers make system calls, so a Poll that finds nothing calls few of them: those that keep
// quiet, the one whose queue pair has posted last, since its peer is the likeliest to answer, and
// one more in turn. While some keep quiet, only every sixteenth poll calls one more.
type Driver interface {
	Drive()
	Rest()
}

// While drivers keep quiet, every turnEvery-th poll in vain calls one more in turn.
const turnEvery = 16

// mostQuiet is how many drivers of a queue may keep quiet: each Poll calls all of them.
const mostQuiet = 2

// Queue implements [rdma.CompletionQueue] and [rdma.EventQueue].
type Queue struct {
	onOverrun func(*Queue) // called once, with the lock held
	onClose   func(*Queue) error

	count  atomic.Int64 // entries in the ring; lets Poll look without the lock
	failed atomic.Bool  // overrun or closed

	// Drivers: all, and those that keep quiet. Lists are replaced as a whole, with the lock held.
	drivers, quiet atomic.Pointer[[]Driver] // nil without any
	posted         atomic.Pointer[Driver]   // that of the queue pair that has posted last
	turn           atomic.Uint32            // of those called in turn: one more for each poll in vain

	mu      sync.Mutex
	ring    []entry
	head    int
	armed   armed
	overrun bool
	told    bool
	closed  bool

	onEvent    func() (done bool) // nil: events end a Wait
	collectors int                // between Collect and Collected
	holders    int                // between Hold and Release
	// owed is an event that one of those sees to. The queue is still armed. mu is held to change it.
	owed atomic.Bool

	event chan struct{} // holds one token once what was armed for has happened
	done  chan struct{}
}

var _ rdma.EventQueue = (*Queue)(nil)

type entry struct {
	completion rdma.Completion
	places     *atomic.Int32
	release    int32
}

type armed uint8

const (
	notArmed armed = iota
	armedSolicited
	armedAny
)

// New makes a queue of depth entries. The functions may be nil. onClose is called
// first by each Close, and refuses it by an error.
func New(depth int, onOverrun func(*Queue), onClose func(*Queue) error) *Queue {
	return &Queue{
		onOverrun: onOverrun, onClose: onClose,
		ring:  make([]entry, depth),
		event: make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
}

// Push adds a completion. Polling it subtracts release from places, which
// counts the places taken in the work queue that the request came from.
func (q *Queue) Push(c rdma.Completion, solicited bool, places *atomic.Int32, release int32) {
	q.mu.Lock()
	n := int(q.count.Load())
	if n == len(q.ring) {
		q.overrun = true
		q.failed.Store(true)
		if !q.told {
			q.told = true
			if q.onOverrun != nil {
				q.onOverrun(q)
			}
		}
		// Whoever waits has to learn of it.
		q.signal()
		q.mu.Unlock()
		return
	}
	at := q.head + n
	if at >= len(q.ring) {
		at -= len(q.ring)
	}
	q.ring[at] = entry{c, places, release}
	q.count.Store(int64(n + 1))
	if q.armed == armedAny || q.armed == armedSolicited && (solicited || c.Status != rdma.StatusSuccess) {
		q.signal()
	}
	q.mu.Unlock()
}

func (q *Queue) signal() {
	if q.armed == notArmed {
		return
	}
	if q.seenTo() {
		q.owed.Store(true)
		return
	}
	q.disarm()
	q.wake()
}

// seenTo tells whether somebody sees to events. mu is held.
func (q *Queue) seenTo() bool { return q.holders > 0 || q.collectors > 0 && q.onEvent != nil }

// disarm ends what Arm has begun: the event has come. mu is held.
func (q *Queue) disarm() {
	q.armed = notArmed
	q.owed.Store(false)
}

// wake ends a Wait.
func (q *Queue) wake() {
	select {
	case q.event <- struct{}{}:
	default:
	}
}

// OnEvent implements [rdma.EventQueue].
func (q *Queue) OnEvent(f func() (done bool)) {
	q.mu.Lock()
	q.onEvent = f
	q.mu.Unlock()
}

// Collect keeps events for Collected, which must follow soon, if there is a function for
// them. It is for who adds completions, and may call that function when he holds no lock.
func (q *Queue) Collect() {
	q.mu.Lock()
	q.collectors++
	q.mu.Unlock()
}

// Collected ends what Collect has begun. It tells whether there was an event, and something is
// left to poll. Then the caller calls Tell, without any lock.
func (q *Queue) Collected() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.collectors--
	switch {
	case !q.owed.Load():
		return false
	case !q.left():
		q.owed.Store(false)
		return false
	}
	q.disarm()
	return true
}

// Hold implements [rdma.EventQueue].
func (q *Queue) Hold() {
	q.mu.Lock()
	q.holders++
	q.mu.Unlock()
}

// Held implements [rdma.EventQueue].
func (q *Queue) Held() bool { return q.owed.Load() && q.left() }

// left tells whether there is something for who waits.
func (q *Queue) left() bool { return q.count.Load() > 0 || q.failed.Load() }

// Release implements [rdma.EventQueue]. An event that a collector sees to is left to him.
func (q *Queue) Release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.holders--
	switch {
	case !q.owed.Load() || q.seenTo():
	case !q.left():
		q.owed.Store(false) // somebody has polled all of it
	default:
		q.disarm()
		q.wake()
	}
}

// Tell calls the function for events, and ends a Wait if that leaves it something to do.
func (q *Queue) Tell() {
	q.mu.Lock()
	f := q.onEvent
	q.mu.Unlock()
	if f == nil || !f() {
		q.wake()
	}
}

// Poll implements [rdma.CompletionQueue].
func (q *Queue) Poll(into []rdma.Completion) (int, error) {
	if q.count.Load() == 0 && !q.failed.Load() {
		q.drive()
		if q.count.Load() == 0 && !q.failed.Load() {
			return 0, nil
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, rdma.ErrClosed
	}
	n := min(int(q.count.Load()), len(into))
	for i := range n {
		e := &q.ring[q.head]
		into[i] = e.completion
		if e.places != nil {
			e.places.Add(-e.release)
			e.places = nil
		}
		if q.head++; q.head == len(q.ring) {
			q.head = 0
		}
	}
	q.count.Add(int64(-n))
	if q.overrun {
		return n, rdma.ErrOverrun
	}
	return n, nil
}

// drive calls those drivers that a poll in vain calls.
func (q *Queue) drive() {
	drivers := q.drivers.Load()
	if drivers == nil {
		return
	}
	turn, quiet := q.turn.Add(1), listed(&q.quiet)
	for _, d := range quiet {
		d.Drive()
	}
	var last Driver
	if p := q.posted.Load(); p != nil && !slices.Contains(quiet, *p) {
		last = *p
		last.Drive()
	}
	if len(quiet) > 0 {
		if turn%turnEvery != 0 {
			return
		}
		turn /= turnEvery
	}
	next := (*drivers)[turn%uint32(len(*drivers))]
	if next == last {
		next = (*drivers)[q.turn.Add(1)%uint32(len(*drivers))]
	}
	if next != last && !slices.Contains(quiet, next) {
		next.Drive()
	}
}

// Posted notes that a driver's queue pair has posted, whose peer may answer. The pointer is
// always the same for one driver.
func (q *Queue) Posted(d *Driver) {
	if q.posted.Load() != d {
		q.posted.Store(d)
	}
}

// Arm implements [rdma.CompletionQueue].
func (q *Queue) Arm(solicitedOnly bool) error {
	if err := q.arm(solicitedOnly); err != nil {
		return err
	}
	// Who has polled goes to sleep, so the drivers have to come by themselves. One
	// that asks just now whether it may keep quiet is refused, or is told.
	for _, d := range listed(&q.quiet) {
		d.Rest()
	}
	return nil
}

func (q *Queue) arm(solicitedOnly bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return rdma.ErrClosed
	}
	if q.armed == notArmed {
		// A token of an earlier arming is not what this one asks for.
		select {
		case <-q.event:
		default:
		}
	}
	if !solicitedOnly {
		q.armed = armedAny
	} else if q.armed == notArmed {
		q.armed = armedSolicited
	}
	return nil
}

// Quiet asks whether a driver may keep quiet: nobody sleeps until a completion comes, and few
// others keep quiet, so that each poll reaches all of them. If it may, Quieted follows once it
// no longer does. The queue may be armed before Quiet returns: Rest is called then, too.
func (q *Queue) Quiet(d Driver) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	quiet := listed(&q.quiet)
	if len(quiet) >= mostQuiet || q.armed != notArmed || !slices.Contains(listed(&q.drivers), d) {
		return false
	}
	enlist(&q.quiet, append(slices.Clone(quiet), d))
	return true
}

// Quieted says that a driver keeps quiet no longer.
func (q *Queue) Quieted(d Driver) {
	q.mu.Lock()
	defer q.mu.Unlock()
	remove(&q.quiet, d)
}

// listed is what a list holds.
func listed(list *atomic.Pointer[[]Driver]) []Driver {
	if l := list.Load(); l != nil {
		return *l
	}
	return nil
}

// enlist has a list hold ds. The queue's mu is held.
func enlist(list *atomic.Pointer[[]Driver], ds []Driver) {
	if len(ds) == 0 {
		list.Store(nil)
		return
	}
	list.Store(&ds)
}

// remove takes d out of a list. The queue's mu is held.
func remove(list *atomic.Pointer[[]Driver], d Driver) {
	ds := listed(list)
	if at := slices.Index(ds, d); at >= 0 {
		enlist(list, slices.Delete(slices.Clone(ds), at, at+1))
	}
}

// Wait implements [rdma.CompletionQueue].
func (q *Queue) Wait(ctx context.Context) error {
	select {
	case <-q.event:
		return nil
	default:
	}
	select {
	case <-q.event:
		return nil
	case <-q.done:
		return rdma.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// AddDriver lets Poll call d.
func (q *Queue) AddDriver(d Driver) {
	q.mu.Lock()
	defer q.mu.Unlock()
	enlist(&q.drivers, append(slices.Clone(listed(&q.drivers)), d))
}

// RemoveDriver takes it out again. The driver does not keep quiet. A call of Drive may still be
// under way. If its queue pair posts once more, polls call it until another one has posted.
func (q *Queue) RemoveDriver(d Driver) {
	q.mu.Lock()
	defer q.mu.Unlock()
	remove(&q.drivers, d)
	if p := q.posted.Load(); p != nil && *p == d {
		q.posted.CompareAndSwap(p, nil)
	}
}

// Close implements [rdma.CompletionQueue].
func (q *Queue) Close() error {
	if q.onClose != nil {
		if err := q.onClose(q); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	q.failed.Store(true)
	close(q.done)
	return nil
}
