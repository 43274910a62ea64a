package verbena

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// A running context is one of which the test says how much time is left.
type running struct {
	context.Context
	left  atomic.Int64
	once  sync.Once
	waits chan struct{} // closed when somebody begins to wait
}

func (p *running) Deadline() (time.Time, bool) {
	return time.Now().Add(time.Duration(p.left.Load())), true
}

func (p *running) Done() <-chan struct{} {
	p.once.Do(func() { close(p.waits) })
	return p.Context.Done()
}

// holdTurn keeps messages of e from being sent until the returned function is called.
func holdTurn(e *Endpoint) (release func()) {
	e.sendLock <- struct{}{}
	s, ok := e.carrier.(*shell)
	if ok {
		s.setBusy(true)
	}
	return func() {
		if ok {
			s.setBusy(false)
		}
		<-e.sendLock
	}
}

// fill has no message go out at once until the returned function is called: nothing comes
// back from the peer, or is written to the socket.
func (p *pair) fill(w world, e *Endpoint) (release func()) {
	s, ok := e.carrier.(*stream)
	if !ok {
		device := p.client.firstDevice(w.transport).dev.(*fake.Device)
		device.HoldCompletions(true)
		s := e.carrier.(*shell)
		room := func() bool {
			s.w.pollAll(true) // what has come before
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.m.MaySend()
		}
		for room() {
			e.TrySend(junk, []byte("junk")) // it may be false for a moment
		}
		return func() { device.HoldCompletions(false) }
	}
	pend := func(n int) {
		s.mu.Lock()
		s.pending += n
		s.mu.Unlock()
		notify(s.drained)
	}
	pend(backlogLimit)
	return func() { pend(-backlogLimit) }
}

// junk is the tag of messages that fill the peer.
const junk = 77

// A request that waits for its turn, or for the peer, tells what is left of its time when it
// goes out. One that has none left by then is not sent.
func TestTimeLeftIsThatOfSending(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		ways := map[string]func(c *Caller, ctx context.Context, payload []byte) error{
			"call":   func(c *Caller, ctx context.Context, payload []byte) error { return c.Notify(ctx, methodCount, payload) },
			"joined": callJoined,
			"buffer": callBuffer,
		}
		for way, do := range ways {
			for _, size := range []int{10, 1 << 10, 100 << 10} {
				for _, full := range []bool{false, true} {
					if full && w.transport != TransportTCP && w.name != "fakeband" {
						continue // its devices keep no completions back, or it waits for receives for answers first
					}
					for _, left := range []time.Duration{time.Second, -time.Second} {
						if left < 0 && size != 1<<10 {
							continue
						}
						t.Run(fmt.Sprintf("%s/%d/full=%t/%v", way, size, full, left), func(t *testing.T) {
							waitingRequest(t, w, full, left, func(c *Caller, ctx context.Context) error { return do(c, ctx, make([]byte, size)) })
						})
					}
				}
			}
		}
	})
}

func callJoined(c *Caller, ctx context.Context, payload []byte) error {
	m, err := c.CallJoined(ctx, methodCount, payload[:4], payload[4:])
	if err == nil {
		m.Release()
	}
	return err
}

func callBuffer(c *Caller, ctx context.Context, payload []byte) error {
	b, err := c.Buffer(context.Background(), len(payload))
	if err != nil {
		return err
	}
	m, err := c.CallBuffer(ctx, methodCount, b)
	if err == nil {
		m.Release()
	}
	return err
}

// waitingRequest has a request wait while the time that it has shrinks to left.
func waitingRequest(t *testing.T, w world, full bool, left time.Duration, do func(*Caller, context.Context) error) {
	p := w.pair(t, Config{}, ListenConfig{})
	a, peer := p.connect(t, "")
	c, err := NewCaller(a, nil)
	if err != nil {
		t.Fatal(err)
	}
	greeting := call.Header{Kind: call.Greeting, Value: 9}
	if err := peer.Send(p.ctx, call.Revision, greeting.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := c.Notify(p.ctx, methodFail, nil); err != nil { // the greeting is here then
		t.Fatal(err)
	}
	var release func()
	if full {
		release = p.fill(w, a)
	} else {
		release = holdTurn(a)
	}
	ctx := &running{Context: p.ctx, waits: make(chan struct{})}
	ctx.left.Store(int64(time.Hour))
	did := make(chan error, 1)
	go func() { did <- do(c, ctx) }()
	select {
	case <-ctx.waits:
	case err := <-did:
		t.Fatalf("it did not wait: %v", err)
	}
	ctx.left.Store(int64(left))
	release()
	if left > 0 {
		if told := timeTold(t, p.ctx, peer); told <= 0 || told > left {
			t.Errorf("a request with %v left tells the peer %v", left, told)
		}
	} else {
		go func() { // it makes room
			for {
				m, err := peer.Receive(p.ctx)
				if err != nil {
					return
				}
				sent := m.Tag == methodCount
				if m.Release(); sent {
					_ = peer.Close() // its caller hears
					return
				}
			}
		}()
		if err := <-did; !errors.Is(err, ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request whose time was over before its turn: %v", err)
		}
		did <- nil
	}
	_ = peer.Close()
	_ = c.Close()
	<-did
}

// timeTold receives messages up to the request with a deadline, and returns that.
func timeTold(t *testing.T, ctx context.Context, e *Endpoint) time.Duration {
	t.Helper()
	for {
		m, err := e.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		tag, h := m.Tag, call.Header{}
		if tag == methodCount {
			h, err = call.Parse(m.Bytes())
		}
		m.Release()
		if err != nil {
			t.Fatal(err)
		}
		if tag == methodCount {
			return call.Wait(h.Value)
		}
	}
}
