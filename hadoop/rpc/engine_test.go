package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/stream"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
	"github.com/verbena-data/verbena/internal/race"
)

// A pipes is a server whose clients come by pipes, for tests in a bubble of
// synctest.
type pipes struct {
	*Server
	conns sync.WaitGroup
	dials atomic.Int32
	down  atomic.Bool
}

func newPipes(cfg Config, methods Methods) *pipes {
	p := &pipes{Server: NewServer(cfg)}
	p.Register(testProtocol, 1, methods)
	return p
}

func (p *pipes) dial(context.Context, string) (net.Conn, error) {
	p.dials.Add(1)
	if p.down.Load() {
		return nil, errors.New("nobody there")
	}
	here, there := net.Pipe()
	p.conns.Go(func() { p.ServeConn(there) })
	return here, nil
}

func (p *pipes) conn(t *testing.T, id ClientID, user string) *Conn {
	t.Helper()
	nc, _ := p.dial(t.Context(), "")
	c, err := startConn(t.Context(), nc, Target{User: user, Protocol: testProtocol}, ClientConfig{IdleTimeout: time.Hour}.withDefaults(), id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (p *pipes) stop() {
	p.Close()
	p.conns.Wait()
}

// A gate is a method that waits until it is opened, and counts.
type gate struct {
	runs   atomic.Int32
	opened chan struct{}
}

func newGate() *gate { return &gate{opened: make(chan struct{})} }

func (g *gate) wait(ctx context.Context, req *ping) (*ping, error) {
	g.runs.Add(1)
	select {
	case <-g.opened:
		return req, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func wantClass(t *testing.T, err error, class exception.Class) {
	t.Helper()
	var e *exception.Error
	if !errors.As(err, &e) || e.Class != class {
		t.Errorf("%v, want %s", err, class)
	}
}

// A full queue answers what Hadoop's answers, and the client comes back until there is
// room.
func TestFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		p := newPipes(Config{Handlers: 1, QueueLength: 2, QueueWait: -1}, Methods{"wait": Handle(g.wait)})
		c := p.conn(t, ClientID{1}, "ada")
		var calls sync.WaitGroup
		for range 2 { // one runs, one waits
			calls.Go(func() {
				if err := c.Call(t.Context(), "wait", &ping{}, &ping{}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		err := c.Call(t.Context(), "wait", &ping{}, &ping{})
		var e *exception.Error
		if !errors.As(err, &e) || *e != (exception.Error{Class: "org.apache.hadoop.ipc.RetriableException", Message: "Server too busy"}) {
			t.Errorf("a full queue answers %v", err)
		}
		// On the wire: an error, not a fatal one, of the server.
		nc, _ := p.dial(t.Context(), "")
		go func() {
			_, _ = nc.Write(join([]byte("hrpc\x09\x00\x00"), contextFrame(t), callFrame(t, 9, testProtocol, "wait", 1, &ping{})))
		}()
		m, err := stream.NewReader(nc, 1<<20).Next()
		if err != nil {
			t.Fatal(err)
		}
		h, rest, err := wire.ParseResponse(m.Bytes)
		if err != nil || h.CallID != 9 || h.Status != wire.StatusError || h.Detail != int32(codeServer) || len(rest) != 0 {
			t.Errorf("%+v %x %v", h, rest, err)
		}
		nc.Close()

		client := NewClient(ClientConfig{Dial: p.dial})
		proxy := client.Proxy(ada)
		calls.Go(func() {
			if err := proxy.Call(t.Context(), "wait", &ping{}, &ping{}); err != nil {
				t.Errorf("a call that comes back: %v", err)
			}
		})
		time.Sleep(time.Second)
		if n := testutil.ToFloat64(p.metrics.busy); n < 4 || n > 8 {
			t.Errorf("%v refusals after a second, want some with growing pauses", n)
		}
		close(g.opened)
		calls.Wait()
		if n := g.runs.Load(); n != 3 {
			t.Errorf("%d runs, want 3", n)
		}
		client.Close()
		c.Close()
		p.stop()
	})
}

// Calls wait a while for room in the queue, and hold back their connection alone.
func TestFullQueueHoldsItsConnectionBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 7 * time.Second
		g := newGate()
		p := newPipes(Config{Handlers: 1, QueueLength: 2, QueueWait: most}, Methods{"wait": Handle(g.wait), "echo": Handle(echo).Short()})
		c, held, other := p.conn(t, ClientID{1}, "ada"), p.conn(t, ClientID{2}, "ada"), p.conn(t, ClientID{3}, "bob")
		var calls sync.WaitGroup
		call := func(c *Conn, method string) {
			calls.Go(func() {
				if err := c.Call(t.Context(), method, &ping{}, &ping{}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		call(c, "wait") // runs
		call(c, "wait") // waits in the queue
		// All calls of one connection are refused after that time, together.
		start := time.Now()
		var refused sync.WaitGroup
		for range 3 {
			refused.Go(func() {
				wantClass(t, held.Call(t.Context(), "wait", &ping{}, &ping{}), exception.Retriable)
				if took := time.Since(start); took != most {
					t.Errorf("refused after %v, want %v", took, most)
				}
			})
			synctest.Wait()
		}
		if n := p.queue.Waiting(); n != 1 {
			t.Errorf("%d calls wait outside, want 1", n)
		}
		atOnce(t, other)
		refused.Wait()
		// For as long again the next ones are not waited for, then they are.
		wantClass(t, held.Call(t.Context(), "wait", &ping{}, &ping{}), exception.Retriable)
		if took := time.Since(start); took != most {
			t.Errorf("the next one was refused after %v", took)
		}
		time.Sleep(most)
		call(held, "wait")
		call(held, "echo") // behind it
		time.Sleep(most / 2)
		close(g.opened)
		calls.Wait()
		if n := g.runs.Load(); n != 3 {
			t.Errorf("%d runs, want 3", n)
		}
		c.Close()
		held.Close()
		other.Close()
		p.stop()
	})
}

// A closing server does not wait for those who wait for room.
func TestCloseWhileCallsWaitOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		p := newPipes(Config{Handlers: 1, QueueLength: 2, QueueWait: time.Hour}, Methods{"wait": Handle(g.wait), "once": Handle(g.wait).Once()})
		var calls sync.WaitGroup
		var conns []*Conn
		for i, method := range []string{"wait", "wait", "wait", "once"} {
			c := p.conn(t, ClientID{byte(i + 1)}, "ada")
			conns = append(conns, c)
			calls.Go(func() {
				if err := c.Call(t.Context(), method, &ping{}, &ping{}); err == nil {
					t.Error("a call succeeded on a closed server")
				}
			})
			synctest.Wait()
		}
		if n := p.queue.Waiting(); n != 2 {
			t.Errorf("%d calls wait outside, want 2", n)
		}
		start := time.Now()
		p.stop()
		calls.Wait()
		if took := time.Since(start); took > 0 || p.queue.Waiting() != 0 || len(p.retries.entries) != 0 {
			t.Errorf("it took %v; %d still wait, %d entries are left", took, p.queue.Waiting(), len(p.retries.entries))
		}
		for _, c := range conns {
			c.Close()
		}
	})
}

// A user with many calls does not keep another from being served.
func TestAnotherUserPassesTheHeavyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		step := make(chan struct{})
		p := newPipes(Config{Handlers: 1, QueueLength: 100}, Methods{"step": Handle(func(ctx context.Context, req *ping) (*ping, error) {
			<-step
			order = append(order, FromContext(ctx).User)
			return req, nil
		}), "beat": Handle(func(ctx context.Context, req *ping) (*ping, error) {
			order = append(order, "beat")
			return req, nil
		}).Urgent()})
		heavy, light := p.conn(t, ClientID{1}, "heavy"), p.conn(t, ClientID{2}, "light")
		var calls sync.WaitGroup
		call := func(c *Conn, method string) {
			calls.Go(func() {
				if err := c.Call(t.Context(), method, &ping{}, &ping{}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for range 20 {
			call(heavy, "step")
		}
		call(light, "step")
		call(heavy, "beat")
		close(step)
		calls.Wait()
		// The first runs when the others come.
		if len(order) != 22 || order[1] != "light" && order[1] != "beat" || order[2] != "light" && order[2] != "beat" {
			t.Errorf("served in the order %v", order)
		}
		heavy.Close()
		light.Close()
		p.stop()
	})
}

func (c *Conn) repeat(ctx context.Context, id, retry int32, method string) (string, error) {
	var resp ping
	err := plain(c.caller.call(ctx, id, retry, method, &ping{}, &resp))
	return resp.GetEffectiveUser(), err
}

// A method that must run once does, whatever the client repeats, and by
// whatever connection.
func TestRetryCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		g := newGate()
		p := newPipes(Config{RetryCacheBytes: 10_000}, Methods{"once": Handle(func(ctx context.Context, req *ping) (*ping, error) {
			n := runs.Add(1)
			if _, err := g.wait(ctx, req); err != nil {
				return nil, err
			}
			return &ping{EffectiveUser: proto.String(string('a' + n - 1))}, nil
		}).Once()})
		id := ClientID{7}
		first, second := p.conn(t, id, "ada"), p.conn(t, id, "ada")
		lost := make(chan error, 1)
		go func() { _, err := first.repeat(t.Context(), 5, 0, "once"); lost <- err }()
		synctest.Wait()
		answers := make(chan string, 2)
		for retry := range 2 { // both wait for the first
			go func() {
				s, err := second.repeat(t.Context(), 5, int32(retry), "once")
				if err != nil {
					t.Error(err)
				}
				answers <- s
			}()
			if retry == 0 {
				synctest.Wait()
				first.Close() // who asked first has gone; the method runs on
				if err := <-lost; !errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("the first: %v", err)
				}
				synctest.Wait()
				close(g.opened)
				if s := <-answers; s != "a" {
					t.Errorf("the one that waited got %q", s)
				}
			}
		}
		if s := <-answers; s != "a" || runs.Load() != 1 {
			t.Errorf("a repetition got %q, after %d runs", s, runs.Load())
		}
		other := p.conn(t, id, "bob")
		if s, err := other.repeat(t.Context(), 5, 1, "once"); s != "b" || err != nil {
			t.Errorf("another user with the same ids got %q, %v", s, err)
		}
		if s, err := second.repeat(t.Context(), 6, 0, "once"); s != "c" || err != nil {
			t.Errorf("another call got %q, %v", s, err)
		}
		time.Sleep(retryKeep - time.Second)
		fresh := p.conn(t, id, "ada")
		if s, err := fresh.repeat(t.Context(), 5, 2, "once"); s != "a" || err != nil {
			t.Errorf("after nearly ten minutes: %q, %v", s, err)
		}
		time.Sleep(2 * time.Second)
		if s, err := fresh.repeat(t.Context(), 5, 3, "once"); s != "d" || err != nil {
			t.Errorf("after ten minutes: %q, %v", s, err)
		}
		for call := range int32(100) { // more than is kept
			if _, err := fresh.repeat(t.Context(), 100+call, 0, "once"); err != nil {
				t.Error(err)
			}
		}
		if n := p.retries.bytes; n > 10_000 || len(p.retries.entries) != len(p.retries.order) || len(p.retries.entries) == 0 {
			t.Errorf("%d bytes are kept in %d entries", n, len(p.retries.entries))
		}
		for _, c := range []*Conn{second, other, fresh} {
			c.Close()
		}
		p.stop()
	})
}

