package hdfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/race"
)

// Long ranges are read through rings, from any place to any other, by several readers at a
// time, and come out as they were written.
func TestRings(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"shm", "iwarp"} {
		t.Run(transport, func(t *testing.T) {
			s := startSystem(t, 1, 1)
			c := s.own(transport, func(cfg *ClientConfig) { cfg.BlockSize = 8 << 20 })
			content := randomBytes(20<<20 + 777)
			store(t, c, "/long", content, CreateOptions{})
			random := rand.New(rand.NewPCG(8, 9))
			before := s.DataNodes[0].Reads()
			expect(t, c, "/long", content)
			if now := s.DataNodes[0].Reads(); now.Rings-before.Rings != 3 || now.Served-before.Served != 3 {
				t.Errorf("of %d reads %d went through rings, want all 3", now.Served-before.Served, now.Rings-before.Rings)
			}
			var open []*FileReader
			for range 3 {
				f, err := c.Open(t.Context(), "/long")
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				open = append(open, f)
			}
			reads := 60
			if race.Enabled {
				reads = 20
			}
			for range reads {
				f := open[random.IntN(len(open))]
				at := random.IntN(len(content))
				if random.IntN(2) == 0 {
					if err := at64(f, content, at, random.IntN(6<<20)); err != nil {
						t.Fatal(err)
					}
					continue
				}
				if _, err := f.Seek(int64(at), io.SeekStart); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, min(random.IntN(5<<20), len(content)-at))
				if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, content[at:at+len(got)]) {
					t.Fatalf("%d bytes at %d: %v", len(got), at, err)
				}
			}
			if s.DataNodes[0].Reads().Rings == before.Rings+3 {
				t.Error("no read went through a ring")
			}
			var out bytes.Buffer
			if _, err := open[0].Seek(5, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			if _, err := open[0].WriteTo(&out); err != nil || !bytes.Equal(out.Bytes(), content[5:]) {
				t.Errorf("WriteTo gives %d bytes: %v", out.Len(), err)
			}
		})
	}
}

// at64 is at for a range that may reach beyond the end.
func at64(f *FileReader, want []byte, off, size int) error {
	return at(f, want, off, min(size, len(want)-off))
}

// A DataNode that gives no ring, as over TCP, is read over a connection of its own, a range for
// which one does not pay by calls.
func TestReadsWithoutRings(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(verbena.TransportTCP, func(cfg *ClientConfig) { cfg.BlockSize = 8 << 20 })
	content := randomBytes(9<<20 + 5)
	store(t, c, "/long", content, CreateOptions{})
	before := s.DataNodes[0].Reads()
	for range 2 {
		whole(t, c, "/long", content)
	}
	after := s.DataNodes[0].Reads()
	if after.Rings != 0 {
		t.Errorf("%d reads went through rings", after.Rings)
	}
	// One for the first block, two calls for what the other has beyond 1 MiB.
	if n := after.Served - before.Served; n != 2*3 {
		t.Errorf("the DataNode has served %d reads", n)
	}
}

// Where there is better than TCP a long range is read by calls if the DataNode has no ring for it.
func TestReadsWithoutRingsOverShm(t *testing.T) {
	s := systemIn(t, 1, 1, "127.0.0.1", func(cfg *ClusterConfig) { cfg.WindowMemory = -1 })
	c := s.own("shm", func(cfg *ClientConfig) { cfg.BlockSize = 8 << 20 })
	content := randomBytes(8 << 20)
	store(t, c, "/long", content, CreateOptions{})
	before := s.DataNodes[0].Reads()
	whole(t, c, "/long", content)
	after := s.DataNodes[0].Reads()
	// A connection would be one read, a call is for 252 KiB.
	if n := after.Served - before.Served; after.Rings != 0 || n != 33 {
		t.Errorf("the DataNode has served %d reads, %d by rings; want 33 calls", n, after.Rings)
	}
}

// Bytes in a ring that do not match their checksums are found, and read elsewhere; a reader
// that gives up in the middle leaves nothing behind.
func TestRingsAreVerified(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"shm", "iwarp"} {
		t.Run(transport, func(t *testing.T) { ringsAreVerified(t, transport) })
	}
}

func ringsAreVerified(t *testing.T, transport string) {
	s := startSystem(t, 2, 2)
	c := s.own(transport, func(cfg *ClientConfig) { cfg.BlockSize = 8 << 20 })
	content := randomBytes(7<<20 + 11)
	store(t, c, "/long", content, CreateOptions{})
	for _, file := range replicas(t, s.cfg.Dir, int64(len(content)))[:1] {
		flipByte(t, file, 3_456_789)
	}
	for range 6 {
		expect(t, c, "/long", content)
		whole(t, c, "/long", content)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f, err := c.Open(ctx, "/long")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1000)
	if _, err := f.Read(b); err != nil || !bytes.Equal(b, content[:1000]) {
		t.Fatal(err)
	}
	cancel()
	for err == nil { // what has come before is still given
		_, err = f.Read(b)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context a read says %v", err)
	}
	expect(t, c, "/long", content)
}

// whole reads a file into memory that has room for all of it.
func whole(t *testing.T, c *Client, name string, want []byte) {
	t.Helper()
	f, err := c.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%s: other bytes came back, or %v", name, err)
	}
}
