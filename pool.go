package verbena

import (
	"context"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/internal/backoff"
	"github.com/verbena-data/verbena/internal/lane"
)

// PoolConfig configures a pool. Zero values stand for defaults.
type PoolConfig struct {
	// Service is the service protocol that is asked for. It must be there.
	Service string
	// Name stands in metrics and logs; no other pool of the runtime may have it.
	// Default: the service, with a number behind it if a pool has that name.
	Name string
	// Dial is for all endpoints of the pool. Its Intent is that of requests which
	// name none.
	Dial DialConfig
	// Endpoints bounds the endpoints to a peer over each order of transports that
	// rules make; without rules that is one. Default 16.
	Endpoints int
	// IdleTimeout is how long an endpoint stays without a request. Default 1 minute.
	IdleTimeout time.Duration
	// DialTimeout bounds an attempt to connect, all its transports together. It is
	// cut to what those who wait for it have left. Default 15 s.
	DialTimeout time.Duration
	// Backoff is the mean pause before a peer is dialled again that has failed, or
	// ended an endpoint. It doubles with each failure in a row up to MaxBackoff; each
	// pause is drawn from half to one and a half of it. Defaults 500 ms and 10 s: of
	// clients that lose a server together none makes more than two attempts a second.
	Backoff, MaxBackoff time.Duration
}

func (c PoolConfig) withDefaults() (PoolConfig, error) {
	set(&c.Name, c.Service)
	set(&c.Endpoints, 16)
	set(&c.IdleTimeout, time.Minute)
	set(&c.DialTimeout, 15*time.Second)
	set(&c.Backoff, 500*time.Millisecond)
	set(&c.MaxBackoff, 10*time.Second)
	switch {
	case c.Service == "":
		return c, fmt.Errorf("a pool needs a service")
	case c.Endpoints < 0 || c.IdleTimeout < 0 || c.DialTimeout < 0 || c.Backoff < 0:
		return c, fmt.Errorf("a negative number or duration in the configuration")
	case c.MaxBackoff < c.Backoff:
		return c, fmt.Errorf("MaxBackoff is %v, below Backoff, which is %v", c.MaxBackoff, c.Backoff)
	}
	return c, nil
}

func (c *PoolConfig) pauses() backoff.Policy {
	return backoff.Policy{First: c.Backoff, Most: c.MaxBackoff}
}

// A Pool hands endpoints to requests, each for one request at a time. A request gets
// a free endpoint to its peer; if none is free, a new one, set up when it is needed
// first; at the bound it waits, in order. A peer that is lost is dialled again with
// pauses, by one attempt for all who wait. Rules choose the transport of each request.
// While an endpoint is over a worse transport than it might have, the pool looks for
// the better one in the background, and moves over between two requests.
//
// All methods may be called concurrently. A pool ends with Drain, with Close, or with
// its runtime.
type Pool struct{ core *poolCore[*Endpoint] }

// NewPool makes a pool without endpoints.
func (r *Runtime) NewPool(cfg PoolConfig) (*Pool, error) {
	core, err := newPoolCore(r, cfg, 1,
		func(_ context.Context, e *Endpoint, _ *poolSession) (*Endpoint, error) { return e, nil },
		func(e *Endpoint) *Endpoint { return e })
	if err != nil {
		return nil, err
	}
	return &Pool{core}, nil
}

// Get returns an endpoint to addr for one request. It belongs to the caller until
// Put. Get waits while all are in use or the peer cannot be reached yet, until ctx
// ends. If an attempt to connect fails while there is no endpoint at all, it returns
// the error of Dial, wrapped; a caller that then tries again is held up until the next
// attempt is due.
func (p *Pool) Get(ctx context.Context, addr string, intent Intent) (*Endpoint, error) {
	h, err := p.core.get(ctx, poolKey{addr: addr}, intent)
	if err != nil {
		return nil, err
	}
	h.Conn.pooled = h
	return h.Conn, nil
}

// Put ends a request: the next one gets the endpoint as it is. So whoever leaves a
// request in its middle, with an answer still to come, closes the endpoint before Put.
// Put panics if e is not out.
func (p *Pool) Put(e *Endpoint) {
	h, ok := e.pooled.(*lane.Held[*Endpoint])
	if !ok {
		panic("verbena: Put of an endpoint that is not of a pool")
	}
	h.Put()
}

// Explain tells which rule decides for requests with an intent to addr, as
// [Rule.String] shows it, or none, and the transports that they may use, in order.
func (p *Pool) Explain(addr string, intent Intent) (rule string, transports []string) {
	return p.core.explain(addr, intent)
}

// Peers are the numbers by peer.
func (p *Pool) Peers() []PoolPeerStats { return p.core.peerStats() }

// Drain ends the pool in order. Requests that wait, and later ones, get [ErrClosed].
// Those that have an endpoint may end; the endpoints are closed as they come back,
// and those that are still out when ctx ends are closed under their requests. Then the
// error tells how many those were.
func (p *Pool) Drain(ctx context.Context) error { return p.core.drain(ctx, ctx) }

// Close ends the pool without waiting for requests: their endpoints are closed, as
// [Endpoint.Close] does.
func (p *Pool) Close() error { return p.core.Close() }
