package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/calls"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

type blob = wrapperspb.BytesValue

// endpoints is a server that endpoints reach, and the runtime of its clients.
type endpoints struct {
	*Server
	client   *verbena.Runtime
	listener *verbena.Listener
	service  *verbena.Service
	serving  sync.WaitGroup
	pool     verbena.CallPoolConfig // of clients

	mu    sync.Mutex
	ended []error // what ServeEndpoint returned
}

// eachTransport runs a test over endpoints on queue pairs and on TCP.
func eachTransport(t *testing.T, f func(t *testing.T, providers func() (client, server []rdma.Provider))) {
	t.Run("fake", func(t *testing.T) { f(t, fakeProviders) })
	t.Run("tcp", func(t *testing.T) { f(t, func() (client, server []rdma.Provider) { return nil, nil }) })
}

func fakeProviders() (client, server []rdma.Provider) {
	network := fake.NewNetwork()
	a, b := network.NewDevice(fake.InfiniBand("a")), network.NewDevice(fake.InfiniBand("b"))
	return []rdma.Provider{fake.NewProvider("fake", a)}, []rdma.Provider{fake.NewProvider("fake", b)}
}

func newEndpoints(t testing.TB, cfg Config, methods Methods, providers func() (client, server []rdma.Provider)) *endpoints {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &endpoints{Server: NewServer(cfg), pool: verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{
		Endpoints: 1, DialTimeout: time.Minute, Backoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond,
	}}}
	s.Register(testProtocol, 1, methods)
	a, b := providers()
	patient := verbena.Config{HelloTimeout: 20 * time.Second, ConnectTimeout: 20 * time.Second, Logger: cfg.Logger}
	here, there := patient, patient
	here.Providers, there.Providers = a, b
	rt, err := verbena.New(there)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	if s.client, err = verbena.New(here); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.client.Close() })
	if s.listener, err = rt.Listen(t.Context(), "127.0.0.1:0", verbena.ListenConfig{Services: []string{}}); err != nil {
		t.Fatal(err)
	}
	if s.service, err = s.listener.Service(Service, verbena.ServiceConfig{}); err != nil {
		t.Fatal(err)
	}
	s.serving.Go(func() {
		for {
			e, err := s.service.Accept(context.Background())
			if err != nil {
				return
			}
			s.serving.Go(func() {
				err := s.ServeEndpoint(context.Background(), e)
				s.mu.Lock()
				s.ended = append(s.ended, err)
				s.mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		s.listener.Close()
		s.Close()
		s.serving.Wait()
	})
	return s
}

func (s *endpoints) dial(t testing.TB) *verbena.Endpoint {
	t.Helper()
	e, err := s.client.Dial(t.Context(), s.listener.Addr().String(), Service, verbena.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// newClient returns a client that has no streams, with a pool of its own.
func (s *endpoints) newClient(t testing.TB, cfg ClientConfig) *Client {
	t.Helper()
	var err error
	if cfg.Pool, err = NewPool(s.client, s.pool); err != nil {
		t.Fatal(err)
	}
	if cfg.Dial == nil {
		cfg.Dial = func(context.Context, string) (net.Conn, error) { return nil, errors.New("no stream is to be dialled") }
	}
	c := NewClient(cfg)
	t.Cleanup(func() {
		c.Close()
		cfg.Pool.Close()
	})
	return c
}

// cut ends all endpoints of the server at once.
func (s *endpoints) cut() {
	s.Server.mu.Lock()
	defer s.Server.mu.Unlock()
	for m := range s.members {
		m.close()
	}
}

// attempts is how many endpoints were dialled.
func (s *endpoints) attempts() (n uint64) {
	for _, p := range s.client.Stats().EndpointPools {
		n += p.Opened + p.Failed
	}
	return n
}

// endpoint returns that of a proxy's calls.
func (p *Proxy) endpoint(t testing.TB) *verbena.Endpoint {
	t.Helper()
	l, err := p.link.session.Get(t.Context(), p.link.target.Address, verbena.Intent{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Put()
	return l.Caller().Endpoint()
}

func (s *endpoints) proxy(t testing.TB, cfg ClientConfig, target Target) *Proxy {
	target.Address = s.listener.Addr().String()
	return s.newClient(t, cfg).Proxy(target)
}

func echoBlob(_ context.Context, req *blob) (*blob, error) { return req, nil }

// echoLater is echoBlob where a connection is not read.
func echoLater(ctx context.Context, req *blob) (*blob, error) {
	if FromContext(ctx).Short {
		return nil, ErrLong
	}
	return req, nil
}

func TestEndpointCalls(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		s := newEndpoints(t, Config{}, Methods{
			"short": Handle(echoBlob).Short(),
			"long":  Handle(echoBlob),
			"once":  Handle(echoBlob).Once(),
			"later": Handle(echoLater).Short(),
			"grow": Handle(func(_ context.Context, req *blob) (*blob, error) {
				return &blob{Value: bytes.Repeat(req.Value, 100_000)}, nil
			}).Short(),
			"whoami": Handle(func(ctx context.Context, _ *ping) (*ping, error) {
				c := FromContext(ctx)
				return &ping{EffectiveUser: proto.String(c.User), RealUser: proto.String(fmt.Sprintf("%x %d %s %v", c.ClientID[:2], c.RetryCount, c.Method, c.Peer != nil))}, nil
			}),
			"refuse": Handle(func(context.Context, *ping) (*ping, error) {
				return nil, fmt.Errorf("mkdirs: %w", exception.New(exception.FileNotFound, "no such file"))
			}),
			"fail":  Handle(func(context.Context, *ping) (*ping, error) { return nil, errors.New("plain") }).Short(),
			"panic": Handle(func(context.Context, *ping) (*ping, error) { panic("for the test") }),
		}, providers)
		p := s.proxy(t, ClientConfig{}, ada)
		var all sync.WaitGroup
		for i, size := range []int{0, 1, 100, 1 << 10, 30 << 10, 33 << 10, 100 << 10, 512 << 10, 3 << 20} {
			for _, method := range []string{"short", "long", "once", "later"} {
				all.Go(func() {
					want := bytes.Repeat([]byte{byte(i), 1, 2, 3, 4, 5, 6}, size/7+1)[:size]
					for range 5 {
						var got blob
						if err := p.Call(t.Context(), method, &blob{Value: want}, &got); err != nil {
							t.Error(err)
						} else if !bytes.Equal(got.Value, want) {
							t.Errorf("%s: %d bytes came back of %d, or others", method, len(got.Value), size)
						}
					}
				})
			}
		}
		all.Wait()
		var got blob
		if err := p.Call(t.Context(), "grow", &blob{Value: []byte("0123456789")}, &got); err != nil || len(got.Value) != 1_000_000 {
			t.Errorf("a long answer of a short method: %d bytes, %v", len(got.Value), err)
		}
		var who ping
		if err := p.Call(t.Context(), "whoami", &ping{}, &who); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%x 0 whoami true", p.client.id[:2]); who.GetEffectiveUser() != "ada" || who.GetRealUser() != want {
			t.Errorf("%v, want ada and %q", &who, want)
		}
		for method, class := range map[string]exception.Class{
			"refuse": exception.FileNotFound, "fail": exception.IO, "panic": exception.IO, "nothing": exception.NoSuchMethod,
		} {
			var refused *exception.Error
			if err := p.Call(t.Context(), method, &ping{}, &ping{}); !errors.As(err, &refused) || refused.Class != class {
				t.Errorf("%s: %v, want %s", method, err, class)
			}
		}
		if n := s.attempts(); n != 1 {
			t.Errorf("%d endpoints were dialled for one target", n)
		}
	})
}

// The context of a method ends with its call: when the caller gives up, and at the
// deadline.
func TestEndpointCallEnds(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		type end struct {
			deadline bool
			err      error
		}
		begun, ended := make(chan struct{}, 8), make(chan end, 8)
		s := newEndpoints(t, Config{}, Methods{"block": Handle(func(ctx context.Context, _ *ping) (*ping, error) {
			_, has := ctx.Deadline()
			if err := ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call that has just begun: %v", err)
			}
			begun <- struct{}{}
			<-ctx.Done()
			ended <- end{has, ctx.Err()}
			return nil, ctx.Err()
		})}, providers)
		p := s.proxy(t, ClientConfig{CallTimeout: time.Hour}, ada)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-begun
			cancel()
		}()
		if err := p.Call(ctx, "block", &ping{}, &ping{}); !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was given up: %v", err)
		}
		if e := <-ended; e.err == nil || !e.deadline {
			t.Errorf("the method's context: %+v, want an error and the time-out as deadline", e)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		for begins := false; !begins; { // it may be late before it begins
			if err := p.Call(ctx, "block", &ping{}, &ping{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a call at its deadline: %v", err)
			}
			select {
			case <-begun:
				begins = true
				if e := <-ended; e.err == nil {
					t.Error("the method's context has not ended")
				}
			default:
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), time.Second)
				defer cancel()
			}
		}
		timed := s.proxy(t, ClientConfig{CallTimeout: 50 * time.Millisecond, Attempts: 1}, ada)
		for {
			err := timed.Call(t.Context(), "block", &ping{}, &ping{})
			if errors.Is(err, ErrTimeout) {
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) { // connecting may take as long
				t.Fatalf("a call that takes too long: %v", err)
			}
		}
	})
}

