package rdmanet

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
)

// DefaultService is the service protocol that carries connections, as the
// runtime's hello names it. Dialer and Listener may agree on another name.
const DefaultService = "stream/1"

// Dialer makes connections over endpoints, and keeps the endpoints for the next
// dial to the same address. Its fields must not be changed after the first
// dial. It may be used concurrently and must be closed.
type Dialer struct {
	// Runtime makes the endpoints.
	Runtime *verbena.Runtime
	// Service is the service protocol to ask for; default [DefaultService].
	Service string
	// Group is that of the endpoints. Default: the runtime's own.
	Group *verbena.Group
	// Transport is what [verbena.DialConfig] takes: the name of a provider,
	// "tcp", or "" and "auto" for the runtime's choice.
	Transport string
	// Timeout bounds a dial, in addition to its context; 0 is no bound.
	Timeout time.Duration

	// Plain dials a peer that has never heard of Verbena, unless Transport
	// forces a provider. Default: [verbena.Runtime.Connect], for the network "tcp" and, of
	// "tcp4" and "tcp6", an address of that kind.
	Plain func(ctx context.Context, network, address string) (net.Conn, error)
	// PlainTCP has a plain TCP connection take the place of one whose messages would go
	// over TCP, unless Transport asks for that: without frames it costs less. The
	// peer's port has to serve such connections, too. After ParkedLife, or 30 s if
	// that is for ever, a dial looks for something better than TCP again.
	PlainTCP bool

	// MaxParkedPerPeer and MaxParked bound the endpoints that are kept for later
	// dials. 0 is the default, 8 and 64; below 0 none are kept.
	MaxParkedPerPeer, MaxParked int
	// ParkedTimeout is how long one is kept without a connection; default one minute.
	ParkedTimeout time.Duration
	// ParkedLife is how long after it was set up an endpoint may still be parked or
	// taken by a dial, in use or not; default 30 s, below 0 for ever. So dials
	// spread over servers behind one address, and endpoints that could not
	// have the best transport are replaced. A dial under [WithNewEndpoint] takes no
	// parked one at all.
	ParkedLife time.Duration

	// Chunk is the most bytes that go into one message; default by transport.
	Chunk int
	// Linger is how long a closed connection waits for the peer to close, until
	// its endpoint is closed; default 30 s.
	Linger time.Duration
	// CloseWait is how long Close waits for the peer to take what was written; default
	// one second. Below 0 it does not wait, as is right where the peer acknowledges all
	// that matters before Close: it saves a round trip.
	CloseWait time.Duration

	once    sync.Once
	pool    *pool
	sockets sockets
	connect func(ctx context.Context, address string) (endpoint, error)
}

// defaultLife is what ParkedLife is by default.
const defaultLife = 30 * time.Second

func (d *Dialer) init() {
	d.once.Do(func() {
		perPeer, total, expiry := d.MaxParkedPerPeer, d.MaxParked, d.ParkedTimeout
		if perPeer == 0 {
			perPeer = 8
		}
		if total == 0 {
			total = 64
		}
		if expiry <= 0 {
			expiry = time.Minute
		}
		life := d.ParkedLife
		if life == 0 {
			life = defaultLife
		}
		d.pool = newPool(perPeer, total, expiry, life)
		if d.connect == nil {
			d.connect = d.dialEndpoint
		}
	})
}

type newEndpointKey struct{}

// WithNewEndpoint returns a context with which [Dialer.DialContext] sets up an
// endpoint of its own instead of taking a parked one, as one that a load
// balancer is to see does. The endpoint may be parked afterwards.
func WithNewEndpoint(ctx context.Context) context.Context {
	return context.WithValue(ctx, newEndpointKey{}, true)
}

