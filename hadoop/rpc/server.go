package rpc

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/queue"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/stream"
)

// Config configures a server. Zero values stand for defaults.
type Config struct {
	Logger *slog.Logger // default: slog.Default()
	// MaxFrame is the longest frame in bytes that is taken; default 64 MiB, as
	// Hadoop's ipc.maximum.data.length. Until a client has said who it is, its
	// frames may have 64 KiB at most.
	MaxFrame int
	// MaxConnections bounds the connections. Beyond it the oldest one that has
	// not said who it is has to go; if all have, the new one. Default 16,384.
	MaxConnections int
	// HandshakeTimeout bounds the time until a client has said who it is.
	// Default 20 s.
	HandshakeTimeout time.Duration
	// IdleTimeout is how long a connection may be without a call. Default
	// 10 minutes; clients close theirs after seconds.
	IdleTimeout time.Duration
	// WriteTimeout bounds how long a client may take for the responses that
	// wait for it, or for each 256 KiB of them; it has sixteen times as long for
	// all together. Default 1 minute.
	WriteTimeout time.Duration
	// UnreadBytes bounds the responses of all connections that wait for their
	// clients, beyond 4 MiB for each connection. Nothing more is read from a client with that
	// much to read. Beyond half of UnreadBytes its connection ends, and if all
	// together have more than UnreadBytes, the one with the most. Default 512 MiB.
	UnreadBytes int64
	// MaxInFlight bounds a connection's calls at once; MaxFrame bounds the bytes
	// of their requests together. Further calls wait unread, and as long as
	// they do, the end of the connection goes unnoticed. Default 256.
	MaxInFlight int
	// Handlers is how many methods run at once, short ones not counted.
	// Default 256.
	Handlers int
	// QueueLength bounds the calls of all connections that wait for a handler,
	// QueueBytes the bytes of their requests. Default 4,096 and four times
	// MaxFrame.
	QueueLength int
	QueueBytes  int64
	// QueueWait is how long a call waits outside a full queue, and with it what
	// else its connection sends, before it is answered with RetriableException.
	// Negative means not at all. Default 10 s: many clients do not come back.
	QueueWait time.Duration
	// RetryCacheBytes bounds the answers that are kept for repetitions of
	// methods made by [Method.Once], for 10 minutes at most. Default 64 MiB.
	RetryCacheBytes int64
	// Mechanisms are the ways to authenticate by SASL that clients are offered.
	Mechanisms []Mechanism
	// Impersonate tells whether a client that is realUser may act as user; its error
	// reaches the client, an [*exception.Error] as it is. A client with a token never may. If it is nil, only simple
	// clients may, who could as well say that they were user.
	Impersonate func(realUser, user string, peer net.Addr) error
	// ShortName, if it is set, is what a client's name is here, which may be that of a
	// Kerberos principal; its error reaches the client, an [*exception.Error] as it is.
	// Methods and Impersonate know short names alone. It may be called concurrently.
	ShortName func(name string) (string, error)
	// RefuseSimple refuses clients that only say who they are. It needs a mechanism.
	RefuseSimple bool
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	set(&c.MaxFrame, 64<<20)
	set(&c.MaxConnections, 16_384)
	set(&c.HandshakeTimeout, 20*time.Second)
	set(&c.IdleTimeout, 10*time.Minute)
	set(&c.WriteTimeout, time.Minute)
	set(&c.UnreadBytes, 512<<20)
	set(&c.MaxInFlight, 256)
	set(&c.Handlers, 256)
	set(&c.QueueLength, 4096)
	set(&c.QueueBytes, 4*int64(c.MaxFrame))
	if c.QueueWait == 0 {
		c.QueueWait = 10 * time.Second
	}
	set(&c.RetryCacheBytes, 64<<20)
	return c
}

// set gives a field its default.
func set[T int | int64 | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Server serves protocols to any number of connections, which its owner accepts.
// Protocols are registered before it serves.
type Server struct {
	cfg       Config
	protocols map[string]protocol
	metrics   metrics
	queue     *queue.Queue[*call]
	retries   *retryCache
	unread    *stream.Budget

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	members map[*member]struct{}
}

// A member is a connection or an endpoint that a server serves.
type member struct {
	close func() // returns at once
	since time.Time
	known bool // the client has introduced itself; guarded by the server's mu
}

type protocol struct {
	class   string
	version uint64
	methods map[string]*served
}

// NewServer returns a server without protocols.
func NewServer(cfg Config) *Server {
	s := &Server{
		cfg:       cfg.withDefaults(),
		protocols: map[string]protocol{},
		members:   map[*member]struct{}{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.queue = queue.New(s.cfg.QueueLength, s.cfg.QueueBytes, s.cfg.Handlers, (*call).serve)
	s.retries = newRetryCache(s.cfg.RetryCacheBytes)
	s.unread = stream.NewBudget(s.cfg.UnreadBytes)
	s.metrics = newMetrics(s)
	return s
}

// Register adds a protocol by its Java class name and version. It must not be
// called once the server serves.
func (s *Server) Register(class string, version uint64, methods Methods) {
	p := protocol{class, version, make(map[string]*served, len(methods))}
	for name, m := range methods {
		p.methods[name] = s.metrics.serve(class, name, version, m)
	}
	s.protocols[class] = p
}

// Close closes the connections and waits for the calls under way, whose contexts
// end. Calls that wait for a handler are dropped.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	for m := range s.members {
		m.close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.queue.Close()
	return nil
}

// admit counts a member, unless there are too many or the server is closed.
func (s *Server) admit(m *member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if len(s.members) >= s.cfg.MaxConnections {
		s.metrics.refused.Inc()
		oldest := s.oldestUnknown()
		if oldest == nil {
			return false
		}
		delete(s.members, oldest)
		oldest.close()
	}
	m.since = time.Now()
	s.members[m] = struct{}{}
	s.metrics.connections.Inc()
	s.wg.Add(1)
	return true
}

// oldestUnknown is the oldest member whose client has not introduced itself.
func (s *Server) oldestUnknown() (oldest *member) {
	for m := range s.members {
		if !m.known && (oldest == nil || m.since.Before(oldest.since)) {
			oldest = m
		}
	}
	return oldest
}

// know notes that a member's client has introduced itself.
func (s *Server) know(m *member) {
	s.mu.Lock()
	m.known = true
	s.mu.Unlock()
}

// leave ends what admit began.
func (s *Server) leave(m *member) {
	s.metrics.connections.Dec()
	s.mu.Lock()
	delete(s.members, m)
	s.mu.Unlock()
	s.wg.Done()
}