// A failed run is not kept: who waits runs the method anew.
func TestRetryCacheAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		p := newPipes(Config{}, Methods{"once": Handle(func(ctx context.Context, req *ping) (*ping, error) {
			if n := g.runs.Load(); n < 2 {
				_, err := g.wait(ctx, req)
				return nil, errors.Join(err, exception.New(exception.Standby, "run %d", n+1))
			}
			return &ping{EffectiveUser: proto.String("third")}, nil
		}).Once()})
		c := p.conn(t, ClientID{7}, "ada")
		results := make(chan error, 2)
		answers := make(chan string, 3)
		for retry := range 3 {
			go func() {
				s, err := p.conn(t, ClientID{7}, "ada").repeat(t.Context(), 1, int32(retry), "once")
				if err != nil {
					results <- err
					return
				}
				answers <- s
			}()
			synctest.Wait()
		}
		close(g.opened)
		for range 2 {
			wantClass(t, <-results, exception.Standby)
		}
		if s := <-answers; s != "third" {
			t.Errorf("%q", s)
		}
		if s, err := c.repeat(t.Context(), 1, 4, "once"); s != "third" || err != nil || g.runs.Load() != 2 {
			t.Errorf("a success after failures is kept: %q %v", s, err)
		}
		c.Close()
		p.stop()
		synctest.Wait()
	})
}

