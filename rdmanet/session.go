package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
)

// endpoint is what a session needs of the runtime's endpoint. Send may be
// called from many goroutines and has copied msg when it returns; a Send that
// fails because its context ended has sent nothing. receive is called by one
// goroutine at a time; one that fails because its context ended has taken
// nothing. Close is called once, by the session's goroutine, when all messages
// have been released.
type endpoint interface {
	Send(ctx context.Context, tag uint32, msg []byte) error
	receive(ctx context.Context) (tag uint32, m message, err error)
	Close() error
	Done() <-chan struct{}
	Err() error
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
	MaxMessage() int
	Eager() int
	// Tuning is read once.
	Tuning() verbena.Tuning
}

// message is a received message, in the endpoint's memory until Release.
type message interface {
	Bytes() []byte
	Release()
}

const (
	defaultLinger = 30 * time.Second

	// promptly is how long CloseWrite, CloseRead and Close wait for the
	// endpoint to take their message before they leave it to a goroutine.
	promptly = 10 * time.Millisecond

	// watchAfter is how long nobody may read a connection before the session reads
	// in the reader's place. Short of that a Read drives the endpoint itself,
	// which saves a hand-over between goroutines for each message.
	watchAfter = 5 * time.Millisecond

	// closePatience is how long Close waits for the peer to take everything. A peer
	// that reads takes a round trip, one that does not watchAfter more. Callers of
	// Close may hold locks, as net/http's do, so it is not longer.
	closePatience = time.Second

	// A session that reads in the reader's place keeps this much at most.
	// Beyond it the endpoint's credits hold back the peer.
	maxQueuedMessages = 64
	maxQueuedBytes    = 1 << 20
	// keepLimit is the longest message that it copies, to give the credit back.
	// Longer ones cost the peer a credit for half a megabyte.
	keepLimit = 64 << 10

	// closeGrace is how long the Close of a Dialer or a Listener waits for peers
	// that have still to close what was closed here.
	closeGrace = time.Second

	// maxDiscard is how much of what a peer still sends to a closed connection
	// is read and thrown away before the endpoint is closed in its face.
	maxDiscard = 64 << 20
)

// owner is the dialer's pool or the listener.
type owner interface {
	// opened hands over a connection that the peer has opened.
	opened(c *conn)
	// draining says that the local side is closing; idle or ended follows.
	draining(s *session)
	// idle says that both sides have closed; false asks for the endpoint to be
	// closed.
	idle(s *session) bool
	// ended says that the endpoint is closed and nothing runs on it any more.
	ended(s *session, err error)
}

var (
	errYield     = errors.New("a reader takes over")
	errLinger    = errors.New("the peer did not close its side in time")
	errRetired   = errors.New("the listener retired the endpoint")
	errDiscard   = errors.New("the peer keeps sending to a closed connection")
	errIdle      = errors.New("idle for too long")
	errAbandoned = errors.New("closed abortively")
)

// session is an endpoint and the connections it carries, one after the other.
//
// Receiving from the endpoint is a matter of holding the token rx. A Read holds
// it while it drives the endpoint. The session's own goroutine holds it when
// nobody else would: between connections, after the local Close until the
// peer's, and on behalf of a writer whose connection nobody reads.
type session struct {
	ep     endpoint
	cfg    settings
	dialed bool
	owner  owner

	rx      chan struct{} // token: may receive
	tx      chan struct{} // token: may send for the connection
	wake    chan struct{}
	waiting atomic.Int32 // readers waiting for rx
	life    *gate        // shut once the session is dead
	done    chan struct{}
	wg      sync.WaitGroup // sends in the background, messages lent out

	mu       sync.Mutex
	stream   uint32 // number of the latest connection
	conn     *conn  // nil between connections
	pump     *gate  // the goroutine's receive, to interrupt it
	watch    bool   // receive although conn is open and nobody reads
	retired  bool
	dead     bool
	reason   error
	controls []kind // messages of conn that wait for room
	sending  bool   // a goroutine is sending controls
	idle     *time.Timer
}

