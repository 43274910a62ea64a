// Package port is the life of a service's one published port: it listens,
// serves plain connections, byte streams over endpoints and message services by
// name, ends with an error, closes and waits.
//
// It belongs to the service kit: services import it, it knows none of them. Of
// the project it imports the runtime alone. What carries byte streams over
// endpoints comes from outside, in [Streams], so that a service of messages
// does not link it; the runtime's listener closes its plain connections.
package port

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
)

// Config says what a port takes.
type Config struct {
	Logger *slog.Logger // default: slog.Default()
	// Group is that of the endpoints. Default: the runtime's own.
	Group *verbena.Group
	// Listener, if set, is where connections come from, whatever the address.
	Listener net.Listener
	// Messages are the names of the services that get their endpoints as they are.
	Messages []string
	// Streams is for ports that plain connections and byte streams reach, too.
	Streams *Streams
}

// Streams says how a port gets a listener of byte streams.
type Streams struct {
	Service string // whose endpoints carry byte streams
	// Listen makes of the runtime's listener one of plain connections and byte
	// streams. Closing the result closes l.
	Listen func(l *verbena.Listener) net.Listener
}

// Handlers serve what a port takes, each call in a goroutine of its own.
type Handlers struct {
	// Messages serve one endpoint a call, by the name of its service, until it or
	// the context ends. The port closes the endpoint then, and logs the error.
	Messages map[string]func(context.Context, *verbena.Endpoint) error
	// Connections serves one plain connection or byte stream a call, until it
	// ends. The port closes it then; to end it, Close closes it before.
	Connections func(net.Conn)
}

// Port is a published port. What comes before [Port.Serve] waits.
type Port struct {
	listener interface {
		Addr() net.Addr
		Close() error
	}
	messages []*verbena.Service
	streams  net.Listener // nil: none are served
	log      *slog.Logger
	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // being served; nil once the port closes

	endOnce sync.Once
	done    chan struct{}
	err     error // set before done is closed
}

// Listen publishes the port of address, as [verbena.Runtime.Listen] takes it.
func Listen(ctx context.Context, rt *verbena.Runtime, address string, cfg Config) (*Port, error) {
	services := []string{} // not nil, which would mean any
	if cfg.Streams != nil {
		services = append(services, cfg.Streams.Service)
	}
	listen := verbena.ListenConfig{Services: services, Group: cfg.Group}
	var l *verbena.Listener
	var err error
	if cfg.Listener != nil {
		l, err = rt.NewListener(cfg.Listener, listen)
	} else {
		l, err = rt.Listen(ctx, address, listen)
	}
	if err != nil {
		return nil, err
	}
	p := &Port{listener: l, log: cfg.Logger, conns: map[net.Conn]struct{}{}, done: make(chan struct{})}
	for _, name := range cfg.Messages {
		service, err := l.Service(name, verbena.ServiceConfig{})
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		p.messages = append(p.messages, service)
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	if cfg.Streams != nil {
		p.streams = cfg.Streams.Listen(l)
		p.listener = p.streams
	}
	return p, nil
}

// Serve begins to serve and returns. It is called once, with a handler for all
// that the port's [Config] names; it panics if one is missing.
func (p *Port) Serve(h Handlers) {
	for _, service := range p.messages {
		serve := h.Messages[service.Name()]
		if serve == nil {
			panic("port: no handler for the service " + service.Name())
		}
		p.wg.Go(func() { p.acceptEndpoints(service, serve) })
	}
	if p.streams != nil {
		if h.Connections == nil {
			panic("port: no handler for connections")
		}
		p.wg.Go(func() {
			err := Accept(p.ctx, p.streams, p.log, func(c net.Conn) {
				p.wg.Go(func() { p.serveConnection(c, h.Connections) })
			})
			if p.ctx.Err() == nil {
				p.End(err)
			}
		})
	}
}

func (p *Port) acceptEndpoints(service *verbena.Service, serve func(context.Context, *verbena.Endpoint) error) {
	for {
		ep, err := service.Accept(p.ctx)
		if err != nil {
			if p.ctx.Err() == nil {
				p.End(err)
			}
			return
		}
		p.wg.Go(func() { p.serveEndpoint(ep, serve) })
	}
}

// Accept gives take every connection of l, until l is closed or fails, and
// returns its error. Take returns at once. After an error that may pass, such as
// one for want of descriptors, it waits for 5 ms, doubling to 1 s: connections
// that end free some.
func Accept(ctx context.Context, l net.Listener, log *slog.Logger, take func(net.Conn)) error {
	const longest = time.Second
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		if err == nil {
			pause = 0
			take(c)
			continue
		}
		var passing interface{ Temporary() bool }
		if !errors.As(err, &passing) || !passing.Temporary() {
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), longest)
		log.Warn("accept failed, trying again", "address", l.Addr(), "pause", pause, "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

func (p *Port) serveConnection(c net.Conn, serve func(net.Conn)) {
	defer c.Close()
	p.mu.Lock()
	if p.conns == nil {
		p.mu.Unlock()
		return
	}
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	serve(c)
}

func (p *Port) serveEndpoint(ep *verbena.Endpoint, serve func(context.Context, *verbena.Endpoint) error) {
	defer ep.Close()
	if err := serve(p.ctx, ep); err != nil && p.ctx.Err() == nil {
		p.log.Info("connection ended", "service", ep.Service(), "peer", ep.RemoteAddr(), "error", err)
	}
}

// End tells Done that the port has ended, and Err why, unless it has already. Its owner then
// closes it.
func (p *Port) End(err error) {
	p.endOnce.Do(func() {
		p.err = err
		close(p.done)
	})
}

// Addr is the published address, host:port.
func (p *Port) Addr() string { return p.listener.Addr().String() }

// Done is closed when the port has ended: after Close, or because it can't
// accept or serve any more.
func (p *Port) Done() <-chan struct{} { return p.done }

// Err tells why the port has ended, once Done is closed. After Close it is nil.
func (p *Port) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Close closes the port and what it serves, and waits for all handlers.
func (p *Port) Close() error {
	p.stop()
	p.mu.Lock()
	conns := p.conns
	p.conns = nil
	for c := range conns {
		c.Close()
	}
	p.mu.Unlock()
	err := p.listener.Close()
	p.wg.Wait()
	p.End(nil)
	return err
}
