package verbena

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/rdma"
)

// busy is what a device's port says that has too many requests.
var busy = &rdma.RejectedError{Peer: "near", PrivateData: []byte(rdma.RejectBusy)}

// testNetPair is a server and a client of a test net.
func testNetPair(t *testing.T, n *testNet, wrap func(net.Listener) net.Listener) *pair {
	t.Helper()
	p := &pair{ctx: testContext(t), client: newRuntime(t, Config{}, n.client), server: newRuntime(t, Config{}, n.server)}
	t.Cleanup(func() {
		for i := range 2 {
			n.near[i].Continue()
			n.far[i].Continue()
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if wrap != nil {
		ln = wrap(ln)
	}
	if p.listener, err = p.server.NewListener(ln, ListenConfig{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// A countingListener counts connections.
type countingListener struct {
	net.Listener
	conns atomic.Int32
}

func (c *countingListener) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.conns.Add(1)
	}
	return conn, err
}

// A transport that hangs leaves time for those after it.
func TestDialSharesOutItsDeadline(t *testing.T) {
	t.Parallel() // it waits for a third of its deadline
	n := newTestNet()
	n.server = n.server[:1]
	p := testNetPair(t, n, nil)
	n.near[1].Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	defer n.near[1].Continue()
	e, err := p.client.Dial(ctx, p.listener.Addr().String(), "test/1", DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s := e.Selection()
	if s.Transport != TransportTCP {
		t.Errorf("chose %s", s)
	}
	if !s.Passing() || !s.candidate("near").Passing || s.candidate("far").Passing {
		t.Errorf("a hanging device does not pass: %+v", s)
	}
}

// A device's port that is busy is asked again, and no worse transport taken.
func TestBusyDeviceIsAskedAgain(t *testing.T) {
	n := newTestNet()
	p := testNetPair(t, n, nil)
	n.near[1].Refuse(busy)
	go func() {
		for p.client.firstDevice("near").count.failed.Load() < 3 && p.ctx.Err() == nil {
			runtime.Gosched()
		}
		n.near[1].Refuse(nil)
	}()
	e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if s := e.Selection(); s.Transport != "near" || s.Passing() {
		t.Errorf("chose %s", s)
	}
}

// An endpoint that took a worse transport because the better one was busy for as
// long as it could wait says so.
func TestPassingFailureIsTold(t *testing.T) {
	t.Parallel() // it waits for a third of its deadline
	n := newTestNet()
	p := testNetPair(t, n, nil)
	n.near[1].Refuse(busy)
	dial := func() Selection {
		ctx, cancel := context.WithTimeout(p.ctx, 15*time.Second)
		defer cancel()
		e, err := p.client.Dial(ctx, p.listener.Addr().String(), "test/1", DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		return e.Selection()
	}
	if s := dial(); s.Transport != "far" || !s.Passing() {
		t.Errorf("while it is busy: %+v", s)
	}
	n.near[1].Refuse(nil)
	if s := dial(); s.Transport != "near" {
		t.Errorf("the next dial does not come back: %+v", s)
	}
}

// forgingProxy passes connections on to a server, and breaks the token in the
// first answers.
func forgingProxy(t *testing.T, to string, answers int32) (addr string) {
	var broken atomic.Int32
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			go func() {
				io.Copy(far, near)
				far.Close()
			}()
			go func() {
				defer near.Close()
				b := make([]byte, hello.MaxSize)
				for {
					n, err := far.Read(b)
					if err != nil {
						return
					}
					if a, err := hello.ParseAnswer(b[:n]); err == nil && a.Accept != nil && len(a.Accept.Token) > 0 && broken.Add(1) <= answers {
						copy(b[bytes.Index(b[:n], a.Accept.Token):], make([]byte, hello.TokenSize))
					}
					near.Write(b[:n])
				}
			}()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	return ln.Addr().String()
}

// A token that is not good any more, as when both ends waited for processors
// until it had expired, is replaced by a new one.
func TestExpiredTokenIsReplaced(t *testing.T) {
	p := testNetPair(t, newTestNet(), nil)
	addr := forgingProxy(t, p.listener.Addr().String(), 2)
	e, err := p.client.Dial(p.ctx, addr, "test/1", DialConfig{Transport: "near"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	other, err := p.listener.Accept(p.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Send(p.ctx, 7, []byte("works")); err != nil {
		t.Fatal(err)
	}
	if m, err := other.Receive(p.ctx); err != nil || m.Tag != 7 {
		t.Error(m, err)
	} else {
		m.Release()
	}
}

// Processes in different network namespaces of one host leave out what cannot
// connect them, over one TCP connection.
func TestNetworkNamespaces(t *testing.T) {
	for _, c := range []struct {
		name           string
		client, server string
		want           string
	}{
		{"one", "a", "a", "near"},
		{"two", "a", "b", "far"},
		{"a client that does not tell", "", "b", "near"},
		{"a server that does not know", "a", "", "near"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := makeTestNet(true)
			counting := &countingListener{}
			p := testNetPair(t, n, func(ln net.Listener) net.Listener {
				counting.Listener = ln
				return counting
			})
			network := func(name string) []byte {
				if name == "" {
					return nil
				}
				return []byte(strings.Repeat(name, hello.NetworkSize))
			}
			p.client.network, p.server.network = network(c.client), network(c.server)
			e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			s := e.Selection()
			if s.Transport != c.want || s.Passing() || !s.SameHost {
				t.Errorf("chose %s", s)
			}
			if c.want == "far" && !strings.Contains(s.candidate("near").Reason, "network namespace") {
				t.Errorf("no reason: %s", s)
			}
			if n := counting.conns.Load(); n != 1 {
				t.Errorf("%d TCP connections", n)
			}
		})
	}
}

// A transport that cannot be connected for a reason that lasts is left out by
// the next dials, unless they ask for it.
func TestFailureIsRemembered(t *testing.T) {
	n := newTestNet()
	p := testNetPair(t, n, nil)
	addr := p.listener.Addr().String()
	n.near[1].Refuse(errors.New("process 4711 of user 1234 at @verbena-secret is of another user"))
	attempts := func() uint64 { return p.client.firstDevice("near").count.failed.Load() }
	dial := func(transport string) Selection {
		t.Helper()
		e, err := p.client.Dial(p.ctx, addr, "test/1", DialConfig{Transport: transport})
		var failed *SelectionError
		if errors.As(err, &failed) {
			return failed.Selection
		}
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		server, err := p.listener.Accept(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		// What this side knows of users, processes and sockets stays here.
		for _, c := range server.Selection().Candidates {
			for _, secret := range []string{"4711", "1234", "secret"} {
				if strings.Contains(c.Reason, secret) {
					t.Errorf("the peer is told: %s", c.Reason)
				}
			}
		}
		return e.Selection()
	}
	if s := dial(""); s.Transport != "far" || s.Passing() || !strings.Contains(s.candidate("near").Reason, "4711") {
		t.Errorf("first: %+v", s)
	}
	if s := dial(""); s.Transport != "far" || !strings.Contains(s.candidate("near").Reason, "failed lately") || attempts() != 1 {
		t.Errorf("second, %d attempts: %+v", attempts(), s)
	}
	if s := dial("near"); s.Transport != "" || attempts() != 2 {
		t.Errorf("asked for: %+v", s)
	}
	n.near[1].Refuse(nil)
	if s := dial("near"); s.Transport != "near" {
		t.Errorf("asked for, works again: %+v", s)
	}
	if s := dial(""); s.Transport != "near" {
		t.Errorf("the success was not noticed: %+v", s)
	}
}

func TestFailuresPauseLonger(t *testing.T) {
	var c peerCache
	for i := range 10 {
		c.fail("a", "near", "why")
		p := c.peers["a"].failures["near"]
		if want := min(firstFailure<<i, longestFailure); p.pause != want {
			t.Errorf("failure %d: left out for %v, want %v", i+1, p.pause, want)
		}
	}
	c.connected("a", "near")
	if _, _, failed := c.failed("a", "near"); failed {
		t.Error("still left out")
	}
}

// A program that holds an endpoint which fell back for a passing reason gets a better
// one when that has passed; the old one works until then, and after.
func TestBetterWaitsForTheTransport(t *testing.T) {
	n := newTestNet()
	p := testNetPair(t, n, nil)
	n.near[1].Refuse(&rdma.RejectedError{Peer: "near", PrivateData: []byte(rejectNoResources)})
	old, oldServer := p.connect(t, "")
	if s := old.Selection(); s.Transport != "far" || !s.Passing() {
		t.Fatalf("while nothing is left: %+v", s)
	}
	got := make(chan *Endpoint, 1)
	go func() {
		e, err := p.client.Better(p.ctx, old, DialConfig{})
		if err != nil {
			t.Error(err)
		}
		got <- e
	}()
	for before := p.client.firstDevice("near").count.failed.Load(); p.client.firstDevice("near").count.failed.Load() < before+2 && p.ctx.Err() == nil; {
		runtime.Gosched() // it has been refused again
	}
	n.near[1].Refuse(nil)
	better := <-got
	if better == nil {
		return
	}
	if s := better.Selection(); s.Transport != "near" {
		t.Errorf("chose %s", s)
	}
	betterServer := p.accept(t)
	if s := betterServer.Selection(); s.Transport != "near" {
		t.Errorf("the server has %s", s) // and none of the attempts that failed
	}
	for _, e := range [][2]*Endpoint{{old, oldServer}, {better, betterServer}} {
		if err := e[0].Send(p.ctx, 1, []byte("works")); err != nil {
			t.Fatal(err)
		}
		m, err := e[1].Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	}
	if _, err := p.client.Better(p.ctx, better, DialConfig{}); !errors.Is(err, ErrNoneBetter) {
		t.Errorf("of the best one: %v", err)
	}
	ctx, cancel := context.WithCancel(p.ctx)
	cancel()
	if _, err := p.client.Better(ctx, old, DialConfig{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that is over: %v", err)
	}
}

// A dial that was refused ten times in a storm has paused for less than a second.
func TestRefusedDialsPauseBriefly(t *testing.T) {
	for range 1000 {
		sum := time.Duration(0)
		for refused := 1; refused <= 10; refused++ {
			sum += busyPauses.Pause(refused)
		}
		if sum > time.Second || sum < 100*time.Millisecond {
			t.Fatalf("ten pauses took %v", sum)
		}
	}
}