// Dial is DialContext without a context.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to address, a host and port. The network is "tcp",
// "tcp4" or "tcp6": that of the port at which the peer is found. The
// connection is a *[Conn], over a parked endpoint if there is one, or a plain
// TCP connection if the peer has never heard of Verbena.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d.init()
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	c, err := d.dial(ctx, network, address)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return nil, err
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = dialTimeout{err}
		}
		return nil, &net.OpError{Op: "dial", Net: network, Addr: dialAddr{network, address}, Err: err}
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	target := address
	switch network {
	case "tcp":
	case "tcp4", "tcp6":
		// The runtime knows no such restriction; resolve under it.
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		ips, err := net.DefaultResolver.LookupIP(ctx, "ip"+network[3:], host)
		if err != nil {
			return nil, err
		}
		target = net.JoinHostPort(ips[0].String(), port)
	default:
		return nil, net.UnknownNetworkError(network)
	}
	if d.sockets.only(target) {
		return d.plain(ctx, network, address, target)
	}
	for ctx.Value(newEndpointKey{}) == nil {
		s := d.pool.take(ctx, target)
		if s == nil {
			break
		}
		c, err := s.open(ctx)
		if err == nil {
			return wrap(c), nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		// It had died in the meantime.
	}
	ep, err := d.connect(ctx, target)
	if err != nil {
		var legacy *verbena.LegacyPeerError
		if errors.As(err, &legacy) && d.plainAllowed() {
			return d.plain(ctx, network, address, target)
		}
		return nil, err
	}
	if chosen, ok := ep.(selected); ok && d.PlainTCP && d.Transport != verbena.TransportTCP && chosen.Selection().Transport == verbena.TransportTCP {
		ep.Close()
		d.sockets.add(target, d.pool.life)
		return d.plain(ctx, network, address, target)
	}
	s := newSession(ep, settings{chunk: d.Chunk, linger: d.Linger, wait: d.CloseWait}, true, d.pool)
	if !d.pool.add(target, s) {
		ep.Close()
		return nil, errClosed
	}
	s.start()
	c, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	return wrap(c), nil
}

// selected is an endpoint that tells by what transport, and why.
type selected interface{ Selection() verbena.Selection }

// sockets are the peers to which nothing better than TCP was found lately.
type sockets struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// maxSockets bounds the peers that are remembered.
const maxSockets = 4096

func (s *sockets) only(peer string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.until[peer]
	if ok && time.Now().After(until) {
		delete(s.until, peer)
		ok = false
	}
	return ok
}

func (s *sockets) add(peer string, life time.Duration) {
	if life <= 0 {
		life = defaultLife
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil || len(s.until) >= maxSockets {
		s.until = map[string]time.Time{}
	}
	s.until[peer] = time.Now().Add(life)
}

func (d *Dialer) plainAllowed() bool {
	switch d.Transport {
	case "", verbena.TransportAuto, verbena.TransportTCP:
		return true
	}
	return false
}

// plain dials an address without Verbena, which is resolved in target.
func (d *Dialer) plain(ctx context.Context, network, address, target string) (net.Conn, error) {
	if d.Plain != nil {
		return d.Plain(ctx, network, address)
	}
	return d.Runtime.Connect(ctx, "tcp", target)
}

// Close closes the parked endpoints, and waits up to a second for peers that
// have still to close what was closed here. Connections that are open stay so,
// and their endpoints are closed when they are; a further Close waits for those
// that have been closed since. The runtime should be closed after that.
func (d *Dialer) Close() error {
	d.init()
	d.pool.close()
	return nil
}

// Parked returns how many endpoints are parked.
func (d *Dialer) Parked() int {
	d.init()
	_, parked := d.pool.counts()
	return parked
}

// dialAddr is an address as it was asked for.
type dialAddr struct{ network, address string }

func (a dialAddr) Network() string { return a.network }
func (a dialAddr) String() string  { return a.address }

// dialTimeout is a dial that ran into the deadline, which net.OpError asks for.
type dialTimeout struct{ error }

func (e dialTimeout) Timeout() bool   { return true }
func (e dialTimeout) Temporary() bool { return true }
func (e dialTimeout) Unwrap() error   { return e.error }
