package verbena

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// A peer that has said goodbye drops what comes. So Sends fail from then on, also
// while its last message waits for memory.
func TestSendsFailAfterThePeersGoodbye(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 8 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
	raw, e := newRawEnd(t, p, w, "127.0.0.1")
	defer e.Close()
	giveBack := takeAll(t, p.server.firstDomain(w.transport).longPool)
	raw.announce(t, 100<<10, 100<<10)
	raw.send(t, put(wire.Packet{Kind: wire.Goodbye}))
	s := e.carrier.(*shell)
	for said := false; !said && p.ctx.Err() == nil; {
		s.mu.Lock()
		said = s.m.PeerSaidGoodbye()
		s.mu.Unlock()
	}
	for _, size := range []int{10, 1000, 100 << 10} {
		if err := e.Send(p.ctx, 1, make([]byte, size)); !errors.Is(err, ErrPeerClosed) {
			t.Errorf("Send of %d bytes: %v", size, err)
		}
	}
	if err := e.Err(); err != nil {
		t.Errorf("ended before its last message is here: %v", err)
	}
	giveBack()
	m, err := e.Receive(p.ctx)
	if err != nil || len(m.Bytes()) != 100<<10 {
		t.Fatal(err)
	}
	m.Release()
}

// A Send that is still to notice that the peer has closed does not take the token
// for which Close waits.
func TestCloseBesideLateSend(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{}, ListenConfig{})
	raw, e := newRawEnd(t, p, w, "127.0.0.1")
	s := e.carrier.(*shell)
	s.w.mu.Lock() // this goroutine is the worker: it handles one completion at a time
	raw.send(t, put(wire.Packet{Kind: wire.Goodbye}))
	for !e.over() && p.ctx.Err() == nil {
		var c [1]rdma.Completion
		if n, _ := s.w.cq.Poll(c[:]); n > 0 {
			s.complete(c[:n])
		}
	}
	// A Send holds the lock and waits for progress, before Close does: many times, so
	// that it is in front whatever tokens it has taken already.
	e.sendLock <- struct{}{}
	var late sync.WaitGroup
	stop := make(chan struct{})
	for range 16 {
		late.Go(func() {
			for {
				select {
				case <-s.out.token:
				case <-stop:
					return
				}
			}
		})
	}
	// Whether they stand in front of Close decides only whether a Close that does not
	// wait for the Send is found out. One that does passes in any order.
	time.Sleep(20 * time.Millisecond)
	closed := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() { closed <- e.closeWithin(ctx) }()
	// Long enough to find Close asleep if it does not wait for the Send.
	for began := time.Now(); s.w.sleepers.Load() == 0 && time.Since(began) < 50*time.Millisecond; {
		runtime.Gosched()
	}
	s.w.mu.Unlock()
	for out := false; !out && p.ctx.Err() == nil; {
		s.mu.Lock()
		out = s.m.GoodbyeOut()
		s.mu.Unlock()
	}
	close(stop)
	late.Wait()
	<-e.sendLock
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Close missed that its goodbye has left")
		cancel()
		<-closed
	}
}

// A slowDevice's domains do not close before they may.
type slowDevice struct {
	*fake.Device
	may chan struct{}
}

type slowDomain struct {
	rdma.Domain
	may chan struct{}
}

func (d *slowDevice) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	domain, err := d.Device.OpenDomain(c)
	return slowDomain{domain, d.may}, err
}

func (d slowDomain) Close() error {
	<-d.may
	return d.Domain.Close()
}

type slowProvider struct{ device rdma.Device }

func (slowProvider) Name() string { return "slow" }

func (p slowProvider) Devices(context.Context) ([]rdma.Device, error) {
	return []rdma.Device{p.device}, nil
}

// An openingDevice calls a function when a domain is opened on it.
type openingDevice struct {
	*fake.Device
	opens func()
}

func (d *openingDevice) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	d.opens()
	return d.Device.OpenDomain(c)
}

// A dial that is at work when its runtime begins to close ends with ErrClosed, also before
// the runtime's context has ended.
func TestDialBesideClose(t *testing.T) {
	network := fake.NewNetwork()
	var p *pair
	a := &openingDevice{network.NewDevice(fake.InfiniBand("a")), func() { setClosed(p.client, true) }}
	w := world{providers: func(testing.TB) (c, s []rdma.Provider) {
		return []rdma.Provider{slowProvider{a}}, []rdma.Provider{slowProvider{network.NewDevice(fake.InfiniBand("b"))}}
	}}
	p = w.pair(t, Config{}, ListenConfig{})
	_, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Transport: "slow"})
	if !errors.Is(err, ErrClosed) {
		t.Errorf("a dial beside Close: %v", err)
	}
	setClosed(p.client, false) // it has yet to be closed
}

func setClosed(r *Runtime, closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = closed
}

// Close of a runtime waits for a group that is being closed.
func TestRuntimeClosesBesideGroup(t *testing.T) {
	network := fake.NewNetwork()
	may := make(chan struct{})
	device := func(name string, may chan struct{}) rdma.Device {
		return &slowDevice{network.NewDevice(fake.InfiniBand(name)), may}
	}
	free := make(chan struct{})
	close(free)
	w := world{providers: func(testing.TB) (c, s []rdma.Provider) {
		return []rdma.Provider{slowProvider{device("a", may)}}, []rdma.Provider{slowProvider{device("b", free)}}
	}}
	p := w.pair(t, Config{}, ListenConfig{})
	g, err := p.client.NewGroup(GroupConfig{Name: "tables"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Group: g})
	if err != nil {
		t.Fatal(err)
	}
	if s := a.Selection(); s.Transport != "slow" {
		t.Fatal(s)
	}
	b := p.accept(t)
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	groupClosed, closed, again := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { groupClosed <- g.Close() }()
	for there := true; there; {
		p.client.mu.Lock()
		_, there = p.client.groups[g]
		p.client.mu.Unlock()
	}
	go func() { closed <- p.client.Close() }()
	for begun := false; !begun; {
		p.client.mu.Lock()
		begun = p.client.closed
		p.client.mu.Unlock()
	}
	go func() { again <- p.client.Close() }()
	select {
	case <-closed:
		t.Error("the runtime is closed before its group")
		closed <- nil
	case <-again:
		t.Error("the second Close does not wait")
		again <- nil
	case <-time.After(100 * time.Millisecond): // long enough to find the old failure
	}
	close(may)
	if err := errors.Join(<-groupClosed, <-closed, <-again); err != nil {
		t.Error(err)
	}
}