func TestEndpointTokens(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		s := newEndpoints(t, Config{
			RefuseSimple: true,
			Mechanisms: []Mechanism{Tokens(func(identifier []byte) ([]byte, string, error) {
				if string(identifier) != "of eve" {
					return nil, "", errors.New("unknown token")
				}
				return []byte("secret"), "eve", nil
			})},
		}, Methods{"whoami": Handle(func(ctx context.Context, _ *ping) (*ping, error) {
			return &ping{EffectiveUser: proto.String(FromContext(ctx).User)}, nil
		})}, providers)
		for _, test := range []struct {
			target Target
			want   exception.Class // "" for success
		}{
			{Target{Protocol: testProtocol, Token: &Token{[]byte("of eve"), []byte("secret")}}, ""},
			{Target{Protocol: testProtocol, Token: &Token{[]byte("of eve"), []byte("guess")}}, exception.SASL},
			{Target{Protocol: testProtocol, Token: &Token{[]byte("of mallory"), []byte("secret")}}, exception.InvalidToken},
			{ada, exception.AccessControl},
		} {
			p := s.proxy(t, ClientConfig{Attempts: 1}, test.target)
			var who ping
			err := p.Call(t.Context(), "whoami", &ping{}, &who)
			var refused *exception.Error
			switch {
			case test.want == "" && (err != nil || who.GetEffectiveUser() != "eve"):
				t.Errorf("a good token: %v, %v", &who, err)
			case test.want != "" && (!errors.As(err, &refused) || refused.Class != test.want):
				t.Errorf("%+v: %v, want %s", test.target.Token, err, test.want)
			}
		}
	})
}

