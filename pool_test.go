package verbena

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/backoff"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// quick makes a pool come back after milliseconds.
func quick(cfg PoolConfig) PoolConfig {
	set(&cfg.Service, "test/1")
	set(&cfg.Backoff, time.Millisecond)
	set(&cfg.MaxBackoff, 10*time.Millisecond)
	return cfg
}

func newPool(t testing.TB, r *Runtime, cfg PoolConfig) *Pool {
	t.Helper()
	p, err := r.NewPool(quick(cfg))
	if err != nil {
		t.Fatal(err)
	}
	p.core.soon = backoff.Policy{First: time.Millisecond, Most: 10 * time.Millisecond}
	p.core.later = p.core.soon
	return p
}

// answer sends every message back, on every endpoint, until the listener is closed.
func (p *pair) answer(t testing.TB) { answer(t, p.listener) }

func answer(t testing.TB, l *Listener) {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			e, err := l.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() {
				defer e.Close()
				for {
					m, err := e.Receive(ctx)
					if err != nil {
						return
					}
					err = e.Send(ctx, m.Tag, m.Bytes())
					m.Release()
					if err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		wg.Wait()
	})
}

// until waits for what comes without a signal.
func (p *pair) until(t testing.TB, what string, ready func() bool) {
	t.Helper()
	for !ready() {
		if p.ctx.Err() != nil {
			t.Fatal("in vain until ", what)
		}
		runtime.Gosched()
	}
}

// ask sends a message and takes the answer.
func ask(ctx context.Context, e *Endpoint) error {
	if err := e.Send(ctx, 7, []byte("how are you")); err != nil {
		return err
	}
	m, err := e.Receive(ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	if m.Tag != 7 || string(m.Bytes()) != "how are you" {
		return fmt.Errorf("got %d %q", m.Tag, m.Bytes())
	}
	return nil
}

// exchangeOn is a request on a pool. An endpoint that fails is not used again.
func exchangeOn(ctx context.Context, p *Pool, addr string, intent Intent) (transport string, err error) {
	e, err := p.Get(ctx, addr, intent)
	if err != nil {
		return "", err
	}
	defer p.Put(e)
	if err = ask(ctx, e); err != nil {
		_ = e.Close()
	}
	return e.Selection().Transport, err
}

func TestPoolHandsOutEndpoints(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		p.answer(t)
		addr := p.listener.Addr().String()
		pool := newPool(t, p.client, PoolConfig{Endpoints: 2})
		a, err := pool.Get(p.ctx, addr, Intent{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := pool.Get(p.ctx, addr, Intent{})
		if err != nil || a == b || a.Selection().Transport != w.transport {
			t.Fatal(a == b, err)
		}
		waits := make(chan *Endpoint, 1)
		go func() {
			e, _ := pool.Get(p.ctx, addr, Intent{})
			waits <- e
		}()
		p.until(t, "somebody waits", func() bool { return pool.core.stats().Waiting == 1 })
		if err := ask(p.ctx, a); err != nil {
			t.Error(err)
		}
		pool.Put(a)
		if c := <-waits; c != a {
			t.Error("who waits does not get what is put back")
		}
		// One that was closed is not handed out.
		_ = a.Close()
		pool.Put(a)
		c, err := pool.Get(p.ctx, addr, Intent{})
		if err != nil || c == a || c == b {
			t.Error(err, c == a, c == b)
		}
		if err := ask(p.ctx, c); err != nil {
			t.Error(err)
		}
		pool.Put(c)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("put back twice")
				}
			}()
			pool.Put(c)
		}()
		s := p.client.Stats().EndpointPools
		if len(s) != 1 || s[0].Name != "test/1" || s[0].Peers != 1 || s[0].Open != 2 || s[0].Busy != 1 || s[0].Opened != 3 || s[0].Lost != 0 || s[0].Requests != 4 {
			t.Errorf("%+v", s)
		}
		// The pool is closed under b.
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Err(); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		pool.Put(b)
		if _, err := pool.Get(p.ctx, addr, Intent{}); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if s := p.client.Stats().EndpointPools; len(s) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Drain lets requests end, and tells of those that it could not wait for.
func TestPoolDrains(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		p.answer(t)
		pool := newPool(t, p.client, PoolConfig{})
		e, err := pool.Get(p.ctx, p.listener.Addr().String(), Intent{})
		if err != nil {
			t.Fatal(err)
		}
		drained := make(chan error, 1)
		go func() { drained <- pool.Drain(p.ctx) }()
		p.until(t, "it drains", func() bool { return pool.core.over(nil) })
		if err := ask(p.ctx, e); err != nil {
			t.Error(err)
		}
		pool.Put(e)
		if err := <-drained; err != nil {
			t.Error(err)
		}
		pool = newPool(t, p.client, PoolConfig{})
		if e, err = pool.Get(p.ctx, p.listener.Addr().String(), Intent{}); err != nil {
			t.Fatal(err)
		}
		over, cancel := context.WithCancel(p.ctx)
		cancel()
		if err := pool.Drain(over); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "1 requests were under way") {
			t.Error(err)
		}
		if e.Err() == nil {
			t.Error("it is still open")
		}
		pool.Put(e)
	})
}

