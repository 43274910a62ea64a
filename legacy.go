package verbena

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	// legacyGrace is how long after Listen a program may take to call Legacy.
	// Later, connections of legacy clients are closed at once if it has not.
	legacyGrace = time.Second
	// legacyLook is how often the connections that wait for an Accept are looked
	// at for peers that have gone.
	legacyLook = time.Second
)

// A legacyQueue holds the connections of legacy clients until somebody accepts
// them.
type legacyQueue struct {
	limit    int
	patience time.Duration // with a client that sends no more and may be gone

	wanted  chan struct{} // closed by the first Legacy
	want    sync.Once
	overdue chan struct{} // closed when the grace is over
	grace   *time.Timer
	told    sync.Once // that nobody wants them

	arrived chan struct{} // one token when something waits
	room    chan struct{} // one token when something has gone
	some    chan struct{} // one token for watch

	mu      sync.Mutex
	waiting []legacyConn
	closed  bool
}

type legacyConn struct {
	conn  net.Conn
	since time.Time
}

func (q *legacyQueue) init(limit int, patience time.Duration) {
	q.limit, q.patience = limit, patience
	q.wanted, q.overdue = make(chan struct{}), make(chan struct{})
	q.arrived, q.room, q.some = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	q.grace = time.AfterFunc(legacyGrace, func() { close(q.overdue) })
}

// served tells whether somebody takes legacy connections. It waits a while for a
// program that has only just begun to listen.
func (q *legacyQueue) served(ctx context.Context) bool {
	select {
	case <-q.wanted:
		return true
	default:
	}
	select {
	case <-q.wanted:
		return true
	case <-q.overdue:
	case <-ctx.Done():
	}
	return false
}

// put hands a connection over. It reports false if there is no room until ctx
// ends.
func (q *legacyQueue) put(ctx context.Context, conn net.Conn) bool {
	for {
		q.mu.Lock()
		if q.closed {
			q.mu.Unlock()
			return false
		}
		if len(q.waiting) < q.limit {
			q.waiting = append(q.waiting, legacyConn{conn, time.Now()})
			more := len(q.waiting) < q.limit
			q.mu.Unlock()
			notify(q.arrived)
			notify(q.some)
			if more {
				notify(q.room) // for the next one that waits for it
			}
			return true
		}
		q.mu.Unlock()
		select {
		case <-q.room:
		case <-ctx.Done():
			return false
		}
	}
}

// take returns the connection that has waited for longest, or nil.
func (q *legacyQueue) take() net.Conn {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 {
		c := q.waiting[0]
		q.waiting = append(q.waiting[:0], q.waiting[1:]...)
		notify(q.room)
		if c.gone(q.patience) {
			_ = c.conn.Close() // nobody is there
			continue
		}
		if len(q.waiting) > 0 {
			notify(q.arrived) // for the next acceptor
		}
		return c.conn
	}
	return nil
}

// gone tells whether a client has left. One that only sends no more may wait for
// an answer: it counts as gone when it has waited for long.
func (c legacyConn) gone(patience time.Duration) bool {
	gone, half := hungUp(c.conn)
	return gone || half && time.Since(c.since) >= patience
}

// watch drops the connections whose clients have gone, while any wait.
func (q *legacyQueue) watch(ctx context.Context) {
	for {
		select {
		case <-q.some:
		case <-ctx.Done():
			return
		}
		for q.sweep() {
			t := time.NewTimer(min(legacyLook, q.patience))
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
	}
}

// sweep reports whether connections still wait.
func (q *legacyQueue) sweep() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := q.waiting[:0]
	for _, c := range q.waiting {
		if c.gone(q.patience) {
			_ = c.conn.Close() // nobody is there
			continue
		}
		left = append(left, c)
	}
	if len(left) < len(q.waiting) {
		clear(q.waiting[len(left):])
		q.waiting = left
		notify(q.room)
	}
	return len(left) > 0
}

func (q *legacyQueue) close() {
	q.grace.Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, c := range q.waiting {
		_ = c.conn.Close() // was never accepted
	}
	q.waiting = nil
}

// Legacy returns the listener of the connections that do not begin with a
// hello. They are handed on with every byte in place, as *net.TCPConn where
// that is possible. Closing it closes nothing: the port is l's. Until somebody
// accepts them, as many wait as the backlog holds, and as long as their clients
// are there. A program that does not call it within a second of Listen serves
// Verbena peers alone: then legacy connections are closed as they come.
func (l *Listener) Legacy() net.Listener {
	l.legacy.want.Do(func() { close(l.legacy.wanted) })
	return &legacyListener{l: l, closed: make(chan struct{})}
}

type legacyListener struct {
	l      *Listener
	once   sync.Once
	closed chan struct{}
}

func (l *legacyListener) Accept() (net.Conn, error) {
	for {
		if l.over() {
			break
		}
		if c := l.l.legacy.take(); c != nil {
			return c, nil
		}
		select {
		case <-l.l.legacy.arrived:
		case <-l.l.ctx.Done():
		case <-l.closed:
		}
	}
	return nil, &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: net.ErrClosed}
}

func (l *legacyListener) over() bool {
	select {
	case <-l.closed:
		notify(l.l.legacy.arrived) // another acceptor's, perhaps
		return true
	case <-l.l.ctx.Done():
		return true
	default:
		return false
	}
}

func (l *legacyListener) Addr() net.Addr { return l.l.Addr() }

func (l *legacyListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}
