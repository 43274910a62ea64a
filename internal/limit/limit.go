// Package limit is the time-out of one call as a context that costs no allocation: it has
// a timer set only if somebody asks for Done, and it is used again for later calls.
package limit

import (
	"context"
	"sync"
	"time"
)

// A Limit is the caller's context with a time-out: a [context.Context] for one goroutine,
// from New to End.
type Limit struct {
	context.Context // the caller's
	deadline        time.Time
	own             bool // deadline is the time-out's, not the caller's
	armed           bool // Done has been asked for
	done            chan struct{}
	timer           *time.Timer
	unwatch         func() bool // of the caller's context; nil if it never ends

	mu  sync.Mutex
	err error
}

var limits = sync.Pool{New: func() any {
	const never = 1 << 62
	l := &Limit{done: make(chan struct{})}
	l.timer = time.AfterFunc(never, func() { l.over(context.DeadlineExceeded) })
	l.timer.Stop()
	return l
}}

// New returns a limit for one goroutine, which calls End. It ends timeout after now, or
// with ctx if that is sooner; 0 is no time-out.
func New(ctx context.Context, now time.Time, timeout time.Duration) *Limit {
	l := limits.Get().(*Limit)
	l.Context = ctx
	var has bool
	l.deadline, has = ctx.Deadline()
	if ends := now.Add(timeout); timeout > 0 && (!has || ends.Before(l.deadline)) {
		l.deadline, l.own = ends, true
	}
	return l
}

// End gives the limit back. Nobody uses it any more.
func (l *Limit) End() {
	again := true
	if l.armed {
		again = l.timer.Stop()
		if l.unwatch != nil && !l.unwatch() {
			again = false
		}
	}
	if !again {
		l.over(context.Canceled) // and it is not used again
		return
	}
	l.Context, l.deadline, l.own, l.armed, l.unwatch = nil, time.Time{}, false, false, nil
	limits.Put(l)
}

// over ends the context.
func (l *Limit) over(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.done)
	}
}

// Own tells that the deadline is the time-out's, not the caller's.
func (l *Limit) Own() bool { return l.own }

// Passed tells that the deadline has passed.
func (l *Limit) Passed() bool { return !l.deadline.IsZero() && !time.Now().Before(l.deadline) }

// Deadline implements [context.Context].
func (l *Limit) Deadline() (time.Time, bool) { return l.deadline, !l.deadline.IsZero() }

// Done implements [context.Context]. The goroutine of New calls it first.
func (l *Limit) Done() <-chan struct{} {
	if !l.own {
		return l.Context.Done()
	}
	if !l.armed {
		l.armed = true
		l.timer.Reset(time.Until(l.deadline))
		if l.Context.Done() != nil {
			l.unwatch = context.AfterFunc(l.Context, func() { l.over(l.Context.Err()) })
		}
	}
	return l.done
}

// Err implements [context.Context].
func (l *Limit) Err() error {
	if l.own && l.armed {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.err
	}
	return l.Context.Err()
}
