package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/stream"
)

// All calls of a target share a connection, made by one attempt; other users
// and protocols have others.
func TestConnectionsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes(Config{}, Methods{"echo": Handle(echo)})
		c := NewClient(ClientConfig{IdleTimeout: time.Minute, Dial: func(ctx context.Context, address string) (net.Conn, error) {
			time.Sleep(time.Second) // in the bubble
			return p.dial(ctx, address)
		}})
		var calls sync.WaitGroup
		for i := range 60 {
			target := ada
			if i%3 == 1 {
				target.User = "bob"
			}
			calls.Go(func() {
				if err := c.Proxy(target).Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		if n := p.dials.Load(); n != 2 {
			t.Errorf("%d connections, want 2", n)
		}
		time.Sleep(2 * time.Minute) // they end unused
		p.mu.Lock()
		if n := len(p.Server.members); n != 0 {
			t.Errorf("%d connections are left", n)
		}
		p.mu.Unlock()
		start := time.Now()
		if err := c.Proxy(ada).Call(t.Context(), "echo", &ping{}, &ping{}); err != nil || time.Since(start) != time.Second {
			t.Errorf("a call after that: %v after %v", err, time.Since(start))
		}
		c.Close()
		if err := c.Proxy(ada).Call(t.Context(), "echo", &ping{}, &ping{}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		p.stop()
	})
}

// A call that comes when an attempt in place of its connection has just failed
// begins another attempt.
func TestConnectionIsReplacedAfterAFailedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes(Config{}, Methods{"echo": Handle(echo)})
		c := NewClient(ClientConfig{Dial: p.dial})
		proxy := c.Proxy(ada)
		if err := proxy.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
			t.Fatal(err)
		}
		before := proxy.link.conn.Load()
		before.Close()
		p.down.Store(true)
		if _, err := proxy.link.get(t.Context()); err == nil {
			t.Fatal("connected to nobody")
		}
		p.down.Store(false)
		now, a, err := proxy.link.replace(before)
		if now != nil || a == nil || err != nil {
			t.Fatalf("%v, %v, %v, want an attempt", now, a, err)
		}
		<-a.done
		if a.conn == nil || a.err != nil {
			t.Fatalf("the attempt: %v", a.err)
		}
		if now, again, err := proxy.link.replace(before); now != a.conn || again != nil || err != nil {
			t.Errorf("%v, %v, %v, want the connection that came", now, again, err)
		}
		c.Close()
		p.stop()
	})
}

// A call that begins while an unused connection is being closed has not gone out.
func TestCallOnAConnectionFoundUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes(Config{}, Methods{"echo": Handle(echo)})
		c := p.conn(t, ClientID{1}, "ada")
		time.Sleep(time.Minute + time.Second) // not when its own upkeep runs
		// A call that is late by then keeps upkeep waiting until the test takes its result.
		late := &waiter{done: make(chan struct{}), resp: &ping{}, expires: time.Now().Add(-time.Second)}
		c.caller.received()
		c.caller.mu.Lock()
		c.caller.waiting[77] = late
		c.caller.mu.Unlock()
		var all sync.WaitGroup
		all.Go(func() { c.caller.upkeep(time.Hour, 30*time.Second) })
		synctest.Wait()
		result := make(chan error, 1)
		all.Go(func() { result <- c.caller.call(t.Context(), 1, 0, "echo", &ping{}, &ping{}) })
		synctest.Wait()
		<-late.done
		all.Wait()
		var u *unsent
		if err := <-result; !errors.As(err, &u) || !errors.Is(err, errUnused) {
			t.Errorf("%v, want that nothing was sent", err)
		}
		if !errors.Is(late.err, ErrTimeout) {
			t.Errorf("the late call: %v", late.err)
		}
		c.Close()
		p.stop()
	})
}

