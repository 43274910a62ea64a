package hdfs

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"
)

// A file whose writer asks for no checksums is written, flushed, appended to, cut and read
// as any other. DataNodes make checksums of their own for it, so that it has the one of a
// file of the same bytes.
func TestFilesWithoutChecksums(t *testing.T) {
	t.Parallel()
	s := startSystem(t, 3, 3)
	for _, transport := range everyTransport() {
		t.Run(transport, func(t *testing.T) {
			small := func(cfg *ClientConfig) { cfg.BlockSize, cfg.PacketSize = 1<<20, 10_000 }
			c := s.own(transport, small, func(cfg *ClientConfig) { cfg.Checksum = ChecksumNone })
			other := s.own(transport, small)
			ctx, name := t.Context(), "/none-"+transport
			random := rand.New(rand.NewPCG(4, 1))
			var want []byte
			put := func(w *FileWriter, err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				for range 4 {
					piece := randomBytes(1 + random.IntN(300_000))
					want = append(want, piece...)
					if _, err := w.Write(piece); err != nil {
						t.Fatal(err)
					}
					if err := w.Flush(ctx); err != nil {
						t.Fatal(err)
					}
					expect(t, other, name, want)
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
			}
			put(c.Create(ctx, name, CreateOptions{}))
			put(c.Append(ctx, name, AppendOptions{}))
			put(other.Append(ctx, name, AppendOptions{}))
			want = want[:len(want)-777]
			if _, err := c.Truncate(ctx, name, int64(len(want))); err != nil {
				t.Fatal(err)
			}
			limit, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			if err := c.WaitClosed(limit, name); err != nil {
				t.Fatal(err)
			}
			expect(t, c, name, want)
			if got := readAll(t, s.connect(plain), name); !bytes.Equal(got, want) {
				t.Error("another client reads other bytes")
			}
			store(t, other, name+"-protected", want, CreateOptions{})
			a, err := c.Checksum(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			b, err := other.Checksum(ctx, name+"-protected")
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(a.Encoded, b.Encoded) || a.Algorithm != b.Algorithm {
				t.Errorf("the file's checksum is %v, that of the same bytes %v", a, b)
			}
		})
	}
}