// Repetitions for which there is no room are refused one after the other, and
// the call may be made again.
func TestRepetitionsWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 4 // the first and its repetitions
		g := newGate()
		p := newPipes(Config{Handlers: 1, QueueLength: 1}, Methods{"once": Handle(func(ctx context.Context, req *ping) (*ping, error) {
			if _, err := g.wait(ctx, req); err != nil || g.runs.Load() > 1 {
				return req, err
			}
			return nil, exception.New(exception.Standby, "standby")
		}).Once(), "fill": Handle(echo)})
		var conns []*Conn
		results := make([]error, calls)
		var all sync.WaitGroup
		for i := range results {
			c := p.conn(t, ClientID{7}, "ada")
			conns = append(conns, c)
			all.Go(func() { _, results[i] = c.repeat(t.Context(), 1, int32(i), "once") })
			synctest.Wait()
		}
		all.Go(func() {
			if err := conns[0].Call(t.Context(), "fill", &ping{}, &ping{}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(g.opened)
		all.Wait()
		wantClass(t, results[0], exception.Standby)
		for _, err := range results[1:] {
			wantClass(t, err, exception.Retriable)
		}
		if n := len(p.retries.entries); n != 0 || g.runs.Load() != 1 {
			t.Errorf("%d entries are left after %d runs, want 0 after 1", n, g.runs.Load())
		}
		if _, err := conns[1].repeat(t.Context(), 1, calls, "once"); err != nil || g.runs.Load() != 2 {
			t.Errorf("a later repetition: %v, %d runs", err, g.runs.Load())
		}
		for _, c := range conns {
			c.Close()
		}
		p.stop()
	})
}

