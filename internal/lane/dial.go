package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// want begins an attempt to connect unless one is under way, if it is of use. It
// needs mu.
func (l *Lane[C]) want() {
	if l.dialling || !l.wanted() {
		return
	}
	l.dialling = true
	l.wg.Go(l.connect)
}

// wanted tells whether a further connection is of use. It needs mu.
func (l *Lane[C]) wanted() bool {
	if l.closed || len(l.conns) >= l.cfg.Most {
		return false
	}
	return len(l.waiting) > 0 || len(l.conns) > 0 && len(l.free) == 0 && l.cfg.Share > 1
}

// connect makes connections, one after the other, for as long as they are wanted.
func (l *Lane[C]) connect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.dialling = false }()
	for l.wanted() {
		if pause := time.Until(l.after); pause > 0 {
			l.mu.Unlock()
			l.sleep(pause)
			l.mu.Lock()
			continue // they may have gone meanwhile
		}
		timeout := l.timeout()
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(l.ctx, timeout)
		c, err := l.cfg.Dial(ctx)
		short := ctx.Err() != nil && timeout < l.cfg.DialTimeout
		cancel()
		l.mu.Lock()
		switch {
		case err == nil && (l.closed || len(l.conns) >= l.cfg.Most):
			l.counts.Opened++ // for nobody: Replace has brought one meanwhile, or Drain come
			l.wg.Go(func() { l.cfg.Close(l.closing, c) })
		case err == nil:
			l.add(c)
		case !l.closed:
			l.fail(err, short)
		}
	}
}

// sleep waits for d, or until nothing is connected any more.
func (l *Lane[C]) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.ctx.Done():
	}
}

// timeout is how long the next attempt may last: as long as somebody waits for it.
// It needs mu.
func (l *Lane[C]) timeout() time.Duration {
	if len(l.waiting) == 0 {
		return l.cfg.DialTimeout
	}
	longest := leastAttempt
	for _, w := range l.waiting {
		if w.deadline.IsZero() {
			return l.cfg.DialTimeout
		}
		longest = max(longest, time.Until(w.deadline))
	}
	return min(longest, l.cfg.DialTimeout)
}

// fail notes a failed attempt, and tells those who wait unless a connection is
// there that may come free. Those who have come since with more time than an
// attempt had that was cut short wait for the next one. It needs mu.
func (l *Lane[C]) fail(err error, short bool) {
	l.counts.Failed++
	l.last = err
	if l.cfg.Cheap == nil || !l.cfg.Cheap(err) {
		l.failed()
	} else {
		short = false // another attempt would say the same
	}
	if len(l.conns) > 0 {
		return
	}
	now := time.Now()
	var rest []*waiter[C]
	for _, w := range l.waiting {
		if short && (w.deadline.IsZero() || w.deadline.After(now)) {
			rest = append(rest, w)
			continue
		}
		w.err = err
		l.counts.Left++
		w.ready <- struct{}{}
	}
	l.waiting = rest
}

// Forget ends a lane that has nothing and wants nothing. It reports false, and does
// nothing, if there is a connection, a request, or a pause to be kept.
func (l *Lane[C]) Forget() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.conns)+len(l.waiting)+l.out+l.closers > 0 || l.dialling || time.Now().Before(l.after) {
		return false
	}
	l.end()
	l.cut()
	return true
}

// end takes no further requests. It needs mu.
func (l *Lane[C]) end() {
	l.closed = true
	l.drained = make(chan struct{})
	if l.out == 0 {
		close(l.drained)
	}
	l.cancel()
	if l.idle != nil {
		l.idle.Stop()
	}
	for _, w := range l.waiting {
		w.err = ErrClosed
		l.counts.Left++
		w.ready <- struct{}{}
	}
	l.waiting = nil
}

// Drain closes the lane: those who wait get ErrClosed, requests that have a
// connection end, and each connection is closed when it is free. When requests ends,
// the connections are closed under their requests, and Drain returns an error that
// says how many there were. It returns when all connections are closed; handing ends
// the contexts that Close got.
func (l *Lane[C]) Drain(requests, handing context.Context) error {
	l.mu.Lock()
	if !l.closed {
		l.end()
	}
	for len(l.free) > 0 {
		l.discard(l.free[0])
	}
	l.mu.Unlock()
	var err error
	select {
	case <-l.drained:
	default:
		select {
		case <-l.drained:
		case <-requests.Done():
		}
	}
	l.mu.Lock()
	if l.out > 0 {
		err = fmt.Errorf("%d requests were under way: %w", l.out, errors.Join(context.Cause(requests), ErrClosed))
	}
	for _, h := range slices.Concat(l.conns, l.leaving) {
		l.discard(h)
	}
	l.mu.Unlock()
	stop := context.AfterFunc(handing, l.cut)
	defer stop()
	l.wg.Wait()
	l.cut()
	return err
}
