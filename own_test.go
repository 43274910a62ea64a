package verbena

import (
	"testing"

	"github.com/verbena-data/verbena/rdma"
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
			talk := func(from, to *Endpoint) {
				t.Helper()
				for range 100 {
					if err := from.Send(p.ctx, 1, make([]byte, 1000)); err != nil {
						t.Fatal(err)
					}
					m, err := to.Receive(p.ctx)
					if err != nil {
						t.Fatal(err)
					}
					m.Release()
				}
			}
			var ends [][2]*Endpoint
			for i := range most + 2 {
				a, b := p.connect(t, "")
				ends = append(ends, [2]*Endpoint{a, b})
				if want := i < most; own(a) != want || own(b) != want {
					t.Errorf("endpoint %d: own receives %t and %t, want %t", i, own(a), own(b), want)
				}
				talk(a, b)
				talk(b, a)
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
			talk(a, b)
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
