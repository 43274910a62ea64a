package rpc

import (
	"context"
	"sync"
	"time"
)

// A limit is the context of one run of a call: the caller's, with the time-out of the
// run. Only if somebody asks for Done it has a timer set, and it is used again unless it
// has ended. So a call costs no allocation for its time-out.
type limit struct {
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
	l := &limit{done: make(chan struct{})}
	l.timer = time.AfterFunc(never, func() { l.over(context.DeadlineExceeded) })
	l.timer.Stop()
	return l
}}

// newLimit returns a limit for one goroutine, which calls end. 0 is no time-out.
func newLimit(ctx context.Context, now time.Time, timeout time.Duration) *limit {
	l := limits.Get().(*limit)
	l.Context = ctx
	var has bool
	l.deadline, has = ctx.Deadline()
	if ends := now.Add(timeout); timeout > 0 && (!has || ends.Before(l.deadline)) {
		l.deadline, l.own = ends, true
	}
	return l
}

// end gives the limit back. Nobody uses it any more.
func (l *limit) end() {
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
func (l *limit) over(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.done)
	}
}

// passed tells that the deadline has passed.
func (l *limit) passed() bool { return !l.deadline.IsZero() && !time.Now().Before(l.deadline) }

// Deadline implements [context.Context].
func (l *limit) Deadline() (time.Time, bool) { return l.deadline, !l.deadline.IsZero() }

// Done implements [context.Context]. The goroutine of newLimit calls it first.
func (l *limit) Done() <-chan struct{} {
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
func (l *limit) Err() error {
	if l.own && l.armed {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.err
	}
	return l.Context.Err()
}
