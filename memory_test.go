package verbena

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// An announcement is cheap: peers that offer 4 KiB of a message of 16 MiB, and
// nothing more, hold memory for what has arrived and a little on top. Others go on.
func TestAnnouncementsHoldLittleMemory(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 64 << 20, MaxMessage: 16 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
	good, other := p.connect(t, "")
	var receivers sync.WaitGroup
	defer receivers.Wait()
	const peers = 8
	for i := range peers {
		raw, e := newRawEnd(t, p, w, hostNumber(i))
		defer func() { _ = e.Close() }()
		receivers.Go(func() { _, _ = e.Receive(p.ctx) }) // ends with Close
		raw.announce(t, 4096, 16<<20)
		p.hasMemory(t, e)
	}
	pool := p.server.firstDomain(w.transport).longPool
	if used, most := pool.Used(), int64(peers*(2<<20+4096)); used > most {
		t.Errorf("%d bytes are held by %d announcements, want at most %d", used, peers, most)
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
}

// While memory is plentiful an announcement gets some at once, before anybody waits for
// the message. That is the commitment, however long the message is to be.
func TestAnnouncementAloneIsACommitment(t *testing.T) {
	w := worldOf(t, "fakeband")
	const whole = 32 << 20
	p := w.pair(t, Config{ReceiveMemory: 1 << 30, MaxMessage: 128 << 20, IgnorePressure: true, Linger: 10 * time.Millisecond}, ListenConfig{})
	raw, e := newRawEnd(t, p, w, "127.0.0.1")
	defer e.Close()
	raw.announce(t, 4096, whole)
	p.hasMemory(t, e)
	n := p.server.firstDomain(w.transport)
	if limit := n.shares.growingLimit() / peerShare; limit < whole {
		t.Fatalf("a message of %d bytes exceeds what a peer's may have anyhow, %d", whole, limit)
	}
	if used := n.longPool.Used(); used > commitment+4096 {
		t.Errorf("%d bytes are held by an announcement, want at most %d", used, commitment)
	}
}

// Peers that leave messages unfinished until nothing is left are ended as soon as
// somebody has waited for the memory.
func TestUnfinishedMessagesGiveWay(t *testing.T) {
	defer func(d time.Duration) { stalled = d }(stalled)
	stalled = 2 * time.Second // the good peer gets on in less
	defer func(d time.Duration) { trialPatience = d }(trialPatience)
	trialPatience = time.Millisecond // memory for whole messages is given, until none is left
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 8 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
	good, other := p.connect(t, "")
	var receivers sync.WaitGroup
	pool := p.server.firstDomain(w.transport).longPool
	var ends []*Endpoint
	for pool.Used() < pool.Limit()/4*3 {
		raw, e := newRawEnd(t, p, w, hostNumber(len(ends)))
		ends = append(ends, e)
		receivers.Go(func() {
			if _, err := e.Receive(p.ctx); !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrClosed) {
				t.Errorf("got %v", err)
			}
			_ = e.Close() // as a server does with what has failed
		})
		before := pool.Used()
		raw.announce(t, 200<<10, 900<<10)
		for pool.Used() == before && p.ctx.Err() == nil { // until the part is there
			runtime.Gosched()
		}
	}
	want := pattern(1500<<10, 1)
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
	for _, e := range ends {
		_ = e.Close()
	}
	receivers.Wait()
}

// What one peer gets keys to holds nothing of another, and the keys end with the
// endpoint.
func TestOffersAreOfOnePeer(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{}, ListenConfig{})
	regions := map[rdma.Region]*shell{}
	var ends []*Endpoint
	for range 3 {
		a, b := p.connect(t, "")
		ends = append(ends, a, b)
		s := a.carrier.(*shell)
		for i := range 3 {
			sent := make(chan error, 1)
			// So long a message gets memory for all of it from Receive alone: until then
			// parts are on offer.
			go func() { sent <- a.Send(p.ctx, 1, pattern(32<<20, i)) }()
			for seen := false; !seen && p.ctx.Err() == nil; runtime.Gosched() {
				s.mu.Lock()
				for _, o := range s.queue.offers {
					memory := o.slab
					if memory.None() {
						continue
					}
					seen = true
					if owner := regions[memory.Region()]; owner != nil && owner != s {
						t.Error("two peers have keys to one region")
					}
					regions[memory.Region()] = s
				}
				s.mu.Unlock()
			}
			m, err := b.Receive(p.ctx)
			if err := errors.Join(err, <-sent); err != nil {
				t.Fatal(err)
			}
			m.Release()
		}
	}
	for _, e := range ends {
		_ = e.Close()
	}
	if n := p.client.firstDomain(w.transport).offerPool.Registered(); n != 0 {
		t.Errorf("%d bytes that peers had keys to are still registered after the end of the endpoints", n)
	}
}

// Groups have domains, pools and receives of their own on a device they share.
func TestGroupsAreApart(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{}, ListenConfig{})
	g, err := p.client.NewGroup(GroupConfig{Name: "tables", ReceiveMemory: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.client.NewGroup(GroupConfig{Name: "tables"}); err == nil {
		t.Error("two groups of one name")
	}
	if p.client.Group("tables") != g || p.client.Group("other") != nil || p.server.Group("tables") != nil {
		t.Error("groups are found under other names, or not under their own")
	}
	if _, err := p.client.NewGroup(GroupConfig{}); err == nil {
		t.Error("a group without a name")
	}
	if _, err := p.client.NewGroup(GroupConfig{Name: "other", Tuning: TuningTable{"nowhere": {Eager: 1000}}}); err == nil {
		t.Error("tuning of a transport that is not there")
	}
	if _, err := p.server.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Group: g}); err == nil {
		t.Error("a group of another runtime")
	}
	a, b := p.connect(t, "")
	c, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Group: g, Tuning: TuningTable{w.transport: {Eager: 500}}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.listener.Accept(p.ctx)
	if err != nil {
		t.Fatal(err)
	}
	own, other := a.carrier.(*shell), c.carrier.(*shell)
	if own.n == other.n || own.n.domain == other.n.domain || own.window.recv == other.window.recv || own.e.count != other.e.count {
		t.Error("the groups share what is theirs, or not the device")
	}
	if c.Eager() != 500 || a.Eager() == 500 || c.Tuning().Eager != 500 {
		t.Errorf("eager up to %d, and %d without tuning", c.Eager(), a.Eager())
	}
	// A key of one group opens nothing in another: its queue pair reads there.
	secret, err := own.n.domain.Allocate(4096, rdma.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	peer := d.carrier.(*shell) // whose peer is the other group's
	into, ok, err := peer.n.longPool.TryGet(4096)
	if !ok || err != nil {
		t.Fatal(err)
	}
	if _, err := peer.qp.PostSend([]rdma.SendRequest{{
		Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: into.Region(), Offset: into.Offset(), Length: 4096}},
		Remote: rdma.Remote{Address: secret.Address(), Key: secret.Key()},
	}}); err != nil {
		t.Fatal(err)
	}
	<-d.Done()
	if err := d.Err(); err == nil {
		t.Error("it may")
	}
	if err := g.Close(); err != nil && !errors.Is(err, ErrNotDelivered) { // it may not have noticed
		t.Error(err)
	}
	if c.Err() == nil {
		t.Error("an endpoint outlives its group")
	}
	if err := a.Send(p.ctx, 1, []byte("undisturbed")); err != nil {
		t.Fatal(err)
	}
	m, err := b.Receive(p.ctx)
	if err != nil || string(m.Bytes()) != "undisturbed" {
		t.Fatal(err)
	}
	m.Release()
	peer.n.longPool.Put(into)
}
