package verbena

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/verbena-data/verbena/internal/hello"
)

// ServiceConfig configures one service of a listener. Zero values stand for
// those of the listener.
type ServiceConfig struct {
	// Backlog bounds the endpoints that wait for an Accept.
	Backlog int
	// Group is that of the endpoints.
	Group *Group
	// Tuning overrides the group's for the endpoints of this service, as a whole
	// instead of the listener's.
	Tuning TuningTable
	// Trusted says that whoever dials the service may read what other peers of the
	// group have sent: see [DialConfig].Trusted.
	Trusted bool
	// InPlace says that long messages may be received as they lie in the memory of who
	// dials: see [DialConfig].InPlace.
	InPlace bool
}

// A Service is one of the services of a [Listener], with an accept queue of its
// own. It must be closed, or its listener.
type Service struct {
	l      *Listener
	name   string
	cfg    ServiceConfig
	ctx    context.Context // ends with Close, or the listener's
	cancel context.CancelFunc

	endpoints chan *Endpoint
	handing   sync.WaitGroup // handshakes that put an endpoint into the queue
	ended     bool           // guarded by the listener's mu; then nothing is put there any more
}

func newService(l *Listener, name string, cfg ServiceConfig) *Service {
	s := &Service{l: l, name: name, cfg: cfg, endpoints: make(chan *Endpoint, cfg.Backlog)}
	s.ctx, s.cancel = context.WithCancel(l.ctx)
	return s
}

// Service registers a service: dials that ask for it get endpoints that its
// Accept returns. Services come and go at any time, each name once at a time. A
// dial that asks for a service which is neither registered nor in
// [ListenConfig.Services] is refused.
func (l *Listener) Service(name string, cfg ServiceConfig) (*Service, error) {
	if err := hello.CheckService(name); err != nil {
		return nil, fmt.Errorf("verbena: serve on %s: %w", l.Addr(), err)
	}
	set(&cfg.Backlog, l.cfg.Backlog)
	set(&cfg.Group, l.cfg.Group)
	cfg.Trusted = cfg.Trusted || l.cfg.Trusted && cfg.Group == l.cfg.Group
	cfg.InPlace = cfg.InPlace || l.cfg.InPlace
	var err error
	if cfg.Group, err = l.r.group(cfg.Group); err == nil {
		err = cfg.Group.check(cfg.Tuning, cfg.Trusted)
	}
	if err != nil {
		return nil, fmt.Errorf("verbena: serve %s on %s: %w", name, l.Addr(), err)
	}
	if cfg.Tuning == nil {
		cfg.Tuning = l.cfg.Tuning
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closing:
		return nil, fmt.Errorf("verbena: serve %s on %s: %w", name, l.Addr(), ErrClosed)
	case l.services[name] != nil:
		return nil, fmt.Errorf("verbena: serve %s on %s: it is served already", name, l.Addr())
	}
	s := newService(l, name, cfg)
	l.services[name] = s
	l.others = false
	return s, nil
}

// Name is what dials ask for.
func (s *Service) Name() string { return s.name }

// Addr is the address of the listener.
func (s *Service) Addr() net.Addr { return s.l.Addr() }

// Accept waits for the next endpoint. Any number of goroutines may call it.
func (s *Service) Accept(ctx context.Context) (*Endpoint, error) {
	var err error
	select {
	case e := <-s.endpoints:
		return e, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-s.ctx.Done():
		err = ErrClosed
	}
	if s.name != "" {
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	return nil, fmt.Errorf("verbena: accept on %s: %w", s.l.Addr(), err)
}

// Close ends the service: dials that ask for it are refused from now on, and the
// endpoints that nobody has accepted are closed. Those that were accepted are
// left alone, and so are the listener and its other services.
func (s *Service) Close() error {
	s.l.mu.Lock()
	if s.l.services[s.name] == s {
		delete(s.l.services, s.name)
	}
	s.l.mu.Unlock()
	s.end()
	return nil
}

// end closes what waits in the queue, and lets nothing more into it.
func (s *Service) end() {
	s.l.mu.Lock()
	s.ended = true
	s.l.mu.Unlock()
	s.cancel()
	s.handing.Wait()
	for {
		select {
		case e := <-s.endpoints:
			s.l.r.discard(e)
		default:
			return
		}
	}
}

// put hands an endpoint over. It reports false if nobody has room for it until
// ctx ends, or the service does.
func (s *Service) put(ctx context.Context, e *Endpoint) bool {
	s.l.mu.Lock()
	if s.ended {
		s.l.mu.Unlock()
		return false
	}
	s.handing.Add(1)
	s.l.mu.Unlock()
	defer s.handing.Done()
	select {
	case s.endpoints <- e:
		return true
	default:
	}
	select {
	case s.endpoints <- e:
		return true
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return false
}
