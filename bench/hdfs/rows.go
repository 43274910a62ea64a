package main

import (
	"fmt"

	"github.com/verbena-data/verbena/bench/internal/beside"
)

// A quantity is what is compared of an operation.
type quantity struct {
	name, unit string
	of         func(b *bench, f figure) float64
}

var (
	cpuSeconds = quantity{"CPU", beside.Nanoseconds, func(_ *bench, f figure) float64 { return f.cpu }}
	serversCPU = quantity{"CPU of the servers", beside.Nanoseconds, func(_ *bench, f figure) float64 { return f.servers }}
	bandwidth  = quantity{"bandwidth", beside.Bandwidth, func(b *bench, f figure) float64 { return float64(b.size<<20) / (float64(f.numbers[0]) / 1e9) }}
	median     = quantity{"p50", beside.Nanoseconds, func(_ *bench, f figure) float64 { return float64(f.numbers[0]) }}
	// communication is processor time of both ends, whatever it runs beside. exposed is the time
	// for which a DataNode is at no other stage: it waits, or communicates.
	communication = quantity{"CPU of communication", beside.Nanoseconds, func(_ *bench, f figure) float64 { return f.stages[communicating] }}
	exposed       = quantity{"exposed communication", beside.Nanoseconds, func(_ *bench, f figure) float64 { return f.stages["communication"] }}
	filesRate     = quantity{"files a second", "files/s", func(b *bench, f figure) float64 { return float64(b.smallFiles()) / (float64(f.numbers[0]) / 1e9) }}
)

// A comparison is a row: of which operation, by which clients.
type comparison struct {
	what, beside string
	ours, theirs string // client/operation
	of           quantity
	target       beside.Target
}

const (
	javaBeside  = "Apache HDFS, Java client, TCP"
	shortBeside = "Apache HDFS, Java client, short-circuit"
	tcpBeside   = "our native path over TCP"
)

