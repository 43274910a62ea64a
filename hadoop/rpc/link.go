package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/backoff"
)

// link is what leads to a target: a session of the pool if the client has one, and the
// stream to a server that takes no endpoints, or the want of one.
type link struct {
	client  *Client
	target  Target
	session *verbena.CallSession // nil without a pool
	conn    atomic.Pointer[Conn]

	mu       sync.Mutex
	attempt  *attempt // under way
	failures int      // in a row
}

func newLink(c *Client, target Target) *link {
	l := &link{client: c, target: target}
	if c.cfg.Pool != nil {
		l.session = c.cfg.Pool.Session(func(ctx context.Context, caller *verbena.Caller) (any, error) {
			return introduceEndpoint(ctx, caller, target, &c.cfg, c.id, c.ctx.Done())
		})
	}
	return l
}

// errNoEndpoints says that a server takes no endpoints for calls.
var errNoEndpoints = errors.New("rpc: the server takes no endpoints")

// onEndpoint makes a call on an endpoint of the session. The error is one of those of
// [caller.call], or errNoEndpoints.
func (l *link) onEndpoint(ctx context.Context, method string, call func(*endpointCaller) error) error {
	lease, err := l.session.Get(ctx, l.target.Address, verbena.Intent{Operation: method})
	if err != nil {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case l.client.ctx.Err() != nil:
			return ErrClosed
		case offersNone(err):
			return errNoEndpoints
		}
		return &unsent{err}
	}
	c := lease.State().(*endpointCaller)
	defer func() {
		if c.reason() != nil {
			lease.Drop()
		} else {
			lease.Put()
		}
	}()
	return call(c)
}

// offersNone tells that a server is there which has no endpoints for calls.
func offersNone(err error) bool {
	var legacy *verbena.LegacyPeerError
	var refused *verbena.RefusedError
	return errors.As(err, &legacy) || errors.As(err, &refused) && !refused.Temporary()
}

// streams tells that a stream to the target is in use, because it took no endpoints.
func (l *link) streams() bool {
	conn := l.conn.Load()
	return conn != nil && conn.reason() == nil
}

// attempt is one attempt to connect, for all who wait.
type attempt struct {
	done chan struct{}
	conn *Conn
	err  error
}

// get returns a connection that works, or the error of one attempt.
func (l *link) get(ctx context.Context) (*Conn, error) {
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
func (l *link) replace(conn *Conn) (*Conn, *attempt, error) {
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
func (l *link) connect(a *attempt, before *Conn) {
	defer close(a.done)
	cfg := &l.client.cfg
	failures := l.failures // only this goroutine changes it
	if before != nil {
		// What it still has to do, it does on its own time.
		if !errors.Is(before.reason(), errUnused) && failures == 0 {
			failures = 1 // others may have lost the same server: come back one by one
		}
		if !l.client.start(func() { before.Close() }) { // which may take some seconds
			before.Close()
		}
	}
	err := ErrClosed
	var conn *Conn
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

func (l *link) dial() (*Conn, error) {
	cfg := &l.client.cfg
	ctx, cancel := context.WithTimeout(l.client.ctx, cfg.ConnectTimeout)
	defer cancel()
	conn, err := l.stream(ctx)
	if err != nil && l.client.ctx.Err() != nil {
		return nil, ErrClosed
	}
	return conn, err
}

func (l *link) stream(ctx context.Context) (*Conn, error) {
	cfg := &l.client.cfg
	nc, err := cfg.Dial(ctx, l.target.Address)
	if err != nil {
		return nil, err
	}
	return startConn(ctx, nc, l.target, *cfg, l.client.id)
}
