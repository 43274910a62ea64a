package native

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/internal/port"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func runtimeOf(t *testing.T) (*verbena.Runtime, *verbena.Group) {
	t.Helper()
	return runtimeWith(t, verbena.Config{})
}

// runtimeWith is a runtime that accepts messages as cfg says.
func runtimeWith(t *testing.T, cfg verbena.Config) (*verbena.Runtime, *verbena.Group) {
	t.Helper()
	cfg.Providers = providers.Default()
	rt, err := verbena.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	g, err := rt.NewGroup(verbena.GroupConfig{Name: "test", Relay: true})
	if err != nil {
		t.Fatal(err)
	}
	return rt, g
}

// serve publishes the services of messages at a port and counts the endpoints.
func serve(t *testing.T, rt *verbena.Runtime, g *verbena.Group, service string, f func(context.Context, *verbena.Endpoint) error) (*port.Port, *atomic.Int32) {
	t.Helper()
	p, err := port.Listen(t.Context(), rt, "127.0.0.1:0", port.Config{Group: g, Messages: []string{service}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	count := &atomic.Int32{}
	p.Serve(port.Handlers{Messages: map[string]func(context.Context, *verbena.Endpoint) error{service: func(ctx context.Context, ep *verbena.Endpoint) error {
		count.Add(1)
		return f(ctx, ep)
	}}})
	return p, count
}

// echo sends all messages back.
func echo(ctx context.Context, ep *verbena.Endpoint) error {
	for {
		m, err := ep.Receive(ctx)
		if err != nil {
			return err
		}
		if err := ep.SendBuffer(ctx, m.Tag, nil, &m.Buffer); err != nil {
			return err
		}
	}
}

// recorder is a user that keeps what it gets.
type recorder struct {
	got chan string
	end chan error
}

func newRecorder() *recorder { return &recorder{make(chan string, 100), make(chan error, 1)} }

func (r *recorder) Take(m *verbena.Message) { r.got <- string(m.Bytes()); m.Release() }
func (r *recorder) End(err error)           { r.end <- err }

// join makes u a user, and returns of what and under which id.
func join(t *testing.T, table *Table, address string, u User) (c *Conn, id uint32, err error) {
	err = table.Join(t.Context(), address, u, func(conn *Conn, its uint32) error {
		c, id = conn, its
		return nil
	})
	return c, id, err
}

// An early is a user that must have begun before it takes anything.
type early struct {
	t     *testing.T
	began atomic.Bool
	took  chan struct{} // closed by the first message
	once  sync.Once
}

func (u *early) Take(m *verbena.Message) {
	m.Release()
	if !u.began.Load() {
		u.t.Error("a user has got a message before it knows who it is")
	}
	u.once.Do(func() { close(u.took) })
}
func (u *early) End(error) {}

// A peer may guess the id that comes next, and send to it: a user knows its id
// before it gets anything. One that does not begin gets nothing.
func TestUsersBeginBeforeTheyAreCalled(t *testing.T) {
	rt, g := runtimeOf(t)
	p, _ := serve(t, rt, g, Service, func(ctx context.Context, ep *verbena.Endpoint) error {
		for {
			m, err := ep.Receive(ctx)
			if err != nil {
				return err
			}
			next := m.Tag + 1
			m.Release()
			for range 300 {
				if err := ep.Send(ctx, next, []byte("early")); err != nil {
					return err
				}
			}
		}
	})
	table := NewTable(TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}})
	defer table.Close()
	for range 50 {
		u := &early{t: t, took: make(chan struct{})}
		var conn *Conn
		var its uint32
		err := table.Join(t.Context(), p.Addr(), u, func(c *Conn, id uint32) error {
			runtime.Gosched() // to whoever gets messages
			conn, its = c, id
			u.began.Store(true)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		conn.Post(its-1, []byte("asked"))
		<-u.took
		conn.Post(its, []byte("next"))
		conn.Leave(its)
	}
	no := errors.New("no")
	if err := table.Join(t.Context(), p.Addr(), &early{t: t}, func(*Conn, uint32) error { return no }); !errors.Is(err, no) {
		t.Error(err)
	}
}

// All who want a peer at once, and later, get the one connection, and each gets its own
// messages; when it ends all are told, and the next one gets another.
func TestTableHasOneConnectionToAPeer(t *testing.T) {
	rt, g := runtimeOf(t)
	var mu sync.Mutex
	var last *verbena.Endpoint
	p, count := serve(t, rt, g, Service, func(ctx context.Context, ep *verbena.Endpoint) error {
		mu.Lock()
		last = ep
		mu.Unlock()
		return echo(ctx, ep)
	})
	table := NewTable(TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}})
	defer table.Close()
	users := make([]*recorder, 20)
	var wg sync.WaitGroup
	for i := range users {
		users[i] = newRecorder()
		wg.Go(func() {
			c, id, err := join(t, table, p.Addr(), users[i])
			if err != nil {
				t.Error(err)
				return
			}
			for n := range 50 { // more than the window
				c.Post(id, fmt.Appendf(nil, "%d %d", i, n))
			}
		})
	}
	wg.Wait()
	for i, u := range users {
		for n := range 50 {
			if got, want := <-u.got, fmt.Sprintf("%d %d", i, n); got != want {
				t.Fatalf("%q, want %q", got, want)
			}
		}
	}
	if n := count.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	mu.Lock()
	last.Close()
	mu.Unlock()
	for _, u := range users {
		if err := <-u.end; err == nil {
			t.Error("no reason")
		}
	}
	again := newRecorder()
	c, id, err := join(t, table, p.Addr(), again)
	if err != nil {
		t.Fatal(err)
	}
	c.Post(id, []byte("again"))
	if got := <-again.got; got != "again" || count.Load() != 2 {
		t.Errorf("%q over connection %d", got, count.Load())
	}
}

