package verbena

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// legacyServer is a TCP server that has never heard of Verbena.
func legacyServer(t *testing.T, serve func(net.Conn)) (addr string, accepted chan struct{}) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = make(chan struct{}, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			select {
			case accepted <- struct{}{}:
			default: // nobody counts so many
			}
			serve(c)
			c.Close()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	return ln.Addr().String(), accepted
}

func readAll(c net.Conn) { io.Copy(io.Discard, c) }

// An answer in another protocol is remembered at once.
func TestDialLegacyServer(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"speaks first":  func(c net.Conn) { io.WriteString(c, "220 smtp.example.com ESMTP\r\n"); readAll(c) },
		"answers":       func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); readAll(c) },
		"says one byte": func(c net.Conn) { io.WriteString(c, "?"); readAll(c) },
		"SSH":           func(c net.Conn) { io.WriteString(c, "SSH-2.0-OpenSSH_9.6\r\n"); readAll(c) },
		"says no and closes": func(c net.Conn) {
			c.Read(make([]byte, 4096))
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
		},
		"TLS alert": func(c net.Conn) { c.Write([]byte{0x15, 3, 1, 0, 2, 2, 70}); readAll(c) },
		"Hadoop RPC error": func(c net.Conn) {
			// A response of which the length, big-endian, comes first.
			c.Write([]byte{0, 0, 0, 52, 50, 8, 255, 255, 255, 255, 15, 16, 2, 24, 9})
			io.WriteString(c, "org.apache.hadoop.ipc.RPC$VersionMismatch")
		},
		"PNG, which begins alike": func(c net.Conn) { io.WriteString(c, "\x89PNG\r\n\x1a\n"); readAll(c) },
		"echoes":                  func(c net.Conn) { io.Copy(c, c) },
		"echoes byte by byte": func(c net.Conn) {
			for b := make([]byte, 1); ; {
				if _, err := c.Read(b); err != nil {
					return
				}
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		},
		"echoes a line": func(c net.Conn) {
			if line, err := bufio.NewReader(c).ReadBytes('\n'); err == nil {
				c.Write(line)
			}
		},
		"echoes in capitals": func(c net.Conn) {
			b := make([]byte, hello.MaxSize)
			n, _ := c.Read(b)
			for i, x := range b[:n] {
				if 'a' <= x && x <= 'z' {
					b[i] = x - 'a' + 'A'
				}
			}
			c.Write(b[:n])
			readAll(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			addr, accepted := legacyServer(t, serve)
			r := newRuntime(t, Config{HelloTimeout: 30 * time.Millisecond}, nil)
			var legacy *LegacyPeerError
			_, err := r.Dial(ctx, addr, "test/1", DialConfig{})
			if !errors.As(err, &legacy) || legacy.Addr != addr || legacy.Err == nil || !legacy.Until.After(time.Now()) {
				t.Fatalf("got %v", err)
			}
			<-accepted
			// The next dial is told at once.
			_, err = r.Dial(ctx, addr, "test/1", DialConfig{})
			if !errors.As(err, &legacy) || legacy.Err != nil || len(accepted) != 0 {
				t.Fatalf("got %v after %d connections", err, len(accepted))
			}
			r.Forget(addr)
			if _, err = r.Dial(ctx, addr, "test/1", DialConfig{}); !errors.As(err, &legacy) || legacy.Err == nil {
				t.Fatalf("got %v", err)
			}
			<-accepted
			if _, err := r.Explain(ctx, addr, DialConfig{}); !errors.As(err, &legacy) {
				t.Errorf("Explain: %v", err)
			}
		})
	}
}

func TestLegacyServerIsForgottenInTime(t *testing.T) {
	ctx := testContext(t)
	addr, accepted := legacyServer(t, func(c net.Conn) { io.WriteString(c, "?") })
	r := newRuntime(t, Config{LegacyExpiry: time.Nanosecond}, nil)
	for range 2 {
		var legacy *LegacyPeerError
		if _, err := r.Dial(ctx, addr, "test/1", DialConfig{}); !errors.As(err, &legacy) || legacy.Err == nil {
			t.Fatalf("got %v", err)
		}
		<-accepted
	}
}

// A server that has spoken Verbena is not taken for a legacy one because it is
// going down.
func TestVerbenaServerGoesDown(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{})
	p.connect(t, "")
	addr := p.listener.Addr().String()
	if err := p.listener.Close(); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skipf("the port is taken: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	_, err = p.client.Dial(p.ctx, addr, "test/1", DialConfig{})
	var legacy *LegacyPeerError
	if err == nil || errors.As(err, &legacy) {
		t.Errorf("got %v", err)
	}
	ln.Close()
	<-done
}

