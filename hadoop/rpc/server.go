package rpc

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Config configures a server. Zero values stand for defaults.
type Config struct {
	Logger *slog.Logger // default: slog.Default()
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
		c.Logger = slog.Default()
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

// Server serves protocols to any number of connections, which its owner accepts.
// Protocols are registered before it serves.
type Server struct {
	cfg       Config
	protocols map[string]protocol
	metrics   metrics

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[*conn]struct{}
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

// ServeConn serves one connection until it ends, and closes it. After Close it
// closes it at once.
func (s *Server) ServeConn(nc net.Conn) {
	c := newConn(s, nc)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		c.cancel()
		nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.metrics.connections.Inc()
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	c.serve()
	s.metrics.connections.Dec()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// Close closes the connections and waits for the calls under way, whose contexts
// end.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	for c := range s.conns {
		c.nc.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
