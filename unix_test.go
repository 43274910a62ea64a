package verbena

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Unix sockets are dialled and listened on like TCP ports, and tell whose process
// the peer is.
func TestUnixSockets(t *testing.T) {
	addresses := map[string]string{"path": "unix:" + filepath.Join(t.TempDir(), "s")}
	if runtime.GOOS == "linux" {
		addresses["abstract"] = "unix:@" + filepath.Join(t.TempDir(), "s")
	}
	for name, addr := range addresses {
		t.Run(name, func(t *testing.T) {
			n := newTestNet()
			ctx := testContext(t)
			client, server := newRuntime(t, Config{}, n.client), newRuntime(t, Config{}, n.server)
			l, err := server.Listen(ctx, addr, ListenConfig{})
			if err != nil {
				t.Fatal(err)
			}
			legacy := l.Legacy()
			for _, transport := range []string{"", TransportTCP} {
				e, err := client.Dial(ctx, addr, "test/1", DialConfig{Transport: transport})
				if err != nil {
					t.Fatal(err)
				}
				other, err := l.Accept(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, end := range []*Endpoint{e, other} {
					who, ok := end.Peer()
					if runtime.GOOS == "linux" && (!ok || who.PID != os.Getpid() || who.UID != uint32(os.Geteuid())) {
						t.Errorf("over %s: peer %+v, %t", end.Selection().Transport, who, ok)
					}
				}
				if err := e.Send(ctx, 3, []byte("works")); err != nil {
					t.Fatal(err)
				}
				m, err := other.Receive(ctx)
				if err != nil || string(m.Bytes()) != "works" {
					t.Fatal(m, err)
				}
				m.Release()
				e.Close()
				other.Close()
			}
			var failed *SelectionError
			if _, err := client.Dial(ctx, addr, "test/1", DialConfig{Transport: "far"}); !errors.As(err, &failed) {
				t.Errorf("a provider that runs on TCP: %v", err)
			}
			network, address := splitAddress(addr)
			c, err := net.Dial(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			io.WriteString(c, "GET /")
			plain, err := legacy.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			b := make([]byte, 5)
			if _, err := io.ReadFull(plain, b); err != nil || string(b) != "GET /" {
				t.Errorf("a legacy client's %q, %v", b, err)
			}
			if _, ok := plain.(*net.UnixConn); !ok {
				t.Errorf("handed on as %T", plain)
			}
		})
	}
}

// The socket of a process that was killed is in nobody's way; one that is served
// is.
func TestStaleUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	r := newRuntime(t, Config{}, nil)
	ctx := testContext(t)
	if _, err := r.Listen(ctx, "unix:"+path, ListenConfig{}); err == nil {
		t.Error("took the socket of a server that runs")
	}
	old.Close()
	l, err := r.Listen(ctx, "unix:"+path, ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := r.Dial(ctx, l.Addr().String(), "test/1", DialConfig{}); err != nil {
		t.Errorf("by the address that the listener has: %v", err)
	} else {
		e.Close()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Listen(ctx, "unix:"+path, ListenConfig{}); err == nil {
		t.Error("took the place of a file")
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("removed a file: %v", err)
	}
}

// Endpoints over a device tell whose process the peer is if the device knows.
func TestPeerOverDevice(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, "")
		for _, e := range []*Endpoint{a, b} {
			who, ok := e.Peer()
			if want := w.name == "fakeband" || w.name == "fakewarp"; want && (!ok || who.PID != os.Getpid()) || w.name == "tcp" && ok {
				t.Errorf("peer %+v, %t", who, ok)
			}
		}
	})
}
