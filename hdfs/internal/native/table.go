package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/backoff"
)

// TableConfig configures a table. Zero values stand for the defaults told.
type TableConfig struct {
	Runtime *verbena.Runtime // must be set
	Dial    verbena.DialConfig
	// Prove, if set, finds out on a new link whether the peer is the DataNode of an
	// address, by what it answers to a nonce. One that is may see what other peers of
	// the group have sent (see [verbena.GroupConfig].Relay), so that packets go on
	// without a copy. One that is not is dialled again, without that trust.
	Prove func(nonce [NonceLen]byte, address string, proof []byte) bool
	// DialTimeout bounds an attempt to connect, and the proof. Default 10 s.
	DialTimeout time.Duration
	// SendTimeout is for how long a peer may take no message that waits for it; then the
	// connection ends. Default 1 minute.
	SendTimeout time.Duration
	// Idle is how long a connection without users stays. Default 1 minute.
	Idle time.Duration
	// Remember is for how long a server that does not have the service counts as one
	// that does not. Default 1 minute.
	Remember time.Duration
	Logger   *slog.Logger
}

// NotNativeError says that a server does not have the service: use the legacy protocol.
type NotNativeError struct {
	Address string
	Err     error
}

func (e *NotNativeError) Error() string {
	return fmt.Sprintf("%s takes no %s: %v", e.Address, Service, e.Err)
}
func (e *NotNativeError) Unwrap() error { return e.Err }

// A Table has one connection to each peer, for all that is between the two. It is set up
// when it is needed first, or by Prepare beforehand, by one attempt for all who wait, and again after it has ended.
// Its methods may be called concurrently.
type Table struct {
	cfg    TableConfig
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	waits  atomic.Uint64

	mu      sync.Mutex
	closed  bool
	peers   map[string]*peer
	sweepAt int                // so many of them
	conns   map[*Conn]struct{} // that have not ended: those of peers, and those in whose place they came
}

// peer is what a table knows of an address.
type peer struct {
	conn  *Conn
	ready chan struct{} // closed when the attempt is over; nil: there is none
	err   error         // of the last one
	until time.Time     // until when err holds
}

// NewTable returns a table without connections.
func NewTable(cfg TableConfig) *Table {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&cfg.DialTimeout, 10 * time.Second}, {&cfg.SendTimeout, time.Minute}, {&cfg.Idle, time.Minute}, {&cfg.Remember, time.Minute}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	t := &Table{cfg: cfg, peers: map[string]*peer{}, sweepAt: maxPeers, conns: map[*Conn]struct{}{}}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// ErrClosed is what a table returns after Close.
var ErrClosed = errors.New("the table of native connections is closed")

// retry is how long the error of a failed attempt counts for those who come later.
const retry = 200 * time.Millisecond

