package verbena

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// The longest message fits beside all that are growing and on trial, however much
// longer than asked for their regions are.
func TestLongestMessageFits(t *testing.T) {
	for limit := int64(4 << 20); limit <= 1<<30; limit += 5<<20 + 4096 {
		p := slab.New(nil, rdma.AccessLocalWrite, limit)
		a := newShares(p, 1)
		others := (a.growingLimit() + limit/trialShare) * 9 / 8
		if whole := int64(slab.RegionFor(int(limit / 2))); others+whole > p.LargeLimit() {
			t.Errorf("%d bytes: a message of half takes %d beside %d, and all may have %d", limit, whole, others, p.LargeLimit())
		}
	}
}

// A peer that opens endpoints until it gets no more leaves receives for another.
func TestReceivesAreSharedByPeer(t *testing.T) {
	for _, name := range []string{"fakeband", "fakewarp"} {
		t.Run(name, func(t *testing.T) {
			c := fakeConfig(name)
			c.Capabilities &^= rdma.CapStreams // which raw peers do not speak
			w := fakeWorld(name, func(string) fake.Config { return c })
			p := w.pair(t, Config{ReceiveMemory: 4 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
			for n := 1; ; n++ {
				a, b := p.connect(t, "")
				defer a.Close()
				defer b.Close()
				if s := a.Selection(); s.Transport != name {
					if n < 4 || !s.Passing() {
						t.Errorf("endpoint %d: %s", n, s)
					}
					break
				}
			}
			if _, err := newRawPeerFrom(t, p, w, hostNumber(0), rawParameters.Append(nil)); err != nil {
				t.Fatalf("another peer: %v", err)
			}
			_ = p.accept(t).Close()
		})
	}
}

// One peer announces long messages on many endpoints, for each of which the
// application waits. Another's messages pass, and little memory is held for what
// does not come.
func TestLongMemoryIsSharedByPeer(t *testing.T) {
	defer func(s, p time.Duration) { stalled, trialPatience = s, p }(stalled, trialPatience)
	stalled, trialPatience = time.Hour, time.Hour // nobody is ended for it, and nobody gives up
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 64 << 20, MaxMessage: 16 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
	good, other := p.connect(t, "")
	var receivers sync.WaitGroup
	defer receivers.Wait()
	for i := range 24 {
		raw, e := newRawEnd(t, p, w, hostNumber(0))
		defer func() { _ = e.Close() }()
		receivers.Go(func() { _, _ = e.Receive(p.ctx) }) // ends with Close
		raw.announce(t, 4096, 16<<20)
		if i < 6 {
			p.hasMemory(t, e)
		}
	}
	for i := range 5 {
		want := pattern(3<<20, i)
		sent := make(chan error, 1)
		go func() { sent <- good.Send(p.ctx, 1, want) }()
		m, err := other.Receive(p.ctx)
		if err := errors.Join(err, <-sent); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(m.Bytes(), want) {
			t.Fatal("wrong bytes")
		}
		m.Release()
	}
	pool := p.server.firstDomain(w.transport).longPool
	if used, most := pool.Used(), pool.Limit()/8; used > most {
		t.Errorf("%d bytes are held by one peer's announcements, want at most %d", used, most)
	}
}

// When the memory for announcements is used up, an announcement that Receive waits
// for gets its first part and not the whole length.
func TestAwaitedAnnouncementsHoldLittleMemory(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 64 << 20, MaxMessage: 16 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
	var receivers sync.WaitGroup
	defer receivers.Wait()
	for i := range 18 { // 12 fill what is for announcements
		raw, e := newRawEnd(t, p, w, hostNumber(i))
		defer func() { _ = e.Close() }()
		receivers.Go(func() { _, _ = e.Receive(p.ctx) }) // ends with Close
		raw.announce(t, 4096, 16<<20)
		p.hasMemory(t, e)
		pool := p.server.firstDomain(w.transport).longPool
		if used, most := pool.Used(), int64(i+1)*(1<<20); used > most {
			t.Fatalf("%d bytes are held by %d announcements, want at most %d", used, i+1, most)
		}
	}
}

// Messages that were on trial arrive whole, also when more peers want a trial than
// there are places.
func TestTrialsEnd(t *testing.T) {
	defer func(d time.Duration) { trialPatience = d }(trialPatience)
	trialPatience = 200 * time.Millisecond
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 64 << 20, MaxMessage: 16 << 20}, ListenConfig{})
	type end struct{ a, b *Endpoint }
	var ends []end
	for range 6 {
		a, b := p.connect(t, "")
		ends = append(ends, end{a, b})
	}
	all := p.server.firstDomain(w.transport).shares
	all.mu.Lock()
	all.growing += all.long.Limit() // nothing is left for announcements
	all.mu.Unlock()
	var wg sync.WaitGroup
	for i, e := range ends {
		for k := range 2 {
			wg.Go(func() {
				if err := e.a.Send(p.ctx, uint32(k), pattern((4+2*k)<<20, i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			for range 2 {
				m, err := e.b.Receive(p.ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(m.Bytes(), pattern(len(m.Bytes()), i)) {
					t.Error("wrong bytes")
				}
				m.Release()
			}
		})
	}
	wg.Wait()
	all.mu.Lock()
	defer all.mu.Unlock()
	all.growing -= all.long.Limit()
	if all.growing != 0 || all.onTrial != 0 || len(all.peers) != 1 {
		t.Errorf("%d bytes growing and %d on trial, %d peers", all.growing, all.onTrial, len(all.peers))
	}
	for _, sh := range all.peers {
		if sh.users != len(ends) || sh.growing != 0 || sh.firm != 0 || sh.trial || len(sh.line) != 0 {
			t.Errorf("the peer has %+v", sh)
		}
	}
}

// takeAll uses a pool up, and returns what gives it back.
func takeAll(t *testing.T, p *slab.Pool) (giveBack func()) {
	t.Helper()
	var slabs []slab.Slab
	for size := 1 << 20; size >= 256; {
		s, ok, err := p.TryGet(size)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			size /= 2
			continue
		}
		slabs = append(slabs, s)
	}
	return func() {
		for _, s := range slabs {
			p.Put(s)
		}
	}
}

// A Receive that waits for memory goes on with the next message when the peer gives
// the long one up.
func TestGivenUpMessageEndsItsWait(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 8 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
	raw, e := newRawEnd(t, p, w, "127.0.0.1")
	defer e.Close()
	giveBack := takeAll(t, p.server.firstDomain(w.transport).longPool)
	defer giveBack()
	raw.announce(t, 4096, 900<<10)
	received := make(chan *Message, 1)
	go func() {
		m, err := e.Receive(p.ctx)
		if err != nil {
			t.Error(err)
		}
		received <- m
	}()
	all := e.carrier.(*shell).n.shares
	for waits := false; !waits; { // for its first memory, or for all of it
		all.mu.Lock()
		waits = all.onTrial > 0
		for _, sh := range all.peers {
			waits = waits || sh.firm > 0
		}
		all.mu.Unlock()
		if p.ctx.Err() != nil {
			t.Fatal("Receive asks for no memory")
		}
	}
	b := put(wire.Packet{Kind: wire.Eager, Tag: 5, Length: 2}, 'h', 'i')
	copy(raw.region.Bytes()[1000:], b)
	if _, err := raw.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: raw.region, Offset: 1000, Length: len(b)}}}}); err != nil {
		t.Fatal(err)
	}
	if m := <-received; m != nil {
		if m.Tag != 5 || string(m.Bytes()) != "hi" {
			t.Errorf("received %d %q", m.Tag, m.Bytes())
		}
		m.Release()
	}
}

