package hdfs

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// warm reads a file at random until n reads were made one-sidedly.
func warm(t *testing.T, c *Client, f *FileReader, content []byte, n uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(5, 6))
	began := c.WindowReads().Reads
	for deadline := time.Now().Add(time.Minute); c.WindowReads().Reads < began+n; {
		off := random.IntN(len(content))
		if err := at(f, content, off, 1+random.IntN(9000)); err != nil {
			t.Fatalf("at %d: %v", off, err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute %+v", c.WindowReads())
		}
	}
}

// Ranges that are read often are read one-sidedly, without the DataNode's service code, and
// an append or a deletion takes them back.
func TestWindows(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"shm", "iwarp"} {
		t.Run(transport, func(t *testing.T) {
			s := startSystem(t, 1, 1)
			c := s.own(transport, func(cfg *ClientConfig) { cfg.ReadFailures = 1 })
			content := randomBytes(2<<20 + 500_333)
			store(t, c, "/hot", content, CreateOptions{})
			f, err := c.Open(t.Context(), "/hot")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			// A window is there a moment before it counts as granted.
			for warm(t, c, f, content, 300); s.DataNodes[0].Reads().Windows.Granted < 3; {
				warm(t, c, f, content, 1)
			}
			before := s.DataNodes[0].Reads()
			if w := before.Windows; w.Windows != 3 || w.Bytes <= 0 {
				t.Errorf("%+v", w)
			}
			reads := c.WindowReads().Reads
			for off := 0; off < 1<<20; off += 4096 {
				if err := at(f, content, off, 4096); err != nil {
					t.Fatal(err)
				}
			}
			by, served := c.WindowReads().Reads-reads, s.DataNodes[0].Reads().Served-before.Served
			if by != 256 || served != 0 {
				t.Errorf("of 256 reads %d were one-sided, and the DataNode has served %d", by, served)
			}

			more := randomBytes(50_000)
			w, err := c.Append(t.Context(), "/hot", AppendOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(more); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if s.DataNodes[0].Reads().Windows.Revoked == 0 {
				t.Error("an append takes no window back")
			}
			for off := 0; off < len(content); off += 100_000 {
				if err := at(f, content, off, min(4096, len(content)-off)); err != nil {
					t.Fatalf("behind an append, at %d: %v", off, err)
				}
			}
			content = append(content, more...)
			if err := f.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			warm(t, c, f, content, 100)

			if err := c.RemoveAll(t.Context(), "/hot"); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(20 * time.Second); s.DataNodes[0].Reads().Windows.Windows > 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("windows of a file that was deleted: %+v", s.DataNodes[0].Reads().Windows)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if n, err := f.ReadAtContext(ctx, make([]byte, 4096), 4096); err == nil {
				t.Errorf("%d bytes of a block that was deleted", n)
			}
		})
	}
}

// Several readers, appends and the end of a DataNode: each read is right.
func TestWindowsBesideChanges(t *testing.T) {
	t.Parallel()
	s := startSystem(t, 2, 2)
	content := randomBytes(3 << 20)
	clients := []*Client{s.own("shm"), s.own("iwarp"), s.own("shm", func(cfg *ClientConfig) { cfg.NoWindows = true })}
	store(t, clients[0], "/busy", content, CreateOptions{})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i, c := range clients {
		f, err := c.Open(t.Context(), "/busy")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for {
				select {
				case <-stop:
					return
				default:
				}
				off := random.IntN(len(content) - 5000)
				if err := at(f, content, off, 1+random.IntN(5000)); err != nil {
					t.Errorf("client %d at %d: %v", i, off, err)
					return
				}
			}
		})
	}
	for range 6 {
		w, err := clients[0].Append(t.Context(), "/busy", AppendOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(randomBytes(10_000)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // let ranges become hot between two appends
	}
	if err := s.DataNodes[0].Close(); err != nil {
		t.Error(err)
	}
	time.Sleep(300 * time.Millisecond)
	close(stop)
	wg.Wait()
	if n := clients[0].WindowReads().Reads; n == 0 {
		t.Error("nothing was read one-sidedly")
	}
	if n := clients[2].WindowReads(); n.Reads+n.Granted != 0 {
		t.Errorf("a client that wants no windows: %+v", n)
	}
}
