package verbena

import (
	"slices"
	"testing"
	"time"
)

// Memory that a crowd of endpoints needed goes back although an endpoint stays, whose
// receives lie here and there in it.
func TestMemoryGoesBackBesideAnEndpoint(t *testing.T) {
	for _, name := range []string{"fakewarp", "shm"} {
		if !slices.ContainsFunc(worlds, func(w world) bool { return w.name == name }) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			w := worldOf(t, name)
			p := w.pair(t, Config{Linger: 10 * time.Second}, ListenConfig{})
			a, b := p.connect(t, "")
			exchange := func(n int) {
				t.Helper()
				for i := range n {
					if err := a.Send(p.ctx, uint32(i), []byte("here")); err != nil {
						t.Fatal(err)
					}
					m, err := b.Receive(p.ctx)
					if err != nil {
						t.Fatal(err)
					}
					m.Release()
				}
			}
			const crowd, each = 100, 4
			var ends []*Endpoint
			var held []*Message
			for range crowd {
				c, d := p.connect(t, "")
				ends = append(ends, c, d)
				for i := range each {
					if err := c.Send(p.ctx, uint32(i), make([]byte, 100)); err != nil {
						t.Fatal(err)
					}
					m, err := d.Receive(p.ctx)
					if err != nil {
						t.Fatal(err)
					}
					held = append(held, m)
				}
				exchange(3) // its receives come in between
			}
			pool := p.server.firstDomain(w.transport).receivePool
			most := pool.Registered()
			for i := range held {
				held[i*7%len(held)].Release() // 7 and the number have no common factor
			}
			for _, e := range ends {
				_ = e.Close()
			}
			exchange(5_000)
			if err := pool.Trim(); err != nil {
				t.Error(err)
			}
			if left := pool.Registered(); left > most/3 {
				t.Errorf("%d bytes stay registered, of %d at most; %d are used", left, most, pool.Used())
			} else {
				t.Logf("%d bytes of %d", left, most)
			}
		})
	}
}
