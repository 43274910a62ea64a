package verbena

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
)

func TestLegacyClients(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{})
	legacy := p.listener.Legacy()
	for _, first := range []string{"hrpc\x09\x00\x00", "\x00\x1c\x51", "GET / HTTP/1.1\r\n\r\n", "\x89VRB", "x"} {
		c, err := net.Dial("tcp", p.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, first)
		c.(*net.TCPConn).CloseWrite()
		s, err := legacy.Accept()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(s)
		if err != nil || string(b) != first {
			t.Errorf("got %q, %v", b, err)
		}
		if _, err := io.WriteString(s, "answer"); err != nil {
			t.Error(err)
		}
		s.Close()
		if b, err := io.ReadAll(c); err != nil || string(b) != "answer" {
			t.Errorf("got %q, %v", b, err)
		}
		c.Close()
	}
	// Verbena peers come on the same port.
	p.connect(t, "")
	if legacy.Addr().String() != p.listener.Addr().String() {
		t.Error("address")
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := legacy.Accept()
		accepted <- err
	}()
	legacy.Close()
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// silentClient connects, says first and then nothing, and reports how the
// server ended it.
func silentClient(t *testing.T, addr, first string) (ended chan error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	io.WriteString(c, first)
	ended = make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	}()
	return ended
}

func TestSilentClientsAreClosed(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{HelloTimeout: 50 * time.Millisecond})
	h := hello.Hello{Least: 1, Greatest: 1, Service: "test/1", Candidates: []hello.Candidate{{Name: "tcp"}}}
	whole, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, first := range map[string]string{
		"nothing": "", "part of the magic": "\x89VRB", "part of the header": string(whole[:10]),
		"part of the hello": string(whole[:20]), "no opening": string(whole),
	} {
		if err := <-silentClient(t, p.listener.Addr().String(), first); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.listener.awaitHandshakes(t, 0)
}

// awaitHandshakes waits until no more than n handshakes are counted.
func (l *Listener) awaitHandshakes(t *testing.T, n int) {
	t.Helper()
	for ctx := testContext(t); ctx.Err() == nil; runtime.Gosched() {
		l.mu.Lock()
		total := l.admission.total
		l.mu.Unlock()
		if total <= n {
			return
		}
	}
	t.Errorf("more than %d handshakes are counted", n)
}

// A client that hangs up in the middle of a handshake, as one does that is killed, is
// nothing to warn of. One that breaks the protocol is.
func TestHangUpIsNoWarning(t *testing.T) {
	whole, err := (&hello.Hello{Least: 1, Greatest: 1, Service: "test/1", Candidates: []hello.Candidate{{Name: "tcp"}}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		half   bool // of the hello
		reset  bool
		more   string // behind the hello
		warned bool
	}{
		{name: "in the hello", half: true},
		{name: "closes where an opening is due"},
		{name: "resets where an opening is due", reset: true},
		{name: "sends no opening", more: strings.Repeat("?", 100), warned: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log lockedBuffer
			p := worlds[0].pair(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, ListenConfig{HelloTimeout: time.Hour})
			var conn net.Conn
			if c.half {
				if conn, err = net.Dial("tcp", p.listener.Addr().String()); err == nil {
					_, err = conn.Write(whole[:20])
				}
			} else if conn, _, err = exchange(t, p.listener.Addr().String(), whole); err == nil {
				_, err = io.WriteString(conn, c.more)
			}
			if err != nil {
				t.Fatal(err)
			}
			tcp := conn.(*net.TCPConn)
			if c.reset {
				err = errors.Join(tcp.SetLinger(0), tcp.Close())
			} else {
				_ = tcp.CloseWrite()            // the server may have closed it
				_, _ = io.Copy(io.Discard, tcp) // until it has
				err = tcp.Close()
			}
			if err != nil {
				t.Error(err)
			}
			p.listener.awaitHandshakes(t, 0)
			if warned := strings.Contains(log.String(), "level=WARN"); warned != c.warned {
				t.Errorf("warned: %t, want %t\n%s", warned, c.warned, log.String())
			}
		})
	}
}

