package verbena

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/call"
)

// take returns a pendingCall. mu is held.
func (c *Caller) take() *pendingCall {
	if n := len(c.spare); n > 0 {
		w := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return w
	}
	w := &pendingCall{wake: make(chan struct{}, 1)}
	w.isDone = w.done.Load
	return w
}

// giveBack keeps a pendingCall, of which nobody else knows any more, for a later call.
func (c *Caller) giveBack(w *pendingCall) {
	w.admitted.Clear()
	w.done.Clear()
	w.answer, w.err = nil, nil
	c.mu.Lock()
	w.asleep = false
	if len(c.spare) < mostSpare {
		c.spare = append(c.spare, w)
	}
	c.mu.Unlock()
}

// finish ends the wait of a call. The caller's mu is held.
func (c *Caller) finish(w *pendingCall, answer *Message, err error) {
	asleep := w.asleep
	w.answer, w.err = answer, err
	if asleep {
		c.rouses(w)
	}
	w.done.Set()
	// From here on it may be another call's, to which a token too many does nothing.
	if asleep {
		notify(w.wake)
	}
}

// Rousals are the callers of this process that have been woken, in their order, and how many
// of them have run since.
//
// Go lets a goroutine that was woken last run first, and the one that it wakes next. Two
// callers who find each other's answers whenever they look for their own then go on for the
// 10 ms that such a pair has together, while those who were woken before them wait.
type rousals struct {
	woken, run atomic.Uint32
}

// roused are those of all endpoints: they share Go's processors.
var roused rousals

// wakes counts one more, and returns its number.
func (r *rousals) wakes() uint32 { return r.woken.Add(1) }

// runs counts one that runs.
func (r *rousals) runs() { r.run.Add(1) }

// overtakes tells whether the caller of a number runs before others whose turn it is, given
// how many can run at a time.
func (r *rousals) overtakes(number uint32, processors int) bool {
	return int32(number-r.run.Load()) > int32(processors)
}

// rouses counts a caller that is about to be woken. mu is held. Those of streams wait in
// their own ways.
func (c *Caller) rouses(w *pendingCall) {
	if w.stream == nil && !w.roused {
		w.roused, w.turn = true, roused.wakes()
		c.e.carrier.roused()
	}
}

// lets has those go on first who were woken before w, which runs.
func (c *Caller) lets(w *pendingCall) {
	if w.roused && c.e.carrier.inOrder() && roused.overtakes(w.turn, c.processors) {
		runtime.Gosched()
	}
}

// runs notes that a caller runs whose wait is over.
func (c *Caller) runs(w *pendingCall) {
	if w.roused {
		w.roused = false
		roused.runs()
		c.e.carrier.ran()
	}
}

// begin waits until the peer has room for one request more.
func (c *Caller) begin(ctx context.Context, notifies bool) (*pendingCall, error) {
	return c.enter(ctx, notifies, nil)
}

// enter is begin for w, or for a spare one if it is nil.
func (c *Caller) enter(ctx context.Context, notifies bool, w *pendingCall) (*pendingCall, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
	}
	c.mu.Lock()
	if err := c.refusal(); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	if w == nil {
		w = c.take()
	}
	w.notifies = notifies
	if c.line.Len() == 0 && c.admit(w) {
		c.mu.Unlock()
		return w, nil
	}
	w.asleep = true
	c.line.Push(w)
	c.mu.Unlock()
	return c.standInLine(ctx, w)
}

// refusal is why no call may begin. mu is held.
func (c *Caller) refusal() error {
	switch {
	case c.ended:
		return fmt.Errorf("%w: %w", ErrNotSent, c.e.err)
	case c.draining, c.closing:
		return fmt.Errorf("%w: %w", ErrNotSent, ErrClosed)
	}
	return nil
}

// admit takes a credit of the peer for w. mu is held.
func (c *Caller) admit(w *pendingCall) bool {
	if c.silent {
		return false
	}
	if w.notifies {
		return c.side.Notify()
	}
	var flows *call.Flows
	if w.stream != nil && c.side.PeerStream() > 0 {
		flows = &w.stream.flows
	}
	id, ok := c.side.Begin(w, flows)
	w.id = id
	return ok
}

// advance lets those in line go on for whom there is room. mu is held.
func (c *Caller) advance() {
	for c.line.Len() > 0 {
		w := *c.line.Front()
		if !c.admit(w) {
			return
		}
		c.line.Pop()
		c.rouses(w)
		w.admitted.Set()
		notify(w.wake)
	}
}

// standInLine waits until advance has admitted w.
func (c *Caller) standInLine(ctx context.Context, w *pendingCall) (*pendingCall, error) {
	c.e.carrier.sleep()
	defer c.e.carrier.awake()
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
		}
		c.mu.Lock()
		w.asleep = false
		c.runs(w)
		switch {
		case w.admitted.Load():
			c.mu.Unlock()
			return w, nil
		case w.done.Load():
			err := w.err
			c.mu.Unlock()
			return nil, err
		case ctx.Err() != nil:
			c.line.Remove(func(other *pendingCall) bool { return other == w })
			c.mu.Unlock()
			return nil, fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
		}
		w.asleep = true // a token of an earlier wait
		c.mu.Unlock()
	}
}
