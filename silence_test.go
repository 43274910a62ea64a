package verbena

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/link/wire"
)

// silentServers say nothing in the protocol of answers, and nothing in another.
var silentServers = map[string]func(net.Conn){
	"closes":                 func(net.Conn) {},
	"reads and closes":       func(c net.Conn) { c.Read(make([]byte, 8)) },
	"resets":                 func(c net.Conn) { c.Read(make([]byte, 1)); c.(*net.TCPConn).SetLinger(0) },
	"stays silent":           readAll,
	"magic and nothing more": func(c net.Conn) { c.Write(hello.Magic[:]); readAll(c) },
}

// Silence is remembered when the dialer has met it twice, each time with its own
// deadline, and every dial may go on plainly.
func TestSilence(t *testing.T) {
	for name, serve := range silentServers {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			addr, _ := legacyServer(t, serve)
			r := newRuntime(t, Config{HelloTimeout: 30 * time.Millisecond}, nil)
			var legacy *LegacyPeerError
			for dials := 1; ; dials++ {
				began := time.Now()
				_, err := r.Dial(ctx, addr, "test/1", DialConfig{})
				if !errors.As(err, &legacy) || legacy.Addr != addr || legacy.Err == nil {
					t.Fatalf("dial %d: %v", dials, err)
				}
				if !legacy.Until.IsZero() {
					if dials == 1 {
						t.Error("remembered at once")
					}
					break
				}
				if time.Since(began) > time.Minute {
					t.Fatal("never remembered")
				}
			}
			if _, err := r.Dial(ctx, addr, "test/1", DialConfig{}); !errors.As(err, &legacy) || legacy.Err != nil {
				t.Errorf("not told at once: %v", err)
			}
			r.Forget(addr)
			if _, err := r.Dial(ctx, addr, "test/1", DialConfig{}); !errors.As(err, &legacy) || !legacy.Until.IsZero() {
				t.Errorf("not forgotten: %v", err)
			}
		})
	}
}

// A dial that its own context cuts short, by a deadline or otherwise, tells nothing about
// the server.
func TestShortDialsRememberNothing(t *testing.T) {
	heard := make(chan struct{}, 1)
	addr, _ := legacyServer(t, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
			notify(heard)
		}
		readAll(c)
	})
	for name, cut := range map[string]func() (context.Context, context.CancelFunc){
		"deadline": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 60*time.Millisecond)
		},
		"cancelled": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-heard
				cancel()
			}()
			return ctx, cancel
		},
	} {
		t.Run(name, func(t *testing.T) {
			// A look in the background takes an hour, and so long two silences lie apart.
			r := newRuntime(t, Config{HelloTimeout: time.Hour}, nil)
			for range 4 {
				select {
				case <-heard: // the hello of such a look
				default:
				}
				ctx, cancel := cut()
				_, err := r.Dial(ctx, addr, "test/1", DialConfig{})
				cancel()
				if err == nil {
					t.Fatal("a server that says nothing was dialled")
				}
				r.peers.mu.Lock()
				if p := r.peers.peers[addr]; p != nil && !p.suspect.IsZero() {
					t.Errorf("counts as a silence: %v", err)
				}
				r.peers.mu.Unlock()
			}
			if _, _, known := r.peers.legacy(addr); known {
				t.Error("it counts as a legacy server")
			}
		})
	}
}

// Many dials that fail in one moment, as when a server restarts, count once.
func TestStormOfSilenceCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c peerCache
		const deadline, expiry = 2 * time.Second, time.Minute
		began := time.Now()
		for range 1400 {
			if _, remembered := c.silence("a", began.Add(time.Second), deadline, expiry); remembered {
				t.Fatal("remembered in one moment")
			}
			time.Sleep(time.Millisecond)
		}
		c.answered("a") // back again
		time.Sleep(deadline)
		if _, remembered := c.silence("a", time.Now(), deadline, expiry); remembered {
			t.Error("what was before the answer counts")
		}
		time.Sleep(deadline)
		if _, remembered := c.silence("a", time.Now(), deadline, expiry); !remembered {
			t.Error("not remembered after twice")
		}
		if _, silent, known := c.legacy("a"); !silent || !known {
			t.Error("not known as silent")
		}
		time.Sleep(expiry)
		if _, _, known := c.legacy("a"); known {
			t.Error("not forgotten")
		}
	})
}