// A client whose endpoint ends in the middle of a call repeats it if that is allowed;
// the server's retry cache answers a repetition.
func TestEndpointRetries(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		var s *endpoints
		var runs atomic.Int32
		s = newEndpoints(t, Config{}, Methods{
			"once": Handle(func(ctx context.Context, req *ping) (*ping, error) {
				s.cut()
				if err := ctx.Err(); err != nil {
					t.Errorf("the context has ended with the endpoint: %v", err)
				}
				return &ping{EffectiveUser: proto.String(fmt.Sprint("run ", runs.Add(1)))}, nil
			}).Once(),
			"cut": Handle(func(ctx context.Context, req *ping) (*ping, error) {
				s.cut()
				<-ctx.Done()
				return req, nil
			}),
		}, providers)
		p := s.proxy(t, ClientConfig{Backoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond}, ada)
		var got ping
		if err := p.Call(t.Context(), "once", &ping{}, &got, AtMostOnce); err != nil || got.GetEffectiveUser() != "run 1" {
			t.Errorf("%v, %v", &got, err)
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("the method ran %d times", n)
		}
		if err := p.Call(t.Context(), "cut", &ping{}, &got); !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("a call whose endpoint ended: %v", err)
		}
	})
}

// What finds no room in the queue waits, and others of the endpoint do not; after
// QueueWait it is told to come back.
func TestEndpointQueue(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		for _, wait := range []time.Duration{time.Hour, -1} {
			begun, release := make(chan struct{}, 8), make(chan struct{})
			s := newEndpoints(t, Config{Handlers: 1, QueueLength: 2, QueueWait: wait}, Methods{
				"block": Handle(func(_ context.Context, req *ping) (*ping, error) {
					begun <- struct{}{}
					<-release
					return req, nil
				}),
				"short": Handle(func(_ context.Context, req *ping) (*ping, error) { return req, nil }).Short(),
			}, providers)
			p := s.proxy(t, ClientConfig{Attempts: 1}, ada)
			var all sync.WaitGroup
			var busy, done atomic.Int32
			call := func() {
				var refused *exception.Error
				switch err := p.Call(t.Context(), "block", &ping{}, &ping{}); {
				case err == nil:
					done.Add(1)
				case errors.As(err, &refused) && refused.Class == exception.Retriable:
					busy.Add(1)
				default:
					t.Error(err)
				}
			}
			all.Go(call)
			<-begun
			for range 4 { // one fits beside the one that runs: a level has half of the queue
				all.Go(call)
			}
			outside := func() int { return s.queue.Waiting() + int(busy.Load()) }
			for s.queue.Len()+outside() != 4 {
				time.Sleep(time.Millisecond)
			}
			if err := p.Call(t.Context(), "short", &ping{}, &ping{}); err != nil {
				t.Error(err)
			}
			if wait < 0 && busy.Load() == 0 || wait > 0 && busy.Load() > 0 {
				t.Errorf("%d calls were refused, QueueWait %v", busy.Load(), wait)
			}
			close(release)
			all.Wait()
			if n := done.Load() + busy.Load(); n != 5 || wait > 0 && busy.Load() > 0 {
				t.Errorf("%d calls were carried out and %d refused", done.Load(), busy.Load())
			}
		}
	})
}

