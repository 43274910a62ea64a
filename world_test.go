package verbena

import (
	"cmp"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(peerVariable); name != "" {
		servePeer(name)
	}
	testneed.AtOnce(8) // they wait for those who are silent
	goleak.VerifyTestMain(m)
}

// A world is a kind of network with two runtimes in it.
type world struct {
	name      string
	transport string // that a dial gets
	address   string // at which the server listens; empty: this host's own
	taciturn  bool   // its devices do not say that the peer has refused an access
	providers func(t testing.TB) (client, server []rdma.Provider)
}

// refused tells whether err is that of an operation that the peer's device has refused.
func (w world) refused(err error) bool {
	return errors.Is(err, ErrRevoked) || w.taciturn && errors.Is(err, ErrPeerDied)
}

func fakeWorld(name string, config func(string) fake.Config) world {
	return world{name: name, transport: name, providers: func(testing.TB) (client, server []rdma.Provider) {
		network := fake.NewNetwork()
		a, b := network.NewDevice(config("a")), network.NewDevice(config("b"))
		return []rdma.Provider{fake.NewProvider(name, a)}, []rdma.Provider{fake.NewProvider(name, b)}
	}}
}

var worlds = []world{
	{name: "tcp", transport: TransportTCP, providers: func(testing.TB) (client, server []rdma.Provider) { return nil, nil }},
	fakeWorld("fakeband", func(name string) fake.Config {
		c := fake.InfiniBand(name)
		c.Capabilities &^= rdma.CapStreams // a port of its own, tokens
		return c
	}),
	fakeWorld("fakewarp", fake.IWARP),
}

func eachWorld(t *testing.T, f func(t *testing.T, w world)) {
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) { f(t, w) })
	}
}

// anyPort is where servers listen.
func (w world) anyPort() string { return cmp.Or(w.address, "127.0.0.1") + ":0" }

// A pair is a server and a client runtime with a listener between them.
type pair struct {
	client, server *Runtime
	listener       *Listener
	ctx            context.Context
}

func (w world) pair(t testing.TB, config Config, lc ListenConfig) *pair {
	t.Helper()
	p := &pair{ctx: testContext(t)}
	c, s := w.providers(t)
	p.client, p.server = newRuntime(t, config, c), newRuntime(t, config, s)
	l, err := p.server.Listen(p.ctx, w.anyPort(), lc)
	if err != nil {
		t.Fatal(err)
	}
	p.listener = l
	return p
}

// newRuntime makes a runtime that is more patient than others, unless the test says how
// patient: beside other jobs a server may need seconds for an answer.
func newRuntime(t testing.TB, config Config, providers []rdma.Provider) *Runtime {
	t.Helper()
	set(&config.HelloTimeout, 20*time.Second)
	set(&config.ConnectTimeout, 20*time.Second)
	config.Providers = providers
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// testContext ends waits that hang; no test depends on when.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// connect sets up one endpoint.
func (p *pair) connect(t testing.TB, transport string) (client, server *Endpoint) {
	t.Helper()
	client, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	server, err = p.listener.Accept(p.ctx)
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

// firstDevice is what carries a transport whose provider has one device; nil for TCP.
func (r *Runtime) firstDevice(transport string) *device {
	if t := r.transport(transport); t != nil {
		return t.devices()[0]
	}
	return nil
}

// firstDomain is the runtime's own on that device.
func (r *Runtime) firstDomain(transport string) *domain {
	r.own.mu.Lock()
	defer r.own.mu.Unlock()
	return r.own.domains[r.firstDevice(transport)]
}

func worldOf(t *testing.T, name string) world {
	for _, w := range worlds {
		if w.name == name {
			return w
		}
	}
	t.Fatalf("no world %s", name)
	return world{}
}

// talk sends messages of 1,000 bytes, and receives each before the next.
func talk(t testing.TB, p *pair, from, to *Endpoint, messages int) {
	t.Helper()
	for range messages {
		if err := from.Send(p.ctx, 1, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		m, err := to.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	}
}

// accept returns the server's end of what has just been connected.
func (p *pair) accept(t *testing.T) *Endpoint {
	t.Helper()
	e, err := p.listener.Accept(p.ctx)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// fakeConfig is the device of a fake world.
func fakeConfig(name string) fake.Config {
	if name == "fakewarp" {
		return fake.IWARP(name)
	}
	return fake.InfiniBand(name)
}

// takeAll uses a pool up, and returns what gives it back.
func takeAll(t *testing.T, p *slab.Pool) (giveBack func()) {
	t.Helper()
	var slabs []slab.Slab
	for size := 1 << 20; size >= 256; {
		s, ok, err := p.TryGet(size)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			size /= 2
			continue
		}
		slabs = append(slabs, s)
	}
	return func() {
		for _, s := range slabs {
			p.Put(s)
		}
	}
}
