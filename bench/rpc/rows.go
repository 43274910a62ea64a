package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

// A row is one comparison before it is measured.
type row struct {
	what, beside, unit string
	target             beside.Target
	// far, if there is one, is the target with the processors far from each other. The
	// row is two then, one for the rounds near and one for those far.
	far          beside.Target
	ours, theirs beside.Measure
	why          string // a target is missed, and what would have to change
}

const (
	grpcTCP, grpcUnix, netrpc, java, oursTCP = "grpc", "grpcunix", "netrpc", "java", "ours"
	onLoopback                               = "gRPC-Go on loopback"
)

// Arguments of verbena perf.
func runtimeArgs(transport, wait string, more ...string) []string {
	return append([]string{"--level", "runtime", "--transport", transport, "--wait", wait}, more...)
}

func callArgs(transport, wait string, more ...string) []string {
	return runtimeArgs(transport, wait, append([]string{"--test", "call", "--size", "1K"}, more...)...)
}

func hadoopArgs(transport, size string) []string {
	return []string{"--level", "rpc", "--test", "call", "--transport", transport, "--wait", "adaptive", "--size", size}
}

// pausingArgs have a caller sleep before each call.
var pausingArgs = []string{"--pause", "10ms", "--warmup", "20"}

// one is a caller that calls without a pause, and many are several.
func (b *bench) one() load {
	return load{callers: 1, size: 1 << 10, iterations: 20_000, limit: 2 * b.duration}
}

func (b *bench) many(n int) load {
	return load{callers: n, size: 1 << 10, limit: b.duration, warm: b.duration / 2}
}

// rows are all comparisons, in the page's order.
func (b *bench) rows() []row { return append(b.targets(), b.others()...) }

// targets are the comparisons that have a target.
func (b *bench) targets() []row {
	one := b.one()
	free := one
	free.free = true
	pauses := load{callers: 1, size: 1 << 10, iterations: int(b.duration/time.Millisecond) / 10, limit: b.duration, pause: 10 * time.Millisecond}
	near := func(target, far float64, r row) row {
		r.target, r.far = beside.AtMost(target), beside.AtMost(far)
		return r
	}
	var list []row
	for _, size := range []struct{ name, flag string }{{"8 B", "8"}, {"1 KiB", "1K"}} {
		ours, theirs := b.levels(p50, "--transport", overSHM, "--size", size.flag)
		list = append(list, near(2, 2, row{
			what: "runtime message, shm, " + size.name + ", one way, spinning", beside: "our own verbs level", unit: "ns",
			ours: ours, theirs: theirs, why: whyMessage,
		}))
	}
	list = append(list,
		near(3, 3, row{
			what: "one-sided Get of 4 KiB on an endpoint, shm, spinning", beside: "memcpy of 4 KiB from the other processor's cache", unit: "ns",
			ours: b.self("get"), theirs: b.self("get", "--memcpy"), why: whyGet,
		}),
		near(1.0/80, 1.0/40, row{
			what: "call and reply, 1 KiB, shm, spinning, p50", beside: onLoopback, unit: "ns",
			ours: b.perf(roundTrip, callArgs(overSHM, "spin")...), theirs: b.drive(one, grpcTCP, roundTrip),
		}),
		row{
			what: "call and reply, 1 KiB, shm, both ends sleep 10 ms before each call, p50", beside: "gRPC-Go over a Unix socket", unit: "ns", target: beside.AtMost(1.0 / 3),
			ours: b.perf(roundTrip, callArgs(overSHM, "adaptive", pausingArgs...)...), theirs: b.drive(pauses, grpcUnix, roundTrip), why: whySleep,
		},
		row{
			what: "64 callers, 1 KiB, calls, shm", beside: onLoopback, unit: "calls/s", target: beside.AtLeast(15),
			ours: b.perf(rate, callArgs(overSHM, "adaptive", "--posters", "64")...), theirs: b.drive(b.many(64), grpcTCP, rate), why: why64,
		},
		near(1.3, 1.3, row{
			what: "1 MiB received and sent on over a second endpoint, shm, nobody polls, CPU time of all three processes", beside: "two memcpy of it", unit: "ns",
			ours: b.relay("buffer-quiet", "cpu-ns/op", "4000x"), theirs: b.relay("buffer-quiet", "two-memcpy-ns", "1x"), why: whyRelay,
		}),
		near(1.3, 1.3, row{
			what: "1 MiB received in place and sent on over a second endpoint, shm, nobody polls, CPU time of all three processes", beside: "two memcpy of it", unit: "ns",
			ours: b.relay("passed-quiet", "cpu-ns/op", "4000x"), theirs: b.relay("passed-quiet", "two-memcpy-ns", "1x"), why: whyRelay,
		}),
		row{
			what: "Hadoop RPC on TCP, ours, 1 KiB echo, p50", beside: onLoopback, unit: "ns", target: beside.AtMost(0.8),
			ours: b.drive(one, oursTCP, roundTrip), theirs: b.drive(one, grpcTCP, roundTrip), why: whyTCP,
		},
		row{
			what: "Hadoop RPC on TCP, ours, 1 KiB echo, p50, nothing bound to processors", beside: onLoopback, unit: "ns", target: beside.AtMost(0.8),
			ours: b.drive(free, oursTCP, roundTrip), theirs: b.drive(free, grpcTCP, roundTrip), why: whyTCP,
		},
		row{
			what: "Hadoop RPC on TCP, ours, 64 callers, 1 KiB, calls", beside: onLoopback, unit: "calls/s", target: beside.AtLeast(2),
			ours: b.drive(b.many(64), oursTCP, rate), theirs: b.drive(b.many(64), grpcTCP, rate),
		},
		row{
			what: "Hadoop RPC echo over shm, 1 KiB, p50", beside: "the same on TCP", unit: "ns", target: beside.AtMost(1.0 / 10),
			ours: b.perf(roundTrip, hadoopArgs(overSHM, "1K")...), theirs: b.perf(roundTrip, hadoopArgs("tcp", "1K")...), why: whyHadoop,
		},
		row{
			what: "Hadoop RPC echo over shm, 512 KiB, p50", beside: "the same on TCP", unit: "ns", target: beside.AtMost(1 / 2.73),
			ours: b.perf(roundTrip, hadoopArgs(overSHM, "512K")...), theirs: b.perf(roundTrip, hadoopArgs("tcp", "512K")...), why: whyHadoop,
		},
		row{
			what: "Hadoop RPC on TCP, ours, 16 callers, 1 KiB echo, calls per CPU second of the server", beside: "Hadoop's Java RPC server, same client", unit: "calls/CPU s", target: beside.AtLeast(4),
			ours: b.drive(b.many(16), oursTCP, perCPU), theirs: b.drive(b.many(16), java, perCPU),
		},
		row{
			what: "32 callers on 32 endpoints, adaptive, 1 KiB, CPU time of both ends a call, shm", beside: "the same on TCP", unit: "ns", target: beside.AtMost(0.5),
			ours:   b.perf(cpuEach, callArgs(overSHM, "adaptive", "--posters", "32", "--connections", "32")...),
			theirs: b.perf(cpuEach, callArgs("tcp", "adaptive", "--posters", "32", "--connections", "32")...),
		},
		row{
			what: "call and reply, 1 KiB, iwarp, wait mode event, p50", beside: "our engine on TCP, the same mode", unit: "ns", target: beside.AtMost(1.1),
			ours: b.perf(roundTrip, callArgs("iwarp", "event")...), theirs: b.perf(roundTrip, callArgs("tcp", "event")...),
		})
	return list
}

