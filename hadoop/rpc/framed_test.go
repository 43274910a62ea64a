package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/rdma"
)

// framed returns a client that frames Hadoop RPC itself, over c, and its connection.
func (s *endpoints) framed(t *testing.T, c *Client, user string, repeat Repeat) (*Conn, net.Conn) {
	t.Helper()
	nc, err := c.DialFramed(t.Context(), s.listener.Addr().String(), func(string) Repeat { return repeat })
	if err != nil {
		t.Fatal(err)
	}
	conn, err := NewConn(t.Context(), nc, Target{User: user, Protocol: testProtocol}, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, nc
}

var whoAmI = Handle(func(ctx context.Context, _ *ping) (*ping, error) {
	return &ping{EffectiveUser: proto.String(FromContext(ctx).User)}, nil
})

// Clients that frame their requests have them made as calls, whatever is written at
// once; those of one user share endpoints.
func TestFramed(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		s := newEndpoints(t, Config{}, Methods{
			"short": Handle(echoBlob).Short(), "long": Handle(echoBlob), "whoami": whoAmI,
			"refuse": Handle(func(context.Context, *ping) (*ping, error) {
				return nil, exception.New(exception.FileNotFound, "no such file")
			}),
		}, providers)
		c := s.newClient(t, ClientConfig{})
		var all sync.WaitGroup
		for i := range 4 {
			user := []string{"ada", "eve"}[i%2]
			conn, _ := s.framed(t, c, user, Idempotent)
			for j, size := range []int{0, 1, 1000, 33 << 10, 300 << 10} {
				all.Go(func() {
					for _, method := range []string{"short", "long"} {
						want := bytes.Repeat([]byte{byte(i), byte(j), 3}, size/3+1)[:size]
						var got blob
						if err := conn.Call(t.Context(), method, &blob{Value: want}, &got); err != nil || !bytes.Equal(got.Value, want) {
							t.Errorf("%s: %d bytes came back of %d: %v", method, len(got.Value), size, err)
						}
					}
					var who ping
					if err := conn.Call(t.Context(), "whoami", &ping{}, &who); err != nil || who.GetEffectiveUser() != user {
						t.Errorf("%v, %v, want %s", &who, err, user)
					}
					var refused *exception.Error
					if err := conn.Call(t.Context(), "refuse", &ping{}, &ping{}); !errors.As(err, &refused) || refused.Class != exception.FileNotFound {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		if n := s.attempts(); n != 2 {
			t.Errorf("%d endpoints were dialled for two users", n)
		}
	})
}

// A call whose endpoint is lost is made again if it may be; otherwise its response says
// so, and the connection goes on.
func TestFramedRetries(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		var s *endpoints
		var runs atomic.Int32
		s = newEndpoints(t, Config{}, Methods{
			"once": Handle(func(context.Context, *ping) (*ping, error) {
				s.cut()
				return &ping{EffectiveUser: proto.String(fmt.Sprint("run ", runs.Add(1)))}, nil
			}).Once(),
			"cut": Handle(func(ctx context.Context, req *ping) (*ping, error) {
				s.cut()
				<-ctx.Done()
				return req, nil
			}),
			"whoami": whoAmI,
		}, providers)
		c := s.newClient(t, ClientConfig{Attempts: 1000})
		var got ping
		conn, _ := s.framed(t, c, "ada", AtMostOnce)
		if err := conn.Call(t.Context(), "once", &ping{}, &got); err != nil || got.GetEffectiveUser() != "run 1" || runs.Load() != 1 {
			t.Errorf("%v, %v after %d runs", &got, err, runs.Load())
		}
		conn, _ = s.framed(t, c, "ada", 0)
		var refused *exception.Error
		if err := conn.Call(t.Context(), "cut", &ping{}, &got); !errors.As(err, &refused) || refused.Class != exception.IO {
			t.Errorf("a call whose endpoint ended: %v", err)
		}
		if err := conn.Call(t.Context(), "whoami", &ping{}, &got); err != nil || got.GetEffectiveUser() != "ada" {
			t.Errorf("the next call: %v, %v", &got, err)
		}
	})
}

// Deadlines and Close end a call that is under way, and the server hears of it.
func TestFramedEnds(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		begun, ended := make(chan struct{}, 1), make(chan struct{}, 1)
		s := newEndpoints(t, Config{}, Methods{"block": Handle(func(ctx context.Context, _ *ping) (*ping, error) {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			return nil, ctx.Err()
		})}, providers)
		c := s.newClient(t, ClientConfig{})
		for name, end := range map[string]func(net.Conn) error{
			"deadline": func(nc net.Conn) error { return nc.SetReadDeadline(time.Now()) },
			"close":    net.Conn.Close,
		} {
			conn, nc := s.framed(t, c, "ada", 0)
			failed := make(chan error, 1)
			go func() { failed <- conn.Call(t.Context(), "block", &ping{}, &ping{}) }()
			<-begun
			if err := end(nc); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			want := map[string]error{"deadline": os.ErrDeadlineExceeded, "close": net.ErrClosed}[name]
			if err := <-failed; !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
			<-ended
			var op *net.OpError
			if _, err := nc.Read(make([]byte, 1)); !errors.As(err, &op) {
				t.Errorf("%s: a read behind it: %v", name, err)
			}
			if _, err := nc.Write(make([]byte, 1)); !errors.As(err, &op) {
				t.Errorf("%s: a write behind it: %v", name, err)
			}
		}
		// A deadline that has passed may be taken back.
		nc, err := c.DialFramed(t.Context(), s.listener.Addr().String(), func(string) Repeat { return 0 })
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.SetDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Error(err)
		}
		if _, err := nc.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		if err := nc.SetDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
		conn, err := NewConn(t.Context(), nc, ada, ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var refused *exception.Error
		if err := conn.Call(t.Context(), "nothing", &ping{}, &ping{}); !errors.As(err, &refused) || refused.Class != exception.NoSuchMethod {
			t.Error(err)
		}
	})
}

