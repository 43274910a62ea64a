package verbena

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// When the memory for receives is promised away, the next endpoint is refused at
// once with the reason, so that the dial has time for the next transport.
func TestExhaustedMemoryIsRefusedAtOnce(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 4 << 20}, ListenConfig{})
	for n := 1; ; n++ {
		if n > 100 {
			t.Fatal("100 endpoints share 4 MiB")
		}
		ctx, cancel := context.WithTimeout(p.ctx, 4*time.Second)
		e, err := p.client.Dial(ctx, p.listener.Addr().String(), "test/1", DialConfig{})
		cancel()
		if err != nil {
			t.Fatalf("endpoint %d: %v", n, err)
		}
		defer func() { _ = e.Close() }()
		other, err := p.listener.Accept(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Close() }()
		s := e.Selection()
		if s.Transport == w.transport {
			continue
		}
		if reason := s.candidate(w.transport).Reason; s.Transport != TransportTCP || n < 4 || !strings.Contains(reason, "memory") && !strings.Contains(reason, "resources") {
			t.Errorf("endpoint %d: %s", n, s)
		}
		return
	}
}

// When the memory itself is in use, which others may give back at any time, an endpoint is
// refused at once, too: nobody waits for it and uses up the dial's time.
func TestUsedMemoryIsRefusedAtOnce(t *testing.T) {
	w := worldOf(t, "fakewarp") // where each endpoint needs receives of its own in the queue
	for name, poolOf := range map[string]func(*domain) *slab.Pool{
		"receives": func(n *domain) *slab.Pool { return n.receivePool },
		"sends":    func(n *domain) *slab.Pool { return n.sendPool },
	} {
		t.Run(name, func(t *testing.T) {
			p := w.pair(t, Config{ReceiveMemory: 8 << 20, SendMemory: 8 << 20}, ListenConfig{})
			p.connect(t, w.transport)
			giveBack := takeAll(t, poolOf(p.client.firstDomain(w.transport)))
			e, _ := p.connect(t, "")
			s := e.Selection()
			if reason := s.candidate(w.transport).Reason; s.Transport != TransportTCP || !strings.Contains(reason, slab.ErrExhausted.Error()) {
				t.Errorf("without memory: %s", s)
			}
			giveBack()
			p.connect(t, w.transport)
		})
	}
}

// promiseAllBut promises away the receives of a domain but for so many. The function returned gives
// them back.
func promiseAllBut(t *testing.T, n *domain, left int) (giveBack func()) {
	t.Helper()
	all := n.shares
	rest := all.receives - left - int(all.promised.Load())
	if err := all.reserve(rest); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() { _ = all.reserve(-rest) })
}

// A dial that has no other transport waits for the receives of a server that has promised
// all of them, until its deadline.
func TestDialWaitsForMemory(t *testing.T) {
	for _, name := range []string{"fakeband", "fakewarp", "iwarp"} {
		t.Run(name, func(t *testing.T) {
			w := worldOf(t, name)
			p := w.pair(t, Config{}, ListenConfig{})
			p.connect(t, w.transport)
			giveBack := promiseAllBut(t, p.server.firstDomain(w.transport), 0)
			defer giveBack()
			refusals := &p.server.firstDevice(w.transport).count.failed
			dialled := make(chan error, 1)
			go func() {
				e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Transport: w.transport})
				if err == nil {
					err = ask(p.ctx, e)
				}
				dialled <- err
			}()
			p.until(t, "the server refuses a second time", func() bool { return refusals.Load() > 1 || len(dialled) > 0 })
			p.answer(t)
			giveBack()
			if err := <-dialled; err != nil {
				t.Error(err)
			}

			defer promiseAllBut(t, p.server.firstDomain(w.transport), 0)()
			ctx, cancel := context.WithTimeout(p.ctx, time.Second) // the first refusal of a busy machine takes more than 0.1
			defer cancel()
			_, err := p.client.Dial(ctx, p.listener.Addr().String(), "test/1", DialConfig{Transport: w.transport})
			if none := (*SelectionError)(nil); !errors.As(err, &none) || !none.Temporary() || !strings.Contains(err.Error(), rejectNoResources) {
				t.Error("at its deadline a dial says", err)
			}
		})
	}
}

// While receives are scarce at either end endpoints get few, and pools do not keep them.
func TestScarceEndpointsAreNotKept(t *testing.T) {
	for _, name := range []string{"fakeband", "fakewarp", "iwarp"} {
		t.Run(name, func(t *testing.T) {
			w := worldOf(t, name)
			p := w.pair(t, Config{}, ListenConfig{})
			p.answer(t)
			pool := newPool(t, p.client, PoolConfig{Dial: DialConfig{Transport: w.transport}, IdleTimeout: time.Hour})
			defer pool.Close()
			get := func() *Endpoint {
				e, err := pool.Get(p.ctx, p.listener.Addr().String(), Intent{})
				if err != nil {
					t.Fatal(err)
				}
				if err := ask(p.ctx, e); err != nil {
					t.Fatal(err)
				}
				return e
			}
			e := get()
			if got := e.KeepFor(time.Hour); got != time.Hour {
				t.Errorf("with receives for many an endpoint is kept for %v", got)
			}
			e.Close()
			pool.Put(e)
			for _, r := range []*Runtime{p.server, p.client} {
				n := r.firstDomain(w.transport)
				giveBack := promiseAllBut(t, n, n.shares.receives/5)
				e := get()
				q := e.carrier.(*shell)
				if half := 1 + (q.t.Window-1)/2; r == p.client && q.window.base != half {
					t.Errorf("a window of %d was promised, although receives are scarce", q.window.base)
				}
				if got := e.KeepFor(time.Hour); got != scarceIdle {
					t.Errorf("an endpoint is kept for %v, although receives are scarce", got)
				}
				pool.Put(e)
				select {
				case <-e.done:
				case <-p.ctx.Done():
					t.Fatal("the pool keeps an endpoint, although receives are scarce")
				}
				giveBack()
			}
		})
	}
}

