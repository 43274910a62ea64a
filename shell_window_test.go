package verbena

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// idleMemory is the most registered memory in bytes that an end holds for an idle
// peer.
const idleMemory = 64 << 10

// An idle peer holds little registered memory at either end, on any device.
func TestIdlePeersHoldLittleMemory(t *testing.T) {
	for _, w := range idleWorlds(t) {
		t.Run(w.name, func(t *testing.T) {
			p := w.pair(t, Config{ReceiveMemory: 2 << 30, SendMemory: 1 << 30, IgnorePressure: true}, ListenConfig{})
			const count = 300
			for range count {
				a, b := p.connect(t, "")
				if s := a.Selection(); s.Transport != w.transport {
					t.Fatal(s)
				}
				for range 3 {
					talk(t, p, a, b, 1)
					talk(t, p, b, a, 1)
				}
			}
			for name, r := range map[string]*Runtime{"client": p.client, "server": p.server} {
				var used, registered int64
				for _, pool := range r.firstDomain(w.transport).pools() {
					used += pool.Used
					registered += pool.Registered
				}
				t.Logf("%s: %d bytes for each peer are used, %d registered", name, used/count, registered/count)
				if each := used / count; each > idleMemory {
					t.Errorf("%s: %d bytes are used for each idle peer, want at most %d", name, each, idleMemory)
				}
				// Two pools have a region each that is not full yet.
				if most := int64(count*idleMemory + 2*(2<<20)); registered > most {
					t.Errorf("%s: %d bytes are registered for %d idle peers, want at most %d", name, registered, count, most)
				}
			}
		})
	}
}

// idleWorlds have the ways in which devices keep a message from finding no receive.
func idleWorlds(t *testing.T) []world {
	return []world{
		worldOf(t, "fakeband"), worldOf(t, "fakewarp"),
		fakeWorld("fakelone", func(name string) fake.Config { // receives are an endpoint's own
			c := fake.IWARP(name)
			c.Capabilities &^= rdma.CapSharedReceive
			return c
		}),
	}
}

// One idle peer alone holds as little as one of many.
func TestOneIdlePeerHoldsLittleMemory(t *testing.T) {
	every := recallEvery
	t.Cleanup(func() { recallEvery = every })
	recallEvery = 20 * time.Millisecond
	list := idleWorlds(t)
	for _, w := range worlds {
		if w.name == "shm" || w.name == "iwarp" {
			list = append(list, w)
		}
	}
	for _, w := range list {
		t.Run(w.name, func(t *testing.T) {
			p := w.pair(t, Config{IgnorePressure: true}, ListenConfig{})
			a, b := p.connect(t, w.transport)
			talk(t, p, a, b, 1)
			talk(t, p, b, a, 1)
			for _, r := range []*Runtime{p.client, p.server} {
				n := r.firstDomain(w.transport)
				used := int64(idleMemory + 1)
				for ; used > idleMemory; runtime.Gosched() {
					if p.ctx.Err() != nil {
						t.Fatalf("%d bytes are used for one idle peer, want at most %d", used, idleMemory)
					}
					used = 0
					for _, pool := range n.pools() {
						used += pool.Used
					}
				}
				t.Logf("%d bytes are used", used)
			}
		})
	}
}

// posted checks that a receive is posted for each message that the peers of the ends
// may send now.
func posted(t *testing.T, ends []*Endpoint) {
	t.Helper()
	may := map[*receives]int{}
	for _, e := range ends {
		s := e.carrier.(*shell)
		s.mu.Lock()
		may[s.window.recv] += s.limits.Receives(s.m.Window()-s.window.held, s.limits.AllAnswers()-s.window.unasked)
		s.mu.Unlock()
	}
	for r, most := range may {
		if posted := int(r.posted.Load()); posted < most {
			t.Errorf("%d messages may come and %d receives are posted", most, posted)
		}
	}
}

// Messages that applications hold lie in receives that were promised: others are not
// posted in their place when more is promised.
func TestHeldMessagesCountAsReceives(t *testing.T) {
	w := worldOf(t, "fakewarp")
	p := w.pair(t, Config{}, ListenConfig{})
	var held []*Message
	var ends []*Endpoint
	for range 5 {
		a, b := p.connect(t, "")
		ends = append(ends, b)
		for range b.Tuning().Window {
			if err := a.Send(p.ctx, 1, []byte("held")); err != nil {
				t.Fatal(err)
			}
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, m)
		}
		posted(t, ends)
		n := p.server.firstDomain(w.transport)
		for _, r := range n.queues {
			r.mu.Lock()
			if all := int(r.posted.Load()) + len(held); all > r.promised+baseReceives {
				t.Errorf("%d receives are posted or hold messages, %d are promised", all, r.promised+baseReceives)
			}
			r.mu.Unlock()
		}
	}
	for _, m := range held {
		m.Release()
	}
}

// Whatever applications hold and whichever endpoints come and go, a receive is posted
// for each message that may come: the device ends a connection otherwise.
func TestCreditsAreReceives(t *testing.T) {
	w := worldOf(t, "fakewarp")
	p := w.pair(t, Config{ReceiveMemory: 16 << 20, Linger: 10 * time.Second}, ListenConfig{})
	rng := rand.New(rand.NewPCG(1, 2))
	type line struct {
		a, b *Endpoint
		held []*Message
	}
	var lines []*line
	var late []*Message // of endpoints that are closed
	keep := func(m *Message, err error) *Message {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	const most = 3 // half of the window holds up no credit
	for range 1500 {
		if len(lines) < 6 && rng.IntN(8) == 0 || len(lines) == 0 {
			a, b := p.connect(t, w.transport)
			lines = append(lines, &line{a: a, b: b})
		}
		i := rng.IntN(len(lines))
		l := lines[i]
		switch rng.IntN(8) {
		default:
			for range rng.IntN(most - len(l.held) + 1) {
				if err := l.a.Send(p.ctx, 1, []byte("held")); err != nil {
					t.Fatal(err)
				}
				l.held = append(l.held, keep(l.b.Receive(p.ctx)))
			}
		case 3, 4:
			for range rng.IntN(len(l.held) + 1) {
				l.held[0].Release()
				l.held = l.held[1:]
			}
		case 5: // more than the window
			for _, m := range l.held {
				m.Release()
			}
			l.held = nil
			const burst = 100
			done := make(chan error, 1)
			go func() {
				for range burst {
					if err := l.a.Send(p.ctx, 1, []byte("burst")); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for range burst {
				keep(l.b.Receive(p.ctx)).Release()
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		case 6: // a long one, which is confirmed
			sent := make(chan error, 1)
			go func() { sent <- l.a.Send(p.ctx, 1, make([]byte, 100<<10)) }()
			keep(l.b.Receive(p.ctx)).Release()
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		case 7:
			if rng.IntN(4) > 0 {
				continue
			}
			late = append(late, l.held...)
			closed := make(chan error, 1)
			go func() { closed <- l.a.Close() }()
			if err := l.b.Close(); err != nil {
				t.Error(err)
			}
			if err := <-closed; err != nil {
				t.Error(err)
			}
			lines = append(lines[:i], lines[i+1:]...)
		}
		if len(late) > 0 && rng.IntN(4) == 0 {
			late[0].Release()
			late = late[1:]
		}
		for _, l := range lines {
			if err := l.b.Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	var ends []*Endpoint
	for _, l := range lines {
		ends = append(ends, l.b)
		late = append(late, l.held...)
	}
	posted(t, ends)
	for _, m := range late {
		m.Release()
	}
}
