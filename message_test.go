package verbena

import (
	"bytes"
	"errors"
	"runtime"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// A second Release of a message does no harm, whatever carries the endpoint.
func TestSecondReleaseIsHarmless(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		for i := range 20 {
			for _, size := range []int{0, 100, 5000, 700 << 10} {
				want := pattern(size, i)
				sent := make(chan error, 1)
				go func() { sent <- a.Send(p.ctx, uint32(i), want) }()
				m, err := b.Receive(p.ctx)
				if err := errors.Join(err, <-sent); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(m.Bytes(), want) {
					t.Fatalf("wrong bytes in message %d", i)
				}
				m.Release()
				m.Release()
			}
		}
		if err := errors.Join(a.Close(), b.Close(), p.client.Close(), p.server.Close()); err != nil {
			t.Error(err)
		}
		if d := p.server.firstDomain(w.transport); d != nil {
			if _, err := d.domain.Allocate(4096, 0); !errors.Is(err, rdma.ErrClosed) {
				t.Errorf("the domain is still there: %v", err)
			}
		}
	})
}

// A second Release takes nothing from messages that have come into the same receives
// since, and wait for Receive.
func TestSecondReleaseLeavesWaitingMessages(t *testing.T) {
	for _, w := range worlds {
		if w.transport == TransportTCP {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			const window = 16
			p := w.pair(t, Config{Tuning: TuningTable{w.transport: {Window: window}}}, ListenConfig{})
			a, b := p.connect(t, w.transport)
			released := map[*Message]bool{}
			exchange := func() {
				for i := range 64 * window { // each of the receives has been used by then
					if err := a.Send(p.ctx, uint32(i), pattern(100, i)); err != nil {
						t.Fatal(err)
					}
					m, err := b.Receive(p.ctx)
					if err != nil {
						t.Fatal(err)
					}
					m.Release()
					released[m] = true
				}
			}
			s := b.carrier.(*shell)
			waiting := func() (all, again int) {
				s.mu.Lock()
				defer s.mu.Unlock()
				for _, c := range *s.window.recv.slots.Load() {
					if c.holder == &s.inbound {
						all++
						if released[&c.message] {
							again++
						}
					}
				}
				return all, again
			}
			// fill sends what the peer has room for, which follows the load.
			fill := func() (sent int) {
				for a.TrySend(uint32(sent), pattern(100, sent)) {
					sent++
					for all, _ := waiting(); all < sent; all, _ = waiting() {
						if p.ctx.Err() != nil {
							t.Fatalf("message %d does not come in", sent)
						}
						runtime.Gosched()
					}
				}
				return sent
			}
			receive := func(count int) {
				for i := range count {
					m, err := b.Receive(p.ctx)
					if err != nil {
						t.Fatal(err)
					}
					if m.Tag != uint32(i) || !bytes.Equal(m.Bytes(), pattern(100, i)) {
						t.Errorf("message %d has the tag %d, or other bytes", i, m.Tag)
					}
					m.Release()
				}
			}
			exchange()
			count := fill()
			for _, again := waiting(); again == 0; _, again = waiting() { // new receives have come
				receive(count)
				exchange()
				count = fill()
			}
			for m := range released {
				m.Release()
			}
			receive(count)
		})
	}
}
