package verbena

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// A lockedBuffer is a log's.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Where nobody takes legacy connections they are closed, and the log says what to
// do about it, once.
func TestLegacyClientOfEndpointServer(t *testing.T) {
	var log lockedBuffer
	p := worlds[0].pair(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, ListenConfig{HelloTimeout: time.Hour})
	for range 3 {
		if err := <-silentClient(t, p.listener.Addr().String(), "GET / HTTP/1.1\r\n\r\n"); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Error(err)
		}
	}
	p.listener.awaitHandshakes(t, 0)
	if n := strings.Count(log.String(), "Listener.Legacy"); n != 1 {
		t.Errorf("told %d times: %s", n, log.String())
	}
	p.connect(t, "") // peers are served as before
}

// Legacy connections whose clients have gone do not wait for an Accept, and are
// not returned by one.
func TestLegacyClientsThatHaveGone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("this system does not tell that a peer has gone")
	}
	p := worlds[0].pair(t, Config{}, ListenConfig{HelloTimeout: time.Hour, Backlog: 2})
	legacy := p.listener.Legacy()
	p.listener.legacy.mu.Lock()
	p.listener.legacy.patience = 50 * time.Millisecond // with the client that closes
	p.listener.legacy.mu.Unlock()
	waiting := func() int {
		p.listener.legacy.mu.Lock()
		defer p.listener.legacy.mu.Unlock()
		return len(p.listener.legacy.waiting)
	}
	await := func(what string, want int) {
		t.Helper()
		for waiting() != want {
			if p.ctx.Err() != nil {
				t.Fatalf("%s: %d wait, want %d", what, waiting(), want)
			}
			runtime.Gosched()
		}
	}
	dial := func() *net.TCPConn {
		c, err := net.Dial("tcp", p.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "GET /")
		return c.(*net.TCPConn)
	}
	reset, closed := dial(), dial()
	await("both", 2)
	reset.SetLinger(0)
	reset.Close()
	closed.Close()
	await("none", 0)
	there := dial()
	defer there.Close()
	s, err := legacy.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.RemoteAddr().String() != there.LocalAddr().String() {
		t.Error("got the connection of a client that has gone")
	}
}