// newSession takes over the endpoint; the session's goroutine ends, and
// owner.ended is called, when the endpoint has been closed.
func newSession(ep endpoint, cfg settings, dialed bool, o owner) *session {
	cfg.fill(ep.Tuning(), ep.Eager())
	if m := ep.MaxMessage(); m > 0 && cfg.chunk > m {
		cfg.chunk = m
	}
	s := &session{
		ep:     ep,
		cfg:    cfg,
		dialed: dialed,
		owner:  o,
		rx:     make(chan struct{}, 1),
		tx:     make(chan struct{}, 1),
		wake:   make(chan struct{}, 1),
		life:   newGate(),
		done:   make(chan struct{}),
	}
	s.rx <- struct{}{}
	s.tx <- struct{}{}
	return s
}

func (s *session) start() { go s.run() }

func (s *session) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// open starts a connection on an idle session of the dialer's.
func (s *session) open(ctx context.Context) (*conn, error) {
	s.mu.Lock()
	if s.dead || s.retired || s.conn != nil || s.stream == maxStream {
		reason := s.reason
		s.mu.Unlock()
		return nil, resetError(reason)
	}
	s.stream++
	c := newConn(s, s.stream)
	s.conn = c
	// The goroutine is receiving already; it goes on until a Read comes.
	s.watch = true
	c.watching.Store(true)
	s.mu.Unlock()

	if err := s.ep.Send(ctx, tagOf(kindOpen, c.stream), nil); err != nil {
		s.shutdown(fmt.Errorf("opening a connection: %w", err))
		c.closed.Store(true)
		s.kick()
		return nil, err
	}
	return c, nil
}

// shutdown gives up the session; a connection that is open on it fails. The
// session's goroutine closes the endpoint as soon as nobody uses it any more.
func (s *session) shutdown(reason error) {
	s.died(reason)
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		c.rdl.fail(resetError(reason))
	}
	s.kick()
}

// use is what a listener's session is busy with when the listener closes.
type use int

const (
	useNone     use = iota // nothing
	usePending             // a connection that nobody has accepted
	useOpen                // an accepted connection
	useDraining            // one that was closed here, but not yet by the peer
)

// retireNow says that the session's connection, if somebody has it, is the
// last. The listener's mu is held.
func (s *session) retireNow() use {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	switch c := s.conn; {
	case c == nil:
		return useNone
	case c.closed.Load():
		return useDraining
	case c.accepted:
		return useOpen
	}
	return usePending
}

// await waits for sessions that end by themselves, and ends those that have
// not when the grace is over.
func await(sessions []*session, grace time.Duration) {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	late := false
	for _, s := range sessions {
		if !late {
			select {
			case <-s.done:
				continue
			case <-timer.C:
				late = true
			}
		}
		s.shutdown(errClosed)
	}
	for _, s := range sessions {
		<-s.done
	}
}

// died notes that nothing can be sent any more. What has been received can
// still be read.
func (s *session) died(reason error) {
	s.mu.Lock()
	if s.reason == nil {
		s.reason = reason
	}
	s.dead = true
	c := s.conn
	if g := s.pump; g != nil && (c == nil || c.closed.Load()) {
		g.shut(errYield)
	}
	s.mu.Unlock()
	s.life.shut(resetError(reason))
	if c != nil {
		c.wdl.fail(resetError(reason))
	}
}

// interrupt asks the session's goroutine for the token.
func (s *session) interrupt() {
	s.mu.Lock()
	if s.pump != nil {
		s.pump.shut(errYield)
	}
	s.mu.Unlock()
}

type step int

const (
	stepWait    step = iota // nothing to receive for
	stepWatch               // on behalf of a writer
	stepReceive             // idle, or closed by the local side
	stepFinish              // both sides have closed
	stepEnd                 // the endpoint is closed and nobody uses it
)

func (s *session) next() step {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conn
	switch {
	case c == nil && s.dead:
		return stepEnd
	case c == nil:
		return stepReceive
	case c.closed.Load() && s.dead:
		return stepEnd
	case c.finished():
		return stepFinish
	case c.peerClosed.Load():
		return stepWait // nothing more comes; our own CLOSE is still due
	case c.closed.Load():
		return stepReceive
	case s.watch && !s.dead && s.waiting.Load() == 0 && !c.queueFull():
		return stepWatch
	}
	return stepWait
}