// A call whose connection ends is repeated only if it may be, under the same id.
func TestConnectionEndsUnderACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type seen struct{ id, retry int32 }
		var mu sync.Mutex
		var calls []seen
		var p *pipes
		p = newPipes(Config{}, Methods{"cut": Handle(func(ctx context.Context, req *ping) (*ping, error) {
			c := FromContext(ctx)
			mu.Lock()
			calls = append(calls, seen{c.CallID, c.RetryCount})
			n := len(calls)
			mu.Unlock()
			if n%3 != 0 {
				p.mu.Lock()
				for conn := range p.Server.members {
					conn.close()
				}
				p.mu.Unlock()
			}
			return req, nil
		})})
		c := NewClient(ClientConfig{Dial: p.dial})
		proxy := c.Proxy(ada)
		err := proxy.Call(t.Context(), "cut", &ping{}, &ping{})
		if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, io.EOF) {
			t.Errorf("a call that must not be repeated: %v", err)
		}
		for _, repeat := range []Repeat{Idempotent, AtMostOnce} {
			mu.Lock()
			calls = nil
			mu.Unlock()
			if err := proxy.Call(t.Context(), "cut", &ping{}, &ping{}, repeat); err != nil {
				t.Errorf("a call that may be repeated: %v", err)
			}
			if len(calls) != 3 || calls[2] != (seen{calls[0].id, 2}) || calls[1] != (seen{calls[0].id, 1}) {
				t.Errorf("it came as %v", calls)
			}
		}
		c.Close()
		p.stop()
	})
}

// Attempts are bounded, their pauses grow, and the error tells why.
func TestNobodyListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials int
		nobody := errors.New("nobody there")
		c := NewClient(ClientConfig{Attempts: 5, Backoff: time.Second, MaxBackoff: 4 * time.Second, Dial: func(context.Context, string) (net.Conn, error) {
			dials++
			return nil, nobody
		}})
		start := time.Now()
		err := c.Proxy(ada).Call(t.Context(), "echo", &ping{}, &ping{})
		if took := time.Since(start); dials != 5 || took < 5500*time.Millisecond || took > 16500*time.Millisecond {
			t.Errorf("%d attempts in %v", dials, took)
		}
		if !errors.Is(err, nobody) || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if err := c.Proxy(ada).Call(ctx, "echo", &ping{}, &ping{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		c.Close()
	})
}

// Clients that lose a server together come back spread out.
func TestManyClientsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 200
		p := newPipes(Config{}, Methods{"echo": Handle(echo)})
		var all sync.WaitGroup
		var stop atomic.Bool
		for range clients {
			c := NewClient(ClientConfig{Dial: p.dial})
			proxy := c.Proxy(ada)
			all.Go(func() {
				for !stop.Load() {
					_ = proxy.Call(t.Context(), "echo", &ping{}, &ping{}, Idempotent)
					time.Sleep(10 * time.Millisecond)
				}
				if err := proxy.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
					t.Error(err)
				}
				c.Close()
			})
		}
		time.Sleep(time.Second)
		p.down.Store(true)
		p.mu.Lock()
		for conn := range p.Server.members {
			conn.close()
		}
		p.mu.Unlock()
		time.Sleep(30 * time.Second)
		before := p.dials.Load()
		time.Sleep(20 * time.Second)
		// Each pauses at least 5 s then.
		if n := p.dials.Load() - before; n > clients*5 || n == 0 {
			t.Errorf("%d attempts in 20 s", n)
		}
		p.down.Store(false)
		stop.Store(true)
		all.Wait()
		p.stop()
	})
}

// A call that takes too long ends, and so does its connection if nothing came
// meanwhile, so that the server's method ends, too; a late answer harms nobody.
func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Duration, 3)
		p := newPipes(Config{}, Methods{"echo": Handle(echo), "wait": Handle(func(ctx context.Context, req *ping) (*ping, error) {
			start := time.Now()
			<-ctx.Done()
			ended <- time.Since(start)
			return req, nil
		}), "slow": Handle(func(_ context.Context, req *ping) (*ping, error) {
			time.Sleep(20 * time.Second)
			return req, nil
		})})
		c := NewClient(ClientConfig{CallTimeout: 16 * time.Second, PingInterval: time.Hour, IdleTimeout: time.Hour, Dial: p.dial})
		proxy := c.Proxy(ada)
		start := time.Now()
		err := proxy.Call(t.Context(), "wait", &ping{}, &ping{})
		if took := time.Since(start); !errors.Is(err, ErrTimeout) || took < 16*time.Second || took > 18*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		if took := <-ended; took > 18*time.Second {
			t.Errorf("the server went on for %v", took)
		}
		// While others are answered the connection stays.
		late := make(chan error, 1)
		go func() { late <- proxy.Call(t.Context(), "slow", &ping{}, &ping{}) }()
		time.Sleep(time.Second)
		dials := p.dials.Load()
		for range 25 {
			if err := proxy.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		if err := <-late; !errors.Is(err, ErrTimeout) || p.dials.Load() != dials {
			t.Errorf("%v, %d connections", err, p.dials.Load())
		}
		// A caller that gives up.
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		start = time.Now()
		if err := proxy.Call(ctx, "slow", &ping{}, &ping{}); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		time.Sleep(30 * time.Second) // its answer comes
		if err := proxy.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil || p.dials.Load() != dials {
			t.Errorf("%v, %d connections", err, p.dials.Load())
		}
		c.Close()
		p.stop()
	})
}

