package hdfs

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// BenchmarkSmallReads reads 4 KiB at random in 16 MiB, by message and by Get, and shows the
// median. Client and servers have a runtime each, in one process.
func BenchmarkSmallReads(b *testing.B) {
	const size, small = 16 << 20, 4 << 10
	s := startSystem(b, 1, 1)
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { rt.Close() })
	content := randomBytes(size)
	for _, way := range []struct {
		name, transport string
		change          func(*ClientConfig)
	}{
		{"shm/get", "shm", func(*ClientConfig) {}}, {"shm/message", "shm", func(cfg *ClientConfig) { cfg.NoWindows = true }},
		{"iwarp/get", "iwarp", func(*ClientConfig) {}}, {"iwarp/message", "iwarp", func(cfg *ClientConfig) { cfg.NoWindows = true }},
		{"tcp/message", "tcp", func(*ClientConfig) {}}, {"tcp/legacy", "tcp", func(cfg *ClientConfig) { cfg.Dialer = nil }},
	} {
		b.Run(way.name, func(b *testing.B) {
			d := NewDialer(rt, way.transport)
			defer d.Close()
			c := s.own(way.transport, func(cfg *ClientConfig) { cfg.Dialer, cfg.BlockSize = d, size }, way.change)
			defer c.Close()
			store(b, c, "/file", content, CreateOptions{Replace: true})
			f, err := c.Open(b.Context(), "/file")
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			random, p := rand.New(rand.NewPCG(1, 2)), make([]byte, small)
			read := func() time.Duration {
				began := time.Now()
				if _, err := f.ReadAtContext(context.Background(), p, random.Int64N(size/small)*small); err != nil {
					b.Fatal(err)
				}
				return time.Since(began)
			}
			for range 1000 { // until the ranges are known to be hot
				read()
			}
			gets := c.WindowReads().Reads
			var took []time.Duration
			for b.Loop() {
				took = append(took, read())
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
			b.ReportMetric(float64(c.WindowReads().Reads-gets)/float64(len(took)), "gets/op")
		})
	}
}