// run is the session's goroutine.
func (s *session) run() {
	defer close(s.done)
	epDone := s.ep.Done()
	for {
		st := s.next()
		switch st {
		case stepWait:
			s.unwatch()
			select {
			case <-s.wake:
			case <-epDone:
				epDone = nil
				if err := s.ep.Err(); errors.Is(err, verbena.ErrClosed) {
					s.shutdown(err)
					<-s.rx // readers leave
					s.release()
					s.rx <- struct{}{}
				} else {
					s.died(err)
				}
			}
			continue
		case stepWatch:
			select {
			case <-s.rx:
			default: // somebody reads after all
				s.unwatch()
				continue
			}
		default:
			<-s.rx
		}
		opened := s.receiveLoop()
		ended := s.next() == stepEnd
		if ended {
			s.release()
		}
		s.rx <- struct{}{}
		if opened != nil {
			s.owner.opened(opened)
			opened.armWatch()
		}
		if ended {
			break
		}
	}
	s.mu.Lock()
	s.stopIdle()
	if s.conn != nil && s.conn.lingering != nil {
		s.conn.lingering.Stop()
	}
	reason := s.reason
	s.mu.Unlock()
	s.wg.Wait()
	if err := s.ep.Close(); reason == nil {
		reason = err
	}
	s.owner.ended(s, reason)
}

// unwatch notes that the goroutine does not read on a writer's behalf, so that
// the next write asks again.
func (s *session) unwatch() {
	s.mu.Lock()
	if s.watch {
		s.watch = false
		if c := s.conn; c != nil {
			c.watching.Store(false)
		}
	}
	s.mu.Unlock()
}

// receiveLoop holds rx. It returns when there is nothing to receive for, a
// reader wants the token, or the peer has opened a connection.
func (s *session) receiveLoop() (opened *conn) {
	g := newGate()
	s.mu.Lock()
	s.pump = g
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.pump = nil
		s.mu.Unlock()
	}()
	for {
		switch s.next() {
		case stepWait, stepEnd:
			return nil
		case stepFinish:
			s.endStream()
			continue
		}
		if g.cause() != nil {
			// Interrupted for a reader that has gone in the meantime.
			g = newGate()
			s.mu.Lock()
			s.pump = g
			s.mu.Unlock()
			continue
		}
		tag, m, err := s.ep.receive(g)
		if err != nil {
			switch {
			case errors.Is(err, verbena.ErrClosed):
				s.shutdown(err)
				s.release()
			case g.cause() == nil:
				s.died(err)
			}
			continue
		}
		data, opened, err := s.dispatch(tag, m)
		switch {
		case err != nil:
			s.shutdown(err)
		case opened != nil:
			return opened
		case data != nil:
			s.mu.Lock()
			c := s.conn
			s.mu.Unlock()
			if c.closed.Load() || c.readStopped.Load() {
				size := len(data.Bytes())
				data.Release()
				if c.discarded += size; c.closed.Load() && c.discarded > maxDiscard {
					s.shutdown(errDiscard)
				}
			} else {
				c.push(keep(data))
			}
		}
	}
}

// release gives back what the connection still holds; the caller holds rx. It
// is done at once when the runtime is closed under a connection, because the
// runtime's memory stays until then.
func (s *session) release() {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		c.releaseAll()
	}
}

// endStream ends a connection that both sides have closed; the caller holds
// rx.
func (s *session) endStream() {
	s.release()
	s.mu.Lock()
	if t := s.conn.lingering; t != nil {
		t.Stop()
	}
	s.conn = nil
	s.watch = false
	if s.retired && s.reason == nil {
		s.reason = errRetired
	}
	usable := !s.dead && !s.retired && s.stream < maxStream
	s.mu.Unlock()
	if !usable || !s.owner.idle(s) {
		s.shutdown(nil)
	}
	s.kick()
}

// after arranges for f to run if the session is still idle after d. It is
// called while the session is idle.
func (s *session) after(d time.Duration, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead || s.conn != nil {
		return
	}
	s.stopIdle()
	s.idle = time.AfterFunc(d, f)
}

func (s *session) stopIdle() {
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
}

// retire asks the dialer to close an idle endpoint, and closes it itself if the
// dialer does not within the linger time. The dialer's next OPEN may be on its
// way; asking rather than closing does not lose it.
func (s *session) retire() {
	s.mu.Lock()
	if s.dead || s.conn != nil || s.retired {
		s.mu.Unlock()
		return
	}
	s.retired = true
	tag := tagOf(kindRetire, s.stream)
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	s.after(s.cfg.linger, func() {
		s.mu.Lock()
		idle := s.conn == nil
		s.mu.Unlock()
		if idle {
			s.shutdown(errIdle)
		}
	})
	if err := s.ep.Send(s.life, tag, nil); err != nil {
		s.shutdown(err)
	}
}
