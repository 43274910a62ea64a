package hdfs

import (
	"fmt"
	"testing"
)

// BenchmarkOwnCalls has our client ask the NameNode of this process for a file, for its
// blocks and for a directory of 20 files, over TCP and over the other transports: time
// and allocations are of both sides.
func BenchmarkOwnCalls(b *testing.B) {
	s := startSystem(b, 1, 1)
	c := s.own(plain)
	for i := range 20 {
		store(b, c, fmt.Sprintf("/dir/file-%d", i), []byte("a block"), CreateOptions{})
	}
	for _, transport := range everyTransport() {
		c := s.own(transport)
		for name, f := range map[string]func() error{
			"stat": func() error { _, err := c.Stat(b.Context(), "/dir/file-7"); return err },
			"open": func() error {
				f, err := c.Open(b.Context(), "/dir/file-7")
				if err != nil {
					return err
				}
				return f.Close()
			},
			"list": func() error { _, err := c.ReadDir(b.Context(), "/dir"); return err },
		} {
			b.Run(name+"/"+transport, func(b *testing.B) {
				b.ReportAllocs()
				began := processorTime(b)
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
