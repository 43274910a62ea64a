package rpc

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
)

// A bulk is a method with answers of 3 MiB: two of them are more than may wait
// for a client before its calls do.
type bulk struct {
	runs atomic.Int32
	turn chan struct{} // each call waits for one, unless it is nil
}

func (b *bulk) call(context.Context, *ping) (*ping, error) {
	if b.turn != nil {
		<-b.turn
	}
	b.runs.Add(1)
	return &ping{EffectiveUser: proto.String(strings.Repeat("x", 3<<20))}, nil
}

// sendCalls has a client send calls with ids from 0, and read no answers.
func sendCalls(t *testing.T, p *pipes, methods ...string) net.Conn {
	var frames []byte
	for id, method := range methods {
		frames = append(frames, callFrame(t, int32(id), testProtocol, method, 1, &ping{})...)
	}
	return sendFrames(t, p, frames)
}

func sendFrames(t *testing.T, p *pipes, frames []byte) net.Conn {
	nc, _ := p.dial(t.Context(), "")
	go nc.Write(join([]byte("hrpc\x09\x00\x00"), contextFrame(t), frames))
	synctest.Wait()
	return nc
}

func times(n int, method string) []string {
	return strings.Split(strings.Repeat(method+" ", n)[:n*(len(method)+1)-1], " ")
}

// atOnce checks that a call of a bystander is answered in no time.
func atOnce(t *testing.T, c *Conn) {
	t.Helper()
	start := time.Now()
	if err := c.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 0 { // in the bubble
		t.Errorf("a bystander's call took %v", took)
	}
}

// A client that reads no answers holds no handler, and its further calls wait
// unread.
func TestHandlersDoNotWaitForReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, inFlight = 20, 4
		var b bulk
		p := newPipes(Config{Handlers: 1, MaxInFlight: inFlight}, Methods{"bulk": Handle(b.call), "echo": Handle(echo)})
		nc := sendCalls(t, p, times(calls, "bulk")...)
		other := p.conn(t, ClientID{1}, "bob")
		atOnce(t, other)
		// Two are more than may wait; the calls under way then, and the one that
		// was being read, still run.
		if n := b.runs.Load(); n < 2 || n > 2+inFlight+1 {
			t.Errorf("%d of %d calls ran for a client that does not read", n, calls)
		}
		for want := b.runs.Load() + 1; b.runs.Load() < calls; want++ { // it reads after all
			if _, err := io.CopyN(io.Discard, nc, 3<<20); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		nc.Close()
		other.Close()
		p.stop()
	})
}

// Where more waits than the server keeps, the connection ends that lets the most
// wait.
func TestUnreadAnswersAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		calls []int // of each client
		ends  int   // the first of them
	}{
		"one connection":  {[]int{8, 3}, 1},
		"all connections": {[]int{6, 5, 5, 2}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := bulk{turn: make(chan struct{})}
				p := newPipes(Config{UnreadBytes: 32 << 20}, Methods{"bulk": Handle(b.call), "echo": Handle(echo)})
				start := time.Now()
				var clients []net.Conn
				for _, n := range test.calls {
					clients = append(clients, sendCalls(t, p, times(n, "bulk")...))
					for range n { // all are under way
						b.turn <- struct{}{}
					}
					synctest.Wait()
				}
				if n := p.open(); n != len(clients)-test.ends {
					t.Errorf("%d of %d connections are left", n, len(clients))
				}
				for i, nc := range clients {
					_, err := io.CopyN(io.Discard, nc, 3<<20)
					if ended := err != nil; ended != (i < test.ends) {
						t.Errorf("client %d: %v", i, err)
					}
				}
				other := p.conn(t, ClientID{1}, "bob")
				atOnce(t, other)
				if took := time.Since(start); took > 0 {
					t.Errorf("it took %v", took)
				}
				for _, nc := range clients {
					nc.Close()
				}
				other.Close()
				p.stop()
			})
		})
	}
}

// open is how many connections the server has.
func (p *pipes) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.Server.members)
}

// Who repeats a call and does not read keeps the answer from nobody else.
func TestRepetitionsDoNotWaitForReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bulk
		g := newGate()
		p := newPipes(Config{Handlers: 3}, Methods{"once": Handle(g.wait).Once(), "bulk": Handle(b.call), "echo": Handle(echo)})
		id := ClientID{7}
		first := p.conn(t, id, "ada")
		answered := make(chan error, 1)
		go func() { _, err := first.repeat(t.Context(), 0, 0, "once"); answered <- err }()
		synctest.Wait()
		header := requestHeader(0)
		header.ClientId = id[:]
		frames := frameOf(t, header, &rpcpb.RequestHeaderProto{
			MethodName: proto.String("once"), DeclaringClassProtocolName: proto.String(testProtocol), ClientProtocolVersion: proto.Uint64(1)}, &ping{})
		for id := range int32(3) {
			frames = append(frames, callFrame(t, 1+id, testProtocol, "bulk", 1, &ping{})...)
		}
		nc := sendFrames(t, p, frames)
		if n, waiting := g.runs.Load(), p.waiting(); n != 1 || waiting != 1 {
			t.Fatalf("%d runs, %d repetitions wait: the test shows nothing", n, waiting)
		}
		start := time.Now()
		close(g.opened)
		if err := <-answered; err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("the answer took %v", took)
		}
		nc.Close()
		first.Close()
		p.stop()
	})
}

// waiting is how many repetitions wait for the first call.
func (p *pipes) waiting() (n int) {
	p.retries.mu.Lock()
	defer p.retries.mu.Unlock()
	for _, e := range p.retries.entries {
		n += len(e.waiting)
	}
	return n
}

// A handler does not wait until its last words are out.
func TestFatalErrorDoesNotWaitForReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes(Config{Handlers: 1}, Methods{"echo": Handle(echo), "die": Handle(func(context.Context, *ping) (*ping, error) {
			return nil, fatal(codeApplication, "org.example.Gone", "")
		})})
		nc := sendCalls(t, p, "echo", "die")
		other := p.conn(t, ClientID{1}, "bob")
		atOnce(t, other)
		nc.Close()
		other.Close()
		p.stop()
	})
}

// An answer that comes after the fatal one does not destroy it.
func TestAnswersAfterTheFatalOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		p := newPipes(Config{}, Methods{"wait": Handle(g.wait), "die": Handle(func(context.Context, *ping) (*ping, error) {
			return nil, fatal(codeApplication, "org.example.Gone", "")
		})})
		nc := sendCalls(t, p, "wait", "die")
		close(g.opened)
		synctest.Wait()
		b, err := io.ReadAll(nc)
		if got := responses(t, b); err != nil || len(got) != 1 || got[0].GetStatus() != statusFatal {
			t.Errorf("%v, %v", got, err)
		}
		nc.Close()
		p.stop()
	})
}
