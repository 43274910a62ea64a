package verbena

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

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
