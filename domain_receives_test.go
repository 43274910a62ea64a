package verbena

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// The first endpoints have receives of their own, further ones share theirs, and the
// place of one that goes is free for another.
func TestFirstEndpointsHaveTheirOwnReceives(t *testing.T) {
	for _, name := range []string{"fakeband", "fakewarp"} {
		t.Run(name, func(t *testing.T) {
			const most = 2
			w := worldOf(t, name)
			p := w.pair(t, Config{Tuning: TuningTable{name: {Own: most}}}, ListenConfig{})
			own := func(e *Endpoint) bool { return e.carrier.(*shell).window.own }
			var ends [][2]*Endpoint
			for i := range most + 2 {
				a, b := p.connect(t, "")
				ends = append(ends, [2]*Endpoint{a, b})
				if want := i < most; own(a) != want || own(b) != want {
					t.Errorf("endpoint %d: own receives %t and %t, want %t", i, own(a), own(b), want)
				}
				talk(t, p, a, b, 100)
				talk(t, p, b, a, 100)
			}
			if n := len(p.server.firstDomain(name).queues); n != 1 {
				t.Errorf("%d shared queues, want 1", n)
			}
			for _, e := range ends[0] {
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
			}
			a, b := p.connect(t, "")
			if !own(a) || !own(b) {
				t.Errorf("after one has gone: own receives %t and %t", own(a), own(b))
			}
			talk(t, p, a, b, 100)
			for _, e := range append(ends[1:], [2]*Endpoint{a, b}) {
				_ = e[0].Close()
				_ = e[1].Close()
			}
			for _, r := range []*Runtime{p.client, p.server} {
				n := r.firstDomain(name)
				n.mu.Lock()
				if n.owners != 0 {
					t.Errorf("%d own receives are counted of endpoints that are closed", n.owners)
				}
				n.mu.Unlock()
			}
		})
	}
}

// A device without shared receives has no other.
func TestOwnWhereNothingIsShared(t *testing.T) {
	n := &domain{}
	n.attributes.Capabilities = rdma.CapReceiverNotReady
	for range 3 {
		if !n.own(1) {
			t.Fatal("an endpoint is to share where the device cannot")
		}
	}
}

// A device without receiver-not-ready carries as many endpoints as there is memory
// for: its group opens shared receive queues as it needs them.
func TestThousandEndpointsOnStrictDevice(t *testing.T) {
	w := worldOf(t, "fakewarp")
	tuning := TuningTable{w.transport: {Eager: 256}}
	p := w.pair(t, Config{Tuning: tuning, MaxMessage: 1 << 20}, ListenConfig{})
	const count = 1000
	var ends [count][2]*Endpoint
	for i := range ends {
		a, b := p.connect(t, "")
		if s := a.Selection(); s.Transport != w.transport {
			t.Fatalf("endpoint %d: %s", i, s)
		}
		ends[i] = [2]*Endpoint{a, b}
	}
	n := p.server.firstDomain(w.transport)
	for _, r := range n.queues {
		if posted, least := r.posted.Load(), int32(3*int(r.users.Load())+baseReceives); posted < least {
			t.Errorf("%d receives are posted for %d endpoints", posted, r.users.Load())
		}
	}
	for i, e := range ends {
		for k := range 3 {
			want := fmt.Sprint("message ", i, " ", k)
			if err := e[k%2].Send(p.ctx, uint32(i), []byte(want)); err != nil {
				t.Fatal(err)
			}
			m, err := e[1-k%2].Receive(p.ctx)
			if err != nil || string(m.Bytes()) != want {
				t.Fatal(i, err)
			}
			m.Release()
		}
	}
	var wg sync.WaitGroup
	for _, e := range ends {
		wg.Go(func() { _ = e[0].Close() })
		wg.Go(func() { _ = e[1].Close() })
	}
	wg.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queues) != 0 || len(n.workers) > n.cfg.workers {
		t.Errorf("%d shared queues and %d workers are left", len(n.queues), len(n.workers))
	}
	for _, w := range n.workers {
		if w.room != w.size || w.endpoints != 0 || len(w.serves) != 0 {
			t.Errorf("a worker has room for %d of %d", w.room, w.size)
		}
	}
	if n.shares.promised.Load() != 0 || len(n.shares.peers) != 0 {
		t.Errorf("%d receives are promised to %d peers", n.shares.promised.Load(), len(n.shares.peers))
	}
}

// A fewQueues device has few shared receive queues.
type fewQueues struct {
	*fake.Device
	left atomic.Int32
}

type fewQueuesDomain struct {
	rdma.Domain
	device *fewQueues
}

func (d *fewQueues) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	domain, err := d.Device.OpenDomain(c)
	return fewQueuesDomain{domain, d}, err
}

func (d fewQueuesDomain) NewSharedReceiveQueue(c rdma.SharedReceiveConfig) (rdma.SharedReceiveQueue, error) {
	if d.device.left.Add(-1) < 0 {
		return nil, errors.New("the device has 2 shared receive queues")
	}
	return d.Domain.NewSharedReceiveQueue(c)
}

type fewQueuesProvider struct{ device *fewQueues }

func (fewQueuesProvider) Name() string { return "few" }

func (p fewQueuesProvider) Devices(context.Context) ([]rdma.Device, error) {
	return []rdma.Device{p.device}, nil
}

// When the device has no more shared receive queues, endpoints use what places there
// are; then the reason names the limit.
func TestStrictDeviceNamesItsLimit(t *testing.T) {
	network := fake.NewNetwork()
	device := func(name string) *fewQueues {
		c := fake.IWARP(name)
		c.MaxQueueDepth = 256
		d := &fewQueues{Device: network.NewDevice(c)}
		d.left.Store(2)
		return d
	}
	w := world{providers: func(testing.TB) (c, s []rdma.Provider) {
		return []rdma.Provider{fewQueuesProvider{device("a")}}, []rdma.Provider{fewQueuesProvider{device("b")}}
	}}
	p := w.pair(t, Config{Tuning: TuningTable{"few": {Eager: 256}}}, ListenConfig{})
	for n := 1; ; n++ {
		a, b := p.connect(t, "")
		defer a.Close()
		defer b.Close()
		s := a.Selection()
		if s.Transport == "few" {
			continue
		}
		// Two queues of 256 places, of which 8 are kept and an endpoint takes 8 to 15.
		if reason := s.candidate("few").Reason; n < 33 || n > 63 || !strings.Contains(reason, "2 shared receive queues") || !s.Passing() {
			t.Errorf("endpoint %d: %s", n, s)
		}
		return
	}
}
