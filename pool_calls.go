package verbena

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/backoff"
	"github.com/verbena-data/verbena/internal/lane"
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
type CallPool struct{ CallSession }

// A CallSession makes calls on endpoints of a pool that no other session uses: with
// [CallPool.Session], those of one user, or of one protocol. A pool is a session itself,
// whose endpoints are not introduced.
type CallSession struct {
	core     *poolCore[pooledCaller]
	session  *poolSession
	attempts int
}

// A pooledCaller is a caller as a lane keeps it.
type pooledCaller struct {
	*Caller
	state any // of the session
}

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
		func(ctx context.Context, e *Endpoint, s *poolSession) (pooledCaller, error) {
			c, err := NewCaller(e, cfg.Mux)
			if err != nil {
				r.discard(e)
				return pooledCaller{}, err
			}
			var state any
			if s.begin != nil {
				if state, err = s.begin(ctx, c); err != nil {
					_ = c.Close() // the peer waits for nothing
				}
			}
			return pooledCaller{c, state}, err
		},
		func(c pooledCaller) *Endpoint { return c.e })
	if err != nil {
		return nil, err
	}
	core.closed = func(c pooledCaller) { c.watcher.Wait() }
	return &CallPool{CallSession{core, &poolSession{}, cfg.Attempts}}, nil
}

// Session returns a session with endpoints of its own. For each of them begin is called
// before anything else, bounded by DialTimeout: it may say who calls. What it returns is
// [Lease.State]; its error is that of the attempt to connect.
func (p *CallPool) Session(begin func(context.Context, *Caller) (state any, err error)) *CallSession {
	return &CallSession{p.core, &poolSession{begin: begin}, p.attempts}
}

// busyCallPauses are those before a call is made again that the peer was too busy for.
var busyCallPauses = backoff.Policy{First: 10 * time.Millisecond, Most: time.Second}

// A Lease is a caller of a pool that is used for one call, or for several that belong
// together. It ends with Put or Drop, once.
type Lease struct{ held *lane.Held[pooledCaller] }

// Caller makes the calls. The pool closes it.
func (l Lease) Caller() *Caller { return l.held.Conn.Caller }

// State is what the session's begin has returned for the endpoint.
func (l Lease) State() any { return l.held.Conn.state }

// Put gives the caller back.
func (l Lease) Put() { l.held.Put() }

// Drop is Put of an endpoint that is of no use any more: it gets no further calls, and is
// closed when those under way have ended.
func (l Lease) Drop() { l.held.Drop() }

// Get lends a caller to addr. It waits as [Pool.Get] does. An error wraps [ErrNotSent].
func (s *CallSession) Get(ctx context.Context, addr string, intent Intent) (Lease, error) {
	h, err := s.core.get(ctx, poolKey{addr, s.session}, intent)
	if err != nil {
		return Lease{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return Lease{h}, nil
}

// Call is [Caller.Call] on an endpoint to addr. Rules see the intent, with the length
// of the payload if that is greater than its Size.
//
// A call that was not sent, and one for which the peer was too busy, is made again, on
// another endpoint if need be, within ctx and the configured attempts. So is one whose
// endpoint ended before the answer came, if it is [Idempotent]; otherwise the error
// wraps [ErrOutcomeUnknown]. It wraps [ErrNotSent] if the peer knows nothing of the call.
func (s *CallSession) Call(ctx context.Context, addr string, intent Intent, method uint32, payload []byte, repeat ...Repeat) (m *Message, err error) {
	err = s.try(ctx, addr, intent, payload, repeat, func(l Lease) error {
		defer l.Put()
		m, err = l.Caller().Call(ctx, method, payload)
		return err
	})
	return m, err
}

// Notify is [Caller.Notify] on an endpoint to addr. One that was not sent is made
// again as a call is.
func (s *CallSession) Notify(ctx context.Context, addr string, intent Intent, method uint32, payload []byte) error {
	return s.try(ctx, addr, intent, payload, nil, func(l Lease) error {
		defer l.Put()
		return l.Caller().Notify(ctx, method, payload)
	})
}

// Stream is [Caller.Stream] on an endpoint to addr. It counts as a call of the endpoint
// until it is closed. Only the request is made again as that of a call is: once Stream
// has returned, the errors are those of [Stream]. Rules see the payload's length and not
// that of the streams, unless the intent tells it.
func (s *CallSession) Stream(ctx context.Context, addr string, intent Intent, method uint32, payload []byte, repeat ...Repeat) (stream *Stream, err error) {
	err = s.try(ctx, addr, intent, payload, repeat, func(l Lease) error {
		if stream, err = l.Caller().Stream(ctx, method, payload); err != nil {
			l.Put()
			return err
		}
		stream.onClose = sync.OnceFunc(l.Put)
		return nil
	})
	return stream, err
}

// try makes a call as often as it may be made.
func (s *CallSession) try(ctx context.Context, addr string, intent Intent, payload []byte, repeat []Repeat, call func(Lease) error) error {
	intent.Size = max(intent.Size, int64(len(payload)), 1)
	for attempt := 1; ; attempt++ {
		l, err := s.Get(ctx, addr, intent)
		if err == nil {
			err = call(l)
		}
		if err == nil || attempt >= s.attempts || !again(ctx, err, len(repeat) > 0 && repeat[0] == Idempotent) {
			return err
		}
		if tooBusy(err) && !backoff.Sleep(ctx, busyCallPauses.Pause(attempt), s.core.ctx.Done()) {
			return err
		}
	}
}

// Drain ends the session as [CallPool.Drain] ends the pool, of which the other sessions
// go on.
func (s *CallSession) Drain(ctx context.Context) error { return s.core.end(ctx, ctx, s.session) }

// Close ends the session without waiting for its calls. They fail with
// [ErrOutcomeUnknown].
func (s *CallSession) Close() error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.core.end(now, context.Background(), s.session) // the caller wanted it so
	return nil
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
