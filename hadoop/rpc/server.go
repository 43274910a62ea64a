package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Config configures a server. Zero values stand for defaults.
type Config struct {
	Logger *slog.Logger // default: none
	// MaxFrame is the longest frame in bytes that is taken; default 64 MiB, as
	// Hadoop's ipc.maximum.data.length.
	MaxFrame int
	// HandshakeTimeout bounds the time until a client has said who it is.
	// Default 20 s.
	HandshakeTimeout time.Duration
	// IdleTimeout is how long a connection may be without a call. Default
	// 10 minutes; clients close theirs after seconds.
	IdleTimeout time.Duration
	// WriteTimeout bounds how long a client may leave responses unread. Default 1 minute.
	WriteTimeout time.Duration
	// MaxInFlight bounds a connection's calls at once; MaxFrame bounds the bytes
	// of their requests together. Further calls wait unread, and as long as
	// they do, the end of the connection goes unnoticed. Default 256.
	MaxInFlight int
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxFrame <= 0 {
		c.MaxFrame = 64 << 20
	}
	if c.HandshakeTimeout <= 0 {
		c.HandshakeTimeout = 20 * time.Second
	}
	if c.IdleTimeout <= 0 {
		c.IdleTimeout = 10 * time.Minute
	}
	if c.WriteTimeout <= 0 {
		c.WriteTimeout = time.Minute
	}
	if c.MaxInFlight <= 0 {
		c.MaxInFlight = 256
	}
	return c
}

// Server serves protocols to any number of connections. Protocols are
// registered before it serves.
type Server struct {
	cfg       Config
	protocols map[string]protocol
	metrics   metrics

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
}

type protocol struct {
	version uint64
	methods map[string]*served
}

// NewServer returns a server without protocols.
func NewServer(cfg Config) *Server {
	s := &Server{
		cfg:       cfg.withDefaults(),
		protocols: map[string]protocol{},
		metrics:   newMetrics(),
		listeners: map[net.Listener]struct{}{},
		conns:     map[*conn]struct{}{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Register adds a protocol by its Java class name and version. It must not be
// called once the server serves.
func (s *Server) Register(class string, version uint64, methods Methods) {
	p := protocol{version, make(map[string]*served, len(methods))}
	for name, m := range methods {
		p.methods[name] = s.metrics.serve(class, name, m)
	}
	s.protocols[class] = p
}

// Serve serves the connections that l accepts until l fails or the server is
// closed, and then closes l. After Close it returns [ErrClosed].
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		l.Close()
		return ErrClosed
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		l.Close()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	for {
		nc, err := l.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return ErrClosed
			}
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() {
				// Out of descriptors, mostly: connections that end free some.
				s.cfg.Logger.Warn("rpc: accept", "error", err)
				select {
				case <-s.ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
				continue
			}
			return fmt.Errorf("rpc: accept: %w", err)
		}
		if c := s.open(nc); c != nil {
			go s.run(c)
		}
	}
}

// ServeConn serves one connection until it ends. The server closes it.
func (s *Server) ServeConn(nc net.Conn) {
	if c := s.open(nc); c != nil {
		s.run(c)
	}
}

// open adds a connection, which run then serves.
func (s *Server) open(nc net.Conn) *conn {
	c := newConn(s, nc)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.cancel()
		nc.Close()
		return nil
	}
	s.conns[c] = struct{}{}
	s.metrics.connections.Inc()
	s.wg.Add(1)
	return c
}

func (s *Server) run(c *conn) {
	defer s.wg.Done()
	c.serve()
	s.metrics.connections.Dec()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// Close closes listeners and connections and waits for the calls under way,
// whose contexts end.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	for l := range s.listeners {
		l.Close()
	}
	for c := range s.conns {
		c.nc.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
