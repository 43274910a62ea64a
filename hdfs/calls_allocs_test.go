package hdfs

import (
	"fmt"
	"math"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/providers"
)

// Whole calls of metadata allocate no more than is told here, at client and NameNode together: what is
// there today, and a little for heartbeats beside.
func TestCallsOfMetadataAllocateLittle(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector empties pools")
	}
	const files = 20
	s := startSystem(t, 1, 1)
	// A runtime of its own, as in another process: one end's poller hands nothing to the other.
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	first := s.own(plain)
	for i := range files {
		store(t, first, fmt.Sprintf("/dir/file-%d", i), []byte("a block"), CreateOptions{})
	}
	for _, transport := range []string{plain, "shm", "tcp"} {
		c := s.own(plain, func(cfg *ClientConfig) {
			if transport != plain {
				d := NewDialer(rt, transport)
				t.Cleanup(func() { d.Close() })
				cfg.Dialer = d
			}
		})
		for _, call := range []struct {
			name string
			most float64
			do   func() error
		}{
			{"stat", 16, func() error { _, err := c.Stat(t.Context(), "/dir/file-7"); return err }},
			{"open", 28, func() error {
				f, err := c.Open(t.Context(), "/dir/file-7")
				if err != nil {
					return err
				}
				return f.Close()
			}},
			{"list", 48 + files, func() error {
				all, err := c.ReadDir(t.Context(), "/dir")
				if err == nil && len(all) != files {
					err = fmt.Errorf("%d files", len(all))
				}
				return err
			}},
		} {
			// What runs beside it allocates, too: the run with the fewest counts.
			least := math.Inf(1)
			for range 5 {
				least = min(least, testing.AllocsPerRun(100, func() {
					if err := call.do(); err != nil {
						t.Fatal(err)
					}
				}))
			}
			if least > call.most {
				t.Errorf("%s over %s: %v allocations, want %v at most", call.name, transport, least, call.most)
			}
		}
	}
}