// A shortDevice lacks descriptors for a while.
type shortDevice struct {
	*fake.Device
	failures atomic.Int32 // to come
}

func (d *shortDevice) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	if d.failures.Add(-1) >= 0 {
		return nil, fmt.Errorf("no descriptor: %w", syscall.EMFILE)
	}
	return d.Device.OpenDomain(c)
}

type shortProvider struct{ device *shortDevice }

func (shortProvider) Name() string { return "short" }

func (p shortProvider) Devices(context.Context) ([]rdma.Device, error) {
	return []rdma.Device{p.device}, nil
}

// A device that could not be opened is tried again: the reason may have passed.
func TestDeviceIsOpenedAgain(t *testing.T) {
	network := fake.NewNetwork()
	device := func(name string) *shortDevice {
		c := fake.InfiniBand(name)
		c.Capabilities &^= rdma.CapStreams
		return &shortDevice{Device: network.NewDevice(c)}
	}
	client, server := device("a"), device("b")
	client.failures.Store(1)
	w := world{providers: func(testing.TB) (c, s []rdma.Provider) {
		return []rdma.Provider{shortProvider{client}}, []rdma.Provider{shortProvider{server}}
	}}
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, "")
	if s := a.Selection(); s.Transport != TransportTCP || !strings.Contains(s.candidate("short").Reason, "no descriptor") {
		t.Errorf("without descriptors: %s", s)
	}
	_, _ = a.Close(), b.Close()
	a, b = p.connect(t, "")
	if s := a.Selection(); s.Transport != "short" {
		t.Errorf("afterwards: %s", s)
	}
	_, _ = a.Close(), b.Close()
}

// A lateProvider cannot list its devices at first.
type lateProvider struct {
	rdma.Provider
	failures atomic.Int32 // to come
	asked    atomic.Int32
	reason   error
}

func (p *lateProvider) Devices(ctx context.Context) ([]rdma.Device, error) {
	p.asked.Add(1)
	if p.failures.Add(-1) >= 0 {
		return nil, fmt.Errorf("%w: %w", rdma.ErrUnavailable, p.reason)
	}
	return p.Provider.Devices(ctx)
}

// A provider that could not list its devices for a reason that passes is asked again,
// after a pause, by either end. One that lacks something for good is not.
func TestProviderIsAskedAgain(t *testing.T) {
	for _, c := range []struct {
		client, server int32 // failures
		reason         error
		passes         bool
	}{
		{2, 0, syscall.EMFILE, true}, {0, 2, syscall.ENFILE, true}, {1, 1, syscall.ENOMEM, true}, {1, 0, syscall.ENOENT, false},
	} {
		t.Run(c.reason.Error(), func(t *testing.T) {
			t.Parallel()
			w := worldOf(t, "fakeband")
			a, b := w.providers(t)
			client, server := &lateProvider{Provider: a[0], reason: c.reason}, &lateProvider{Provider: b[0], reason: c.reason}
			client.failures.Store(c.client)
			server.failures.Store(c.server)
			late := world{providers: func(testing.TB) (c, s []rdma.Provider) { return []rdma.Provider{client}, []rdma.Provider{server} }}
			p := late.pair(t, Config{}, ListenConfig{})
			if err := p.client.Stats().Unavailable[w.transport]; (err != nil) != (c.client > 0) {
				t.Errorf("%v: %v", c.reason, err)
			}
			dial := func() Selection {
				a, b := p.connect(t, "")
				defer b.Close()
				defer a.Close()
				return a.Selection()
			}
			first := dial()
			asked := client.asked.Load() + server.asked.Load()
			switch reason := first.candidate(w.transport).Reason; {
			case asked > 2: // a pause was over already
			case first.Transport != TransportTCP || first.Passing() != c.passes:
				t.Errorf("%v: %s", c.reason, first)
			case c.client > 0 && (!strings.Contains(reason, c.reason.Error()) || strings.Contains(reason, "looked for again after") != c.passes):
				t.Errorf("%v: %s", c.reason, first)
			}
			if !c.passes {
				if !p.client.transport(w.transport).listed.Load().next.IsZero() || asked != 2 {
					t.Errorf("%v: asked %d times, and to be asked again", c.reason, asked)
				}
				return
			}
			for dial().Transport != w.transport { // it takes 1 s, or 3 if there are two failures
				if p.ctx.Err() != nil {
					t.Fatalf("%v: never again", c.reason)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if n := client.asked.Load() + server.asked.Load(); n != 2+c.client+c.server {
				t.Errorf("%v: they were asked %d times", c.reason, n)
			}
		})
	}
}