// What is prepared is one connection, which who comes later finds; preparing what is there, or a server
// that is gone, does nothing to those who come later.
func TestTablePrepares(t *testing.T) {
	rt, g := runtimeOf(t)
	arrived := make(chan struct{}, 10)
	p, count := serve(t, rt, g, Service, func(ctx context.Context, ep *verbena.Endpoint) error {
		arrived <- struct{}{}
		return echo(ctx, ep)
	})
	table := NewTable(TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}})
	for range 3 {
		table.Prepare(p.Addr())
	}
	<-arrived // nobody has asked for it
	u := newRecorder()
	c, id, err := join(t, table, p.Addr(), u)
	if err != nil {
		t.Fatal(err)
	}
	table.Prepare(p.Addr())
	c.Post(id, []byte("used"))
	if got := <-u.got; got != "used" {
		t.Error(got)
	}
	if n := count.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	p.Close()
	if err := <-u.end; err == nil {
		t.Error("no reason")
	}
	table.Prepare(p.Addr())
	if _, err := table.Get(t.Context(), p.Addr()); err == nil {
		t.Error("a server that is gone was reached")
	}
	table.Close()
	table.Prepare(p.Addr()) // too late
}

func TestTableRemembersWhoIsNotNative(t *testing.T) {
	rt, g := runtimeOf(t)
	p, count := serve(t, rt, g, "other/1", echo)
	table := NewTable(TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}})
	defer table.Close()
	for range 3 {
		_, err := table.Get(t.Context(), p.Addr())
		var not *NotNativeError
		if !errors.As(err, &not) || not.Address != p.Addr() {
			t.Fatal(err)
		}
		if _, native := table.Peek(p.Addr()); native {
			t.Error("it is forgotten")
		}
	}
	if count.Load() != 0 {
		t.Error("an endpoint of another service")
	}
	table.Deny("elsewhere:1", errors.New("told"))
	if _, native := table.Peek("elsewhere:1"); native {
		t.Error("what was told is forgotten")
	}
}

