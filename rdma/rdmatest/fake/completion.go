package fake

import (
	"context"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

type entry struct {
	completion rdma.Completion
	queuePair  *queuePair
	sequence   uint64 // of the send request, whose space it gives back
	send       bool
}

type armed uint8

const (
	unarmed armed = iota
	armedSolicited
	armedAll
)

type completionQueue struct {
	domain *domain
	wake   chan struct{} // has one element from the event until Wait or Arm
	done   chan struct{} // closed by Close

	// Under mu.
	entries []entry // a ring
	first   int
	count   int
	users   map[*queuePair]struct{}
	armed   armed
	waiting bool
	overrun bool
	closed  bool
}

func (d *domain) NewCompletionQueue(depth int) (rdma.CompletionQueue, error) {
	if depth < 1 || depth > d.device.config.MaxCompletions {
		return nil, fmt.Errorf("fake: completion queue of depth %d: must be 1 to %d: %w", depth, d.device.config.MaxCompletions, rdma.ErrInvalid)
	}
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if err := d.usable("new completion queue"); err != nil {
		return nil, err
	}
	c := &completionQueue{
		domain:  d,
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		entries: make([]entry, depth),
		users:   map[*queuePair]struct{}{},
	}
	d.queues[c] = struct{}{}
	return c, nil
}

// add adds a completion, unless the device holds them back; it needs mu.
func (c *completionQueue) add(e entry, solicited bool) {
	d := c.domain.device
	wakes := solicited || e.completion.Status != rdma.StatusSuccess
	if d.holding {
		d.held = append(d.held, heldCompletion{c, e, wakes})
		return
	}
	d.emitted++
	switch {
	case d.has(BugLostCompletion) && d.emitted%23 == 0:
		return
	case d.has(BugDoubleCompletion) && d.emitted%23 == 0:
		c.push(e, wakes)
	case d.has(BugSwappedCompletions) && d.emitted%5 == 0 && c.count > 0:
		last := &c.entries[(c.first+c.count-1)%len(c.entries)]
		e, *last = *last, e
	}
	c.push(e, wakes)
}

// push adds an entry and raises the event that it deserves; it needs mu.
func (c *completionQueue) push(e entry, wakes bool) {
	switch {
	case c.closed || e.queuePair.closed:
		return
	case c.overrun:
		return
	case c.count == len(c.entries):
		if !c.domain.device.has(BugQuietOverrun) {
			c.overran()
		}
		return
	}
	c.entries[(c.first+c.count)%len(c.entries)] = e
	c.count++
	if c.armed == armedAll || c.armed == armedSolicited && (wakes || c.domain.device.has(BugWakesUnsolicited)) {
		c.fire()
	}
}

func (c *completionQueue) fire() {
	if c.domain.device.has(BugLostWakeup) && !c.waiting {
		c.armed = unarmed
		return
	}
	c.armed = unarmed
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// overran fails all users; it needs mu.
func (c *completionQueue) overran() {
	if c.overrun || c.closed {
		return
	}
	c.overrun = true
	err := fmt.Errorf("fake: completion queue of depth %d lost completions: %w", len(c.entries), rdma.ErrOverrun)
	c.domain.raise(rdma.Event{Kind: rdma.EventCompletionOverrun, Completions: c, Err: err})
	for q := range c.users {
		q.fail(err)
	}
	c.fire()
}

func (c *completionQueue) Poll(into []rdma.Completion) (int, error) {
	mu := &c.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	if c.closed {
		return 0, rdma.ErrClosed
	}
	n := 0
	for n < len(into) && c.count > 0 {
		e := &c.entries[c.first]
		into[n] = e.completion
		n++
		if e.send {
			e.queuePair.release(e.sequence)
		}
		*e = entry{}
		c.first = (c.first + 1) % len(c.entries)
		c.count--
	}
	if n > 1 && c.count > 0 && c.domain.device.has(BugPollForgets) {
		c.first, c.count = 0, 0
	}
	if n == 0 && c.overrun {
		return 0, rdma.ErrOverrun
	}
	return n, nil
}

func (c *completionQueue) Arm(solicitedOnly bool) error {
	mu := &c.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	if c.closed {
		return rdma.ErrClosed
	}
	select {
	case <-c.wake:
	default:
	}
	c.armed = armedAll
	if solicitedOnly {
		c.armed = armedSolicited
	}
	return nil
}

func (c *completionQueue) Wait(ctx context.Context) error {
	select {
	case <-c.wake:
		return nil
	default:
	}
	mu := &c.domain.network.mu
	mu.Lock()
	c.waiting = true
	mu.Unlock()
	defer func() {
		mu.Lock()
		c.waiting = false
		mu.Unlock()
	}()
	if c.domain.device.has(BugDeafWait) {
		ctx = context.WithoutCancel(ctx)
	}
	done := c.done
	if c.domain.device.has(BugSleepsOverClose) {
		done = nil
	}
	select {
	case <-c.wake:
		return nil
	case <-done:
		return fmt.Errorf("fake: wait: completion queue: %w", rdma.ErrClosed)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *completionQueue) Close() error {
	mu := &c.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	if len(c.users) > 0 {
		return fmt.Errorf("fake: close completion queue: %d queue pairs use it: %w", len(c.users), rdma.ErrInUse)
	}
	c.close()
	return nil
}

// close needs mu.
func (c *completionQueue) close() {
	if !c.closed {
		c.closed = true
		delete(c.domain.queues, c)
		close(c.done)
	}
}

// forget drops the entries of q, but for those of shared receives; it needs mu.
func (c *completionQueue) forget(q *queuePair) {
	kept := 0
	for i := range c.count {
		e := c.entries[(c.first+i)%len(c.entries)]
		received := e.completion.Op == rdma.OpRecv || e.completion.Op == rdma.OpRecvWriteImmediate
		if e.queuePair != q || received && q.shared != nil {
			c.entries[(c.first+kept)%len(c.entries)] = e
			kept++
		}
	}
	c.count = kept
}