// Close drops the calls that wait for a handler, those that must run once, too.
func TestCloseDropsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		p := newPipes(Config{Handlers: 1}, Methods{"once": Handle(g.wait).Once()})
		c, other := p.conn(t, ClientID{7}, "ada"), p.conn(t, ClientID{7}, "ada")
		var all sync.WaitGroup
		call := func(c *Conn, id, retry int32) {
			all.Go(func() {
				if _, err := c.repeat(t.Context(), id, retry, "once"); err == nil {
					t.Error("a call succeeded on a closed server")
				}
			})
			synctest.Wait()
		}
		call(c, 1, 0) // runs
		call(c, 2, 0) // waits for a handler
		call(other, 2, 1)
		p.stop()
		all.Wait()
		if n := g.runs.Load(); n != 1 || len(p.retries.entries) != 0 {
			t.Errorf("%d runs, want 1; %d entries are left", n, len(p.retries.entries))
		}
		c.Close()
		other.Close()
	})
}

// A call that waits for a handler is dropped when its client has gone.
func TestCallsOfGoneClientsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		p := newPipes(Config{Handlers: 1}, Methods{"wait": Handle(g.wait)})
		here, gone := p.conn(t, ClientID{1}, "ada"), p.conn(t, ClientID{2}, "bob")
		done := make(chan error, 1)
		go func() { done <- here.Call(t.Context(), "wait", &ping{}, &ping{}) }()
		synctest.Wait()
		go gone.Call(t.Context(), "wait", &ping{}, &ping{})
		synctest.Wait()
		gone.Close()
		synctest.Wait()
		close(g.opened)
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := g.runs.Load(); n != 1 || testutil.ToFloat64(p.metrics.dropped) != 1 {
			t.Errorf("%d runs, %v dropped, want 1 and 1", n, testutil.ToFloat64(p.metrics.dropped))
		}
		here.Close()
		p.stop()
	})
}

