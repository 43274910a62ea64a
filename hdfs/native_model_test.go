package hdfs

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
)

// How TestBothPathsUnderAModel goes. For long, it is
// go test ./hdfs -run TestBothPathsUnderAModel -model-seeds 200 -timeout 1h.
var (
	modelSeed  = flag.Uint64("model-seed", 1, "the first seed of TestBothPathsUnderAModel")
	modelSeeds = flag.Uint64("model-seeds", 3, "how many seeds TestBothPathsUnderAModel takes, with -short one")
)

// recoverFile has a file's lease recovered, and waits until it is closed.
func recoverFile(t *testing.T, c *Client, name string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		closed, err := c.RecoverLease(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if closed {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the file stays open")
		}
	}
}

// Random writers of both protocols append to one file, flush, hsync, close or die, others recover it, and cut it
// anywhere; readers of both find what a model says, byte for byte.
func TestBothPathsUnderAModel(t *testing.T) {
	t.Parallel()
	seeds := *modelSeeds
	if testing.Short() {
		seeds = 1
	}
	for i := range seeds {
		seed := *modelSeed + i
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel() // each waits for leases for most of its time
			bothPathsUnderAModel(t, seed)
		})
	}
}

func bothPathsUnderAModel(t *testing.T, seed uint64) {
	s := startSystem(t, 3, 3)
	away := func(cfg *ClientConfig) { cfg.NoLocalReads, cfg.PacketSize, cfg.ReplaceBestEffort = true, 30_000, true }
	legacy := func(cfg *ClientConfig) { cfg.LegacyTransfers = true }
	clients := []*Client{
		s.own(verbena.TransportAuto, away), s.own(plain, away), s.own("shm", away), s.own("shm", away, legacy), s.own("tcp", away),
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	any := func() *Client { return clients[rng.IntN(len(clients))] }
	const name = "/model"
	if err := any().WriteFile(t.Context(), name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var want []byte // what is in the file; of what was not flushed when a writer died, any part
	for step := range 24 {
		if len(want) > 0 && rng.IntN(4) == 0 {
			to := rng.IntN(len(want) + 1)
			done, err := any().Truncate(t.Context(), name, int64(to))
			if err != nil {
				t.Fatalf("step %d: truncate from %d to %d: %v", step, len(want), to, err)
			}
			if want = want[:to]; !done {
				recoverFile(t, any(), name)
			}
			expect(t, any(), name, want)
			continue
		}
		w, err := any().Append(t.Context(), name, AppendOptions{})
		if err != nil {
			t.Fatalf("step %d: append at %d: %v", step, len(want), err)
		}
		written := want
		for range 1 + rng.IntN(4) {
			piece := randomBytes(rng.IntN(400_000))
			if _, err := w.Write(piece); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			written = append(written[:len(written):len(written)], piece...)
			switch rng.IntN(3) {
			case 0:
				err = w.Flush(t.Context())
			case 1:
				err = w.Sync(t.Context(), rng.IntN(2) == 0)
			default:
				continue
			}
			if err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			want = written
			expect(t, any(), name, want)
		}
		if rng.IntN(3) > 0 {
			if err := w.Close(); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			want = written
		} else {
			w.Abort()
			if err := w.Close(); err == nil { // gives the memory of what was not sent back
				t.Fatalf("step %d: an aborted writer closed the file", step)
			}
			recoverFile(t, any(), name)
			got, err := any().ReadFile(t.Context(), name)
			if err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			if !bytes.HasPrefix(written, got) || len(got) < len(want) {
				t.Fatalf("step %d: a dead writer left %d bytes, %d were flushed of %d, or others", step, len(got), len(want), len(written))
			}
			want = got
		}
		expect(t, any(), name, want)
	}
}
