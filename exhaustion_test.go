package verbena

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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

// A second Release of a message does no harm, whatever carries the endpoint.
func TestSecondReleaseIsHarmless(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		for i := range 20 {
			for _, size := range []int{0, 100, 5000, 700 << 10} {
				want := pattern(size, i)
				sent := make(chan error, 1)
				go func() { sent <- a.Send(p.ctx, uint32(i), want) }()
				m, err := b.Receive(p.ctx)
				if err := errors.Join(err, <-sent); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(m.Bytes(), want) {
					t.Fatalf("wrong bytes in message %d", i)
				}
				m.Release()
				m.Release()
			}
		}
		if err := errors.Join(a.Close(), b.Close(), p.client.Close(), p.server.Close()); err != nil {
			t.Error(err)
		}
		if d := p.server.firstDomain(w.transport); d != nil {
			if _, err := d.domain.Allocate(4096, 0); !errors.Is(err, rdma.ErrClosed) {
				t.Errorf("the domain is still there: %v", err)
			}
		}
	})
}

// A second Release takes nothing from messages that have come into the same receives
// since, and wait for Receive.
func TestSecondReleaseLeavesWaitingMessages(t *testing.T) {
	for _, w := range worlds {
		if w.transport == TransportTCP {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			const count = 16
			p := w.pair(t, Config{Tuning: TuningTable{w.transport: {Window: count}}}, ListenConfig{})
			a, b := p.connect(t, w.transport)
			released := map[*Message]bool{}
			for i := range 64 * count { // each of the receives has been used by then
				if err := a.Send(p.ctx, uint32(i), pattern(100, i)); err != nil {
					t.Fatal(err)
				}
				m, err := b.Receive(p.ctx)
				if err != nil {
					t.Fatal(err)
				}
				m.Release()
				released[m] = true
			}
			s := b.carrier.(*shell)
			waiting := func() (all, again int) {
				s.mu.Lock()
				defer s.mu.Unlock()
				for _, c := range *s.window.recv.slots.Load() {
					if c.holder == s {
						all++
						if released[&c.message] {
							again++
						}
					}
				}
				return all, again
			}
			for i := range count {
				if err := a.Send(p.ctx, uint32(i), pattern(100, i)); err != nil {
					t.Fatal(err)
				}
				for all, _ := waiting(); all <= i; all, _ = waiting() {
					if p.ctx.Err() != nil {
						t.Fatalf("message %d does not come in", i)
					}
					runtime.Gosched()
				}
			}
			if _, again := waiting(); again == 0 {
				t.Fatal("no receive is used again")
			}
			for m := range released {
				m.Release()
			}
			for i := range count {
				m, err := b.Receive(p.ctx)
				if err != nil {
					t.Fatal(err)
				}
				if m.Tag != uint32(i) || !bytes.Equal(m.Bytes(), pattern(100, i)) {
					t.Errorf("message %d has the tag %d, or other bytes", i, m.Tag)
				}
				m.Release()
			}
		})
	}
}

// A deafDevice cannot listen, for a reason that is nobody else's business.
type deafDevice struct{ *fake.Device }

func (deafDevice) Listen(context.Context, string) (rdma.Listener, error) {
	return nil, fmt.Errorf("process 4711 of user 1234 has @verbena-secret: %w", syscall.EADDRINUSE)
}

type deafProvider struct{ device deafDevice }

func (deafProvider) Name() string { return "deaf" }

func (p deafProvider) Devices(context.Context) ([]rdma.Device, error) {
	return []rdma.Device{p.device}, nil
}

// Why the server's device cannot listen the client learns in words that name no user,
// process or socket of that host.
func TestListenErrorStaysWithTheServer(t *testing.T) {
	network := fake.NewNetwork()
	device := func(name string) deafDevice {
		c := fake.InfiniBand(name)
		c.Capabilities &^= rdma.CapStreams
		return deafDevice{network.NewDevice(c)}
	}
	w := world{providers: func(testing.TB) (c, s []rdma.Provider) {
		return []rdma.Provider{deafProvider{device("a")}}, []rdma.Provider{deafProvider{device("b")}}
	}}
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, "")
	defer a.Close()
	defer b.Close()
	chosen := a.Selection()
	reason := chosen.candidate("deaf").Reason
	if chosen.Transport != TransportTCP || !strings.Contains(reason, "does not listen: ") {
		t.Errorf("chose %s", chosen)
	}
	for _, secret := range []string{"4711", "1234", "secret"} {
		if strings.Contains(reason, secret) {
			t.Errorf("the client learns %q", reason)
		}
	}
}