// More incomplete connections than there may be handshakes keep nobody out,
// whatever they have said, from the same address or another one.
func TestFlood(t *testing.T) {
	whole, err := (&hello.Hello{Least: 1, Greatest: 1, Service: "test/1", Candidates: []hello.Candidate{{Name: "tcp"}}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, first := range map[string]string{
		"nothing": "", "the magic": string(hello.Magic[:]), "half a hello": string(whole[:20]), "a hello, no opening": string(whole),
	} {
		t.Run(name, func(t *testing.T) {
			p := worlds[0].pair(t, Config{}, ListenConfig{MaxHandshakes: 8, HelloTimeout: time.Hour})
			for range 40 {
				silentClient(t, p.listener.Addr().String(), first)
			}
			a, b := p.connect(t, "")
			if err := a.Send(p.ctx, 1, nil); err != nil {
				t.Fatal(err)
			}
			if m, err := b.Receive(p.ctx); err != nil {
				t.Fatal(err)
			} else {
				m.Release()
			}
			p.listener.awaitHandshakes(t, 4)
		})
	}
}

func TestListenerCloses(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{HelloTimeout: time.Hour})
	ended := silentClient(t, p.listener.Addr().String(), "")
	waiting := silentClient(t, p.listener.Addr().String(), "legacy, and never accepted")
	dialled, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	accept := make(chan error, 2)
	legacy := p.listener.Legacy()
	go func() {
		for {
			_, err := p.listener.Accept(p.ctx)
			if err != nil {
				accept <- err
				return
			}
		}
	}()
	if err := p.listener.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accept; !errors.Is(err, ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	<-ended
	<-waiting
	if _, err := legacy.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Legacy: %v", err)
	}
	dialled.Close()
	if err := p.listener.Close(); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestEndpointsThatNobodyAccepts(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{Backlog: 1, HelloTimeout: 300 * time.Millisecond})
		var ends []*Endpoint
		for len(ends) < 3 {
			e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{})
			switch {
			case err == nil:
				ends = append(ends, e)
			case p.ctx.Err() != nil:
				t.Fatal(err)
			} // else the handshake, too, took longer than HelloTimeout
		}
		// One waits; the others are closed in the end.
		closed := 0
		for closed < 2 {
			select {
			case <-ends[0].Done():
				ends[0] = ends[len(ends)-1]
			case <-ends[1].Done():
				ends[1] = ends[len(ends)-1]
			case <-ends[len(ends)-1].Done():
			case <-p.ctx.Done():
				t.Fatal("they are not closed")
			}
			ends = ends[:len(ends)-1]
			closed++
			if len(ends) == 1 {
				break
			}
		}
		if _, err := p.listener.Accept(p.ctx); err != nil {
			t.Error(err)
		}
	})
}

// exchange says first to the server as a peer that is not us and returns its
// answer.
func exchange(t *testing.T, addr string, first []byte) (net.Conn, hello.Answer, error) {
	return exchangeFrom(t, "127.0.0.1", addr, first)
}

// exchangeFrom is exchange by a host with another address.
func exchangeFrom(t *testing.T, host, addr string, first []byte) (net.Conn, hello.Answer, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	c, err := d.Dial("tcp", addr)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip("this system has one loopback address")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Write(first); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(time.Minute))
	a, err := hello.ReadAnswer(c)
	return c, a, err
}

