package hdfs

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
)

// BenchmarkTransfers writes and reads a file of 256 MiB with three replicas, over each
// transport by the native data path and by the legacy protocol, and shows the processor
// time of clients and servers, which are one process, for each GiB.
// VERBENA_PACKET=BYTES sets the packets' size, and VERBENA_BLOCKS=DIR where the blocks lie.
func BenchmarkTransfers(b *testing.B) {
	const size, piece = 256 << 20, 1 << 20
	packet := 0
	if text := os.Getenv("VERBENA_PACKET"); text != "" {
		if _, err := fmt.Sscan(text, &packet); err != nil {
			b.Fatal(err)
		}
	}
	s := startSystem(b, 3, 3)
	buf := randomBytes(piece)
	for _, way := range []struct {
		name, transport string
		legacy          bool
	}{{"shm/native", "shm", false}, {"shm/legacy", "shm", true}, {"tcp/native", "tcp", false}, {"tcp/legacy", plain, true}} {
		c := s.own(way.transport, func(cfg *ClientConfig) {
			cfg.LegacyTransfers, cfg.PacketSize, cfg.BlockSize, cfg.NoLocalReads = way.legacy, packet, 128<<20, true
		})
		measure := func(name string, do func() error) {
			b.Run(way.name+"/"+name, func(b *testing.B) {
				b.SetBytes(size)
				b.ReportAllocs()
				began := processorTime(b)
				for b.Loop() {
					if err := do(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(processorTime(b)-began)/1e9*(1<<30)/size/float64(b.N), "cpu-s/GiB")
			})
		}
		measure("write", func() error {
			w, err := c.Create(b.Context(), "/bench", CreateOptions{Replace: true, Replication: 3})
			for n := 0; n < size && err == nil; n += piece {
				_, err = w.Write(buf)
			}
			if err != nil {
				return err
			}
			return w.Close()
		})
		measure("read", func() error {
			f, err := c.Open(b.Context(), "/bench")
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteTo(io.Discard)
			return err
		})
		b.Run(way.name+"/pread4K", func(b *testing.B) {
			const small = 4 << 10
			f, err := c.Open(b.Context(), "/bench")
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			random, p := rand.New(rand.NewPCG(1, 2)), make([]byte, small)
			for b.Loop() {
				if _, err := f.ReadAt(p, random.Int64N(size/small)*small); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