// Servers without endpoints for calls are dialled as before.
func TestEndpointFallsBackToStreams(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		s := newEndpoints(t, Config{}, Methods{"echo": Handle(echoBlob)}, providers)
		if err := s.service.Close(); err != nil { // the server goes on, as an older one
			t.Fatal(err)
		}
		plain := newPipes(Config{}, Methods{"echo": Handle(echoBlob)})
		defer plain.stop()
		c := s.newClient(t, ClientConfig{Dial: plain.dial})
		target := ada
		target.Address = s.listener.Addr().String()
		var got blob
		if err := c.Proxy(target).Call(t.Context(), "echo", &blob{Value: []byte("x")}, &got); err != nil || string(got.Value) != "x" {
			t.Errorf("%q, %v", got.Value, err)
		}
		if err := c.Proxy(target).Call(t.Context(), "echo", &blob{}, &got); err != nil { // on the same stream
			t.Error(err)
		}
		if s.attempts() != 1 || plain.dials.Load() != 1 {
			t.Errorf("%d endpoints and %d streams were dialled, want one of each", s.attempts(), plain.dials.Load())
		}
		c.Close()
	})
}

// A client that breaks the rules is told, where it asks, and its endpoint ends.
func TestEndpointRules(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		s := newEndpoints(t, Config{}, Methods{"echo": Handle(echoBlob).Short()}, providers)
		hello := func(id int32, body proto.Message) []byte {
			h := wire.Request{CallID: id, ClientID: make([]byte, 16), RetryCount: -1}
			m, err := proto.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			return append(wire.AppendLength(h.Append(nil), len(m)), m...)
		}
		known := hello(wire.CallIDContext, ada.context())
		type step struct {
			method  uint32
			message []byte
		}
		ended := 0
		for name, steps := range map[string][]step{
			"call before the context": {{calls.MethodCall, hello(7, &ping{})}},
			"call as introduction":    {{calls.MethodIntroduce, hello(7, &ping{})}},
			"second context":          {{calls.MethodIntroduce, known}, {calls.MethodIntroduce, known}},
			"garbage":                 {{calls.MethodIntroduce, []byte("garbage")}},
			"garbage as a call":       {{calls.MethodIntroduce, known}, {calls.MethodCall, []byte("garbage")}},
			"long introduction":       {{calls.MethodIntroduce, hello(wire.CallIDContext, &ping{EffectiveUser: proto.String(strings.Repeat("x", 100<<10))})}},
			"unknown number":          {{calls.MethodIntroduce, hello(-77, &ping{})}},
		} {
			e := s.dial(t)
			c, err := verbena.NewCaller(e, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, step := range steps {
				m, err := c.Call(t.Context(), step.method, step.message)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if i < len(steps)-1 {
					m.Release()
					continue
				}
				if h, _, err := wire.ParseResponse(m.Bytes()); err != nil || h.Status != wire.StatusFatal {
					t.Errorf("%s: the answer has status %d, %v", name, h.Status, err)
				}
				m.Release()
			}
			c.Close()
			told := func() (told *errEnded, ok bool) {
				s.mu.Lock()
				defer s.mu.Unlock()
				return told, len(s.ended) > ended && errors.As(s.ended[ended], &told)
			}
			for range 10_000 { // 10 s at least
				if _, ok := told(); ok {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if _, ok := told(); !ok {
				t.Errorf("%s: the server does not say why it closed the endpoint", name)
			}
			ended++
		}
	})
}

// A client that does not introduce itself loses its endpoint, and so does one that
// makes no calls. The client makes a new one.
func TestEndpointIdle(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		s := newEndpoints(t, Config{HandshakeTimeout: 20 * time.Millisecond}, nil, providers)
		e := s.dial(t)
		c, err := verbena.NewCaller(e, nil)
		if err != nil {
			t.Fatal(err)
		}
		<-e.Done()
		c.Close()

		s = newEndpoints(t, Config{IdleTimeout: 20 * time.Millisecond}, Methods{"echo": Handle(echoBlob).Short()}, providers)
		p := s.proxy(t, ClientConfig{}, ada)
		for s.attempts() < 2 {
			if err := p.Call(t.Context(), "echo", &blob{}, &blob{}, Idempotent); err != nil {
				t.Fatal(err)
			}
			<-p.endpoint(t).Done()
		}

		s = newEndpoints(t, Config{}, Methods{"echo": Handle(echoBlob).Short()}, providers)
		s.pool.IdleTimeout = 20 * time.Millisecond
		p = s.proxy(t, ClientConfig{}, ada)
		if err := p.Call(t.Context(), "echo", &blob{}, &blob{}, Idempotent); err != nil {
			t.Fatal(err)
		}
		<-p.endpoint(t).Done()
		if err := p.Call(t.Context(), "echo", &blob{}, &blob{}, Idempotent); err != nil {
			t.Fatal(err)
		}
	})
}