// Beyond the limit a silent connection has to go, never one in use.
func TestConnectionLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes(Config{MaxConnections: 2, HandshakeTimeout: time.Hour}, Methods{"echo": Handle(echo).Short()})
		silent, _ := p.dial(t.Context(), "")
		time.Sleep(time.Second)
		one := p.conn(t, ClientID{1}, "ada")
		two := p.conn(t, ClientID{2}, "ada")
		if _, err := silent.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the silent connection: %v", err)
		}
		for _, c := range []*Conn{one, two} {
			if err := c.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
				t.Error(err)
			}
		}
		late, _ := p.dial(t.Context(), "")
		if _, err := late.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the connection beyond the limit: %v", err)
		}
		if err := one.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
			t.Error(err)
		}
		one.Close()
		two.Close()
		p.stop()
	})
}

// A ping as Java's client sends it, to the byte: no answer, and the connection
// is not idle.
func TestPingOfJava(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, s, done := pipeServer(Config{IdleTimeout: time.Minute}, Methods{"echo": Handle(echo)})
		ping := unhex(t, "0000001b 1a 08 02 10 00 18 07 22 10 000102030405060708090a0b0c0d0e0f 28 01")
		if _, err := here.Write(join([]byte("hrpc\x09\x00\x00"), contextFrame(t))); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			time.Sleep(45 * time.Second)
			if _, err := here.Write(ping); err != nil {
				t.Fatal(err)
			}
		}
		if b, err := io.ReadAll(here); len(b) > 0 || err != nil {
			t.Errorf("pings were answered with %x, %v", b, err)
		}
		<-done
		s.Close()
	})
}

// Frames that are none, or too long, end the connection with Hadoop's error; the
// other connections go on.
func TestOversizedFrame(t *testing.T) {
	address, _ := startServer(t, Config{MaxFrame: 1 << 16}, nil)
	c := dialClient(t, address)
	text := string(make([]byte, 1<<16))
	got := responses(t, exchange(t, address, join([]byte("hrpc\x09\x00\x00"), contextFrame(t), callFrame(t, 3, testProtocol, "echo", 1, &ping{EffectiveUser: &text}))))
	if len(got) != 1 || got[0].GetStatus() != statusFatal || got[0].GetErrorDetail() != codeFatalHeader || int32(got[0].GetCallId()) != wire.CallIDInvalid {
		t.Errorf("%v", got)
	}
	if err := c.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
		t.Error(err)
	}
}

func TestTokens(t *testing.T) {
	look := func(identifier []byte) ([]byte, string, error) {
		switch string(identifier) {
		case "of ada":
			return []byte("secret"), "ada", nil
		case "expired":
			return nil, "", exception.New(exception.AccessControl, "expired")
		}
		return nil, "", errors.New("no such token")
	}
	address, _ := startServer(t, Config{Mechanisms: []Mechanism{Tokens(look)}, RefuseSimple: true}, nil)
	open, _ := startServer(t, Config{}, nil)
	connect := func(address string, target Target) (*Conn, error) {
		nc, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		target.Protocol = testProtocol
		return NewConn(t.Context(), nc, target, ClientConfig{})
	}
	c, err := connect(address, Target{Token: &Token{[]byte("of ada"), []byte("secret")}})
	if err != nil {
		t.Fatal(err)
	}
	var who ping
	if err := c.Call(t.Context(), "whoami", &ping{}, &who); err != nil || who.GetEffectiveUser() != "ada" {
		t.Errorf("%v %v", &who, err)
	}
	c.Close()
	for _, test := range []struct {
		token Token
		class exception.Class
	}{
		{Token{[]byte("of ada"), []byte("guess")}, exception.SASL},
		{Token{[]byte("of bob"), []byte("secret")}, exception.InvalidToken},
		{Token{[]byte("expired"), []byte("secret")}, exception.AccessControl},
	} {
		_, err := connect(address, Target{Token: &test.token})
		wantClass(t, err, test.class)
	}
	// Who only says who it is.
	c, err = connect(address, Target{User: "ada"})
	if err == nil {
		err = c.Call(t.Context(), "whoami", &ping{}, &who)
		c.Close()
	}
	wantClass(t, err, exception.AccessControl)
	if _, err := connect(open, Target{Token: &Token{[]byte("of ada"), []byte("secret")}}); err == nil {
		t.Error("a client with a token took a server that asks for none")
	}
}

