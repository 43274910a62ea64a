package lane

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrClosed is what Get returns once the lane is closed.
var ErrClosed = errors.New("lane: closed")

// A Conn is what a lane keeps.
type Conn interface {
	// Done is closed when the connection has ended, whoever ended it.
	Done() <-chan struct{}
}

// Config configures a lane. All fields but KeepFor, Lost and Cheap must be set.
type Config[C Conn] struct {
	// Most bounds the connections, and Share the requests that use one at a time.
	Most, Share int
	// Idle is how long a connection stays without a request.
	Idle time.Duration
	// KeepFor shortens Idle for a connection. Nil: never.
	KeepFor func(c C, idle time.Duration) time.Duration
	// DialTimeout bounds an attempt to connect. An attempt gets less if all who wait
	// for it have less time, but leastAttempt at least.
	DialTimeout time.Duration
	// Pause is the pause after so many failures in a row, 1 or more. A connection that
	// has lasted for Proven ends the row.
	Pause  func(failures int) time.Duration
	Proven time.Duration

	// Dial connects. Another attempt may be made as soon as it has returned.
	Dial func(context.Context) (C, error)
	// Close closes a connection; what it has to hand over still it does until ctx
	// ends. It is called once for each, also for those that have ended.
	Close func(ctx context.Context, c C)
	// Lost tells of a connection that is done whether the peer or the path ended it.
	// Nil: always.
	Lost func(C) bool
	// Cheap tells whether a failure was known without asking the peer, so that no
	// pause is due. Nil: never.
	Cheap func(error) bool
}

// leastAttempt is the least time that an attempt gets, however short those who wait
// have.
const leastAttempt = time.Second

// A Lane keeps connections. All methods may be called concurrently.
type Lane[C Conn] struct {
	cfg     Config[C]
	ctx     context.Context // ends when nothing is connected any more
	cancel  context.CancelFunc
	closing context.Context // ends when what is being closed gets no more time
	cut     context.CancelFunc
	wg      sync.WaitGroup // attempts, watchers, closers

	mu       sync.Mutex
	closed   bool
	drained  chan struct{}
	conns    []*Held[C] // that may be handed out, or are
	free     []*Held[C] // of those, without requests: the latest last, its memory is the warmest
	waiting  []*waiter[C]
	leaving  []*Held[C] // handed out no more, but still with requests
	out      int        // requests that have a connection
	closers  int        // connections that are being closed
	dialling bool
	idle     *time.Timer
	idleAt   time.Time // when it fires; zero: it does not
	spare    sync.Pool // of *waiter[C]

	failures int       // in a row
	failedAt time.Time // of the last one
	after    time.Time // no attempt begins before
	provenAt time.Time // the row ends if nothing fails until then; zero: nothing has worked since
	last     error     // of the attempt before, if it failed
	counts   Counts
}

// Counts count from the beginning.
type Counts struct {
	Requests uint64 // that got a connection
	Waited   uint64 // requests that had to wait for one
	Left     uint64 // requests that got none: the attempt failed, or their context ended
	Opened   uint64 // connections
	Failed   uint64 // attempts
	Lost     uint64 // connections that the peer or the path ended
	Idle     uint64 // connections that were closed because nobody used them
	Replaced uint64 // connections that gave way to better ones
}

// Add adds o.
func (c *Counts) Add(o Counts) {
	c.Requests += o.Requests
	c.Waited += o.Waited
	c.Left += o.Left
	c.Opened += o.Opened
	c.Failed += o.Failed
	c.Lost += o.Lost
	c.Idle += o.Idle
	c.Replaced += o.Replaced
}

// Stats are a lane's numbers.
type Stats struct {
	Open     int // connections that may be handed out, or are
	Busy     int // of those, with a request
	Waiting  int // requests
	Failures int // in a row
	Next     time.Time
	Counts
}

// Held is a connection of a lane.
type Held[C Conn] struct {
	Conn C

	lane    *Lane[C]
	users   int
	born    time.Time
	since   time.Time     // without users
	idle    time.Duration // how long it stays so
	gone    bool          // it is handed out no more: it has ended, or is to be closed when it is free
	closing bool
}