func TestHellosOfOtherReleases(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{Services: []string{"test/1"}})
	addr := p.listener.Addr().String()
	ours := hello.Hello{Least: 1, Greatest: 1, Service: "test/1", Candidates: []hello.Candidate{{Name: "quantum"}, {Name: "tcp"}}}
	encode := func(change func(*hello.Hello)) []byte {
		h := ours
		if change != nil {
			change(&h)
		}
		b, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	extend := func(b []byte, more string) []byte {
		b = append(b, more...)
		binary.BigEndian.PutUint16(b[10:], uint16(len(b)))
		return b
	}
	for _, c := range []struct {
		name   string
		first  []byte
		accept string
		code   hello.Code
	}{
		{"ours", encode(nil), "tcp", 0},
		{"later, speaks ours, too", encode(func(h *hello.Hello) { h.Greatest = 9 }), "tcp", 0},
		{"later, with optional values", extend(encode(nil), "\x0f\xff\x00\x03abc"), "tcp", 0},
		{"later only", encode(func(h *hello.Hello) { h.Least, h.Greatest = 2, 3 }), "", hello.CodeVersion},
		{"later, with critical values", extend(encode(nil), "\x8f\xff\x00\x03abc"), "", hello.CodeCritical},
		{"malformed", extend(encode(nil), "\x0f\xff\x00\x09abc"), "", hello.CodeMalformed},
		{"other service", encode(func(h *hello.Hello) { h.Service = "other/1" }), "", hello.CodeService},
		{"no transport that is known", encode(func(h *hello.Hello) { h.Candidates = h.Candidates[:1] }), "", hello.CodeNoTransport},
		{"no transport at all", encode(func(h *hello.Hello) { h.Candidates = nil }), "", hello.CodeNoTransport},
	} {
		conn, a, err := exchange(t, addr, c.first)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		switch {
		case c.accept != "":
			if a.Accept == nil || a.Accept.Name != c.accept || a.Least != 1 || a.Greatest != 1 {
				t.Errorf("%s: %+v", c.name, a)
			}
			if len(a.Verdicts) != 1 || a.Verdicts[0].Name != "quantum" {
				t.Errorf("%s: verdicts %+v", c.name, a.Verdicts)
			}
		default:
			if a.Refusal == nil || a.Refusal.Code != c.code || a.Refusal.Text == "" {
				t.Errorf("%s: %+v", c.name, a)
			}
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: the connection goes on", c.name)
			}
		}
	}
}

// A token works once, and only a token of ours.
func TestTokens(t *testing.T) {
	var w world
	for _, w = range worlds {
		if w.name == "fakeband" {
			break
		}
	}
	p := w.pair(t, Config{}, ListenConfig{})
	h := hello.Hello{Least: 1, Greatest: 1, Service: "test/1", Host: p.client.host[:], Candidates: []hello.Candidate{{Name: w.name}, {Name: "tcp"}}}
	first, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	conn, a, err := exchange(t, p.listener.Addr().String(), first)
	if err != nil || a.Accept == nil || len(a.Accept.Token) != hello.TokenSize || a.Accept.Address == "" {
		t.Fatal(a, err)
	}
	connect := func(token []byte) error {
		ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
		defer cancel()
		e := p.client.own.newEndpoint(nil, "test/1", conn.LocalAddr(), conn.RemoteAddr(), Selection{})
		err := p.client.own.connectAddress(ctx, p.client.transports[0].devices()[0], e, a.Accept.Address, token)
		if err == nil {
			t.Cleanup(func() { e.Close() })
		}
		return err
	}
	wrong := append([]byte(nil), a.Accept.Token...)
	wrong[3]++
	for name, token := range map[string][]byte{"none": nil, "short": wrong[:5], "wrong": wrong} {
		if err := connect(token); err == nil {
			t.Errorf("%s: connected", name)
		}
	}
	if err := connect(a.Accept.Token); err != nil {
		t.Fatal(err)
	}
	if _, err := p.listener.Accept(p.ctx); err != nil {
		t.Fatal(err)
	}
	if err := connect(a.Accept.Token); err == nil || !strings.Contains(err.Error(), "unknown token") {
		t.Errorf("a second time: %v", err)
	}
	if n := len(p.server.tickets.pending); n != 0 {
		t.Errorf("%d tickets are left", n)
	}
}
