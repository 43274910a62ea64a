package datanode

import (
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/providers"
)

// BenchmarkCopies has one DataNode copy 1 GiB in blocks of 128 MiB to another one, by the data transfer
// protocol over TCP and by hdfs-data/1 over each transport, and shows the processor time of both,
// which are one process, for each GiB. The blocks lie in TMPDIR.
func BenchmarkCopies(b *testing.B) {
	const blocks = 8
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	must(b, err)
	b.Cleanup(func() { must(b, rt.Close()) })
	g, err := rt.NewGroup(verbena.GroupConfig{Name: "hdfs", Relay: true})
	must(b, err)
	data := random(1, benchBlock)
	for _, way := range []struct {
		name, transport string
		path            transferPath
	}{{"tcp/legacy", "", byLegacy}, {"tcp/native", "tcp", byNative}, {"iwarp/native", "iwarp", byNative}, {"shm/native", "shm", byNative}} {
		b.Run(way.name, func(b *testing.B) {
			f := newFixture(b, 2, func(_ int, c *Config) {
				c.FS, c.Dirs = vfs.Default, []Directory{{Path: b.TempDir()}}
				if way.path == byNative {
					c.Native = &native.TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g, Transport: way.transport}}
				}
			})
			for id := range uint64(blocks) {
				writeBlock(b, f.nodes[:1], id, 1001, data)
			}
			var spent time.Duration
			b.SetBytes(blocks * benchBlock)
			for b.Loop() {
				began := processorTime(b)
				for id := range uint64(blocks) {
					must(b, f.copyTo(id, data, f.nodes[1]))
				}
				spent += processorTime(b) - began
				b.StopTimer()
				for id := range uint64(blocks) {
					must(b, f.nodes[1].store.Delete(id, 1001))
				}
				b.StartTimer()
			}
			if n := f.nodes[0].copied[way.path].blocks.Load(); n != uint64(b.N*blocks) {
				b.Errorf("%d blocks went this way, of %d", n, b.N*blocks)
			}
			b.ReportMetric(spent.Seconds()*(1<<30)/(blocks*benchBlock)/float64(b.N), "cpu-s/GiB")
		})
	}
}

// processorTime is what this process has had of the processors.
func processorTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