type waiter[C Conn] struct {
	ready    chan struct{} // one token, when held or err is set
	held     *Held[C]
	err      error
	deadline time.Time // or zero
}

// New makes a lane without connections.
func New[C Conn](cfg Config[C]) *Lane[C] {
	l := &Lane[C]{cfg: cfg}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.closing, l.cut = context.WithCancel(context.Background())
	return l
}

// Get returns a connection for one request: a free one, or one that has just been
// made or put back. It waits for that in order, until ctx ends, or until an attempt
// fails while there is no connection at all. The caller calls Put.
func (l *Lane[C]) Get(ctx context.Context) (*Held[C], error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, ErrClosed
	}
	if h := l.take(); h != nil {
		l.counts.Requests++
		l.mu.Unlock()
		return h, nil
	}
	w, _ := l.spare.Get().(*waiter[C])
	if w == nil {
		w = &waiter[C]{ready: make(chan struct{}, 1)}
	}
	w.deadline, _ = ctx.Deadline()
	l.waiting = append(l.waiting, w)
	l.counts.Waited++
	l.want()
	l.mu.Unlock()
	select {
	case <-w.ready:
		return l.done(w)
	case <-ctx.Done():
	}
	l.mu.Lock()
	if i := slices.Index(l.waiting, w); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.counts.Left++
		err := context.Cause(ctx)
		if l.last != nil {
			err = errors.Join(err, l.last)
		}
		l.mu.Unlock()
		return nil, err
	}
	l.mu.Unlock()
	<-w.ready // it came just now
	return l.done(w)
}

// done returns what w got.
func (l *Lane[C]) done(w *waiter[C]) (*Held[C], error) {
	h, err := w.held, w.err
	w.held, w.err = nil, nil
	l.spare.Put(w)
	return h, err
}

// take returns a connection that has room for a request, or nil. It needs mu.
func (l *Lane[C]) take() *Held[C] {
	for n := len(l.free); n > 0; n-- {
		h := l.free[n-1]
		l.free = l.free[:n-1]
		if h.alive() {
			h.use()
			return h
		}
	}
	if l.cfg.Share == 1 || len(l.waiting) > 0 {
		return nil
	}
	var best *Held[C]
	for _, h := range l.conns {
		if h.users < l.cfg.Share && (best == nil || h.users < best.users) && h.alive() {
			best = h
		}
	}
	if best != nil {
		best.use()
		l.want() // the next request may find a free one
	}
	return best
}

// alive tells whether the connection has not ended, although nobody may have been
// told yet.
func (h *Held[C]) alive() bool {
	select {
	case <-h.Conn.Done():
		return false
	default:
		return !h.gone
	}
}

// use needs the lane's mu.
func (h *Held[C]) use() {
	h.users++
	h.lane.out++
}

// Put ends a request on a connection. One that has ended meanwhile is closed.
func (l *Lane[C]) Put(h *Held[C]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.lane != l || h.users == 0 {
		panic("lane: a connection is put back that is not out")
	}
	h.users--
	l.out--
	if l.closed && l.out == 0 {
		close(l.drained)
	}
	switch {
	case l.closed || !h.alive():
		// Who watches it may not have been told yet, and closes it then.
		if h.users == 0 && (h.gone || l.closed) {
			l.discard(h)
		}
	case len(l.waiting) > 0:
		l.hand(h)
	case h.users == 0:
		h.since = time.Now()
		l.free = append(l.free, h)
		l.reapBy(h.since.Add(h.idle))
	}
}

// Put is Put of h's lane.
func (h *Held[C]) Put() { h.lane.Put(h) }

// Drop is Put of a connection that is of no use any more: it is handed out no longer,
// and closed when it is free.
func (h *Held[C]) Drop() {
	l := h.lane
	l.mu.Lock()
	if !h.gone {
		l.retire(h)
		l.want()
	}
	l.mu.Unlock()
	l.Put(h)
}

// hand gives h to the first who waits. It needs mu.
func (l *Lane[C]) hand(h *Held[C]) {
	w := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	h.use()
	l.counts.Requests++
	w.held = h
	w.ready <- struct{}{}
}