// Servers without endpoints get a stream, and so do clients that prove who they are.
func TestFramedFallsBackToStreams(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		token := Token{[]byte("of eve"), []byte("secret")}
		methods := Methods{"whoami": whoAmI}
		s := newEndpoints(t, Config{}, methods, providers)
		plain := newPipes(Config{Mechanisms: []Mechanism{Tokens(func([]byte) ([]byte, string, error) { return token.Password, "eve", nil })}}, methods)
		defer plain.stop()
		c := s.newClient(t, ClientConfig{Dial: plain.dial})
		check := func(target Target, want string) {
			nc, err := c.DialFramed(t.Context(), s.listener.Addr().String(), func(string) Repeat { return 0 })
			if err != nil {
				t.Fatal(err)
			}
			conn, err := NewConn(t.Context(), nc, target, ClientConfig{})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			var who ping
			if err := conn.Call(t.Context(), "whoami", &ping{}, &who); err != nil || who.GetEffectiveUser() != want {
				t.Errorf("%v, %v, want %s", &who, err, want)
			}
		}
		check(Target{Protocol: testProtocol, Token: &token}, "eve")
		if s.attempts() != 0 || plain.dials.Load() != 1 {
			t.Errorf("%d endpoints and %d streams were dialled for a token", s.attempts(), plain.dials.Load())
		}
		if err := s.service.Close(); err != nil { // the server goes on, as an older one
			t.Fatal(err)
		}
		check(ada, "ada")
		if s.attempts() != 1 || plain.dials.Load() != 2 {
			t.Errorf("%d endpoints and %d streams were dialled, want one and two", s.attempts(), plain.dials.Load())
		}
	})
}

// A server that cannot be reached is told of by the write that looks for it.
func TestFramedNobody(t *testing.T) {
	s := newEndpoints(t, Config{}, nil, func() (client, server []rdma.Provider) { return nil, nil })
	c := s.newClient(t, ClientConfig{})
	address := s.listener.Addr().String()
	if err := s.listener.Close(); err != nil {
		t.Fatal(err)
	}
	nc, err := c.DialFramed(t.Context(), address, func(string) Repeat { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	conn, err := NewConn(t.Context(), nc, ada, ClientConfig{})
	if err == nil { // what it has written may not be taken yet
		err = conn.Call(t.Context(), "echo", &ping{}, &ping{})
		conn.Close()
	}
	if err == nil {
		t.Error("nobody has answered a call")
	}
}

// A drained client lets calls end, and none begin.
func TestClientDrains(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		g := newGate()
		s := newEndpoints(t, Config{}, Methods{"wait": Handle(g.wait)}, providers)
		c := s.newClient(t, ClientConfig{})
		target := ada
		target.Address = s.listener.Addr().String()
		p := c.Proxy(target)
		answered := make(chan error, 1)
		go func() { answered <- p.Call(t.Context(), "wait", &ping{}, &ping{}) }()
		for g.runs.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		drained := make(chan error, 1)
		go func() { drained <- c.Drain(t.Context()) }()
		for !c.turn.closed.Load() {
			time.Sleep(time.Millisecond)
		}
		if err := p.Call(t.Context(), "wait", &ping{}, &ping{}); !errors.Is(err, ErrClosed) {
			t.Errorf("a call of a client that drains: %v", err)
		}
		close(g.opened)
		if err := errors.Join(<-answered, <-drained); err != nil {
			t.Error(err)
		}
	})
}
