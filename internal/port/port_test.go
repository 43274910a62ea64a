package port_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/port"
	"github.com/verbena-data/verbena/rdmanet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newRuntime returns one with sockets only: what carries the bytes does not
// matter here.
func newRuntime(t *testing.T) *verbena.Runtime {
	t.Helper()
	rt, err := verbena.New(verbena.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	return rt
}

func listen(t *testing.T, rt *verbena.Runtime, cfg port.Config) *port.Port {
	t.Helper()
	p, err := port.Listen(t.Context(), rt, "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closePort(t, p) })
	return p
}

func closePort(t *testing.T, p *port.Port) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func overStreams(service string) *port.Streams {
	return &port.Streams{
		Service: service,
		Listen: func(l *verbena.Listener) net.Listener {
			return rdmanet.NewListener(l, rdmanet.Config{Service: service})
		},
	}
}

// answer echoes one message behind the name of the service.
func answer(ctx context.Context, ep *verbena.Endpoint) error {
	m, err := ep.Receive(ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	return ep.Send(ctx, 0, []byte(ep.Service()+" "+string(m.Bytes())))
}

func ask(t *testing.T, rt *verbena.Runtime, address, service string) {
	t.Helper()
	ep, err := rt.Dial(t.Context(), address, service, verbena.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	if err := ep.Send(t.Context(), 0, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	m, err := ep.Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if got := string(m.Bytes()); got != service+" hello" {
		t.Errorf("%s answered %q", service, got)
	}
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) } // the test sees what came back

func askStream(t *testing.T, c net.Conn, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 5)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "hello" {
		t.Errorf("%q came back: %v", buf, err)
	}
}

func TestEverythingOnOnePort(t *testing.T) {
	rt := newRuntime(t)
	p := listen(t, rt, port.Config{Messages: []string{"a/1", "b/1"}, Streams: overStreams("s/1")})
	// What comes before Serve waits for it.
	early, err := net.Dial("tcp", p.Addr())
	p.Serve(port.Handlers{
		Messages:    map[string]func(context.Context, *verbena.Endpoint) error{"a/1": answer, "b/1": answer},
		Connections: echo,
	})
	askStream(t, early, err)
	ask(t, rt, p.Addr(), "a/1")
	ask(t, rt, p.Addr(), "b/1")
	d := &rdmanet.Dialer{Runtime: rt, Service: "s/1"}
	defer d.Close()
	c, err := d.DialContext(t.Context(), "tcp", p.Addr())
	askStream(t, c, err)
	if ep, err := rt.Dial(t.Context(), p.Addr(), "c/1", verbena.DialConfig{}); err == nil {
		ep.Close()
		t.Error("an endpoint of a service that the port does not have")
	}
	closePort(t, p)
	<-p.Done()
	if err := p.Err(); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// A port of messages alone tells plain clients at once that they are wrong.
func TestPlainConnectionIsRefusedWhereThereAreMessagesAlone(t *testing.T) {
	rt := newRuntime(t)
	p := listen(t, rt, port.Config{Messages: []string{"a/1"}})
	p.Serve(port.Handlers{Messages: map[string]func(context.Context, *verbena.Endpoint) error{"a/1": answer}})
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes came back", n)
	}
	ask(t, rt, p.Addr(), "a/1")
}

func TestCloseEndsWhatIsServed(t *testing.T) {
	rt := newRuntime(t)
	p := listen(t, rt, port.Config{Messages: []string{"a/1"}, Streams: overStreams("s/1")})
	var began sync.WaitGroup
	began.Add(2)
	p.Serve(port.Handlers{
		Messages: map[string]func(context.Context, *verbena.Endpoint) error{"a/1": func(ctx context.Context, ep *verbena.Endpoint) error {
			began.Done()
			_, err := ep.Receive(ctx)
			return err
		}},
		Connections: func(c net.Conn) {
			began.Done()
			echo(c)
		},
	})
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "first bytes"); err != nil {
		t.Fatal(err)
	}
	ep, err := rt.Dial(t.Context(), p.Addr(), "a/1", verbena.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	began.Wait()
	closePort(t, p)
	if _, err := ep.Receive(t.Context()); err == nil {
		t.Error("a message came from a closed port")
	}
}

// A listener that fails ends the port: Done tells, and Err why.
func TestPortEndsWithItsListener(t *testing.T) {
	for name, streams := range map[string]*port.Streams{"messages": nil, "streams": overStreams("s/1")} {
		t.Run(name, func(t *testing.T) {
			rt := newRuntime(t)
			p := listen(t, rt, port.Config{Messages: []string{"a/1"}, Streams: streams})
			p.Serve(port.Handlers{Messages: map[string]func(context.Context, *verbena.Endpoint) error{"a/1": answer}, Connections: echo})
			if err := p.Err(); err != nil {
				t.Errorf("while it serves: %v", err)
			}
			rt.Close()
			<-p.Done()
			if p.Err() == nil {
				t.Error("no reason is told")
			}
		})
	}
}

func TestServeNamesTheMissingHandler(t *testing.T) {
	p := listen(t, newRuntime(t), port.Config{Messages: []string{"a/1"}})
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "a/1") {
			t.Errorf("Serve without a handler said %q", text)
		}
	}()
	p.Serve(port.Handlers{})
}

// passing is an error for want of something that may come back.
type passing struct{ error }

func (passing) Temporary() bool { return true }

// scripted is a listener whose Accept returns what the test tells.
type scripted struct {
	results chan any
}

func (l scripted) Accept() (net.Conn, error) {
	switch r := (<-l.results).(type) {
	case net.Conn:
		return r, nil
	case error:
		return nil, r
	}
	return nil, net.ErrClosed
}

func (l scripted) Close() error { return nil }

func (l scripted) Addr() net.Addr { return &net.TCPAddr{} }

func TestAcceptWaitsWhileDescriptorsAreShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := scripted{results: make(chan any, 16)}
		here, there := net.Pipe()
		defer here.Close()
		for range 10 {
			l.results <- passing{errors.New("too many open files")}
		}
		l.results <- there
		lasting := errors.New("gone")
		l.results <- lasting
		begun := time.Now()
		taken := 0
		err := port.Accept(t.Context(), l, slog.New(slog.DiscardHandler), func(c net.Conn) {
			taken++
			c.Close()
			// 5 ms, doubling eight times to 1 s, and once more 1 s.
			if waited := time.Since(begun); waited != 3275*time.Millisecond {
				t.Errorf("waited for %v", waited)
			}
		})
		if taken != 1 || !errors.Is(err, lasting) {
			t.Errorf("%d connections, and the error %v", taken, err)
		}
	})
}

func TestAcceptEndsWithItsContextWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := scripted{results: make(chan any, 1)}
		l.results <- passing{errors.New("too many open files")}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err := port.Accept(ctx, l, slog.New(slog.DiscardHandler), func(net.Conn) {})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
