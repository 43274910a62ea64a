package verbena

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

// Close hands over the answers that handlers have given and that found no room yet.
func TestCloseSendsAnswers(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		answered, release := c.holdAnswers(t, p, 5)
		closed := make(chan error, 1)
		go func() { closed <- c.b.Close() }()
		p.until(t, "it closes", c.b.e.closing.Load)
		release()
		for range 5 {
			if err := <-answered; err != nil {
				t.Error(err)
			}
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := c.a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Close says so when it could not hand them over in time.
func TestCloseTellsOfAnswers(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{Linger: 20 * time.Millisecond}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		answered, release := c.holdAnswers(t, p, 1)
		closed := make(chan error, 1)
		go func() { closed <- c.b.Close() }()
		<-c.b.e.Done() // it gives up
		release()
		if err := <-closed; !errors.Is(err, ErrNotDelivered) {
			t.Errorf("Close of an endpoint with an answer: %v", err)
		}
		if err := <-answered; !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("the call: %v", err)
		}
	})
}

// holdSends has nothing sent on an endpoint, as a Send does that waits.
func holdSends(e *Endpoint) (release func()) {
	sending := func(bool) {}
	if s, ok := e.carrier.(*shell); ok {
		sending = func(is bool) {
			s.mu.Lock()
			s.out.busy = is
			s.mu.Unlock()
		}
	}
	e.sendLock <- struct{}{}
	sending(true)
	return func() {
		sending(false)
		<-e.sendLock
	}
}

// holdAnswers makes calls while nothing of the server's is sent. It returns when their
// answers wait.
func (c *callers2) holdAnswers(t *testing.T, p *pair, calls int) (answered chan error, release func()) {
	t.Helper()
	m, err := c.a.Call(p.ctx, methodEcho, nil) // the greetings have gone
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
	release = holdSends(c.b.e)
	answered = make(chan error, calls)
	for i := range calls {
		go func() {
			want := bytes.Repeat([]byte{byte(i)}, 1000)
			m, err := c.a.Call(p.ctx, methodEcho, want)
			if err == nil {
				if !bytes.Equal(m.Bytes(), want) {
					err = errors.New("another answer")
				}
				m.Release()
			}
			answered <- err
		}()
	}
	p.until(t, "the answers wait", func() bool {
		c.b.mu.Lock()
		defer c.b.mu.Unlock()
		return c.b.out.bytes == calls*1000 // with those of the one that the sender has
	})
	return answered, release
}
