package verbena

import (
	"context"
	"errors"
	"io"
	"net"
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
			if s.Device == "" || s.Attributes.Name != s.Device {
				t.Errorf("attributes %+v", s.Attributes)
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

// An endpoint tells what it carries, and why over that transport; the device's numbers keep
// it when the endpoint has gone.
func TestEndpoints(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		_, token := exposeTo(t, b, 2<<20, allRights)
		talk(t, p, a, b, 3)
		batch := a.Batch()
		batch.Put(token, 0, make([]byte, 100))
		batch.Get(token, 0, make([]byte, 10))
		err := errors.Join(batch.Do(p.ctx), a.Put(p.ctx, token, 0, make([]byte, 50)), a.Get(p.ctx, token, 0, make([]byte, MaxOperation+1)))
		if err != nil {
			t.Fatal(err)
		}
		want := Operations{Puts: 2, Gets: 3, Bytes: 161 + MaxOperation}
		if atomics(a) {
			if _, err := a.FetchAdd(p.ctx, token, 8, 1); err != nil {
				t.Fatal(err)
			}
			want.Atomics = 1
		}
		c, s := p.client.Endpoints(), p.server.Endpoints()
		if len(c) != 1 || len(s) != 1 {
			t.Fatalf("%d and %d endpoints", len(c), len(s))
		}
		if c, sent := c[0], (Traffic{3, 3000}); c.Sent != sent || s[0].Received != sent || c.Operations != want || s[0].Operations != (Operations{}) {
			t.Errorf("%+v\n%+v\nwant %+v", c, s[0], want)
		}
		if e := &c[0]; e.Service != "test/1" || !e.Dialled || e.Remote != a.RemoteAddr().String() || e.Local != a.LocalAddr().String() || e.Selection.String() != a.Selection().String() ||
			e.Began.IsZero() || (e.Credits < 0) != (w.transport == TransportTCP) {
			t.Errorf("%+v", e)
		}
		if e := &s[0]; e.Dialled || e.Selection.Transport != w.transport || e.Remote != b.RemoteAddr().String() {
			t.Errorf("%+v", e)
		}
		if c[0].Err != nil || s[0].Err != nil {
			t.Errorf("ended by %v and %v", c[0].Err, s[0].Err)
		}
		_ = a.Close()
		<-b.Done()
		if s := p.server.Endpoints(); len(s) != 1 || !errors.Is(s[0].Err, ErrPeerClosed) {
			t.Errorf("the peer has closed: %+v", s)
		}
		_ = b.Close()
		if left := p.client.Endpoints(); len(left) != 0 || p.client.Stats().of(w.transport).Operations != want {
			t.Errorf("left %+v, %+v", left, p.client.Stats())
		}
		if p.client.Stats().Closed || p.client.Close() != nil || !p.client.Stats().Closed || len(p.client.Endpoints()) != 0 {
			t.Error("a closed runtime does not say so")
		}
	})
}

// Of a batch over TCP in which one operation fails those count that were carried out.
func TestPartOfABatchCounts(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport != TransportTCP {
			t.Skip("devices count what is posted")
		}
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		_, token := exposeTo(t, b, 2<<20, allRights)
		x, gone := exposeTo(t, b, 2<<20, allRights)
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		batch := a.Batch()
		batch.Put(token, 0, make([]byte, 100))
		batch.Put(gone, 0, make([]byte, MaxOperation))
		batch.Get(token, 0, make([]byte, 10))
		if err := batch.Do(p.ctx); !errors.Is(err, ErrRevoked) {
			t.Fatal(err)
		}
		if got, want := p.client.Endpoints()[0].Operations, (Operations{Puts: 1, Gets: 1, Bytes: 110}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// A Send that waits for the peer counts from the beginning of the wait, and its time from
// the end.
func TestStalls(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, _ := p.connect(t, w.transport)
		ctx, cancel := context.WithCancel(p.ctx)
		ended := make(chan error, 1)
		go func() {
			for {
				if err := a.Send(ctx, 1, make([]byte, 64<<10)); err != nil {
					ended <- err
					return
				}
			}
		}()
		p.until(t, "the sender waits", func() bool { return p.client.Endpoints()[0].Stalls > 0 })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		e, s := p.client.Endpoints()[0], p.client.Stats().of(w.transport)
		if e.Stalled == 0 || s.Stalls != e.Stalls || s.Stalled != e.Stalled {
			t.Errorf("stalls %+v, %+v", e, s)
		}
	})
}

// clog has a stream look as if it had more to write than may wait, until the function that it
// returns is called.
func clog(s *stream) (unclog func()) {
	add := func(n int) {
		s.mu.Lock()
		s.pending += n
		s.mu.Unlock()
	}
	add(backlogLimit)
	return func() {
		add(-backlogLimit)
		notify(s.drained)
	}
}

