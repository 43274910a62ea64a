package rdmanet

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/verbena-data/verbena"
)

// memoryEndpoint is an endpoint within the process, with the flow control and
// the rules of the runtime's: a credit is a message that has been released, and
// a message must be released before Close.
type memoryEndpoint struct {
	t    testing.TB
	peer *memoryEndpoint

	in      chan *memoryMessage
	credits chan struct{}
	sendMu  chan struct{}
	held    atomic.Int32
	sent    atomic.Int64
	once    sync.Once
	done    chan struct{}
	err     error
	receing atomic.Int32
	gone    atomic.Bool
}

type memoryMessage struct {
	tag      uint32
	data     []byte
	to       *memoryEndpoint
	released atomic.Bool
}

func (m *memoryMessage) Bytes() []byte {
	if m.released.Load() {
		m.to.t.Error("a message was read after its release")
	}
	return m.data
}

func (m *memoryMessage) Release() {
	if m.released.Swap(true) {
		m.to.t.Error("a message was released twice")
	}
	for i := range m.data {
		m.data[i] = 0xdd
	}
	m.to.held.Add(-1)
	<-m.to.credits
}

const memoryWindow = 8

func memoryPair(t testing.TB) (a, b *memoryEndpoint) {
	make1 := func() *memoryEndpoint {
		return &memoryEndpoint{
			t: t, in: make(chan *memoryMessage, memoryWindow), credits: make(chan struct{}, memoryWindow),
			sendMu: make(chan struct{}, 1), done: make(chan struct{}),
		}
	}
	a, b = make1(), make1()
	a.peer, b.peer = b, a
	return a, b
}

func (e *memoryEndpoint) Send(ctx context.Context, tag uint32, msg []byte) error {
	select {
	case e.sendMu <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.done:
		return e.err
	}
	defer func() { <-e.sendMu }()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(msg) > e.MaxMessage() {
		return errors.New("message too long")
	}
	select {
	case <-e.done:
		return e.err
	default:
	}
	select {
	case e.peer.credits <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.done:
		return e.err
	}
	e.sent.Add(1)
	e.peer.in <- &memoryMessage{tag: tag, data: append([]byte(nil), msg...), to: e.peer}
	return nil
}

func (e *memoryEndpoint) receive(ctx context.Context) (uint32, message, error) {
	if e.receing.Add(1) != 1 {
		e.t.Error("two goroutines receive at a time")
	}
	defer e.receing.Add(-1)
	take := func(m *memoryMessage) (uint32, message, error) {
		e.held.Add(1)
		return m.tag, m, nil
	}
	if e.gone.Load() {
		return 0, nil, verbena.ErrClosed
	}
	select {
	case m := <-e.in:
		return take(m)
	default:
	}
	select {
	case m := <-e.in:
		return take(m)
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	case <-e.done:
		select {
		case m := <-e.in:
			return take(m)
		default:
		}
		if errors.Is(e.err, verbena.ErrPeerClosed) {
			return 0, nil, io.EOF
		}
		return 0, nil, e.err
	}
}

func (e *memoryEndpoint) end(err error) {
	e.once.Do(func() {
		e.err = err
		close(e.done)
	})
}

// kill is the death of the process behind e.
func (e *memoryEndpoint) kill() {
	e.end(verbena.ErrPeerDied)
	e.peer.end(verbena.ErrPeerDied)
}

func (e *memoryEndpoint) Close() error {
	if e.gone.Swap(true) {
		e.t.Error("the endpoint was closed twice")
	}
	if n := e.held.Load(); n != 0 {
		e.t.Errorf("the endpoint was closed with %d messages held", n)
	}
	e.end(verbena.ErrClosed)
	e.peer.end(verbena.ErrPeerClosed)
	return nil
}

func (e *memoryEndpoint) Done() <-chan struct{} { return e.done }
func (e *memoryEndpoint) Err() error {
	select {
	case <-e.done:
		return e.err
	default:
		return nil
	}
}
func (e *memoryEndpoint) MaxMessage() int        { return 1 << 20 }
func (e *memoryEndpoint) Tuning() verbena.Tuning { return verbena.Tuning{Stream: 512 << 10} }
func (e *memoryEndpoint) Eager() int             { return 0 }
func (e *memoryEndpoint) LocalAddr() net.Addr    { return memoryAddr{} }
func (e *memoryEndpoint) RemoteAddr() net.Addr   { return memoryAddr{} }

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "memory" }

// memoryNetwork joins a Dialer to a Listener by memory endpoints.
type memoryNetwork struct {
	t         testing.TB
	endpoints chan *memoryEndpoint
	plain     chan net.Conn
	closed    chan struct{}
	once      sync.Once
	setUps    atomic.Int32

	mu      sync.Mutex
	dialled []*memoryEndpoint // the dialer's ends
}

func newMemoryNetwork(t testing.TB) *memoryNetwork {
	return &memoryNetwork{t: t, endpoints: make(chan *memoryEndpoint), plain: make(chan net.Conn), closed: make(chan struct{})}
}

func (n *memoryNetwork) dial(ctx context.Context, _ string) (endpoint, error) {
	a, b := memoryPair(n.t)
	select {
	case n.endpoints <- b:
	case <-n.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.setUps.Add(1)
	n.mu.Lock()
	n.dialled = append(n.dialled, a)
	n.mu.Unlock()
	return a, nil
}

// latest returns the dialer's end of the endpoint that was set up last.
func (n *memoryNetwork) latest() *memoryEndpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dialled[len(n.dialled)-1]
}

func (n *memoryNetwork) acceptEndpoint(ctx context.Context) (endpoint, *verbena.Endpoint, error) {
	select {
	case ep := <-n.endpoints:
		return ep, nil, nil
	case <-n.closed:
		return nil, nil, net.ErrClosed
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

func (n *memoryNetwork) Legacy() net.Listener { return memoryPlain{n} }
func (n *memoryNetwork) Addr() net.Addr       { return memoryAddr{} }
func (n *memoryNetwork) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

type memoryPlain struct{ n *memoryNetwork }

func (p memoryPlain) Accept() (net.Conn, error) {
	select {
	case c := <-p.n.plain:
		return c, nil
	case <-p.n.closed:
		return nil, net.ErrClosed
	}
}
func (p memoryPlain) Addr() net.Addr { return memoryAddr{} }
func (p memoryPlain) Close() error   { return nil }