// Clients choose what a table connects to. It keeps little of what it could not reach.
func TestTableForgetsWhomItCanNotReach(t *testing.T) {
	rt, g := runtimeOf(t)
	table := NewTable(TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}})
	defer table.Close()
	for i := range 3 * maxPeers {
		if _, err := table.Get(t.Context(), fmt.Sprint("no port ", i)); err == nil {
			t.Fatal("connected to nothing")
		}
		table.Deny(fmt.Sprint("no service ", i), errors.New("none"))
	}
	long := strings.Repeat("x", 60<<10)
	if _, err := table.Get(t.Context(), long); err == nil || len(err.Error()) > 200 {
		t.Error(err)
	}
	table.Deny(long, errors.New("none"))
	table.mu.Lock()
	defer table.mu.Unlock()
	if n := len(table.peers); n > maxPeers {
		t.Errorf("%d addresses are known", n)
	}
	if table.peers[long] != nil {
		t.Error("a long address is known")
	}
}

// A connection that nobody uses ends, and comes back with the next user.
func TestTableClosesIdleConnections(t *testing.T) {
	rt, g := runtimeOf(t)
	p, count := serve(t, rt, g, Service, echo)
	table := NewTable(TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}, Idle: time.Millisecond})
	defer table.Close()
	for round := range int32(3) {
		u := newRecorder()
		c, id, err := join(t, table, p.Addr(), u)
		if err != nil {
			t.Fatal(err)
		}
		c.Post(id, []byte("x"))
		if got := <-u.got; got != "x" || count.Load() != round+1 {
			t.Fatalf("%q over connection %d, want %d", got, count.Load(), round+1)
		}
		c.Leave(id)
		<-c.ep.Done()
	}
}

// A connection that is retired keeps its users and ends with the last of them. Those who come
// later get another one.
func TestTableRetires(t *testing.T) {
	rt, g := runtimeOf(t)
	p, _ := serve(t, rt, g, Service, echo)
	table := NewTable(TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}})
	defer table.Close()
	early, late := newRecorder(), newRecorder()
	old, id, err := join(t, table, p.Addr(), early)
	if err != nil {
		t.Fatal(err)
	}
	table.Retire(old)
	next, lateID, err := join(t, table, p.Addr(), late)
	if err != nil {
		t.Fatal(err)
	}
	table.Retire(old) // the next one is none of its business
	if c, err := table.Get(t.Context(), p.Addr()); err != nil || next == old || c != next {
		t.Errorf("%p after %p and %p, %v", c, old, next, err)
	}
	old.Post(id, []byte("stays"))
	next.Post(lateID, []byte("comes"))
	if got := <-early.got + " " + <-late.got; got != "stays comes" {
		t.Error(got)
	}
	old.Leave(id)
	<-old.ep.Done()
	if err := next.ep.Err(); err != nil {
		t.Error(err)
	}
}