// A Put that waits for the connection is a stall, also on the lane. An answer that waits is
// none, nor is a Close.
func TestStallsOverTCP(t *testing.T) {
	w := worldOf(t, "tcp")
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	_, token := exposeTo(t, b, 4096, allRights)
	if err := a.Get(p.ctx, token, 0, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	ours, theirs := a.carrier.(*stream), b.carrier.(*stream)
	unclog := clog(ours.lane.Load().stream)
	ended := make(chan error, 1)
	go func() { ended <- a.Put(p.ctx, token, 0, make([]byte, 8)) }()
	p.until(t, "the Put waits", func() bool { return p.client.Endpoints()[0].Stalls > 0 })
	unclog()
	if err := <-ended; err != nil || p.client.Endpoints()[0].Stalled == 0 {
		t.Errorf("%v, %+v", err, p.client.Endpoints())
	}

	lane := theirs.lane.Load().stream
	unclog = clog(lane)
	notify(lane.drained) // who waits takes it
	go func() { ended <- a.Get(p.ctx, token, 0, make([]byte, 8)) }()
	p.until(t, "the answer waits", func() bool { return len(lane.drained) == 0 })
	unclog()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	clog(theirs)
	if err := b.closeWithin(whileSending{p.ctx, b}); err != nil {
		t.Error(err)
	}
	if s := p.server.Stats().of(w.transport); s.Stalls != 0 {
		t.Errorf("%d answers and Closes are counted as stalls", s.Stalls)
	}
}

// A Put that waits for its turn to get places in the send queue is a stall.
func TestStallsForPlaces(t *testing.T) {
	w := worlds[1]
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	_, token := exposeTo(t, b, 4096, allRights)
	if err := a.Put(p.ctx, token, 0, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	s := a.carrier.(*shell)
	s.mu.Lock()
	first := newFlight(a, s.w.spinner(s.t.Spin))
	s.flights.Wait(first)
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(p.ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.Put(ctx, token, 0, make([]byte, 8)) }()
	p.until(t, "the Put waits", func() bool { return p.client.Endpoints()[0].Stalls > 0 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || p.client.Endpoints()[0].Stalled == 0 {
		t.Errorf("%v, %+v", err, p.client.Endpoints())
	}
	s.mu.Lock()
	s.leaveLine(first, true)
	s.mu.Unlock()
}

// whileSending is over for who has the turn to send.
type whileSending struct {
	context.Context
	e *Endpoint
}

func (c whileSending) Done() <-chan struct{} {
	if len(c.e.sendLock) == 0 {
		return nil
	}
	over := make(chan struct{})
	close(over)
	return over
}

func (c whileSending) Err() error {
	if len(c.e.sendLock) == 0 {
		return nil
	}
	return context.Canceled
}

// told is a carrier that only tells of itself.
type told struct {
	carrier
	tells func() activity
}

func (c told) done() activity { return c.tells() }

func (c told) credits() int {
	c.tells()
	return 1
}

// adoptTold has a runtime count an endpoint for a device, until the test's end.
func adoptTold(t *testing.T, r *Runtime, count *counters, tells func() activity) {
	t.Helper()
	e := newEndpoint(&r.env, Tuning{}, "told/1", &net.TCPAddr{}, &net.TCPAddr{}, Selection{})
	e.count, e.carrier = count, told{tells: tells}
	if err := r.adopt(e, r.own); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.forget(e) })
}

// An endpoint that copies keeps who asks for its numbers, but not the runtime.
func TestStatsHoldNoLock(t *testing.T) {
	r := newRuntime(t, Config{}, nil)
	asked := 0
	adoptTold(t, r, &r.env.tcp, func() activity {
		asked++
		if r.mu.TryLock() {
			r.mu.Unlock()
		} else if asked <= 3 { // forget, behind the test, asks with the lock
			t.Error("the runtime is locked while an endpoint is asked")
		}
		return activity{stalls: 5}
	})
	s, all := r.Stats().of(TransportTCP), r.Endpoints()
	if len(all) != 1 || all[0].Stalls != 5 || all[0].Credits != 1 || s.Stalls != 5 || s.Endpoints != 1 || asked != 3 {
		t.Errorf("%+v, %+v, asked %d times", s, all, asked)
	}
}

// A provider may list its devices, and an endpoint be set up on one, while Stats counts. What
// that one carries is no other device's.
func TestStatsOfNewDevice(t *testing.T) {
	network := fake.NewNetwork()
	r := newRuntime(t, Config{}, []rdma.Provider{fake.NewProvider("fake", network.NewDevice(fake.InfiniBand("a")))})
	adoptTold(t, r, &counters{}, func() activity { return activity{stalls: 5} })
	s := r.Stats()
	if len(s.Devices) != 2 || s.Devices[0].Transport != "fake" {
		t.Fatalf("%+v", s.Devices)
	}
	for i := range s.Devices {
		if d := &s.Devices[i]; d.Stalls != 0 || d.Endpoints != 0 {
			t.Errorf("%s counts %d stalls and %d endpoints of another device", d.Transport, d.Stalls, d.Endpoints)
		}
	}
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