// discard closes a connection in the background, once. It needs mu.
func (l *Lane[C]) discard(h *Held[C]) {
	l.leave(h)
	if h.closing {
		return
	}
	h.closing, h.gone = true, true
	l.closers++
	l.wg.Go(func() {
		l.cfg.Close(l.closing, h.Conn)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closers--
	})
}

// retire hands a connection out no more, and closes it when it is free. It needs mu.
func (l *Lane[C]) retire(h *Held[C]) {
	h.gone = true
	l.leave(h)
	if h.users == 0 {
		l.discard(h)
	} else {
		l.leaving = append(l.leaving, h)
	}
}

// leave takes a connection out. It needs mu.
func (l *Lane[C]) leave(h *Held[C]) {
	is := func(o *Held[C]) bool { return o == h }
	l.conns = slices.DeleteFunc(l.conns, is)
	l.free = slices.DeleteFunc(l.free, is)
	l.leaving = slices.DeleteFunc(l.leaving, is)
}

// add takes a new connection in, and hands it out as often as it may be. It needs mu.
func (l *Lane[C]) add(c C) {
	now := time.Now()
	h := &Held[C]{Conn: c, lane: l, born: now, since: now, idle: l.cfg.Idle}
	if l.cfg.KeepFor != nil {
		h.idle = l.cfg.KeepFor(c, h.idle)
	}
	l.conns = append(l.conns, h)
	l.counts.Opened++
	if l.last = nil; l.provenAt.IsZero() {
		l.provenAt = now.Add(l.cfg.Proven)
	}
	l.wg.Go(func() { l.watch(h) })
	for h.users < l.cfg.Share && len(l.waiting) > 0 {
		l.hand(h)
	}
	if h.users == 0 {
		l.free = append(l.free, h)
	}
	l.reapBy(now.Add(h.idle))
}

// watch notices the end of a connection.
func (l *Lane[C]) watch(h *Held[C]) {
	<-h.Conn.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !h.gone && (l.cfg.Lost == nil || l.cfg.Lost(h.Conn)) {
		l.counts.Lost++
		// Those that were lost together count once.
		if h.born.After(l.failedAt) {
			l.failed()
		}
	}
	if !h.closing {
		l.retire(h)
	}
	l.want()
}

// failed counts a failure. It needs mu.
func (l *Lane[C]) failed() {
	now := time.Now()
	if !l.provenAt.IsZero() && !now.Before(l.provenAt) {
		l.failures = 0
	}
	l.provenAt = time.Time{}
	l.failures++
	l.failedAt, l.after = now, now.Add(l.cfg.Pause(l.failures))
}

// reapBy has reap look at a time, unless it does earlier. It needs mu.
func (l *Lane[C]) reapBy(at time.Time) {
	if !l.idleAt.IsZero() && !at.Before(l.idleAt) {
		return
	}
	l.idleAt = at
	if l.idle == nil {
		l.idle = time.AfterFunc(time.Until(at), l.reap)
	} else {
		l.idle.Reset(time.Until(at))
	}
}

// reap closes what has been idle for long. One timer for the lane looks again when
// the next one may be: requests set none, unless their connection stays for a shorter time
// than others.
func (l *Lane[C]) reap() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	next := now.Add(l.cfg.Idle)
	for _, h := range slices.Clone(l.free) {
		if at := h.since.Add(h.idle); at.After(now) {
			next = earlier(next, at)
		} else {
			l.counts.Idle++
			l.discard(h)
		}
	}
	if l.idleAt = (time.Time{}); !l.closed && len(l.conns) > 0 {
		l.reapBy(next)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Replace takes in a connection that is better than all of which worse says so:
// these get no further requests and are closed when they are free.
func (l *Lane[C]) Replace(c C, worse func(C) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	for _, h := range slices.Clone(l.conns) {
		if worse(h.Conn) {
			l.counts.Replaced++
			l.retire(h)
		}
	}
	l.add(c)
	return nil
}

// Stats returns the numbers.
func (l *Lane[C]) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{
		Open: len(l.conns), Busy: len(l.conns) - len(l.free), Waiting: len(l.waiting), Failures: l.failures, Next: l.after, Counts: l.counts,
	}
}

// Open tells whether there is a connection that may be handed out.
func (l *Lane[C]) Open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns) > 0
}