// Only who proves to be the DataNode of its address is trusted.
func TestTableTrustsWhoProves(t *testing.T) {
	rt, g := runtimeOf(t)
	secret, err := cluster.NewSecret([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	var address string
	prove := func(as func() string) func(context.Context, *verbena.Endpoint) error {
		return func(ctx context.Context, ep *verbena.Endpoint) error {
			m, err := ep.Receive(ctx)
			if err != nil {
				return err
			}
			if KindOf(m.Bytes()) != Hello {
				m.Release()
				return ep.Send(ctx, 1, []byte("untrusted"))
			}
			nonce, err := ParseHello(m.Bytes())
			m.Release()
			if err != nil {
				return err
			}
			if err := ep.Send(ctx, 0, AppendProof(nil, ProofOf(secret, nonce, as()))); err != nil {
				return err
			}
			if m, err = ep.Receive(ctx); err != nil {
				return err
			}
			m.Release()
			return ep.Send(ctx, 1, []byte("trusted"))
		}
	}
	honest, _ := serve(t, rt, g, Service, prove(func() string { return address }))
	address = honest.Addr()
	relay, _ := serve(t, rt, g, Service, prove(func() string { return address })) // has the honest one answer
	table := NewTable(TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}, Prove: func(nonce [NonceLen]byte, address string, proof []byte) bool {
		return Proves(secret, nonce, address, proof)
	}})
	defer table.Close()
	for at, want := range map[string]string{honest.Addr(): "trusted", relay.Addr(): "untrusted"} {
		u := newRecorder()
		c, id, err := join(t, table, at, u)
		if err != nil {
			t.Fatal(err)
		}
		c.Post(id, AppendAbort(nil))
		if got := <-u.got; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A proof is of one secret, one nonce and one address.
func TestProofs(t *testing.T) {
	secrets := [2]*cluster.Secret{}
	for i, text := range []string{"0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdeF"} {
		var err error
		if secrets[i], err = cluster.NewSecret([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	nonce, other := [NonceLen]byte{1}, [NonceLen]byte{1, 31: 1}
	const address = "10.0.0.1:9866"
	good := ProofOf(secrets[0], nonce, address)
	if len(good) != ProofLen || !Proves(secrets[0], nonce, address, good) {
		t.Errorf("a proof of %d bytes that proves nothing", len(good))
	}
	for what, proof := range map[string][]byte{
		"nothing": nil, "a part": good[:ProofLen-1], "more": append(good[:ProofLen:ProofLen], 0), "zeros": make([]byte, ProofLen),
		"another secret": ProofOf(secrets[1], nonce, address), "another nonce": ProofOf(secrets[0], other, address), "another address": ProofOf(secrets[0], nonce, "10.0.0.1:986"),
	} {
		if Proves(secrets[0], nonce, address, proof) {
			t.Errorf("%s proves it", what)
		}
	}
}

// A connection over a transport that was chosen because a better one failed is replaced when
// that is back: who uses it stays, who comes later gets the better one, and the old one ends
// with its last user.
func TestTableReturnsToABetterTransport(t *testing.T) {
	network := fake.NewNetwork()
	runtimes := [2]*verbena.Runtime{}
	var near [2]*fake.Device
	for i, side := range []string{"client", "server"} {
		a := fake.InfiniBand("near-" + side)
		a.Capabilities &^= rdma.CapStreams
		near[i] = network.NewDevice(a)
		var err error
		runtimes[i], err = verbena.New(verbena.Config{Providers: []rdma.Provider{fake.NewProvider("near", near[i])}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { runtimes[i].Close() })
	}
	near[1].Refuse(rdma.ErrTimeout)
	g, err := runtimes[1].NewGroup(verbena.GroupConfig{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := serve(t, runtimes[1], g, Service, echo)
	table := NewTable(TableConfig{Runtime: runtimes[0]})
	defer table.Close()
	early := newRecorder()
	old, id, err := join(t, table, p.Addr(), early)
	if err != nil {
		t.Fatal(err)
	}
	if s := old.Endpoint().Selection(); s.Transport == "near" || !s.Passing() {
		t.Fatalf("while it fails: %+v", s)
	}
	near[1].Refuse(nil)
	for c := old; c == old; { // until users come to another one
		if c, err = table.Get(t.Context(), p.Addr()); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	late := newRecorder()
	better, lateID, err := join(t, table, p.Addr(), late)
	if err != nil {
		t.Fatal(err)
	}
	if s := better.Endpoint().Selection(); s.Transport != "near" {
		t.Errorf("when it is back: %+v", s)
	}
	old.Post(id, []byte("stays"))
	better.Post(lateID, []byte("comes"))
	if got := <-early.got + " " + <-late.got; got != "stays comes" {
		t.Error(got)
	}
	old.Leave(id)
	for old.Endpoint().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-late.end:
		t.Errorf("the better one ended, too: %v", err)
	default:
	}
}