// others are comparisons without a target.
func (b *bench) others() []row {
	one := b.one()
	list := []row{
		{
			what: "Hadoop RPC on TCP, ours, 1 KiB echo, p50", beside: "gRPC-Go over a Unix socket", unit: "ns",
			ours: b.drive(one, oursTCP, roundTrip), theirs: b.drive(one, grpcUnix, roundTrip),
		},
		{
			what: "Hadoop RPC on TCP, ours, 1 KiB echo, p50", beside: "net/rpc on loopback", unit: "ns",
			ours: b.drive(one, oursTCP, roundTrip), theirs: b.drive(one, netrpc, roundTrip),
		},
		{
			what: "Hadoop RPC on TCP, ours, 16 callers, 1 KiB echo, calls per CPU second of the server", beside: onLoopback, unit: "calls/CPU s",
			ours: b.drive(b.many(16), oursTCP, perCPU), theirs: b.drive(b.many(16), grpcTCP, perCPU),
		},
		{
			what: "Hadoop RPC on TCP by a method that handlers run, 64 callers, 1 KiB, calls", beside: onLoopback, unit: "calls/s",
			ours: b.drive(b.many(64), "oursqueue", rate), theirs: b.drive(b.many(64), grpcTCP, rate),
		},
		{
			what: "call and reply, 1 KiB, shm, both ends sleep 10 ms before each call, p50", beside: "a futex wake of a thread that has slept as long, seen by one that polls", unit: "ns",
			ours: b.perf(roundTrip, callArgs(overSHM, "adaptive", pausingArgs...)...), theirs: b.self("wake"),
		},
		{
			what: "call and reply, 1 KiB, shm, both ends sleep 10 ms before each call, p50", beside: "the same wake of a goroutine", unit: "ns",
			ours: b.perf(roundTrip, callArgs(overSHM, "adaptive", pausingArgs...)...), theirs: b.self("wake", "--goroutine"),
		},
		{
			what: "1 MiB received and sent on over a second endpoint, shm, adaptive waits, CPU time of all three processes", beside: "two memcpy of it", unit: "ns",
			ours: b.relay("buffer", "cpu-ns/op", "4000x"), theirs: b.relay("buffer", "two-memcpy-ns", "1x"),
		},
		{
			what: "1 MiB received and sent on over a second endpoint, shm, nobody polls, CPU time of all three processes", beside: "two memcpy of what the other processor has just written", unit: "ns",
			ours: b.relay("buffer-quiet", "cpu-ns/op", "4000x"), theirs: twice(b.self("get", "--memcpy", "--size", "1048576")),
		},
		{
			what: "1 MiB received and sent on to who receives it in place and reads a byte of each line, shm, nobody polls, CPU time of all three processes", beside: "two memcpy of it", unit: "ns",
			ours: b.relay("in-place-quiet", "cpu-ns/op", "4000x"), theirs: b.relay("in-place-quiet", "two-memcpy-ns", "1x"),
		},
	}
	for _, q := range []struct{ name, flag string }{{"p50", "0.5"}, {"p99", "0.99"}} {
		list = append(list, row{
			what: "call of 1 KiB on 63 endpoints in turn while a 64th floods their worker, shm, " + q.name, beside: "the same without the flood", unit: "ns",
			ours: b.self("flood", "--quantile", q.flag, "--flood"), theirs: b.self("flood", "--quantile", q.flag),
		})
	}
	return list
}

