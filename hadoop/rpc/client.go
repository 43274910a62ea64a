package rpc

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/internal/backoff"
)

// ClientConfig configures a client. Zero values stand for defaults.
type ClientConfig struct {
	// Dial connects to a server; default TCP with keep-alives.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Endpoint, if it is set, dials an endpoint for [Service] to a server: [Endpoints]
	// makes such a function. Calls travel on endpoints as calls of the runtime. To a
	// server that does not know the service, and to one that has never heard of
	// Verbena, Dial connects.
	Endpoint func(ctx context.Context, address string) (*verbena.Endpoint, error)
	// MaxFrame is the longest response in bytes that is taken; default 128 MiB,
	// as Hadoop's ipc.maximum.response.length.
	MaxFrame int
	// ConnectTimeout bounds one attempt to connect, authentication included.
	// Default 20 s.
	ConnectTimeout time.Duration
	// CallTimeout bounds one run of a call, to within an eighth, beside its
	// context. Default 2 minutes, as Hadoop's ipc.client.rpc-timeout.ms.
	CallTimeout time.Duration
	// PingInterval is after how much silence a server is pinged at which calls
	// are under way. Default 1 minute, as Hadoop's ipc.ping.interval.
	PingInterval time.Duration
	// IdleTimeout is how long a connection stays without a call. Default 30 s.
	IdleTimeout time.Duration
	// Attempts is how often a call is tried at most. Default 10.
	Attempts int
	// Backoff is the mean pause after the first failed attempt; it doubles with each further
	// one up to MaxBackoff. Each pause is drawn from half to one and a half of
	// it. Defaults 100 ms and 10 s.
	Backoff, MaxBackoff time.Duration
}

func (c ClientConfig) withDefaults() ClientConfig {
	if c.Dial == nil {
		d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}}
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
	}
	set(&c.MaxFrame, maxResponse)
	set(&c.ConnectTimeout, 20*time.Second)
	set(&c.CallTimeout, 2*time.Minute)
	set(&c.PingInterval, time.Minute)
	set(&c.IdleTimeout, 30*time.Second)
	set(&c.Attempts, 10)
	set(&c.Backoff, 100*time.Millisecond)
	set(&c.MaxBackoff, 10*time.Second)
	return c
}

// pause is the pause after so many failures.
func (c *ClientConfig) pause(failures int) time.Duration {
	return backoff.Policy{First: c.Backoff, Most: c.MaxBackoff}.Pause(failures)
}

// Endpoints dials endpoints of a runtime, for [ClientConfig].
func Endpoints(rt *verbena.Runtime, cfg verbena.DialConfig) func(ctx context.Context, address string) (*verbena.Endpoint, error) {
	return func(ctx context.Context, address string) (*verbena.Endpoint, error) {
		return rt.Dial(ctx, address, Service, cfg)
	}
}

// Client calls any number of servers. Calls to the same address and protocol by
// the same user share a connection, which is made when it is needed and made again
// after it has failed: by one attempt at a time for all who wait, with
// pauses that grow. It may be used concurrently.
type Client struct {
	cfg  ClientConfig
	id   ClientID
	next atomic.Uint32 // call id

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	links  map[Target]*link
}

// NewClient returns a client without connections.
func NewClient(cfg ClientConfig) *Client {
	c := &Client{cfg: cfg.withDefaults(), links: map[Target]*link{}}
	_, _ = rand.Read(c.id[:]) // never fails
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends the calls under way; their error wraps [ErrClosed].
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.cancel()
	links := c.links
	c.links = nil
	c.mu.Unlock()
	c.wg.Wait() // no connection is being made any more
	for _, l := range links {
		if conn := l.conn.Load(); conn != nil {
			conn.close()
		}
	}
	return nil
}

// Proxy makes calls of one target. It may be used concurrently.
type Proxy struct {
	client *Client
	link   *link
}

