package verbena_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp"
	"github.com/verbena-data/verbena/rdma/shm"
)

// A storm of dials to a server that none of them knows: nobody takes it for a
// legacy one, and who gets a worse transport than the others knows that it may
// have the better one later.
func TestStorm(t *testing.T) {
	dials := 1400
	if race.Enabled {
		dials = 200
	}
	newRuntime := func() *verbena.Runtime {
		r, err := verbena.New(verbena.Config{Providers: []rdma.Provider{shm.New(shm.Config{}), iwarp.New(iwarp.Config{})}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	server, client := newRuntime(), newRuntime()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := server.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var accepting, dialling sync.WaitGroup
	accepting.Go(func() {
		for {
			e, err := l.Accept(ctx)
			if err != nil {
				return
			}
			accepting.Go(func() {
				<-e.Done()
				_ = e.Close() // the client is gone
			})
		}
	})
	var mu sync.Mutex
	transports := map[string]int{}
	for range dials {
		dialling.Go(func() {
			e, err := client.Dial(ctx, l.Addr().String(), "storm/1", verbena.DialConfig{})
			mu.Lock()
			defer mu.Unlock()
			var legacy *verbena.LegacyPeerError
			switch {
			case errors.As(err, &legacy) && legacy.Until.IsZero():
				transports["plain"]++
			case err != nil:
				t.Error(err)
			default:
				s := e.Selection()
				if transports[s.Transport]++; s.Transport != "shm" && !s.Passing() {
					t.Errorf("for life over %s: %s", s.Transport, s)
				}
				dialling.Go(func() { _ = e.Close() })
			}
		})
	}
	dialling.Wait()
	t.Logf("%v", transports)
	if e, err := client.Dial(ctx, l.Addr().String(), "storm/1", verbena.DialConfig{}); err != nil {
		t.Errorf("after the storm: %v", err)
	} else {
		if s := e.Selection(); s.Transport != "shm" {
			t.Errorf("after the storm: %s", s)
		}
		_ = e.Close()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	accepting.Wait()
}