// Numbers of a measurement.
func p50(r host.PerfRow) float64       { return r.P50 }
func roundTrip(r host.PerfRow) float64 { return r.RoundP50 }
func rate(r host.PerfRow) float64      { return r.OpsPerS }
func perCPU(r host.PerfRow) float64    { return float64(r.Iterations) / r.CPU }
func cpuEach(r host.PerfRow) float64   { return r.CPU / float64(r.Iterations) * 1e9 }

// perf measures with verbena perf.
func (b *bench) perf(value func(host.PerfRow) float64, args ...string) beside.Measure {
	return func(ctx context.Context) (float64, error) {
		r, err := b.perfRow(ctx, args...)
		return value(r), err
	}
}

// levels measures the levels runtime and verbs, by one run in which they take turns: the
// processors move while one of them alone is measured. Whichever is asked for first is
// measured anew, and the other one, asked for next, with it.
func (b *bench) levels(value func(host.PerfRow) float64, args ...string) (runtime, verbs beside.Measure) {
	left := map[string]float64{}
	measure := func(level string) beside.Measure {
		return func(ctx context.Context) (float64, error) {
			if v, ok := left[level]; ok {
				delete(left, level)
				return v, nil
			}
			binary, err := b.verbena(ctx)
			if err != nil {
				return 0, err
			}
			rows, err := host.Perf(ctx, binary, b.duration, append([]string{"--level", "runtime,verbs"}, args...)...)
			if err != nil {
				return 0, err
			}
			clear(left)
			for _, r := range rows {
				left[r.Level] = value(r)
			}
			v, ok := left[level]
			delete(left, level)
			if !ok {
				return 0, fmt.Errorf("verbena perf printed no row of level %s", level)
			}
			return v, nil
		}
	}
	return measure("runtime"), measure("verbs")
}

func (b *bench) perfRow(ctx context.Context, args ...string) (host.PerfRow, error) {
	verbena, err := b.verbena(ctx)
	if err != nil {
		return host.PerfRow{}, err
	}
	rows, err := host.Perf(ctx, verbena, b.duration, args...)
	if err != nil {
		return host.PerfRow{}, err
	}
	return rows[0], nil
}

// drive measures another system, or Hadoop RPC beside it by the same client.
func (b *bench) drive(l load, system string, value func(host.PerfRow) float64) beside.Measure {
	return func(ctx context.Context) (float64, error) {
		r, err := b.driveRow(ctx, l, system)
		return value(r), err
	}
}

func (b *bench) driveRow(ctx context.Context, l load, system string) (host.PerfRow, error) {
	s, err := b.server(ctx, system, l.free)
	if err != nil {
		return host.PerfRow{}, err
	}
	return l.drive(ctx, system, s)
}

// self measures with a command of this program.
func (b *bench) self(args ...string) beside.Measure {
	return func(ctx context.Context) (float64, error) {
		return host.Number(ctx, append(args, "--duration", b.duration.String())...)
	}
}

// twice measures what is done two times.
func twice(once beside.Measure) beside.Measure {
	return func(ctx context.Context) (float64, error) {
		v, err := once(ctx)
		return 2 * v, err
	}
}