// Proxy returns a proxy of a target. It connects with the first call.
func (c *Client) Proxy(target Target) *Proxy {
	if target.Version == 0 {
		target.Version = 1
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[target]
	if l == nil {
		l = &link{client: c, target: target}
		if !c.closed {
			c.links[target] = l
		}
	}
	return &Proxy{c, l}
}

// Call calls a method and decodes its answer into resp, which must not be used
// until then; if resp has memory for a field of 32 KiB of bytes or more, that is used
// again. The server's refusal is an [*exception.Error].
//
// A call that did not reach the server, and one that it answers with
// RetriableException, is tried again within ctx and the configured attempts.
// One whose connection ended before the answer came is tried again only if
// repeat allows it, under the same call id; else the error is
// [ErrOutcomeUnknown].
func (p *Proxy) Call(ctx context.Context, method string, req, resp proto.Message, repeat ...Repeat) error {
	cfg := &p.client.cfg
	id := int32(p.client.next.Add(1)-1) & 0x7fffffff
	for attempt := 1; ; attempt++ {
		err := p.try(ctx, id, int32(attempt-1), method, req, resp)
		if err == nil {
			return nil
		}
		again, pause := p.again(err, len(repeat) > 0 && repeat[0] > 0)
		if !again || attempt >= cfg.Attempts || ctx.Err() != nil {
			return named(method, p.link.target.Address, plain(err))
		}
		if pause && !backoff.Sleep(ctx, cfg.pause(attempt), p.client.ctx.Done()) {
			return named(method, p.link.target.Address, plain(err))
		}
		proto.Reset(resp)
	}
}

func (p *Proxy) try(ctx context.Context, id, retry int32, method string, req, resp proto.Message) error {
	conn, err := p.link.get(ctx)
	if err != nil {
		return err
	}
	return conn.call(ctx, id, retry, method, req, resp)
}

// again tells whether a call may be tried again after an error, and whether a
// pause is due; connecting has pauses of its own.
func (p *Proxy) again(err error, repeatable bool) (again, pause bool) {
	if errors.Is(err, ErrClosed) {
		return false, false
	}
	var refused *exception.Error
	var l *lost
	var u *unsent
	switch {
	case errors.As(err, &refused):
		return refused.Class == exception.Retriable, true
	case errors.As(err, &u):
		return true, false
	case errors.As(err, &l), errors.Is(err, ErrTimeout):
		return repeatable, false
	}
	return false, false
}

// link is the connection of a target, or the want of one.
type link struct {
	client *Client
	target Target
	conn   atomic.Pointer[linked]

	mu       sync.Mutex
	attempt  *attempt // under way
	failures int      // in a row
}

// linked is a connection of a link.
type linked struct{ exchanger }

// An exchanger makes calls, whatever carries them.
type exchanger interface {
	// call makes one call. The error is an [*unsent], a [*lost], the context's,
	// [ErrTimeout], or what the server said.
	call(ctx context.Context, id, retry int32, method string, req, resp proto.Message) error
	// reason tells why no further call may begin, or is nil.
	reason() error
	close()
}

// attempt is one attempt to connect, for all who wait.
type attempt struct {
	done chan struct{}
	conn *linked
	err  error
}

// get returns a connection that works, or the error of one attempt.
func (l *link) get(ctx context.Context) (*linked, error) {
	conn := l.conn.Load()
	if conn != nil && conn.reason() == nil {
		return conn, nil
	}
	now, a, err := l.replace(conn)
	if a == nil {
		return now, err
	}
	select {
	case <-a.done:
		return a.conn, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// replace returns the connection that has come in place of conn, or the attempt
// to make one, which it begins if none is under way.
func (l *link) replace(conn *linked) (*linked, *attempt, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.conn.Load(); now != conn {
		if now != nil {
			return now, nil, nil
		}
		conn = nil // an attempt has failed meanwhile, and closed it
	}
	if l.attempt == nil {
		a := &attempt{done: make(chan struct{})}
		if !l.client.start(func() { l.connect(a, conn) }) {
			return nil, nil, ErrClosed
		}
		l.attempt = a
	}
	return nil, l.attempt, nil
}

// start runs f in a goroutine that Close waits for, unless the client is closed.
func (c *Client) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// connect makes one attempt in place of the connection that was there before.
func (l *link) connect(a *attempt, before *linked) {
	defer close(a.done)
	cfg := &l.client.cfg
	failures := l.failures // only this goroutine changes it
	if before != nil {
		// What it still has to do, it does on its own time.
		if !errors.Is(before.reason(), errUnused) && failures == 0 {
			failures = 1 // others may have lost the same server: come back one by one
		}
		if !l.client.start(before.close) { // which may take some seconds
			before.close()
		}
	}
	err := ErrClosed
	var conn *linked
	if failures == 0 || backoff.Sleep(l.client.ctx, cfg.pause(failures), nil) {
		conn, err = l.dial()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attempt = nil
	a.conn = conn
	l.conn.Store(conn)
	if err != nil {
		l.failures++
		a.err = &unsent{err}
		return
	}
	l.failures = 0
}

func (l *link) dial() (*linked, error) {
	cfg := &l.client.cfg
	ctx, cancel := context.WithTimeout(l.client.ctx, cfg.ConnectTimeout)
	defer cancel()
	conn, err := l.exchange(ctx)
	switch {
	case err == nil:
		return &linked{conn}, nil
	case l.client.ctx.Err() != nil:
		return nil, ErrClosed
	}
	return nil, err
}

// exchange connects by an endpoint if there is one, else by a stream.
func (l *link) exchange(ctx context.Context) (exchanger, error) {
	cfg := &l.client.cfg
	if cfg.Endpoint != nil {
		e, err := cfg.Endpoint(ctx, l.target.Address)
		if err == nil {
			return startEndpoint(ctx, e, l.target, *cfg, l.client.id)
		}
		if !offersNone(err) {
			return nil, err
		}
	}
	nc, err := cfg.Dial(ctx, l.target.Address)
	if err != nil {
		return nil, err
	}
	conn, err := startConn(ctx, nc, l.target, *cfg, l.client.id)
	if err != nil {
		return nil, err
	}
	return conn.exchanger(), nil
}

// offersNone tells that a server is there which has no endpoints for calls.
func offersNone(err error) bool {
	var legacy *verbena.LegacyPeerError
	var refused *verbena.RefusedError
	return errors.As(err, &legacy) || errors.As(err, &refused) && !refused.Temporary()
}
