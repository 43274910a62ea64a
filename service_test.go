package verbena

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"
)

func TestServices(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{Services: []string{"own/1"}})
	addr := p.listener.Addr().String()
	serve := func(name string) *Service {
		s, err := p.listener.Service(name, ServiceConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	dial := func(name string) error {
		e, err := p.client.Dial(p.ctx, addr, name, DialConfig{})
		if err == nil {
			t.Cleanup(func() { e.Close() })
		}
		return err
	}
	a, b := serve("a/1"), serve("b/1")
	for _, name := range []string{"b/1", "own/1", "a/1"} {
		if err := dial(name); err != nil {
			t.Fatal(err)
		}
	}
	// Each has its own queue, whatever the order.
	for name, accept := range map[string]func(context.Context) (*Endpoint, error){"a/1": a.Accept, "b/1": b.Accept, "own/1": p.listener.Accept} {
		if e, err := accept(p.ctx); err != nil || e.Service() != name {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	var no *RefusedError
	if err := dial("c/1"); !errors.As(err, &no) {
		t.Errorf("an unknown service: %v", err)
	}
	if _, err := p.listener.Service("a/1", ServiceConfig{}); err == nil {
		t.Error("registered twice")
	}
	for _, name := range []string{"", "with space"} {
		if _, err := p.listener.Service(name, ServiceConfig{}); err == nil {
			t.Errorf("%q is registered", name)
		}
	}
	// One goes: what waits is closed, whoever waits is told, new dials are refused,
	// and the others go on.
	e, err := p.client.Dial(p.ctx, addr, "a/1", DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for len(a.endpoints) == 0 {
		runtime.Gosched()
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	<-e.Done()
	e.Close()
	if _, err := a.Accept(p.ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("Accept of a closed service: %v", err)
	}
	if err := dial("a/1"); !errors.As(err, &no) {
		t.Errorf("a closed service: %v", err)
	}
	if err := dial("b/1"); err != nil {
		t.Error(err)
	}
	a = serve("a/1") // and comes back
	if err := dial("a/1"); err != nil {
		t.Error(err)
	}
	if a.Name() != "a/1" || a.Addr().String() != addr {
		t.Error(a.Name(), a.Addr())
	}
	accepting := make(chan error, 1)
	go func() {
		for {
			if _, err := a.Accept(p.ctx); err != nil {
				accepting <- err
				return
			}
		}
	}()
	if err := p.listener.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepting; !errors.Is(err, ErrClosed) {
		t.Errorf("Accept when the listener closes: %v", err)
	}
	if _, err := p.listener.Service("d/1", ServiceConfig{}); !errors.Is(err, ErrClosed) {
		t.Errorf("registered with a closed listener: %v", err)
	}
}

// A listener without a list takes any service, until one is registered.
func TestServicesAreListed(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{})
	p.connect(t, "")
	s, err := p.listener.Service("a/1", ServiceConfig{Backlog: 1})
	if err != nil {
		t.Fatal(err)
	}
	var no *RefusedError
	if _, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{}); !errors.As(err, &no) {
		t.Errorf("got %v", err)
	}
	if cap(s.endpoints) != 1 {
		t.Errorf("%d may wait", cap(s.endpoints))
	}
	none, err := p.server.Listen(p.ctx, "127.0.0.1:0", ListenConfig{Services: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.client.Dial(p.ctx, none.Addr().String(), "test/1", DialConfig{}); !errors.As(err, &no) {
		t.Errorf("got %v", err)
	}
}

// A service that nobody accepts from does not stop the others, and closing it
// does not wait for the peers in its queue.
func TestFullServiceStopsNobody(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{HelloTimeout: time.Hour})
		full, err := p.listener.Service("full/1", ServiceConfig{Backlog: 1})
		if err != nil {
			t.Fatal(err)
		}
		good, err := p.listener.Service("good/1", ServiceConfig{})
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "full/1", DialConfig{})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
		}
		e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "good/1", DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if _, err := good.Accept(p.ctx); err != nil {
			t.Fatal(err)
		}
		if err := full.Close(); err != nil {
			t.Error(err)
		}
	})
}
