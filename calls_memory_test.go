package verbena

import (
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