// A server that goes and comes back is found again, and its dead endpoints are not
// handed out.
func TestPoolReconnects(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		addr := p.listener.Addr().String()
		pool := newPool(t, p.client, PoolConfig{})
		p.answer(t)
		for range 3 {
			e, err := pool.Get(p.ctx, addr, Intent{})
			if err != nil {
				t.Fatal(err)
			}
			if err := ask(p.ctx, e); err != nil {
				t.Error(err)
			}
			pool.Put(e)
			_ = p.server.Close()
			<-e.Done()
			if _, err := pool.Get(p.ctx, addr, Intent{}); err == nil {
				t.Error("connected to nobody")
			}
			_, s := w.providers(t) // a fake one cannot reach the client's device
			p.server = newRuntime(t, Config{}, s)
			l, err := p.server.Listen(p.ctx, addr, ListenConfig{})
			if err != nil {
				t.Skip("the port is taken:", err)
			}
			answer(t, l)
			for {
				transport, err := exchangeOn(p.ctx, pool, addr, Intent{})
				if err == nil {
					if transport == "" {
						t.Error("over nothing")
					}
					break
				}
				if p.ctx.Err() != nil {
					t.Fatal(err)
				}
			}
		}
		if s := pool.core.stats(); s.Lost != 3 || s.Failed < 3 {
			t.Errorf("%+v", s)
		}
	})
}

