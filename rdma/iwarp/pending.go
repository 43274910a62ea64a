package iwarp

import (
	"context"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// maxPending bounds the connections that have not been accepted: those whose
	// Request is awaited and those that wait for Accept.
	maxPending = 256
	// maxRefusals is how many peers that are not let in are heard out at a time, so
	// that they learn why.
	maxRefusals = 32
	// requestGrace is how long a connection may be silent before it gives way, unless its
	// source has more than silentFlood of those.
	requestGrace = 250 * time.Millisecond
	silentFlood  = maxPending / 2
)

// pending are the connections of a listener that have not been accepted. When there
// are too many, one that says nothing gives way to a new one: the oldest of the source
// that has most of those. So silent connections cost no other source a place, and
// nobody waits long for them: one that has come just now may send its Request yet, and does not
// give way, unless its source fills most of the places. With connections that all have sent their Requests, new ones
// wait for Accept.
type pending struct {
	places chan struct{} // one for each
	mu     sync.Mutex
	silent map[origin][]*arrival // the oldest first
}

// An arrival is a connection whose Request has not been read.
type arrival struct {
	conn net.Conn
	raw  syscall.RawConn // nil: nothing can be asked of the socket
	from origin
	came time.Time
}

func newArrival(conn net.Conn, from origin) *arrival {
	a := &arrival{conn: conn, from: from, came: time.Now()}
	if c, ok := conn.(syscall.Conn); ok {
		a.raw, _ = c.SyscallConn()
	}
	return a
}

func newPending() *pending {
	return &pending{places: make(chan struct{}, maxPending), silent: make(map[origin][]*arrival)}
}

// admit waits for a place, and reports false if ctx ends first. One goroutine calls it.
// Who gives way does so by the deadline of the connection, which nobody else changes
// until heard.
func (p *pending) admit(ctx context.Context, a *arrival) bool {
	select {
	case p.places <- struct{}{}:
		p.enter(a)
		return true
	default:
	}
	for {
		p.giveWay()
		select {
		case p.places <- struct{}{}: // of whoever gave way, or was accepted
			p.enter(a)
			return true
		case <-time.After(10 * time.Millisecond): // more may be silent by now
		case <-ctx.Done():
			return false
		}
	}
}

func (p *pending) enter(a *arrival) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent[a.from] = append(p.silent[a.from], a)
}

// giveWay ends the wait for one of the Requests.
func (p *pending) giveWay() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var most []*arrival
	for _, arrivals := range p.silent {
		if len(arrivals) > len(most) {
			most = arrivals
		}
	}
	var since time.Time // they have been silent
	if len(most) <= silentFlood {
		since = time.Now().Add(-requestGrace)
	}
	for _, a := range most {
		if !since.IsZero() && a.came.After(since) {
			return // as those are that follow
		}
		if !a.unread() {
			p.drop(a)
			_ = a.conn.SetDeadline(time.Unix(1, 0))
			return
		}
	}
}

// heard takes an arrival out that is not silent any more, and tells whether it had to
// give way.
func (p *pending) heard(a *arrival) (gaveWay bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.drop(a)
}

// drop takes an arrival out, if it is in. mu is held.
func (p *pending) drop(a *arrival) bool {
	arrivals := p.silent[a.from]
	i := slices.Index(arrivals, a)
	if i < 0 {
		return false
	}
	if p.silent[a.from] = slices.Delete(arrivals, i, i+1); len(arrivals) == 1 {
		delete(p.silent, a.from)
	}
	return true
}

// leave gives the place of an arrival back.
func (p *pending) leave() { <-p.places }

// refusals are the peers that are heard out though they are not let in. The oldest
// gives way to a new one.
type refusals struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (r *refusals) add(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.conns) == maxRefusals {
		_ = r.conns[0].Close() // ends the wait
		r.conns = slices.Delete(r.conns, 0, 1)
	}
	r.conns = append(r.conns, conn)
}

func (r *refusals) remove(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.conns, conn); i >= 0 {
		r.conns = slices.Delete(r.conns, i, i+1)
	}
}

// warnings bounds what peers can make a listener log: some lines, and then one a second.
type warnings struct {
	mu      sync.Mutex
	full    time.Time // when as many lines as possible are allowed
	omitted int
}

const maxWarnings = 8

// allow tells whether a line may be logged now, and how many before it were not.
func (w *warnings) allow(now time.Time) (omitted int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full.Before(now) {
		w.full = now
	}
	if w.full.Sub(now) > (maxWarnings-1)*time.Second {
		w.omitted++
		return 0, false
	}
	w.full = w.full.Add(time.Second)
	omitted, w.omitted = w.omitted, 0
	return omitted, true
}
