package verbena

import (
	"bytes"
	"sync"
	"testing"
)

// Notifications that wait for handlers count as memory of their endpoint over TCP, so
// that a peer sends no more of them than that allows. Answers behind them still arrive,
// and when all are handled nothing is counted.
func TestWaitingNotificationsAreCharged(t *testing.T) {
	const (
		size = 4 << 20
		sent = 40
	)
	p := worldOf(t, TransportTCP).pair(t, Config{ReceiveMemory: 64 << 20}, ListenConfig{})
	a, b := p.connect(t, TransportTCP)
	mux := NewMux(MuxConfig{Handlers: 1})
	release, calling, answered := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once sync.Once
	var handled sync.WaitGroup
	mux.Long(methodBlock, func(q Request) {
		defer handled.Done()
		<-release
		once.Do(func() { // the answer comes behind notifications for which there is no memory
			close(calling)
			m, err := q.Caller().Call(p.ctx, methodEcho, []byte("hello"))
			if err == nil {
				m.Release()
			}
			answered <- err
		})
	})
	mux.Short(methodEcho, func(q Request) { _ = q.Reply(q.Payload()) })
	client, err := NewCaller(a, mux)
	if err != nil {
		t.Fatal(err)
	}
	server, err := NewCaller(b, mux)
	if err != nil {
		t.Fatal(err)
	}
	handled.Add(sent)
	var sender sync.WaitGroup
	sender.Go(func() {
		payload := make([]byte, size)
		for range sent {
			if err := client.Notify(p.ctx, methodBlock, payload); err != nil {
				t.Error(err)
				return
			}
		}
	})
	waiting := func() int {
		server.mu.Lock()
		defer server.mu.Unlock()
		return server.bytes
	}
	account := p.server.env.arriving
	s := b.carrier.(*stream)
	p.until(t, "the reader waits for memory", func() bool { return waiting() > mostAsking && s.hungry.Load() && account.Waiting() > 0 })
	// While this looks, some seconds may pass, and with them a message.
	if n := waiting(); n > mostAsking+4*size {
		t.Errorf("%d bytes of notifications wait", n)
	}
	if used := account.Used(); used < mostAsking {
		t.Errorf("%d bytes are counted, more than %d wait", used, mostAsking)
	}
	close(release)
	<-calling
	if err := <-answered; err != nil {
		t.Errorf("the call of a handler: %v", err)
	}
	sender.Wait()
	handled.Wait()
	p.until(t, "nothing is counted", func() bool { return account.Used() == 0 && s.asking.Load() == 0 })
	_ = client.Close()
	_ = server.Close()
	mux.Close()
}

// Answers of an endpoint that serves nothing stay in the receives that they came in, until
// an eighth of the window is left: that many callers may hold theirs before one is copied.
// Where requests are served, half of the window is kept for answers. However many are
// held, the next one comes.
func TestAnswersStayInTheirReceives(t *testing.T) {
	const window = 16
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			t.Skip("there are no receives")
		}
		t.Run("who only calls", func(t *testing.T) { testAnswersStay(t, w, window, nil, window-window/8) })
		t.Run("who serves", func(t *testing.T) { testAnswersStay(t, w, window, NewMux(MuxConfig{}), window/2) })
	})
}

// testAnswersStay holds more answers than the window and looks how many were not copied.
// The caller serves by own, if it does.
func testAnswersStay(t *testing.T, w world, window int, own *Mux, stay int) {
	p := w.pair(t, Config{Tuning: TuningTable{w.transport: {Window: window, MaxWindow: window}}}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	mux := NewMux(MuxConfig{})
	mux.Short(methodEcho, func(q Request) { _ = q.Reply(q.Payload()) })
	client, err := NewCaller(a, own)
	if err != nil {
		t.Fatal(err)
	}
	server, err := NewCaller(b, mux)
	if err != nil {
		t.Fatal(err)
	}
	payload := pattern(1<<10, 1)
	stayed := 0
	var held []*Message
	for i := range 3 * window {
		m, err := client.Call(p.ctx, methodEcho, payload)
		if err != nil {
			t.Fatalf("call %d, with as many answers held: %v", i, err)
		}
		held = append(held, m)
		if _, copied := m.owner.(*copied); !copied {
			stayed++
		}
	}
	// Where no message may wait for a receive, the window begins with one, which is not to be
	// held, and may have grown since.
	if s := a.carrier.(*shell); s.n.waits && stayed != stay || stayed > stay {
		t.Errorf("%d of %d answers lie in receives, want %d", stayed, len(held), stay)
	}
	for _, m := range held {
		if !bytes.Equal(m.Bytes(), payload) {
			t.Error("a held answer has changed")
		}
		m.Release()
	}
	_ = client.Close()
	_ = server.Close()
	mux.Close()
	if own != nil {
		own.Close()
	}
}