// A long call takes memory once: what both ends encode into is kept for the next one.
func TestLongCallsKeepMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("pools forget at random")
	}
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		s := newEndpoints(t, Config{}, Methods{"echo": Handle(func(_ context.Context, req *blob) (*blob, error) { return req, nil }).Short()}, providers)
		p := s.proxy(t, ClientConfig{}, ada)
		const size, calls = 512 << 10, 100
		req, resp := &blob{Value: make([]byte, size)}, &blob{}
		call := func() {
			if err := p.Call(t.Context(), "echo", req, resp); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
			call()
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range calls {
			call()
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / calls; each > size/4 {
			t.Errorf("each call of %d bytes allocates %d", size, each)
		}
	})
}

// The engine allocates nothing for a call but what the server's call itself is, and what
// the protobuf package makes.
func TestEndpointAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		s := newEndpoints(t, Config{}, Methods{"echo": Handle(func(_ context.Context, req *blob) (*blob, error) { return req, nil }).Short()}, providers)
		p := s.proxy(t, ClientConfig{}, ada)
		req, resp := &blob{Value: make([]byte, 1000)}, &blob{}
		ctx := context.Background()
		call := func() {
			if err := p.Call(ctx, "echo", req, resp); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			call()
		}
		if n := testing.AllocsPerRun(500, call); n > 7 {
			t.Errorf("a call allocates %v times", n)
		}
	})
}