// relay returns a metric of the runtime's own benchmark of relays, in one of its ways.
// Three processes share two processors, so none is bound to one; each has one of Go's, as
// the processes have that are bound.
func (b *bench) relay(way, metric, times string) beside.Measure {
	return func(ctx context.Context) (float64, error) {
		binary, err := b.tests(ctx)
		if err != nil {
			return 0, err
		}
		out, err := host.Output(ctx, []string{"GOMAXPROCS=1"}, binary, "-test.run", "-", "-test.bench", "^BenchmarkRelay$/^shm$/^"+way+"$", "-test.benchtime", times)
		if err != nil {
			return 0, err
		}
		return parseMetric(out, metric)
	}
}

// parseMetric reads a metric of the one benchmark in what go test printed.
func parseMetric(out, metric string) (float64, error) {
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			if fields[i+1] == metric {
				return strconv.ParseFloat(fields[i], 64)
			}
		}
	}
	return 0, fmt.Errorf("no %s in %s", metric, host.Tail(out))
}

// Why targets are missed, as profiles tell it. The page shows what applies.
const (
	whyMessage = "Messages near: the queue pair's own post and poll are 82 ns of some 250 ns of processor time that Send, Receive and Release take for 1 KiB ([profile](runtime.md#where-the-rest-goes)). Latches, the hand-over of the message and the counting of who polls are the rest, and nothing hides them when a line takes 40 ns."
	whyGet     = "Get near: memcpy takes 80 ns. A Get over shm is a call that copies ([why](../decisions/0055-operations-within-a-call.md)); the rest is the check of the token, two latches and the announcement of the access. `go test . -run - -bench GetAlone` measures that part alone."
	whySleep   = "Both ends sleep: most of it is the wake-up of the server's processor, which has rested for 10 ms. The two rows of bare futex wakes below, seen by one who polls, are that floor (`--row 'both ends sleep'` measures all three in turns): a thread's, and a goroutine's, which needs one of Go's processors again, and getting one when all have rested wakes a thread of Go's scheduler on the way. How long it takes differs by host and hour. On the EPYC of the day before a goroutine's was 45 us and the call 50 to 63, 0.36 of gRPC's 176. On the one of 2026-11-26, of family 25, model 17, it was 70 to 76 us; the call took 94 to 145 us and gRPC 360 to 540, a ratio of 0.27 (0.26 to 0.27) in three rounds two hours before, and an hour later 100 to 214 us. The caller polls for up to 150 us meanwhile and has to be woken, too, when the answer takes longer."
	why64      = "64 callers: the caller's processor is the limit. By a profile of its process, 37 % of the time is polling and what completions bring, 15 % sending requests, 14 % the sleep of callers and their waking by Go's scheduler, and 8 % the measuring program; the server's process polls in vain for a part of the time."
	whyRelay   = "Relay: near, the two copies, one by the relay and one by the sink, take 38 us of the processors by a profile of the three processes, less than two memcpy; the rest is the kernel and Go's scheduler, by which they wake each other, some seven changes of threads a message. Far, each copy reads what the other processor has just written, and takes half as long again; the memcpy beside it stays within one processor's cache, and the row of two memcpy of what the other processor has written does not. Sleepers used to wait in futexes, which kept Go's only processor from others until Go's monitor took it; they wait in Go's poller now, as processes of one processor do where nobody polls, and the ratio was 1.17 in place of 1.29 by five rounds in turns on an EPYC of family 26 ([why](../decisions/0083-sleep-in-gos-poller.md)). A relay that receives in place sends on without a copy of its own: the next row ([why](../decisions/0096-a-relay-passes-memory-on.md)). A sink that receives in place does without its copy: its row, below, is of one that reads a byte of each line ([why](../decisions/0075-messages-in-place.md))."
	whyTCP     = "Hadoop RPC on TCP, bound: each call wakes the server's processor, which sleeps; the client polls for up to 150 us ([why](../decisions/0099-sole-callers-poll-their-socket.md))."
	whyHadoop  = "Hadoop RPC over shm, 1 KiB: a sole caller over TCP polls since [0099](../decisions/0099-sole-callers-poll-their-socket.md), so that what the row compares with takes about 38 us on a host where it took 150; before, on an EPYC of family 26, the row was 1/28. 512 KiB: what is left is the four copies, in four pieces each, of which one is read while the next is copied ([what was tried](../decisions/0056-copied-messages-go-in-pieces.md)): half of the processor time is copying, the other half one side's polling for the other. Each copy reads what another processor has just written, which takes longer far from it, so that long copies go [past the caches](../decisions/0069-copies-past-the-caches.md) there. TCP is measured with answers taken over, too."
)