// Applications hold all receives that were posted while no memory is left for
// others. When there is some again, messages come in although nothing was released.
func TestReceivesComeBackByThemselves(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 8 << 20, Tuning: TuningTable{w.transport: {Window: 64}}}, ListenConfig{})
	a, b := p.connect(t, "")
	n := p.server.firstDomain(w.transport)
	giveBack := takeAll(t, n.receivePool)
	var held []*Message
	receive := func() {
		m, err := b.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, m)
	}
	for i := 0; b.carrier.(*shell).window.recv.posted.Load() > 0; i++ {
		if err := a.Send(p.ctx, uint32(i), []byte("held")); err != nil {
			t.Fatal(err)
		}
		receive()
	}
	if err := a.Send(p.ctx, 99, []byte("waits")); err != nil {
		t.Fatal(err)
	}
	giveBack()
	receive()
	if last := held[len(held)-1]; last.Tag != 99 {
		t.Errorf("got message %d", last.Tag)
	}
	for _, m := range held {
		m.Release()
	}
}

func fakeConfig(name string) fake.Config {
	if name == "fakewarp" {
		return fake.IWARP(name)
	}
	return fake.InfiniBand(name)
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
	if n.shares.promised != 0 || len(n.shares.peers) != 0 {
		t.Errorf("%d receives are promised to %d peers", n.shares.promised, len(n.shares.peers))
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
