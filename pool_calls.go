package verbena

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/internal/backoff"
)

// CallPoolConfig configures a pool for calls. Zero values stand for defaults.
type CallPoolConfig struct {
	// PoolConfig is that of the pool; Endpoints is 4 by default.
	PoolConfig
	// Mux serves what peers call on the pool's endpoints. Nil: nothing.
	Mux *Mux
	// Calls is how many calls use an endpoint at a time. While all endpoints to a peer
	// are in use, calls share them and another one is set up, up to the bound. Default
	// 64.
	Calls int
	// Attempts is how often a call is tried at most. Default 5.
	Attempts int
}

// Repeat tells what may happen to a call of which nobody knows whether the peer has
// carried it out. Without one it is not made again.
type Repeat uint8

// Idempotent calls may be carried out more than once.
const Idempotent Repeat = 1

// A CallPool makes calls to any number of peers, as a [Pool] hands out endpoints: the
// pool has their set-up, their rules, their pauses and their end. All methods may be
// called concurrently.
type CallPool struct {
	core     *poolCore[pooledCaller]
	attempts int
}

// A pooledCaller is a caller as a lane keeps it.
type pooledCaller struct{ *Caller }

// Done is that of the endpoint.
func (c pooledCaller) Done() <-chan struct{} { return c.e.done }

// NewCallPool makes a pool for calls without endpoints. At the peers, [Mux.Serve] or
// [NewCaller] serves them.
func (r *Runtime) NewCallPool(cfg CallPoolConfig) (*CallPool, error) {
	set(&cfg.Endpoints, 4)
	set(&cfg.Calls, 64)
	set(&cfg.Attempts, 5)
	if cfg.Calls < 0 || cfg.Attempts < 0 {
		return nil, fmt.Errorf("verbena: pool %s: a negative number in the configuration", cfg.Name)
	}
	core, err := newPoolCore(r, cfg.PoolConfig, cfg.Calls,
		func(e *Endpoint) (pooledCaller, error) {
			c, err := NewCaller(e, cfg.Mux)
			if err != nil {
				r.discard(e)
			}
			return pooledCaller{c}, err
		},
		func(c pooledCaller) *Endpoint { return c.e })
	if err != nil {
		return nil, err
	}
	core.closed = func(c pooledCaller) { c.watcher.Wait() }
	return &CallPool{core, cfg.Attempts}, nil
}

// busyCallPauses are those before a call is made again that the peer was too busy for.
var busyCallPauses = backoff.Policy{First: 10 * time.Millisecond, Most: time.Second}

// Call is [Caller.Call] on an endpoint to addr. Rules see the intent, with the length
// of the payload if that is greater than its Size.
//
// A call that was not sent, and one for which the peer was too busy, is made again, on
// another endpoint if need be, within ctx and the configured attempts. So is one whose
// endpoint ended before the answer came, if it is [Idempotent]; otherwise the error
// wraps [ErrOutcomeUnknown]. It wraps [ErrNotSent] if the peer knows nothing of the call.
func (p *CallPool) Call(ctx context.Context, addr string, intent Intent, method uint32, payload []byte, repeat ...Repeat) (*Message, error) {
	intent.Size = max(intent.Size, int64(len(payload)), 1)
	for attempt := 1; ; attempt++ {
		m, err := p.call(ctx, addr, intent, method, payload)
		if err == nil || attempt >= p.attempts || !again(ctx, err, len(repeat) > 0 && repeat[0] == Idempotent) {
			return m, err
		}
		if tooBusy(err) && !backoff.Sleep(ctx, busyCallPauses.Pause(attempt), p.core.ctx.Done()) {
			return nil, err
		}
	}
}

func (p *CallPool) call(ctx context.Context, addr string, intent Intent, method uint32, payload []byte) (*Message, error) {
	h, err := p.core.get(ctx, addr, intent)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	defer h.Put()
	return h.Conn.Call(ctx, method, payload)
}

// Notify is [Caller.Notify] on an endpoint to addr. One that was not sent is made
// again as a call is.
func (p *CallPool) Notify(ctx context.Context, addr string, intent Intent, method uint32, payload []byte) error {
	intent.Size = max(intent.Size, int64(len(payload)), 1)
	for attempt := 1; ; attempt++ {
		err := p.notify(ctx, addr, intent, method, payload)
		if err == nil || attempt >= p.attempts || !again(ctx, err, false) {
			return err
		}
	}
}

func (p *CallPool) notify(ctx context.Context, addr string, intent Intent, method uint32, payload []byte) error {
	h, err := p.core.get(ctx, addr, intent)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	defer h.Put()
	return h.Conn.Notify(ctx, method, payload)
}

// again tells whether a call that failed may be made again, and whether that is of
// use.
func again(ctx context.Context, err error, idempotent bool) bool {
	var legacy *LegacyPeerError
	var refused *RefusedError
	switch {
	case ctx.Err() != nil || errors.As(err, &legacy) || errors.As(err, &refused) && !refused.Temporary():
		return false
	case errors.Is(err, ErrTooLong):
		return false // it would be so again
	case tooBusy(err):
		return true
	case errors.Is(err, ErrNotSent), errors.Is(err, ErrOutcomeUnknown) && idempotent:
		return true // a pool that is closed says so, and soon
	}
	return false
}

func tooBusy(err error) bool {
	var told *CallError
	return errors.As(err, &told) && told.Code == CodeBusy
}

// Explain tells which rule decides for calls with an intent to addr, as
// [Rule.String] shows it, or none, and the transports that they may use, in order.
func (p *CallPool) Explain(addr string, intent Intent) (rule string, transports []string) {
	return p.core.explain(addr, intent)
}

// Peers are the numbers by peer.
func (p *CallPool) Peers() []PoolPeerStats { return p.core.peerStats() }

// Drain ends the pool in order: no call begins, those under way end, bounded by ctx,
// as with [Pool.Drain].
func (p *CallPool) Drain(ctx context.Context) error { return p.core.drain(ctx, ctx) }

// Close ends the pool without waiting for calls. They fail with [ErrOutcomeUnknown].
func (p *CallPool) Close() error { return p.core.Close() }
