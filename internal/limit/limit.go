// Package limit is the time-out of one call as a context that costs no allocation: it has
// a timer set only if somebody asks for Done, and it is used again for later calls.
package limit

import (
	"context"
	"slices"
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

	mu   sync.Mutex
	err  error
	then []*func() // AfterFunc's
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

// End gives the limit back. Nobody uses it any more; contexts that were derived from it have
// been cancelled.
func (l *Limit) End() {
	again := true
	if l.armed {
		l.mu.Lock()
		left := len(l.then) > 0
		l.mu.Unlock()
		again = l.timer.Stop() && !left
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
	if l.err != nil {
		return
	}
	l.err = err
	close(l.done)
	for _, f := range l.then {
		go (*f)()
	}
}

// AfterFunc has f called in a goroutine of its own when the limit is over, unless stop is
// called before, which tells whether that was in time. Package context asks for it when it
// derives a context. Otherwise it would start a goroutine that looks at this one, perhaps
// when End has been called and another call uses it.
func (l *Limit) AfterFunc(f func()) (stop func() bool) {
	if !l.own {
		return context.AfterFunc(l.Context, f)
	}
	l.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		go f()
		return func() bool { return false }
	}
	l.then = append(l.then, &f)
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		i := slices.Index(l.then, &f)
		if i < 0 || l.err != nil {
			return false
		}
		l.then = slices.Delete(l.then, i, i+1)
		return true
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
