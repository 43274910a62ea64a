package rdmanet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
)

// Config configures a Listener. The zero value stands for defaults.
type Config struct {
	// Service is the service protocol whose endpoints carry connections; default
	// [DefaultService].
	Service string
	// Logger gets the ends of endpoints that were not in order. Default: slog.Default().
	Logger *slog.Logger

	// Chunk is the most bytes that go into one message; default by transport.
	Chunk int
	// Linger is how long a closed connection waits for the peer to close, until
	// its endpoint is closed; default 30 s.
	Linger time.Duration
	// CloseWait is how long Close waits for the peer to take what was written; default
	// one second. Below 0 it does not wait, as is right where the peer acknowledges all
	// that matters before Close: it saves a round trip.
	CloseWait time.Duration
	// IdleTimeout is how long an endpoint may carry no connection until its
	// dialer is asked to close it; default 5 minutes, which is longer than dialers
	// park.
	IdleTimeout time.Duration
}

// Listener is a [net.Listener] whose Accept returns a *[Conn] for a connection
// over an endpoint, and the plain connection of a peer that does not speak
// Verbena.
type Listener struct {
	cfg      Config
	settings settings
	source   source
	log      *slog.Logger
	accepted chan net.Conn
	closing  chan struct{}
	stop     context.CancelFunc
	wg       sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	failure  error
	sessions map[*session]struct{}
}

// source is what a Listener needs of the runtime's.
type source interface {
	acceptEndpoint(ctx context.Context) (endpoint, *verbena.Endpoint, error)
	Legacy() net.Listener
	Addr() net.Addr
	Close() error
}

// Listen publishes the TCP port of address for connections over endpoints and for
// plain ones. For other services on the same port, take [verbena.Runtime.Listen],
// [verbena.Listener.Service] and [NewListener].
func Listen(ctx context.Context, rt *verbena.Runtime, address string, cfg Config) (*Listener, error) {
	l, err := rt.Listen(ctx, address, verbena.ListenConfig{Services: cfg.Services()})
	if err != nil {
		return nil, err
	}
	return NewListener(l, cfg), nil
}

// Services returns the names of the services that a Listener of this
// configuration takes, for [verbena.ListenConfig].
func (c Config) Services() []string {
	return []string{c.service()}
}

func (c Config) service() string {
	if c.Service == "" {
		return DefaultService
	}
	return c.Service
}

// NewListener takes over a listener of the runtime's, which must take the
// services of [Config.Services].
func NewListener(l *verbena.Listener, cfg Config) *Listener {
	return newListener(runtimeListener{l}, cfg)
}

func newListener(src source, cfg Config) *Listener {
	ctx, stop := context.WithCancel(context.Background())
	l := &Listener{
		cfg:      cfg,
		settings: settings{chunk: cfg.Chunk, linger: cfg.Linger, wait: cfg.CloseWait},
		source:   src,
		log:      cfg.Logger,
		accepted: make(chan net.Conn),
		closing:  make(chan struct{}),
		stop:     stop,
		sessions: map[*session]struct{}{},
	}
	if l.log == nil {
		l.log = slog.Default()
	}
	if l.cfg.IdleTimeout <= 0 {
		l.cfg.IdleTimeout = 5 * time.Minute
	}
	l.wg.Go(func() { l.acceptEndpoints(ctx) })
	l.wg.Go(l.acceptPlain)
	return l
}

func (l *Listener) acceptEndpoints(ctx context.Context) {
	for {
		ep, whole, err := l.source.acceptEndpoint(ctx)
		if err != nil {
			l.fail(err)
			return
		}
		if whole != nil && whole.Service() != l.cfg.service() {
			l.log.Warn("endpoint of an unknown service", "service", whole.Service(), "peer", ep.RemoteAddr())
			ep.Close()
			continue
		}
		l.serve(ep)
	}
}

func (l *Listener) serve(ep endpoint) {
	s := newSession(ep, l.settings, false, l)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		ep.Close()
		return
	}
	l.sessions[s] = struct{}{}
	l.mu.Unlock()
	l.idle(s)
	s.start()
}

func (l *Listener) acceptPlain() {
	plain := l.source.Legacy()
	for {
		c, err := plain.Accept()
		if err != nil {
			l.fail(err)
			return
		}
		select {
		case l.accepted <- c:
		case <-l.closing:
			discard(c)
		}
	}
}

// fail makes Accept return why the listener is of no use any more.
func (l *Listener) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	l.failure = err
	close(l.closing)
}

// Accept returns the next connection of either kind.
func (l *Listener) Accept() (net.Conn, error) {
	var c net.Conn
	select {
	case c = <-l.accepted:
	case <-l.closing:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c != nil && !l.closed {
		if own, ok := c.(*Conn); ok {
			own.accepted = true
		}
		return c, nil
	}
	if c != nil {
		discard(c)
	}
	err := l.failure
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, verbena.ErrClosed) {
		err = net.ErrClosed
	}
	return nil, &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: err}
}

// Addr is the address of the port.
func (l *Listener) Addr() net.Addr { return l.source.Addr() }

// Close closes the port and the endpoints that carry no connection, and waits
// for them: up to a second for peers that have still to close what was closed
// here. Connections that are open stay so, and their endpoints are closed when
// they are; a further Close waits for those that have been closed since. The
// runtime should be closed after that.
func (l *Listener) Close() error {
	l.fail(nil)
	l.stop()
	err := l.source.Close()
	l.wg.Wait()
	var ending, free []*session
	l.mu.Lock()
	for s := range l.sessions {
		switch s.retireNow() {
		case useNone:
			free = append(free, s)
		case usePending, useDraining:
			ending = append(ending, s)
		}
	}
	l.mu.Unlock()
	for _, s := range free {
		s.shutdown(errClosed)
	}
	await(append(ending, free...), closeGrace)
	return err
}

func (l *Listener) opened(inner *conn) {
	c := wrap(inner)
	select {
	case l.accepted <- c:
	case <-l.closing:
		discard(c)
	}
}

// discard closes a connection that nobody has seen.
func discard(c net.Conn) {
	if own, ok := c.(*Conn); ok {
		own.abortive.Store(true)
	}
	c.Close()
}

func (l *Listener) draining(*session) {}

func (l *Listener) idle(s *session) bool {
	s.after(l.cfg.IdleTimeout, s.retire)
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed
}

func (l *Listener) ended(s *session, err error) {
	l.mu.Lock()
	delete(l.sessions, s)
	l.mu.Unlock()
	if err != nil && !errors.Is(err, verbena.ErrPeerClosed) && err != errClosed && err != errRetired {
		l.log.Info("endpoint ended", "peer", s.ep.RemoteAddr(), "error", err)
	}
}
