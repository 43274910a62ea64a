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
	// Pool, if it is set, has the endpoints on which calls travel, as calls of the
	// runtime; [NewPool] makes one. Each target has a session of it. The pool bounds and
	// paces the connecting, and closes what is idle, in place of this configuration. To a
	// server that does not know [Service], and to one that has never heard of
	// Verbena, Dial connects. Clients may share a pool; it is to be closed after them.
	Pool *verbena.CallPool
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
	// Spin is how long the caller of the only call on a connection looks for its answer
	// before it sleeps. Default 150 us; negative: not at all. It is the upper limit: what is
	// in vain halves it, and about four waits in a row stop it but for a try now and then. Nobody
	// looks while more programs want to run than there are processors. It is for sockets of the
	// operating system; on endpoints the tuning tells.
	Spin time.Duration
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
	if c.Spin == 0 {
		c.Spin = 150 * time.Microsecond
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

// NewPool makes a pool for [ClientConfig]. The configuration's Service and Attempts are
// set here: a [Client] tries again itself. Rules know calls by the names of their methods.
func NewPool(rt *verbena.Runtime, cfg verbena.CallPoolConfig) (*verbena.CallPool, error) {
	cfg.Service, cfg.Attempts = Service, 1
	return rt.NewCallPool(cfg)
}

// Client calls any number of servers. Calls to the same address and protocol by
// the same user share a connection, or the endpoints of a session of the pool. One is
// made when it is needed and made again after it has failed: by one attempt at a time
// for all who wait, with pauses that grow. It may be used concurrently.
type Client struct {
	cfg  ClientConfig
	id   ClientID
	next atomic.Uint32 // call id

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	turn   turnstile // of calls

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

// Drain lets no call begin, and waits until those that are under way have ended, or ctx
// has. Then it closes the client. The error is that of ctx.
func (c *Client) Drain(ctx context.Context) error {
	err := c.turn.shut(ctx)
	return errors.Join(err, c.Close())
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
	var closing sync.WaitGroup
	for _, l := range links {
		if conn := l.conn.Load(); conn != nil {
			conn.Close()
		}
		if l.session != nil {
			closing.Go(func() { l.session.Close() })
		}
	}
	closing.Wait()
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
		l = newLink(c, target)
		if !c.closed {
			c.links[target] = l
		}
	}
	return &Proxy{c, l}
}

// Call calls a method and decodes its answer into resp, which must not be used
// until then; if resp has memory for a field of 32 KiB of bytes or more, that is used
// again, a [Kept] takes the answer's own memory over, and an [Unmarshaler] decodes itself. The server's refusal is an [*exception.Error].
//
// A call that did not reach the server, and one that it answers with
// RetriableException, is tried again within ctx and the configured attempts.
// One whose connection ended before the answer came is tried again only if
// repeat allows it, under the same call id; else the error is
// [ErrOutcomeUnknown].
func (p *Proxy) Call(ctx context.Context, method string, req, resp proto.Message, repeat ...Repeat) error {
	id := int32(p.client.next.Add(1)-1) & 0x7fffffff
	return p.repeat(ctx, method, len(repeat) > 0 && repeat[0] > 0, func(attempt int) error {
		if attempt > 1 {
			proto.Reset(resp)
		}
		return p.try(ctx, id, int32(attempt-1), method, req, resp)
	})
}

// repeat makes a call by try until it succeeds, or until another attempt is of no use.
func (p *Proxy) repeat(ctx context.Context, method string, repeatable bool, try func(attempt int) error) error {
	cfg := &p.client.cfg
	if !p.client.turn.enter() {
		return named(method, p.link.target.Address, ErrClosed)
	}
	defer p.client.turn.leave()
	for attempt := 1; ; attempt++ {
		err := try(attempt)
		if err == nil {
			return nil
		}
		again, pause := p.again(err, repeatable)
		if !again || attempt >= cfg.Attempts || ctx.Err() != nil {
			return named(method, p.link.target.Address, plain(err))
		}
		if pause && !backoff.Sleep(ctx, cfg.pause(attempt), p.client.ctx.Done()) {
			return named(method, p.link.target.Address, plain(err))
		}
	}
}

func (p *Proxy) try(ctx context.Context, id, retry int32, method string, req, resp proto.Message) error {
	l := p.link
	if l.session != nil && !l.streams() {
		err := l.onEndpoint(ctx, method, func(c *endpointCaller) error { return c.call(ctx, id, retry, method, req, resp) })
		if !errors.Is(err, errNoEndpoints) {
			return err
		}
	}
	conn, err := l.get(ctx)
	if err != nil {
		return err
	}
	return conn.caller.call(ctx, id, retry, method, req, resp)
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
