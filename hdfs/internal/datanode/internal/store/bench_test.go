package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// BenchmarkOpen opens a store of 20,000 finalized replicas.
func BenchmarkOpen(b *testing.B) {
	const replicas = 20_000
	dir := b.TempDir()
	s, err := Open(Config{FS: vfs.Default, Dirs: []Directory{{Path: dir}}, BootID: "a"})
	must(b, err)
	data := make([]byte, 1000)
	sums := packet(transfer.CRC32C(), data)
	for id := range uint64(replicas) {
		w, err := s.Create(id, 1001, transfer.CRC32C(), false, nil, Want{})
		must(b, err)
		_, err = w.Write(0, data, sums, transfer.CRC32C())
		must(b, err)
		must(b, w.Finalize(false))
		must(b, w.Close(false))
	}
	must(b, s.Close())
	for b.Loop() {
		s, err := Open(Config{FS: vfs.Default, Dirs: []Directory{{Path: dir}}, BootID: "a"})
		must(b, err)
		must(b, s.Close())
	}
	b.ReportMetric(replicas*float64(b.N)/b.Elapsed().Seconds(), "replicas/s")
}