func TestNobodyListens(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	r := newRuntime(t, Config{}, nil)
	_, err = r.Dial(testContext(t), addr, "test/1", DialConfig{})
	var legacy *LegacyPeerError
	if err == nil || errors.As(err, &legacy) || !strings.Contains(err.Error(), addr) {
		t.Errorf("got %v", err)
	}
}

func TestDialHonoursContext(t *testing.T) {
	hold := make(chan struct{})
	addr, accepted := legacyServer(t, func(net.Conn) { <-hold })
	defer close(hold)
	r := newRuntime(t, Config{HelloTimeout: time.Hour}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-accepted
		cancel()
	}()
	if _, err := r.Dial(ctx, addr, "test/1", DialConfig{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestPeerCacheIsBounded(t *testing.T) {
	var c peerCache
	for i := range peerCacheSize + 100 {
		c.foreign(fmt.Sprint(i), time.Hour)
	}
	if len(c.peers) > peerCacheSize {
		t.Errorf("%d peers are remembered", len(c.peers))
	}
}

// A net of two devices for each of two providers, "near" for one host only.
type testNet struct {
	near, far     [2]*fake.Device // of the client and the server
	client        []rdma.Provider
	server        []rdma.Provider
	otherHost     bool
	clientTimeout time.Duration
}

func newTestNet() *testNet { return makeTestNet(false) }

// makeTestNet makes one whose near devices may want their peers in one network
// namespace.
func makeTestNet(oneNetwork bool) *testNet {
	n := &testNet{}
	network := fake.NewNetwork()
	for i, side := range []string{"client", "server"} {
		near := fake.InfiniBand("near-" + side)
		near.Capabilities &^= rdma.CapStreams
		near.OneNetwork = oneNetwork
		n.near[i] = network.NewDevice(near)
		far := fake.IWARP("far-" + side)
		far.CrossesHosts = true
		n.far[i] = network.NewDevice(far)
	}
	n.client = []rdma.Provider{fake.NewProvider("near", n.near[0]), fake.NewProvider("far", n.far[0])}
	n.server = []rdma.Provider{fake.NewProvider("near", n.near[1]), fake.NewProvider("far", n.far[1])}
	return n
}

func TestSelection(t *testing.T) {
	t.Parallel()
	broken := errors.New("cable is out")
	type reasons map[string]string // parts of the client's
	for _, c := range []struct {
		name    string
		prepare func(*testNet)
		ask     string
		want    string // transport; empty if it must fail
		reasons reasons
	}{
		{"one host", nil, "", "near", reasons{"near": "on one host", "far": "not needed", "tcp": "not needed"}},
		{"two hosts", func(n *testNet) { n.otherHost = true }, "", "far", reasons{"near": "the server: it is on another host", "far": "the best", "tcp": "not needed"}},
		{"asked for far", nil, "far", "far", reasons{"near": "not asked for", "far": "asked for", "tcp": "not asked for"}},
		{"asked for tcp", nil, "tcp", "tcp", reasons{"near": "not asked for", "tcp": "asked for"}},
		{"asked for auto", nil, "auto", "near", nil},
		{"asked for near on two hosts", func(n *testNet) { n.otherHost = true }, "near", "", reasons{"near": "on another host"}},
		{"asked for what does not exist", nil, "pigeon", "", reasons{"pigeon": "no such provider"}},
		{"none on the client", func(n *testNet) { n.client[0] = fake.NewProvider("near") }, "", "far", reasons{"near": "not on this side"}},
		{"none on the client, asked for", func(n *testNet) { n.client[0] = fake.NewProvider("near") }, "near", "", reasons{"near": "not on this side"}},
		{"none on the server", func(n *testNet) { n.server[0] = fake.NewProvider("near") }, "", "far", reasons{"near": "the server: "}},
		{"unknown to the server", func(n *testNet) { n.server = n.server[1:] }, "", "far", reasons{"near": "no such provider there"}},
		{"server has none", func(n *testNet) { n.server = nil }, "", "tcp", reasons{"near": "no such provider", "far": "no such provider", "tcp": "always there"}},
		{"client has none", func(n *testNet) { n.client = nil }, "", "tcp", reasons{"tcp": "always there"}},
		{"near does not connect", func(n *testNet) { n.near[1].Refuse(broken) }, "", "far", reasons{"near": "could not be connected", "far": "the best"}},
		{"client's near is dead", func(n *testNet) { n.near[0].Kill() }, "", "far", reasons{"near": "could not be connected"}},
		{"server's near is dead", func(n *testNet) { n.near[1].Kill() }, "", "far", reasons{"near": "the server: "}},
		{"far does not connect", func(n *testNet) { n.otherHost = true; n.far[1].Kill() }, "", "tcp", reasons{"near": "another host", "far": "could not be connected"}},
		{"nothing but tcp connects", func(n *testNet) { n.near[1].Refuse(broken); n.far[1].Kill() }, "", "tcp", reasons{"near": "could not", "far": "could not", "tcp": "always there"}},
		{"asked for far, does not connect", func(n *testNet) { n.far[1].Kill() }, "far", "", reasons{"far": "could not be connected"}},
		{"server's device hangs", func(n *testNet) { n.near[1].Stop(); n.clientTimeout = 10 * time.Second }, "", "far", reasons{"near": "could not be connected"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // one waits for its timeout, which the next candidate has, too
			ctx := testContext(t)
			n := newTestNet()
			if c.prepare != nil {
				c.prepare(n)
			}
			client := newRuntime(t, Config{ConnectTimeout: n.clientTimeout}, n.client)
			server := newRuntime(t, Config{}, n.server)
			if n.otherHost {
				server.host[0]++
			}
			defer func() {
				for _, d := range []*fake.Device{n.near[0], n.near[1], n.far[0], n.far[1]} {
					d.Continue()
				}
			}()
			l, err := server.Listen(ctx, "127.0.0.1:0", ListenConfig{})
			if err != nil {
				t.Fatal(err)
			}
			e, err := client.Dial(ctx, l.Addr().String(), "test/1", DialConfig{Transport: c.ask})
			var selection Selection
			if c.want == "" {
				var failed *SelectionError
				if !errors.As(err, &failed) {
					t.Fatalf("got %v", err)
				}
				if c.ask != "" && !strings.Contains(err.Error(), c.ask) {
					t.Errorf("the error does not name %s: %v", c.ask, err)
				}
				selection = failed.Selection
			} else {
				if err != nil {
					t.Fatal(err)
				}
				selection = e.Selection()
				other, err := l.Accept(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if got := other.Selection(); got.Transport != c.want || got.SameHost == n.otherHost {
					t.Errorf("the server chose %s", got)
				}
				if err := e.Send(ctx, 1, []byte("works")); err != nil {
					t.Fatal(err)
				}
				m, err := other.Receive(ctx)
				if err != nil || string(m.Bytes()) != "works" {
					t.Fatal(m, err)
				}
				m.Release()
				if selection.SameHost == n.otherHost {
					t.Errorf("same host: %t", selection.SameHost)
				}
			}
			if selection.Transport != c.want {
				t.Errorf("transport %q, want %q", selection.Transport, c.want)
			}
			for name, part := range c.reasons {
				got := selection.candidate(name)
				if got == nil || !strings.Contains(got.Reason, part) || got.Chosen != (name == c.want) {
					t.Errorf("%s: %+v, want %q", name, got, part)
				}
			}
			for _, got := range selection.Candidates {
				if got.Reason == "" {
					t.Errorf("%s has no reason", got.Transport)
				}
			}
		})
	}
}

func TestExplain(t *testing.T) {
	ctx := testContext(t)
	n := newTestNet()
	client, server := newRuntime(t, Config{}, n.client), newRuntime(t, Config{}, n.server)
	l, err := server.Listen(ctx, "127.0.0.1:0", ListenConfig{Services: []string{"something/1"}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.Explain(ctx, l.Addr().String(), DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Transport != "near" || !s.SameHost || len(s.Candidates) != 3 {
		t.Errorf("%+v", s)
	}
	text := s.String()
	for _, part := range []string{l.Addr().String(), "this host", "* near", "- far", "- tcp"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
	b, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(b), `"same_host":true,"candidates":[{"transport":"near","chosen":true,"reason":`) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestRefusals(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{Services: []string{"a/1", "b/1"}})
	addr := p.listener.Addr().String()
	var no *RefusedError
	if _, err := p.client.Dial(p.ctx, addr, "c/1", DialConfig{}); !errors.As(err, &no) || no.Temporary() || !strings.Contains(err.Error(), "c/1") {
		t.Errorf("got %v", err)
	}
	e, err := p.client.Dial(p.ctx, addr, "b/1", DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := p.listener.Accept(p.ctx)
	if err != nil || other.Service() != "b/1" || e.Service() != "b/1" {
		t.Error(other, err)
	}
	if err := p.client.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.client.Dial(p.ctx, addr, "b/1", DialConfig{}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed runtime: %v", err)
	}
	if _, err := p.client.Listen(p.ctx, "127.0.0.1:0", ListenConfig{}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed runtime: %v", err)
	}
	if _, err := New(Config{MaxMessage: -1}); err == nil {
		t.Error("negative MaxMessage")
	}
}

// A server of another release answers: one that still speaks our version, and
// one that does not.
func TestServerOfLaterRelease(t *testing.T) {
	refusal, err := (&hello.Answer{Least: 7, Greatest: 9, Refusal: &hello.Refusal{Code: hello.CodeVersion, Text: "too old"}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := legacyServer(t, func(c net.Conn) {
		if _, err := hello.ReadHello(c, 0); err == nil {
			c.Write(refusal)
		}
		io.Copy(io.Discard, c)
	})
	r := newRuntime(t, Config{}, nil)
	var no *RefusedError
	if _, err := r.Dial(testContext(t), addr, "test/1", DialConfig{}); !errors.As(err, &no) || !strings.Contains(err.Error(), "too old") {
		t.Errorf("got %v", err)
	}
}

// An answer that breaks the format is no sign of a legacy server: falling back
// would hide the fault.
func TestMalformedAnswer(t *testing.T) {
	answer, err := (&hello.Answer{Least: 1, Greatest: 1, Accept: &hello.Accept{Name: TransportTCP}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	answer[len(answer)-1] = 77 // of an address that is not there
	addr, accepted := legacyServer(t, func(c net.Conn) {
		if _, err := hello.ReadHello(c, 0); err == nil {
			c.Write(answer)
		}
		io.Copy(io.Discard, c)
	})
	r := newRuntime(t, Config{}, nil)
	for range 2 { // it is not remembered as one either
		_, err = r.Dial(testContext(t), addr, "test/1", DialConfig{})
		var legacy *LegacyPeerError
		if errors.As(err, &legacy) || !errors.Is(err, hello.ErrMalformed) {
			t.Errorf("got %v", err)
		}
		<-accepted
	}
}

// A server that has spoken Verbena and hangs up at a hello, as a flooded one does, is
// asked again.
func TestHangUpIsAskedAgain(t *testing.T) {
	p := worldOf(t, "tcp").pair(t, Config{}, ListenConfig{})
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	var passed, hungUp atomic.Int32
	go func() {
		for {
			conn, err := proxy.Accept()
			if err != nil {
				return
			}
			if passed.Load() > 0 && hungUp.Add(1) <= 3 {
				conn.Close()
				continue
			}
			passed.Add(1)
			server, err := net.Dial("tcp", p.listener.Addr().String())
			if err != nil {
				conn.Close()
				continue
			}
			go func() { io.Copy(server, conn); server.Close() }()
			go func() { io.Copy(conn, server); conn.Close() }()
		}
	}()
	for range 2 {
		e, err := p.client.Dial(p.ctx, proxy.Addr().String(), "test/1", DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		other, err := p.listener.Accept(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
	}
	if n := hungUp.Load(); n != 4 {
		t.Errorf("%d connections after the first, want 4", n)
	}
}

// Dials go through what the configuration connects by.
func TestConnect(t *testing.T) {
	ctx := testContext(t)
	far := newRuntime(t, Config{}, nil)
	l, err := far.Listen(ctx, "127.0.0.1:0", ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	near := newRuntime(t, Config{Connect: func(ctx context.Context, network, address string) (net.Conn, error) {
		if network != "tcp" || address != "far.example:1" {
			return nil, fmt.Errorf("connect by %s to %s", network, address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, l.Addr().String())
	}}, nil)
	ep, err := near.Dial(ctx, "far.example:1", "test", DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	other, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := ep.Send(ctx, 7, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	m, err := other.Receive(ctx)
	if err != nil || m.Tag != 7 || string(m.Bytes()) != "hello" {
		t.Fatal(m, err)
	}
	m.Release()
	if _, err := near.Dial(ctx, "elsewhere:1", "test", DialConfig{}); err == nil || !strings.Contains(err.Error(), "connect by tcp to elsewhere:1") {
		t.Error(err)
	}
}
