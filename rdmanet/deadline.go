package rdmanet

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// gate is a context that ends when it is told to. An endpoint's calls take one
// so that a deadline, a Close or a hand-over can wake them. It reports no
// deadline, because a net.Conn's may still be moved while a call is waiting.
type gate struct {
	done  chan struct{}
	state atomic.Pointer[gateState]
}

type gateState struct {
	cause error // what the net.Conn's caller gets
	err   error // what the context says
}

func newGate() *gate { return &gate{done: make(chan struct{})} }

func (g *gate) shut(cause error) {
	err := context.Canceled
	if cause == os.ErrDeadlineExceeded {
		err = context.DeadlineExceeded
	}
	if g.state.CompareAndSwap(nil, &gateState{cause, err}) {
		close(g.done)
	}
}

// cause is nil as long as the gate is open.
func (g *gate) cause() error {
	if st := g.state.Load(); st != nil {
		return st.cause
	}
	return nil
}

func (g *gate) Deadline() (time.Time, bool) { return time.Time{}, false }
func (g *gate) Done() <-chan struct{}       { return g.done }
func (g *gate) Value(any) any               { return nil }
func (g *gate) Err() error {
	if st := g.state.Load(); st != nil {
		return st.err
	}
	return nil
}

// deadline is one direction's gate. A gate that has been shut by a deadline is
// replaced when the deadline is moved; one shut for good never is. So a
// connection whose deadlines are set again and again, and do not pass,
// allocates nothing.
type deadline struct {
	current atomic.Pointer[gate]

	mu    sync.Mutex
	when  time.Time
	timer *time.Timer
	final bool
}

func (d *deadline) init() { d.current.Store(newGate()) }

func (d *deadline) gate() *gate { return d.current.Load() }

// set moves the deadline; the zero time removes it.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.final {
		return
	}
	d.when = t
	if t.IsZero() {
		if d.timer != nil {
			d.timer.Stop()
		}
		d.reopen()
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.current.Load().shut(os.ErrDeadlineExceeded)
		return
	}
	d.reopen()
	if d.timer == nil {
		d.timer = time.AfterFunc(left, d.expire)
	} else {
		d.timer.Reset(left)
	}
}

func (d *deadline) reopen() {
	if d.current.Load().cause() != nil {
		d.current.Store(newGate())
	}
}

func (d *deadline) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.final || d.when.IsZero() {
		return
	}
	if left := time.Until(d.when); left > 0 {
		// The deadline was moved while this call was on its way.
		d.timer.Reset(left)
		return
	}
	d.current.Load().shut(os.ErrDeadlineExceeded)
}

// fail shuts the direction for good; the first cause stands, except that
// errClosed, the caller's own doing, replaces any other.
func (d *deadline) fail(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.final && cause != errClosed {
		return
	}
	d.final = true
	if d.timer != nil {
		d.timer.Stop()
	}
	g := d.current.Load()
	if g.cause() != nil {
		g = newGate()
		d.current.Store(g)
	}
	g.shut(cause)
}