// While a call waits, a silent server is pinged as Java's client pings.
func TestClientPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		frames := make(chan []byte, 10)
		go func() {
			defer close(frames)
			r := stream.NewReader(there, 1<<20)
			_, _ = r.Take(preambleSize)
			for {
				m, err := r.Next()
				if err != nil {
					return
				}
				frames <- append([]byte(nil), m.Bytes...)
			}
		}()
		var id ClientID
		for i := range id {
			id[i] = byte(i)
		}
		c, err := startConn(t.Context(), here, ada, ClientConfig{PingInterval: 10 * time.Second, CallTimeout: 35 * time.Second}.withDefaults(), id)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := c.Call(t.Context(), "wait", &ping{}, &ping{}); !errors.Is(err, ErrTimeout) {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		c.Close()
		<-frames // the context
		<-frames // the call
		want := string(unhex(t, "1a 08 02 10 00 18 07 22 10 000102030405060708090a0b0c0d0e0f 28 01"))
		n := 0
		for f := range frames {
			n++
			if string(f) != want {
				t.Errorf("a ping is %x", f)
			}
		}
		if n < 2 || n > 3 {
			t.Errorf("%d pings in 35 s", n)
		}
		there.Close()
	})
}

// A server that answers with what is no answer ends the connection, not the
// client.
func TestServerBreaksTheProtocol(t *testing.T) {
	for name, answer := range map[string]string{
		"garbage": "00000003 ffffff", "empty": "00000000", "too long": "ffffffff", "no body": "00000005 04 0800 1000",
		"unknown status": "00000005 04 0800 1007",
	} {
		here, there := net.Pipe()
		go func() {
			r := stream.NewReader(there, 1<<20)
			_, _ = r.Take(preambleSize)
			for range 2 {
				_, _ = r.Next()
			}
			_, _ = there.Write(unhex(t, strings.ReplaceAll(answer, " ", "")))
			_, _ = io.Copy(io.Discard, there)
		}()
		c, err := NewConn(t.Context(), here, ada, ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		var e *exception.Error
		err = c.Call(t.Context(), "echo", &ping{}, &ping{})
		if err == nil || !errors.Is(err, ErrOutcomeUnknown) && !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Call(t.Context(), "echo", &ping{}, &ping{}); err == nil || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("%s: a call afterwards: %v", name, err)
		}
		c.Close()
		there.Close()
	}
}

// A ping does not wait behind long requests, and keeps no call from its time-out.
func TestPingDoesNotHoldUpTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 64 * time.Second
		here, there := net.Pipe()
		var server sync.WaitGroup
		server.Go(func() { // it answers nothing and reads slowly
			b := make([]byte, 256<<10)
			for {
				if _, err := io.ReadFull(there, b); err != nil {
					return
				}
				time.Sleep(timeout / 2)
			}
		})
		c, err := NewConn(t.Context(), here, ada, ClientConfig{CallTimeout: timeout, PingInterval: timeout / 4 * 3})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		text := strings.Repeat("x", 6<<20)
		if err := c.Call(t.Context(), "echo", &ping{EffectiveUser: &text}, &ping{}); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
		if took := time.Since(start); took > timeout+timeout/8 {
			t.Errorf("the call ended after %v, want %v to within an eighth", took, timeout)
		}
		c.Close()
		there.Close()
		server.Wait()
	})
}