// A negotiation byte by byte: what is offered, SIMPLE chosen among it, and
// what is refused.
func TestNegotiation(t *testing.T) {
	sasl := func(m *rpcpb.RpcSaslProto) []byte { return frameOf(t, requestHeader(wire.CallIDSASL), m) }
	negotiate := sasl(&rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_NEGOTIATE.Enum()})
	initiate := func(method, mechanism string, token []byte) []byte {
		return sasl(&rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_INITIATE.Enum(), Token: token,
			Auths: []*rpcpb.RpcSaslProto_SaslAuth{{Method: &method, Mechanism: &mechanism}}})
	}
	mechanisms := []Mechanism{Tokens(func([]byte) ([]byte, string, error) { return nil, "", io.EOF })}
	hello := []byte("hrpc\x09\x00\xdf")
	address, _ := startServer(t, Config{Mechanisms: mechanisms}, nil)
	b := exchange(t, address, join(hello, negotiate, initiate("SIMPLE", "", nil), contextFrame(t), echoFrame(t, 3)), 2)
	m, err := stream.NewReader(&sliceReader{b}, 1<<20).Next()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, err := wire.ParseResponse(m.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	body, _, _ := wire.Next(rest)
	offer := &rpcpb.RpcSaslProto{}
	if err := proto.Unmarshal(body, offer); err != nil {
		t.Fatal(err)
	}
	if len(offer.Auths) != 2 || offer.Auths[0].GetMethod() != "TOKEN" || offer.Auths[0].GetMechanism() != "DIGEST-MD5" || offer.Auths[0].GetServerId() != "default" ||
		offer.Auths[0].Protocol == nil || len(offer.Auths[0].GetChallenge()) == 0 || offer.Auths[1].GetMethod() != "SIMPLE" || offer.GetState() != rpcpb.RpcSaslProto_NEGOTIATE {
		t.Errorf("offered: %v", offer)
	}
	if got := responses(t, b); got[1].GetStatus() != statusSuccess || got[1].GetCallId() != 3 {
		t.Errorf("%v", got)
	}
	for name, send := range map[string][]byte{
		"negotiated twice":      join(hello, negotiate, negotiate),
		"unknown mechanism":     join(hello, negotiate, initiate("KERBEROS", "GSSAPI", []byte("x"))),
		"response to nothing":   join(hello, sasl(&rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_RESPONSE.Enum(), Token: []byte("x")})),
		"no token":              join(hello, negotiate, initiate("TOKEN", "DIGEST-MD5", nil)),
		"garbage":               join(hello, negotiate, initiate("TOKEN", "DIGEST-MD5", []byte("garbage"))),
		"wrapped":               join(hello, negotiate, sasl(&rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_WRAP.Enum()})),
		"introduced in between": join(hello, negotiate, contextFrame(t)),
	} {
		got := responses(t, exchange(t, address, send))
		if len(got) == 0 || got[len(got)-1].GetStatus() != statusFatal {
			t.Errorf("%s: %v", name, got)
		}
	}
	strict, _ := startServer(t, Config{Mechanisms: mechanisms, RefuseSimple: true}, nil)
	got := responses(t, exchange(t, strict, join(hello, negotiate, initiate("SIMPLE", "", nil))))
	if len(got) != 2 || got[1].GetErrorDetail() != codeFatalUnauthorized {
		t.Errorf("SIMPLE where it is refused: %v", got)
	}
}

type sliceReader struct{ b []byte }

func (r *sliceReader) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.b)
	r.b = r.b[n:]
	return n, nil
}

// Besides its messages a call allocates nothing, at both ends together: here one
// request message at the server, as the client uses its response again.
func TestACallAllocatesItsMessagesAlone(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for name, method := range map[string]Method{"short": Handle(echo).Short(), "queued": Handle(echo)} {
		address, _ := startServer(t, Config{}, Methods{"m": method})
		c := NewClient(ClientConfig{})
		p := c.Proxy(Target{Address: address, User: "ada", Protocol: testProtocol})
		ctx, req, resp := context.Background(), &ping{}, &ping{}
		if n := testing.AllocsPerRun(2000, func() {
			if err := p.Call(ctx, "m", req, resp, Idempotent); err != nil {
				t.Fatal(err)
			}
		}); n > 1 {
			t.Errorf("%s: %v allocations a call, want 1", name, n)
		}
		c.Close()
	}
}
