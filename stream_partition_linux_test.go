package verbena

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/liveness"
	"github.com/verbena-data/verbena/internal/testnet"
)

// A partition in the middle of traffic, and one of a peer that does not receive,
// end both endpoints; a peer that does not receive is no partition.
func TestPartition(t *testing.T) {
	const short = time.Second
	for _, c := range []struct {
		name          string
		receives, cut bool
	}{{"in traffic", true, true}, {"not receiving", false, true}, {"slow reader", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cable := testnet.New(t)
			ctx := testContext(t)
			client := newRuntime(t, Config{Linger: time.Millisecond, PeerTimeout: short}, nil)
			server := newRuntime(t, Config{Linger: time.Millisecond, PeerTimeout: short}, nil)
			var l *Listener
			var far, near *Endpoint
			var err error
			cable.B.Do(func() { l, err = server.Listen(ctx, cable.B.Address+":0", ListenConfig{}) })
			if err != nil {
				t.Fatal(err)
			}
			cable.A.Do(func() { near, err = client.Dial(ctx, l.Addr().String(), "test/1", DialConfig{}) })
			if err != nil {
				t.Fatal(err)
			}
			if far, err = l.Accept(ctx); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			received := make(chan struct{}, 1)
			if c.receives {
				wg.Go(func() {
					for {
						m, err := far.Receive(ctx)
						if err != nil {
							return
						}
						m.Release()
						notify(received)
					}
				})
			}
			sendCtx, stop := context.WithCancel(ctx)
			failed := make(chan error, 1)
			wg.Go(func() {
				for {
					if err := near.Send(sendCtx, 1, pattern(64<<10, 0)); err != nil {
						failed <- err
						return
					}
				}
			})
			defer stop()
			defer far.Close()
			if c.receives {
				<-received
			} else {
				select {
				case err := <-failed:
					t.Fatalf("a peer that does not receive ended it: %v", err)
				case <-time.After(4 * short):
				}
			}
			if !c.cut {
				return
			}
			cable.Cut()
			if err := <-failed; !errors.Is(err, ErrPeerDied) || !errors.Is(err, liveness.ErrSilent) {
				t.Error(err)
			}
			<-near.Done()
			cable.Heal()
		})
	}
}

// A connection on which nothing is on its way ends, too, at both ends. One of them takes some
// 15 s in place of 6: Linux does not count probes that a link without a carrier drops.
func TestIdlePartition(t *testing.T) {
	t.Parallel()
	cable := testnet.New(t)
	ctx := testContext(t)
	config := Config{Linger: time.Millisecond, PeerTimeout: time.Second}
	client, server := newRuntime(t, config, nil), newRuntime(t, config, nil)
	var l *Listener
	var near *Endpoint
	var err error
	cable.B.Do(func() { l, err = server.Listen(ctx, cable.B.Address+":0", ListenConfig{}) })
	if err != nil {
		t.Fatal(err)
	}
	cable.A.Do(func() { near, err = client.Dial(ctx, l.Addr().String(), "test/1", DialConfig{}) })
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cable.Cut()
	defer cable.Heal()
	for end, e := range map[string]*Endpoint{"near": near, "far": far} {
		select {
		case <-e.Done():
			if err := e.Err(); !errors.Is(err, ErrPeerDied) {
				t.Errorf("%s: %v", end, err)
			}
		case <-time.After(28 * time.Second): // with the default timeout it would be 30
			t.Errorf("%s: an idle connection outlives its peer's host", end)
		}
	}
}
