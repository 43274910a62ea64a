package verbena

import (
	"errors"
	"io"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

func (s Stats) of(transport string) DeviceStats {
	for _, d := range s.Devices {
		if d.Transport == transport {
			return d
		}
	}
	return DeviceStats{}
}

func TestStats(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		sizes := []int{0, 10, 5000, 3 << 20}
		var total uint64
		for _, size := range sizes {
			total += uint64(size)
			sent := make(chan error, 1)
			go func() { sent <- a.Send(p.ctx, 1, pattern(size, 1)) }()
			m, err := b.Receive(p.ctx)
			if err := errors.Join(err, <-sent); err != nil {
				t.Fatal(err)
			}
			m.Release()
		}
		want := Traffic{Messages: uint64(len(sizes)), Bytes: total}
		check := func(endpoints int) {
			t.Helper()
			c, s := p.client.Stats().of(w.transport), p.server.Stats().of(w.transport)
			if c.Sent != want || s.Received != want {
				t.Errorf("sent %+v, received %+v, want %+v", c.Sent, s.Received, want)
			}
			if none := (Traffic{}); c.Received != none || s.Sent != none {
				t.Errorf("the way back counts %+v and %+v", s.Sent, c.Received)
			}
			if c.Endpoints != endpoints || s.Endpoints != endpoints || c.Opened != 1 || s.Opened != 1 || c.Failed != 0 {
				t.Errorf("endpoints: %+v and %+v", c, s)
			}
			if w.transport == TransportTCP {
				return
			}
			if len(s.Pools) != 6 || s.Pools[0].Name != "receive" || s.Pools[0].Registered == 0 || s.Pools[0].Limit == 0 {
				t.Errorf("pools %+v", s.Pools)
			}
		}
		check(1)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if _, err := b.Receive(p.ctx); err != io.EOF {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		check(0)
	})
}

// A device that is gone is told as such, and is not chosen again.
func TestGoneDevice(t *testing.T) {
	w := worlds[1]
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	gone := errors.New("pulled out")
	p.server.firstDevice(w.transport).event(rdma.Event{Kind: rdma.EventPortDown})
	if b.Err() != nil {
		t.Errorf("a port that is down ended the endpoint: %v", b.Err())
	}
	p.server.firstDevice(w.transport).event(rdma.Event{Kind: rdma.EventDeviceError, Err: gone})
	for _, e := range []*Endpoint{a, b} {
		select {
		case <-e.Done():
		case <-p.ctx.Done():
			t.Fatal("the endpoint goes on")
		}
		if e == b && !errors.Is(e.Err(), gone) {
			t.Errorf("ended by %v", e.Err())
		}
		_ = e.Close() // it has failed
	}
	s := p.server.Stats().of(w.transport)
	if !errors.Is(s.Gone, gone) || s.Events[rdma.EventDeviceError] != 1 || s.Events[rdma.EventPortDown] != 1 {
		t.Errorf("stats: %+v", s)
	}
	e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if e.Selection().Transport != TransportTCP {
		t.Errorf("chosen: %s", e.Selection())
	}
	chosen := e.Selection()
	if c := chosen.candidate(w.transport); c == nil || c.Reason == "" {
		t.Errorf("no reason: %s", e.Selection())
	}
}

func TestStatsOfUnavailable(t *testing.T) {
	r := newRuntime(t, Config{}, []rdma.Provider{fake.NewProvider("nothing")})
	s := r.Stats()
	if err := s.Unavailable["nothing"]; !errors.Is(err, rdma.ErrUnavailable) || len(s.Devices) != 1 {
		t.Errorf("%+v", s)
	}
}

type counting struct{ *fake.Provider }

func (counting) Counters() map[string]uint64 { return map[string]uint64{"turns": 7} }

func TestStatsOfProviders(t *testing.T) {
	r, err := New(Config{Providers: []rdma.Provider{counting{fake.NewProvider("a")}, fake.NewProvider("b")}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if s := r.Stats(); len(s.Counters) != 1 || s.Counters["a"]["turns"] != 7 {
		t.Errorf("%v", s.Counters)
	}
}
