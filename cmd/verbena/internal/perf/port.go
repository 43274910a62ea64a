package perf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
)

const (
	// sniffTimeout bounds the time until a connection has told what it wants.
	sniffTimeout = 10 * time.Second
	// maxSniffing bounds the connections that have not.
	maxSniffing = 1024

	helloHeader = 16
	helloLimit  = 4096
)

// A port is the server's one TCP port. Connections whose hello asks for a
// service of a session go to that session's runtime, which is tuned as the plan
// has it; all others to the branch of everybody else. Nothing is taken from a
// connection before that.
type port struct {
	ln     net.Listener
	rest   *branch
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{}
	wg     sync.WaitGroup

	mu       sync.Mutex
	services map[string]*branch
}

func newPort(ln net.Listener, log *slog.Logger) *port {
	p := &port{ln: ln, log: log, slots: make(chan struct{}, maxSniffing), services: map[string]*branch{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.rest = newBranch(ln.Addr())
	p.wg.Go(p.run)
	return p
}

// serve returns a listener for the connections that ask for a service. Closing
// it ends that.
func (p *port) serve(service string) *branch {
	b := newBranch(p.ln.Addr())
	b.left = func() {
		p.mu.Lock()
		delete(p.services, service)
		p.mu.Unlock()
	}
	p.mu.Lock()
	p.services[service] = b
	p.mu.Unlock()
	return b
}

// close ends the port. Its branches are closed by those who accept from them.
func (p *port) close() error {
	p.cancel()
	err := p.ln.Close()
	p.wg.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("perf: close port: %w", err)
	}
	return nil
}

func (p *port) run() {
	for {
		conn, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) || p.ctx.Err() != nil {
			if err == nil {
				_ = conn.Close() // too late
			}
			return
		}
		if err != nil {
			p.log.Warn("accept failed, trying again", "error", err)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-p.ctx.Done():
				return
			}
			continue
		}
		select {
		case p.slots <- struct{}{}:
			p.wg.Go(func() {
				p.sort(conn)
				<-p.slots
			})
		default:
			p.log.Warn("connection dropped: too many that say nothing", "peer", conn.RemoteAddr())
			_ = conn.Close() // a flood
		}
	}
}

// sort gives a connection to its branch.
func (p *port) sort(conn net.Conn) {
	stop := context.AfterFunc(p.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	service, err := p.wanted(conn)
	if err != nil || !stop() {
		p.log.Debug("connection dropped", "peer", conn.RemoteAddr(), "error", err)
		_ = conn.Close() // it told nothing
		return
	}
	p.mu.Lock()
	b := p.services[service]
	p.mu.Unlock()
	if b == nil {
		b = p.rest
	}
	if !b.give(conn) {
		_ = conn.Close() // nobody accepts there any more
	}
}

// wanted looks at the hello of a connection and returns the service it asks
// for, or nothing if it is no hello.
func (p *port) wanted(conn net.Conn) (string, error) {
	if err := conn.SetReadDeadline(time.Now().Add(sniffTimeout)); err != nil {
		return "", err
	}
	var seen [helloLimit]byte
	n, err := peek(conn, seen[:], func(b []byte) bool {
		if !bytes.HasPrefix(hello.Magic[:], b[:min(len(b), len(hello.Magic))]) {
			return true
		}
		if len(b) < helloHeader {
			return false
		}
		// A length that is out of bounds is for the runtime to refuse.
		length := int(binary.BigEndian.Uint16(b[10:]))
		return length > helloLimit || len(b) >= length
	})
	if err != nil {
		return "", err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return "", err
	}
	h, err := hello.ReadHello(bytes.NewReader(seen[:n]), 0)
	if err != nil {
		return "", nil //nolint:nilerr // whoever gets it finds out the same, and answers
	}
	return h.Service, nil
}

// A branch is a part of a port's connections.
type branch struct {
	addr   net.Addr
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
	left   func() // on Close
}

func newBranch(addr net.Addr) *branch {
	return &branch{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (b *branch) give(conn net.Conn) bool {
	select {
	case b.conns <- conn:
		return true
	case <-b.closed:
		return false
	}
}

// Accept implements [net.Listener].
func (b *branch) Accept() (net.Conn, error) {
	select {
	case conn := <-b.conns:
		return conn, nil
	case <-b.closed:
		return nil, &net.OpError{Op: "accept", Net: b.addr.Network(), Addr: b.addr, Err: net.ErrClosed}
	}
}

// Close implements [net.Listener].
func (b *branch) Close() error {
	b.once.Do(func() {
		close(b.closed)
		if b.left != nil {
			b.left()
		}
	})
	return nil
}

// Addr implements [net.Listener].
func (b *branch) Addr() net.Addr { return b.addr }
