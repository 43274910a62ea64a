package hdfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/providers"
)

// at reads size bytes of an open file and compares them.
func at(f *FileReader, want []byte, off, size int) error {
	got := make([]byte, size)
	n, err := f.ReadAt(got, int64(off))
	if err != nil && !(err == io.EOF && off+n == len(want)) {
		return err
	}
	if !bytes.Equal(got[:n], want[off:off+n]) {
		return errors.New("other bytes")
	}
	return nil
}

// Small positional reads are answered at once on every transport, and find what is there
// while the file grows.
func TestSmallReads(t *testing.T) {
	for _, transport := range []string{"shm", "iwarp", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			s := startSystem(t, 1, 1)
			c := s.own(transport, func(cfg *ClientConfig) { cfg.NoWindows = true })
			content := randomBytes(2<<20 + 333)
			store(t, c, "/small", content, CreateOptions{})
			f, err := c.Open(t.Context(), "/small")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			random := rand.New(rand.NewPCG(3, 4))
			const reads = 300
			for range reads {
				off := random.IntN(len(content))
				if err := at(f, content, off, 1+random.IntN(70_000)); err != nil {
					t.Fatalf("at %d: %v", off, err)
				}
			}
			if now := s.DataNodes[0].Reads().Now; now < reads/2 {
				t.Errorf("%d of %d reads were answered at once", now, reads)
			}
			more := randomBytes(100_000)
			w, err := c.Append(t.Context(), "/small", AppendOptions{})
			if err != nil {
				t.Fatal(err)
			}
			content = append(content, more...)
			var wg sync.WaitGroup
			wg.Go(func() {
				for range reads {
					if err := at(f, content[:f.Size()], random.IntN(int(f.Size())), 4096); err != nil {
						t.Errorf("beside an append: %v", err)
						return
					}
				}
			})
			if _, err := w.Write(more); err != nil {
				t.Error(err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			wg.Wait()
			if err := f.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := at(f, content, len(content)-5000, 5000); err != nil {
				t.Errorf("after an append: %v", err)
			}
		})
	}
}

// A small read allocates nothing at either end: both are in this process.
func TestSmallReadsAllocateNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector empties pools")
	}
	s := startSystem(t, 1, 1)
	// A runtime of its own, as in another process: one end's poller hands nothing to the other.
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	for _, way := range []struct {
		transport string
		messages  bool
	}{{"shm", true}, {"tcp", true}, {"shm", false}} {
		d := NewDialer(rt, way.transport)
		t.Cleanup(func() { d.Close() })
		c := s.own(way.transport, func(cfg *ClientConfig) { cfg.Dialer, cfg.NoWindows = d, way.messages })
		content := randomBytes(1 << 20)
		store(t, c, "/file", content, CreateOptions{Replace: true})
		f, err := c.Open(t.Context(), "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if !way.messages {
			warm(t, c, f, content, 10)
		}
		p := make([]byte, 4096)
		off := int64(0)
		n := testing.AllocsPerRun(1000, func() {
			if _, err := f.ReadAtContext(context.Background(), p, off); err != nil {
				t.Fatal(err)
			}
			off = (off + 77_777) % (1<<20 - 4096)
		})
		if n > 1 { // what runs beside, such as heartbeats
			t.Errorf("%+v: %v allocations a read", way, n)
		}
	}
}