// sizedAnswer knows its size when it is encoded only because it has been asked for it.
type sizedAnswer struct {
	blob
	size int
}

func (s *sizedAnswer) SizeRPC() int {
	s.size = len(s.Value)
	return 1 + protowire.SizeBytes(s.size)
}

func (s *sizedAnswer) AppendRPC(b []byte) ([]byte, error) {
	return append(protowire.AppendVarint(append(b, 0x0a), uint64(s.size)), s.Value...), nil
}

// An answer that encodes itself is asked for its size before, short or long, by short
// methods and by others.
func TestAnswersThatEncodeThemselves(t *testing.T) {
	answer := func(_ context.Context, req *blob) (*sizedAnswer, error) {
		return &sizedAnswer{blob: blob{Value: req.Value}}, nil
	}
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		p := newEndpoints(t, Config{}, Methods{"short": Handle(answer).Short(), "handled": Handle(answer)}, providers).proxy(t, ClientConfig{}, ada)
		for _, method := range []string{"short", "handled"} {
			for _, n := range []int{1, 100, 100 << 10} {
				req, resp := &blob{Value: bytes.Repeat([]byte("x"), n)}, &blob{}
				if err := p.Call(t.Context(), method, req, resp); err != nil || !bytes.Equal(req.Value, resp.Value) {
					t.Errorf("%s: %d of %d bytes came back, %v", method, len(resp.Value), n, err)
				}
			}
		}
	})
}

// heldAnswer is encoded when its gate opens.
type heldAnswer struct {
	*rpcpb.RpcSaslProto
	open <-chan struct{}
}

func (h *heldAnswer) SizeRPC() int { return proto.Size(h.RpcSaslProto) }

func (h *heldAnswer) AppendRPC(b []byte) ([]byte, error) {
	<-h.open
	return proto.MarshalOptions{}.MarshalAppend(b, h.RpcSaslProto)
}

// An answer may refer to its request, also where it is sent when the method has returned
// and the endpoint has received others since.
func TestLongAnswerRefersToRequest(t *testing.T) {
	tail := bytes.Repeat([]byte("t"), 100<<10)
	called, open := make(chan struct{}), make(chan struct{})
	s := newEndpoints(t, Config{}, Methods{
		"extend": Handle(func(_ context.Context, req *rpcpb.RpcSaslProto) (*heldAnswer, error) {
			req.Auths = []*rpcpb.RpcSaslProto_SaslAuth{{Method: proto.String("m"), Mechanism: proto.String("n"), Challenge: tail}}
			close(called)
			return &heldAnswer{req, open}, nil
		}).Short(),
		"echo": Handle(echoBlob).Short(),
	}, fakeProviders)
	p, err := NewEndpointConn(t.Context(), s.dial(t), ada, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	req, resp := &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_INITIATE.Enum(), Token: bytes.Repeat([]byte("r"), 2*lentField)}, &rpcpb.RpcSaslProto{}
	ended := make(chan error, 1)
	go func() { ended <- p.Call(t.Context(), "extend", req, resp) }()
	<-called
	for range 1000 {
		if err := p.Call(t.Context(), "echo", &blob{Value: make([]byte, 3*lentField)}, &blob{}); err != nil {
			t.Fatal(err)
		}
	}
	close(open)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(resp.Token, req.Token) || len(resp.Auths) != 1 || !bytes.Equal(resp.Auths[0].Challenge, tail) {
		t.Error("the answer has bytes of another request")
	}
}