// While silence is remembered the dialer looks again, not too often.
func TestLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c peerCache
		looks := 0
		for range 600 { // a minute of dials
			if c.look("a", time.Minute) {
				looks++
				if c.look("a", time.Minute) {
					t.Fatal("two looks at a time")
				}
				c.looked("a")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if looks < 4 || looks > 7 {
			t.Errorf("%d looks in a minute", looks)
		}
	})
}

// A server that was silent twice and has come to its senses is found again
// although nobody forgot it.
func TestSilentServerComesBack(t *testing.T) {
	ctx := testContext(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	gate := &gatedListener{Listener: ln}
	server := newRuntime(t, Config{}, nil)
	if _, err := server.NewListener(gate, ListenConfig{}); err != nil {
		t.Fatal(err)
	}
	r := newRuntime(t, Config{HelloTimeout: time.Second, LegacyExpiry: time.Hour}, nil)
	var legacy *LegacyPeerError
	for legacy == nil || legacy.Until.IsZero() {
		if _, err := r.Dial(ctx, addr, "test/1", DialConfig{}); !errors.As(err, &legacy) {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	gate.open.Store(true)
	for {
		e, err := r.Dial(ctx, addr, "test/1", DialConfig{})
		if err == nil {
			e.Close()
			return
		}
		if !errors.As(err, &legacy) && !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			t.Fatal(err)
		}
		runtime.Gosched() // to the dialer, which looks again in the background
	}
}

// A gatedListener closes connections at once until it is open.
type gatedListener struct {
	net.Listener
	open atomic.Bool
}

func (g *gatedListener) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil || g.open.Load() {
			return c, err
		}
		c.Close()
	}
}

// answersWith is a server that refuses the first hellos and accepts the next.
func answersWith(t *testing.T, code hello.Code, refusals int32) (addr string, asked *atomic.Int32) {
	asked = new(atomic.Int32)
	addr, _ = legacyServer(t, func(c net.Conn) {
		if _, err := hello.ReadHello(c, 0); err != nil {
			return
		}
		a := hello.Answer{Least: 1, Greatest: 1, Refusal: &hello.Refusal{Code: code, Text: "not now"}}
		if asked.Add(1) > refusals {
			a.Refusal, a.Accept = nil, &hello.Accept{Name: TransportTCP}
		}
		b, err := a.Encode()
		if err != nil {
			t.Error(err)
		}
		c.Write(b)
		if a.Accept != nil {
			var header [frameHeader]byte
			frame{kind: frameOpening, length: wire.ParametersSize}.put(&header)
			c.Write(wire.Parameters{MaxMessage: 1 << 20}.Append(header[:]))
			io.Copy(io.Discard, c)
		}
	})
	return addr, asked
}

// A busy server is asked again within the deadline; a closing one is not, but the
// caller learns that it may.
func TestBusyAndClosingServers(t *testing.T) {
	r := newRuntime(t, Config{}, nil)
	addr, asked := answersWith(t, hello.CodeBusy, 3)
	e, err := r.Dial(testContext(t), addr, "test/1", DialConfig{})
	if err != nil || asked.Load() != 4 {
		t.Fatalf("asked %d times: %v", asked.Load(), err)
	}
	e.Close()

	var no *RefusedError
	addr, asked = answersWith(t, hello.CodeBusy, 1<<30)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	go func() {
		for asked.Load() < 3 && ctx.Err() == nil {
			runtime.Gosched()
		}
		cancel()
	}()
	if _, err := r.Dial(ctx, addr, "test/1", DialConfig{}); !errors.As(err, &no) || !no.Temporary() {
		t.Errorf("busy to the end: %v", err)
	}
	addr, asked = answersWith(t, hello.CodeClosing, 1<<30)
	if _, err := r.Dial(testContext(t), addr, "test/1", DialConfig{}); !errors.As(err, &no) || !no.Temporary() || asked.Load() != 1 {
		t.Errorf("closing, asked %d times: %v", asked.Load(), err)
	}
}