// comparisons are the rows, in their order.
var comparisons = []comparison{
	{"write, 3 replicas, shm, our client", javaBeside, "shm/write", "java/write", cpuSeconds, beside.AtMost(0.35)},
	{"write, 3 replicas, shm, our client", javaBeside, "shm/write", "java/write", bandwidth, beside.AtLeast(2.5)},
	{"write, 3 replicas, TCP, our client", javaBeside, "tcp/write", "java/write", cpuSeconds, beside.AtMost(0.6)},
	{"write, 3 replicas, TCP, our client", javaBeside, "tcp/write", "java/write", bandwidth, beside.Target{}},
	{"write, 3 replicas, Java's client on both", javaBeside, "java on ours/write", "java/write", cpuSeconds, beside.AtMost(0.8)},
	{"write, 3 replicas, Java's client on both", javaBeside, "java on ours/write", "java/write", bandwidth, beside.Target{}},
	{"write, 3 replicas, our client on Apache's servers", javaBeside, "our client on Apache/write", "java/write", cpuSeconds, beside.Target{}},
	{"write, 3 replicas, shm", tcpBeside, "shm/write", "tcp native/write", cpuSeconds, beside.AtMost(0.6)},
	{"write, 3 replicas, shm", "three writes into the page cache, the floor", "shm/write", "floor", cpuSeconds, beside.Target{}},
	{"read by descriptor", shortBeside, "descriptor/read", "java short-circuit/read", cpuSeconds, beside.AtMost(0.8)},
	{"read by descriptor", shortBeside, "descriptor/read", "java short-circuit/read", bandwidth, beside.AtLeast(1.3)},
	{"read, shm messages, our client", javaBeside, "shm/read", "java/read", cpuSeconds, beside.AtMost(0.4)},
	{"read, shm messages, our client", javaBeside, "shm/read", "java/read", bandwidth, beside.AtLeast(2)},
	{"read, shm messages, our client", shortBeside, "shm/read", "java short-circuit/read", cpuSeconds, beside.Target{}},
	{"read, TCP, our client", javaBeside, "tcp/read", "java/read", cpuSeconds, beside.Target{}},
	{"read, TCP, our client", javaBeside, "tcp/read", "java/read", bandwidth, beside.Target{}},
	{"read, our client on Apache's servers", javaBeside, "our client on Apache/read", "java/read", cpuSeconds, beside.Target{}},
	{"read, Java's client on both", javaBeside, "java on ours/read", "java/read", cpuSeconds, beside.Target{}},
	{"read by descriptor, Java's client on both", shortBeside, "java short-circuit on ours/read", "java short-circuit/read", cpuSeconds, beside.Target{}},
	{"read by descriptor, Java's client on both", shortBeside, "java short-circuit on ours/read", "java short-circuit/read", bandwidth, beside.Target{}},
	{"read of 4 KiB at random, by descriptor, Java's client on both", shortBeside, "java short-circuit on ours/pread", "java short-circuit/pread", median, beside.Target{}},
	{"read of 4 KiB at random, by descriptor", shortBeside, "descriptor/pread", "java short-circuit/pread", median, beside.AtMost(0.1)},
	{"read of 4 KiB at random, shm", javaBeside, "shm/pread", "java/pread", median, beside.AtMost(0.05)},
	{"read of 4 KiB at random in 16 MiB, by Get over shm", javaBeside, "shm get/hot", "java/hot", median, beside.AtMost(1.0 / 30)},
	{"read of 4 KiB at random in 16 MiB, by Get over shm", "our messages over shm", "shm get/hot", "shm/hot", median, beside.Target{}},
	{"read of 4 KiB at random, TCP", javaBeside, "tcp/pread", "java/pread", median, beside.Target{}},
	{"read of 4 KiB at random, TCP", shortBeside, "tcp/pread", "java short-circuit/pread", median, beside.Target{}},
	{"read of 4 KiB at random in 16 MiB, by Get over iwarp", tcpBeside, "iwarp get/hot", "tcp native/hot", median, beside.AtMost(0.8)},
	{"read of 4 KiB at random in 16 MiB, by Get over iwarp", tcpBeside, "iwarp get/hot", "tcp native/hot", serversCPU, beside.AtMost(0.5)},
	{"read of 4 KiB at random in 16 MiB, by Get over iwarp", "our messages over iwarp", "iwarp get/hot", "iwarp/hot", median, beside.Target{}},
	{"files of 4 KiB, 8 writers, shm", javaBeside, "shm/small", "java/small", cpuSeconds, beside.AtMost(0.2)},
	{"files of 4 KiB, 8 writers, shm", javaBeside, "shm/small", "java/small", filesRate, beside.AtLeast(4)},
	{"files of 4 KiB, 8 writers, TCP", javaBeside, "tcp/small", "java/small", cpuSeconds, beside.Target{}},
	{"getFileInfo, shm", javaBeside, "shm/stat", "java/stat", median, beside.AtMost(0.1)},
	{"getFileInfo, TCP", javaBeside, "tcp/stat", "java/stat", median, beside.Target{}},
	{"write, 3 replicas, iwarp", tcpBeside, "iwarp/write", "tcp native/write", cpuSeconds, beside.AtMost(1.2)},
	{"read, iwarp", tcpBeside, "iwarp/read", "tcp native/read", cpuSeconds, beside.AtMost(1.2)},
	{"write, 3 replicas, iwarp", "our legacy path over TCP", "iwarp/write", "tcp/write", cpuSeconds, beside.Target{}},
	{"read, iwarp", "our legacy path over TCP", "iwarp/read", "tcp/read", cpuSeconds, beside.Target{}},
	{"write, 3 replicas, shm", "our legacy path over shm", "shm/write", "shm legacy/write", cpuSeconds, beside.Target{}},
	{"read, shm", "our legacy path over shm", "shm/read", "shm legacy/read", cpuSeconds, beside.Target{}},
	{"read of 4 KiB at random, shm", "our legacy path over shm", "shm/pread", "shm legacy/pread", median, beside.Target{}},
	{"read of 4 KiB at random, native over TCP", "our legacy path over TCP", "tcp native/pread", "tcp/pread", median, beside.Target{}},
	{"block of 64 MiB, 1 replica, shm", tcpBeside, "shm/block", "tcp native/block", communication, beside.AtMost(0.4)},
	{"block of 64 MiB, 1 replica, shm", tcpBeside, "shm/block", "tcp native/block", exposed, beside.Target{}},
	{"block of 64 MiB, 1 replica, iwarp", tcpBeside, "iwarp/block", "tcp native/block", communication, beside.Target{}},
	{"block of 64 MiB, 1 replica, iwarp", tcpBeside, "iwarp/block", "tcp native/block", exposed, beside.Target{}},
}

// rows are the medians over the rounds, and the spread of the ratios.
func (b *bench) rows(rounds []figures) []beside.Row {
	var out []beside.Row
	for _, c := range comparisons {
		if b.clients != nil && !c.measured(rounds) {
			continue
		}
		var ours, theirs []float64
		for _, f := range rounds {
			ours, theirs = append(ours, c.of.of(b, f[c.ours])), append(theirs, c.of.of(b, f[c.theirs]))
		}
		out = append(out, beside.Medians(c.what+", "+c.of.name, c.beside, c.of.unit, ours, theirs, c.target))
	}
	return out
}

// measured tells whether both sides have been.
func (c *comparison) measured(rounds []figures) bool {
	return rounds[0][c.ours].numbers != nil && rounds[0][c.theirs].numbers != nil
}

// check tells of comparisons that name what nobody measures.
func check(known map[string]bool) error {
	for _, c := range comparisons {
		for _, name := range []string{c.ours, c.theirs} {
			if !known[name] {
				return fmt.Errorf("%s: no client does %q", c.what, name)
			}
		}
	}
	return nil
}