// A server of another kind is told at once, each time.
func TestPoolOfLegacyPeer(t *testing.T) {
	addr, _ := legacyServer(t, func(c net.Conn) { _, _ = c.Write([]byte("220 ready, as never before\r\n")) })
	r := newRuntime(t, Config{}, nil)
	pool, err := r.NewPool(PoolConfig{Service: "test/1", Backoff: time.Hour, MaxBackoff: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		var legacy *LegacyPeerError
		if _, err := pool.Get(testContext(t), addr, Intent{}); !errors.As(err, &legacy) {
			t.Fatal(err)
		}
	}
}

// Requests to one peer go over the transports that rules choose for them.
func TestPoolByRules(t *testing.T) {
	n := newTestNet()
	p := testNetPair(t, n, nil)
	p.answer(t)
	addr := p.listener.Addr().String()
	pool := newPool(t, p.client, PoolConfig{Dial: DialConfig{Rules: rules(t,
		"bulk: size=1M.. only=far,tcp", "scan: operation=scan only=far,tcp", "odd: peer=10.0.0.0/8 only=tcp", "plain: operation=ping* only=tcp")}})
	for range 3 {
		for _, c := range []struct {
			intent          Intent
			transport, rule string
		}{
			{Intent{}, "near", ""}, {Intent{Size: 100}, "near", ""}, {Intent{Size: 1 << 20}, "far", "bulk: size=1M.. only=far,tcp"},
			{Intent{Operation: "scan"}, "far", "scan: operation=scan only=far,tcp"}, {Intent{Operation: "ping-3", Size: 5}, "tcp", "plain: operation=ping* only=tcp"},
		} {
			if got, err := exchangeOn(p.ctx, pool, addr, c.intent); err != nil || got != c.transport {
				t.Errorf("%+v over %s, %v", c.intent, got, err)
			}
			if rule, transports := pool.Explain(addr, c.intent); rule != c.rule || transports[0] != c.transport {
				t.Errorf("%+v: %q, %v", c.intent, rule, transports)
			}
		}
	}
	if rule, _ := pool.Explain("10.1.1.1:80", Intent{}); !strings.HasPrefix(rule, "odd") {
		t.Errorf("by peer: %q", rule)
	}
	// Two rules of one outcome share their endpoints.
	peers := pool.Peers()
	if len(peers) != 3 || peers[0].Addr != addr {
		t.Fatalf("%+v", peers)
	}
	for _, s := range peers {
		if s.Opened != 1 || s.Open != 1 {
			t.Errorf("%+v", s)
		}
	}
	if i := slices.IndexFunc(peers, func(s PoolPeerStats) bool { return slices.Equal(s.Transports, []string{"far", "tcp"}) }); i < 0 || peers[i].Requests != 6 || !strings.HasPrefix(peers[i].Rule, "bulk") {
		t.Errorf("%+v", peers)
	}
	// A pool over one transport needs no rules.
	only := newPool(t, p.client, PoolConfig{Name: "only", Dial: DialConfig{Transport: "far"}})
	if got, err := exchangeOn(p.ctx, only, addr, Intent{Size: 100}); err != nil || got != "far" {
		t.Error(got, err)
	}
}

// The transport in use fails, and requests go on over the next one, without each new
// endpoint trying the one that failed; when it is back, so are they.
func TestPoolSurvivesPartition(t *testing.T) {
	for _, c := range []struct {
		name    string
		failure error
	}{
		{"refused", errors.New("cable is out")}, {"silent", rdma.ErrTimeout}, {"no resources", &rdma.RejectedError{Peer: "near", PrivateData: []byte(rejectNoResources)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newTestNet()
			p := testNetPair(t, n, nil)
			p.answer(t)
			addr := p.listener.Addr().String()
			pool := newPool(t, p.client, PoolConfig{})
			get := func() *Endpoint {
				e, err := pool.Get(p.ctx, addr, Intent{})
				if err != nil {
					t.Fatal(err)
				}
				if err := ask(p.ctx, e); err != nil {
					t.Fatal(err)
				}
				return e
			}
			a, b := get(), get()
			if s := a.Selection(); s.Transport != "near" {
				t.Fatalf("%s", s)
			}
			n.near[1].Refuse(c.failure)
			for _, e := range []*Endpoint{a, b} {
				n.near[0].DropAfter(1)
				if ask(p.ctx, e) == nil {
					t.Fatal("the path holds")
				}
				pool.Put(e)
			}
			a, b = get(), get()
			for _, e := range []*Endpoint{a, b} {
				if s := e.Selection(); s.Transport != "far" {
					t.Errorf("after the partition over %s", s)
				}
			}
			if s := pool.Peers()[0]; !slices.Equal(s.Sought, []string{"near"}) {
				t.Errorf("nobody looks for it: %+v", s)
			}
			if s := b.Selection(); !strings.Contains(s.candidate("near").Reason, "failed lately") {
				t.Errorf("each new endpoint tries it: %s", s)
			}
			pool.Put(a)
			n.near[1].Refuse(nil)
			p.until(t, "both are replaced", func() bool {
				p.client.Endpoints() // which reads why one was chosen
				return pool.Peers()[0].Replaced == 2
			})
			if err := ask(p.ctx, b); err != nil {
				t.Errorf("the old one ends before its request: %v", err)
			}
			d := get()
			if s := d.Selection(); s.Transport != "near" || !strings.Contains(s.candidate("near").Reason, "came back") {
				t.Errorf("it came back, but over %s", s)
			}
			pool.Put(b)
			pool.Put(d)
			<-a.Done()
			<-b.Done()
			p.until(t, "nothing is looked for", func() bool { return len(pool.Peers()[0].Sought) == 0 })
		})
	}
}

// An adapter that disappears takes its endpoints along; requests go on over the next
// transport.
func TestPoolSurvivesLossOfAdapter(t *testing.T) {
	n := newTestNet()
	p := testNetPair(t, n, nil)
	p.answer(t)
	addr := p.listener.Addr().String()
	pool := newPool(t, p.client, PoolConfig{})
	for _, want := range []string{"near", "far"} {
		for {
			got, err := exchangeOn(p.ctx, pool, addr, Intent{})
			if err == nil && got == want {
				break
			}
			if p.ctx.Err() != nil || err == nil && got != "near" {
				t.Fatal(got, err)
			}
		}
		if want == "near" {
			n.near[0].Kill()
		}
	}
}

// Peers to which there is nothing are forgotten, and counted on.
func TestPoolForgetsPeers(t *testing.T) {
	w := worlds[0]
	p := w.pair(t, Config{}, ListenConfig{})
	p.answer(t)
	pool := newPool(t, p.client, PoolConfig{})
	ctx, cancel := context.WithCancel(p.ctx)
	cancel()
	if _, err := exchangeOn(p.ctx, pool, p.listener.Addr().String(), Intent{}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * firstSweep {
		// Nobody waits, so nobody dials.
		if _, err := pool.Get(ctx, fmt.Sprintf("127.0.0.1:%d", i+1), Intent{}); err == nil {
			t.Fatal("connected")
		}
		// A sweep passes by those that are waited for.
		p.until(t, "nobody waits", func() bool { return pool.core.stats().Waiting == 0 })
	}
	s := pool.core.stats()
	if s.Peers > 2*firstSweep || s.Left != 3*firstSweep || s.Open != 1 {
		t.Errorf("%+v", s)
	}
}

func TestPoolConfigs(t *testing.T) {
	r := newRuntime(t, Config{}, nil)
	newPool(t, r, PoolConfig{})
	for want, cfg := range map[string]PoolConfig{
		"needs a service":         {},
		"a negative number":       {Service: "x/1", Endpoints: -1},
		"MaxBackoff is 1s, below": {Service: "x/1", Backoff: time.Minute, MaxBackoff: time.Second},
		"there is a pool":         {Service: "x/1", Name: "test/1"},
		"no transport here":       {Service: "x/1", Dial: DialConfig{Rules: Rules{{Only: []string{"ether"}}}}},
		"which is no transport":   {Service: "x/1", Dial: DialConfig{Tuning: TuningTable{"ether": {}}}},
		"belongs to another":      {Service: "x/1", Dial: DialConfig{Group: newRuntime(t, Config{}, nil).own}},
	} {
		if _, err := r.NewPool(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.NewPool(PoolConfig{Service: "x/1"}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// A request that finds a free endpoint allocates nothing, with rules or without.
func TestPoolAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	p := worlds[0].pair(t, Config{Rules: rules(t, "a: operation=x* size=1M.. only=tcp", "b: peer=10.0.0.0/8 size=..8K prefer=tcp")}, ListenConfig{})
	p.answer(t)
	addr := p.listener.Addr().String()
	pool := newPool(t, p.client, PoolConfig{})
	if n := allocations(1000, func() {
		e, err := pool.Get(p.ctx, addr, Intent{Operation: "xyz", Size: 100})
		if err != nil {
			t.Fatal(err)
		}
		pool.Put(e)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
