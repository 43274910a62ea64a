package verbena

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Long messages that arrive at the same time, and together are far longer than the
// memory for them, do not wait for each other.
func TestLongMessagesDoNotWaitForEachOther(t *testing.T) {
	for _, name := range []string{"fakeband", "fakewarp"} {
		t.Run(name, func(t *testing.T) {
			w := worldOf(t, name)
			p := w.pair(t, Config{ReceiveMemory: 16 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
			const ends, each = 12, 4
			var wg sync.WaitGroup
			for i := range ends {
				a, b := p.connect(t, "")
				want := pattern(a.MaxMessage(), i)
				wg.Go(func() {
					for range each {
						if err := a.Send(p.ctx, 1, want); err != nil {
							t.Error(err)
							return
						}
					}
				})
				wg.Go(func() {
					for range each {
						m, err := b.Receive(p.ctx)
						if err != nil {
							t.Error(err)
							return
						}
						if !bytes.Equal(m.Bytes(), want) {
							t.Error("wrong bytes")
						}
						m.Release()
					}
				})
			}
			wg.Wait()
			if err := errors.Join(p.client.Close(), p.server.Close()); err != nil && !errors.Is(err, ErrNotDelivered) {
				t.Error(err)
			}
		})
	}
}

// A group that is closed while endpoints of it are being set up waits for them to
// end, however far they have come.
func TestGroupClosesDuringDials(t *testing.T) {
	for _, name := range []string{"fakeband", "fakewarp"} {
		t.Run(name, func(t *testing.T) {
			w := worldOf(t, name)
			p := w.pair(t, Config{Linger: 10 * time.Millisecond}, ListenConfig{})
			for i := range 20 {
				g, err := p.client.NewGroup(GroupConfig{Name: "brief"})
				if err != nil {
					t.Fatal(err)
				}
				var dials sync.WaitGroup
				started := make(chan struct{}, 100)
				for range 4 {
					dials.Go(func() {
						for {
							started <- struct{}{}
							if _, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Group: g}); err != nil {
								if !errors.Is(err, ErrClosed) {
									t.Error(err)
								}
								return
							}
							if e, err := p.listener.Accept(p.ctx); err == nil {
								defer e.Close()
							}
						}
					})
				}
				for range 4 + i {
					<-started
				}
				over := make(chan struct{})
				go func() {
					for {
						select {
						case <-started:
						case <-over:
							return
						}
					}
				}()
				closed := make(chan error, 1)
				go func() { closed <- g.Close() }()
				if err := g.Close(); err != nil && !errors.Is(err, ErrNotDelivered) {
					t.Error(err)
				}
				for d, n := range g.domains {
					if _, err := n.domain.Allocate(4096, 0); !errors.Is(err, rdma.ErrClosed) {
						t.Errorf("%s is open after Close: %v", d.transport, err)
					}
				}
				if err := <-closed; err != nil && !errors.Is(err, ErrNotDelivered) {
					t.Error(err)
				}
				dials.Wait()
				close(over)
			}
		})
	}
}