// Get returns the connection to a server, host:port. The error is a [*NotNativeError] if
// it has none of these.
func (t *Table) Get(ctx context.Context, address string) (*Conn, error) {
	if len(address) > maxAddress {
		return nil, fmt.Errorf("connect to %.40s...: an address of %d bytes", address, len(address))
	}
	for {
		t.mu.Lock()
		if t.closed {
			t.mu.Unlock()
			return nil, ErrClosed
		}
		p := t.peer(address)
		if c := p.conn; c != nil && c.usable() {
			t.mu.Unlock()
			return c, nil
		}
		if p.err != nil && time.Now().Before(p.until) {
			err := p.err
			t.mu.Unlock()
			return nil, err
		}
		t.attempt(p, address)
		ready := p.ready
		t.mu.Unlock()
		select {
		case <-ready:
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to %s: %w", address, context.Cause(ctx))
		}
		t.mu.Lock()
		err := p.err
		t.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

const (
	// maxAddress is how many bytes an address may have: a host name of 253, a colon and a port,
	// or an IPv6 address with a zone.
	maxAddress = 260
	// maxPeers is of how many addresses a table keeps that it has no connection to.
	maxPeers = 1024
)

// peer is what the table knows of an address from now on. mu is held.
func (t *Table) peer(address string) *peer {
	p := t.peers[address]
	if p == nil {
		if len(t.peers) >= t.sweepAt {
			t.sweep()
		}
		p = &peer{}
		t.peers[address] = p
	}
	return p
}

// sweep forgets addresses that nothing need be known of: clients choose them, and there may be
// any number. mu is held.
func (t *Table) sweep() {
	now := time.Now()
	unused := 0
	for address, p := range t.peers {
		if p.conn != nil || p.ready != nil {
			continue
		}
		// Beyond the bound an address may be asked again too early.
		if unused++; unused > maxPeers/2 || p.err == nil || now.After(p.until) {
			delete(t.peers, address)
			unused--
		}
	}
	t.sweepAt = len(t.peers) + maxPeers/2
}

// attempt begins an attempt to connect, if none is under way. mu is held.
func (t *Table) attempt(p *peer, address string) {
	if p.ready == nil {
		p.ready, p.err = make(chan struct{}), nil
		t.wg.Go(func() { t.connect(p, address) })
	}
}

// Prepare has the table connect to a server, and does not wait for it: who gets the connection later finds
// it made. Nothing happens if it is there, or if an attempt has just failed.
func (t *Table) Prepare(address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	p := t.peer(address)
	if p.conn != nil && p.conn.usable() || p.err != nil && time.Now().Before(p.until) {
		return
	}
	t.attempt(p, address)
}

// Waits is how often the receiver of a connection has found no message and had to wait for one.
func (t *Table) Waits() uint64 { return t.waits.Load() }

// Join has the connection to a server get a user: see [Conn.Join].
func (t *Table) Join(ctx context.Context, address string, u User, begin func(c *Conn, id uint32) error) error {
	for {
		c, err := t.Get(ctx, address)
		if err != nil {
			return err
		}
		if err = c.Join(u, begin); err == nil || !errors.Is(err, errIdle) {
			return err
		}
	}
}

// Retire has those who come later take another connection than c, which may receive nothing
// any more. Its users stay, and it ends soon after they have left.
func (t *Table) Retire(c *Conn) {
	t.mu.Lock()
	p := t.peers[c.address]
	current := p != nil && p.conn == c
	if current {
		p.conn = nil
	}
	t.mu.Unlock()
	if current {
		c.closeIdle(retired)
	}
}

// Peek returns the connection to a server if there is one. native is false if the server
// is known not to have the service.
func (t *Table) Peek(address string) (c *Conn, native bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[address]
	if p == nil {
		return nil, true
	}
	if p.err != nil && notNative(p.err) && time.Now().Before(p.until) {
		return nil, false
	}
	if p.conn != nil && p.conn.usable() {
		return p.conn, true
	}
	return nil, true
}

func notNative(err error) bool {
	var not *NotNativeError
	return errors.As(err, &not)
}

// Deny notes that a server does not have the service, as another one has found out.
func (t *Table) Deny(address string, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(address) > maxAddress {
		return
	}
	p := t.peer(address)
	p.err, p.until = &NotNativeError{address, why}, time.Now().Add(t.cfg.Remember)
}

// connect is the attempt for all who wait.
func (t *Table) connect(p *peer, address string) {
	c, err := t.dial(address)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil && t.closed {
		err = ErrClosed
		t.wg.Go(func() { c.Link.Close() })
	}
	if err == nil {
		t.take(p, c)
	} else {
		p.err, p.until = err, time.Now().Add(retry)
		var not *NotNativeError
		if errors.As(err, &not) {
			p.until = time.Now().Add(t.cfg.Remember)
		}
	}
	close(p.ready)
	p.ready = nil
}

// take makes c the connection to a peer. mu is held.
func (t *Table) take(p *peer, c *Conn) {
	ctx, cancel := context.WithCancel(t.ctx)
	p.conn = c
	t.conns[c] = struct{}{}
	t.wg.Go(func() {
		defer cancel()
		t.run(p, c)
	})
	if c.ep.Selection().Passing() {
		t.wg.Go(func() { t.improve(ctx, p, c) })
	}
}

// improve has a connection replaced whose transport was chosen because a better one was left
// for a passing reason, when that can be had again. ctx ends with the connection. Its users
// stay, and those who come later take the other one.
func (t *Table) improve(ctx context.Context, p *peer, c *Conn) {
	for attempt := 1; ; attempt++ {
		probe, err := t.cfg.Runtime.Better(ctx, c.ep, t.cfg.Dial)
		if err != nil {
			return // the connection has ended, or the table
		}
		// The attempt proves that the transport is back, but not who answers.
		probe.Close()
		better, err := t.dial(c.address)
		if err == nil && better.ep.Selection().Transport == c.ep.Selection().Transport {
			err = better.Link.Close()
			better = nil
		}
		if better != nil {
			t.mu.Lock()
			replaces := p.conn == c && !t.closed
			if replaces {
				t.take(p, better)
			}
			t.mu.Unlock()
			if replaces {
				t.cfg.Logger.Info("a better transport is back", "address", c.address, "transport", better.ep.Selection().Transport, "in place of", c.ep.Selection().Transport)
				c.closeIdle(retired)
			} else {
				better.Link.Close()
			}
			return
		}
		t.cfg.Logger.Debug("a better transport was back for a moment", "address", c.address, "err", err)
		if !backoff.Sleep(ctx, improvePauses.Pause(attempt), nil) {
			return
		}
	}
}

// improvePauses are those after a better transport has come and gone again.
var improvePauses = backoff.Policy{First: 100 * time.Millisecond, Most: 30 * time.Second}

// retired is how long a connection stays without users that those who come later do not take.
const retired = time.Second

func (t *Table) dial(address string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(t.ctx, t.cfg.DialTimeout)
	defer cancel()
	cfg := t.cfg.Dial
	cfg.Trusted = t.cfg.Prove != nil
	ep, err := t.cfg.Runtime.Dial(ctx, address, Service, cfg)
	if err == nil && cfg.Trusted {
		if proved, perr := t.prove(ctx, ep, address); !proved {
			ep.Close()
			if perr != nil {
				return nil, fmt.Errorf("connect to %s: %w", address, perr)
			}
			t.cfg.Logger.Warn("a peer has not proved to be the DataNode of its address; packets to it are copied", "address", address)
			cfg.Trusted = false
			ep, err = t.cfg.Runtime.Dial(ctx, address, Service, cfg)
		}
	}
	if err != nil {
		var refused *verbena.RefusedError
		var legacy *verbena.LegacyPeerError
		if errors.As(err, &refused) && !refused.Temporary() || errors.As(err, &legacy) {
			return nil, &NotNativeError{address, err}
		}
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return &Conn{Link: NewLink(ep, t.cfg.SendTimeout), address: address, users: map[uint32]User{}}, nil
}

// run receives on a connection until it ends.
func (t *Table) run(p *peer, c *Conn) {
	keep := c.ep.KeepFor(t.cfg.Idle)
	idle := time.AfterFunc(keep, func() { c.closeIdle(keep) })
	err := c.receive(&t.waits)
	if cause := c.Cause(); cause != nil {
		err = cause // the receiver knows only that the endpoint was closed
	}
	idle.Stop()
	t.mu.Lock()
	delete(t.conns, c)
	if p.conn == c {
		p.conn = nil
	}
	t.mu.Unlock()
	c.end(err)
	c.Link.Close()
}

// Close ends all connections, and returns when no user is called any more.
func (t *Table) Close() {
	t.mu.Lock()
	t.closed = true
	t.cancel()
	for c := range t.conns {
		t.wg.Go(func() { c.ep.Close() })
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// A User is who uses a connection under an id of its own: a block that is written.
type User interface {
	// Take takes a message for the user, and its reference. It must not wait: all users
	// of the connection get their messages by one goroutine.
	Take(m *verbena.Message)
	// End says that the connection has ended. Nothing follows.
	End(err error)
}

// A Conn is the end of a link that has dialled. Its methods may be called concurrently.
type Conn struct {
	*Link
	address string

	mu    sync.Mutex
	users map[uint32]User
	last  uint32
	used  time.Time // when the last user has left
	err   error     // why it has ended
	timer *time.Timer
}

// Address is what was dialled, host:port.
func (c *Conn) Address() string { return c.address }

// Takes returns an error if the peer accepts no message of so many bytes. Whoever posts or forwards a message that
// somebody else has made asks first: one that can't be sent ends the connection, and with it all its users.
func (c *Conn) Takes(bytes int) error {
	if most := c.ep.MaxMessage(); bytes > most {
		return fmt.Errorf("%w: a message of %d bytes, the peer accepts %d", verbena.ErrTooLong, bytes, most)
	}
	return nil
}

// Join makes u a user, whose messages have an id of its own as their tag, in both directions.
// begin gets the id before u is called: a peer can guess ids, and may send to one that it has
// not heard of. With an error of begin, which Join returns, u is no user. begin calls nothing
// of the connection.
func (c *Conn) Join(u User, begin func(c *Conn, id uint32) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	for {
		c.last++
		if _, taken := c.users[c.last]; !taken && c.last != 0 {
			break
		}
	}
	if err := begin(c, c.last); err != nil {
		return err
	}
	c.users[c.last] = u
	return nil
}

// Leave ends a use: messages for the id are dropped from now on. One may be being taken.
func (c *Conn) Leave(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.users, id)
	if len(c.users) == 0 {
		c.used = time.Now()
	}
}

// receive hands messages to users, and counts how often it waits for one.
func (c *Conn) receive(waits *atomic.Uint64) error {
	for {
		m := c.ep.TryReceive()
		if m == nil {
			waits.Add(1)
			var err error
			if m, err = c.ep.Receive(context.Background()); err != nil {
				return err
			}
		}
		c.mu.Lock()
		u := c.users[m.Tag]
		c.mu.Unlock()
		if u == nil {
			m.Release() // it has crossed the end of the use
			continue
		}
		u.Take(m)
	}
}

// end tells all users.
func (c *Conn) end(err error) {
	c.mu.Lock()
	if c.err == nil || !errors.Is(c.err, errIdle) {
		c.err = fmt.Errorf("the connection to DataNode %s has ended: %w", c.address, err)
	}
	users := c.users
	c.users = map[uint32]User{}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	for _, u := range users {
		u.End(c.err)
	}
}

// closeIdle closes a connection that nobody has used for some time, and looks again
// later otherwise.
func (c *Conn) closeIdle(after time.Duration) {
	c.mu.Lock()
	left := after
	if len(c.users) == 0 {
		left = after - time.Since(c.used)
	}
	if left > 0 && c.err == nil {
		c.timer = time.AfterFunc(left, func() { c.closeIdle(after) })
	}
	if left <= 0 && c.err == nil {
		c.err = errIdle
	}
	idle := c.err == errIdle
	c.mu.Unlock()
	if idle {
		c.ep.Close()
	}
}

// errIdle is why a connection ends that nobody uses.
var errIdle = errors.New("the connection was idle")

// usable tells whether users may join.
func (c *Conn) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && c.ep.Err() == nil
}
