// Command shuffle measures package shuffle beside what a Go programmer would write or take
// instead: two baselines on sockets, gRPC's streams and Arrow Flight; and our jobs beside Spark and GNU sort.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/command"
	"github.com/verbena-data/verbena/bench/internal/host"
)

func main() { command.Run(root()) }

type bench struct {
	quick, json bool
	rounds      int
	only        string
	temporary   string // folder for what jobs write
	growth      string // sweeps to measure instead of rows
	page        bool   // write the page, in out
	out         string
}

func root() *cobra.Command {
	b := &bench{}
	cmd := &cobra.Command{
		Use:   "shuffle",
		Short: "Measure the shuffle beside sockets, gRPC and Arrow Flight, and its jobs beside Spark and GNU sort",
		Long: `Measure an exchange all to all among 32 threads in 8 processes:

  go -C bench run ./shuffle                  all rows
  go -C bench run ./shuffle --quick --json   three short rounds, rows {what, beside, ours, theirs, ratio, target, met}
  go -C bench run ./shuffle --row 'grpc'     these alone
  go -C bench run ./shuffle --growth threads tables and charts of 2 to 256 threads

Baseline A has a connection for each pair of threads, circular buffers, and writes all
contiguous bytes at once. Baseline B has one for each pair of processes, multiplexed.
Processor time is that of all processes while they exchange, with making and looking at
the records. Flight and batched gRPC collect records in batches. Of the jobs it is that
of all processes, and of Spark that of the stages of the shuffle; the command fetches
Spark from PyPI, once, into the user's cache.`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&b.quick, "quick", false, "three short rounds")
	flags.BoolVar(&b.json, "json", false, "print the rows as JSON")
	flags.IntVar(&b.rounds, "rounds", 0, "rounds of each comparison (default: 5, with --quick 3)")
	flags.StringVar(&b.growth, "growth", "", "measure how the cost grows, instead of rows: a `regexp` of threads, processes and records")
	flags.BoolVar(&b.page, "page", false, "write what was measured into the page and its raw figures, too")
	flags.StringVar(&b.out, "out", "../docs/benchmarks", "`folder` of the page")
	flags.StringVar(&b.temporary, "dir", "", "`folder` on a disk for what jobs write, some 7 GiB (default: the system's for temporary files)")
	flags.StringVar(&b.only, "row", "", "only rows that match this `regexp`")
	cmd.AddCommand(workerCommand(), onceCommand())
	return cmd
}

// A side is one of the two that a row compares.
type side struct {
	system  string
	mib     float64 // of records; a system that is slow gets fewer
	threads int
	cable   bool
}

type row struct {
	what, beside, unit string
	record             int
	zipf               bool
	ours, theirs       side
	value              func(measurement) float64
	target             beside.Target
}

const most = 1024 // MiB

// limitSystem is what is not measured: a limit of registered memory.
const limitSystem = "limit"

func rows() (list []row) {
	cost := func(m measurement) float64 { return m.perGiB() * 1e9 }
	rate := func(m measurement) float64 { return m.rate() }
	s := func(system string, mib float64) side { return side{system: system, mib: mib, threads: 4} }
	many := func(system string) side { return side{system: system, mib: most, threads: 32} }
	cabled := func(system string) side { return side{system: system, mib: most / 2, threads: 4, cable: true} }
	memory := func(m measurement) float64 { return float64(m.Registered) }
	limit := func(mib float64) side { return side{system: limitSystem, mib: mib} }
	list = append(list,
		row{"throughput, shm, 64 KiB", "memory copy by two threads", "bytes/s", 64 << 10, false, s("shm", most), side{system: "memcpy", mib: most, threads: 2}, rate, beside.AtLeast(0.4)},
		row{"registered memory, shm, 32 threads", "64 MiB", "bytes", 100, false, s("shm", 256), limit(64), memory, beside.AtMost(1)},
		row{"registered memory, iwarp, 32 threads", "64 MiB", "bytes", 100, false, s("iwarp", 256), limit(64), memory, beside.AtMost(1)},
		row{"registered memory, shm, 256 threads", "256 MiB", "bytes", 100, false, many("shm"), limit(256), memory, beside.AtMost(1)},
		row{"processor time for a GiB, iwarp in two network namespaces, 100 B", "baseline A there", beside.Nanoseconds, 100, false, cabled("iwarp"), cabled("A"), cost, beside.AtMost(0.6)},
		row{"processor time for a GiB, iwarp in two network namespaces, 100 B", "baseline B there", beside.Nanoseconds, 100, false, cabled("iwarp"), cabled("B"), cost, beside.AtMost(1.1)},
		row{"processor time for a GiB, shm, 100 B", "baseline A", beside.Nanoseconds, 100, false, s("shm", most), s("A", most), cost, beside.AtMost(0.25)},
		row{"throughput, shm, 100 B", "gRPC streaming, one record a message", "bytes/s", 100, false, s("shm", most), s("grpc", 32), rate, beside.AtLeast(8)},
		row{"throughput, shm, 1 KiB", "gRPC streaming, one record a message", "bytes/s", 1 << 10, false, s("shm", most), s("grpc", 128), rate, beside.AtLeast(8)},
		row{"throughput, shm, 256 threads, 100 B", "32 threads", "bytes/s", 100, false, many("shm"), s("shm", most), rate, beside.AtLeast(0.7)},
	)
	for _, theirs := range []string{"A", "B", "grpc batched"} {
		list = append(list, row{"system calls for a MiB, shm, 100 B", theirs, "calls", 100, false, s("shm", 256), s(theirs, 256), measurement.callsPerMiB, beside.Target{}})
	}
	list = append(list, row{"senders' time without room, percent, shm, 100 B", "tcp of ours", "%", 100, false, s("shm", 256), s("tcp", 256), measurement.stalled, beside.Target{}})
	for _, record := range []int{100, 1 << 10} {
		for _, theirs := range []string{"grpc batched", "flight"} {
			list = append(list, row{fmt.Sprintf("throughput, shm, %s", beside.Bytes(float64(record))), theirs, "bytes/s", record, false, s("shm", most), s(theirs, 256), rate, beside.Target{}})
		}
	}
	for _, record := range []int{8, 100, 1 << 10, 64 << 10} {
		for _, zipf := range []bool{false, true} {
			for _, ours := range []string{"shm", "iwarp", "tcp"} {
				for _, theirs := range []string{"A", "B", "grpc batched", "flight"} {
					name := fmt.Sprintf("processor time for a GiB, %s, %d B", ours, record)
					if zipf {
						name += ", Zipf"
					}
					mib := 256.0
					if record == 8 {
						mib = 64
					}
					list = append(list, row{name, theirs, beside.Nanoseconds, record, zipf, s(ours, mib), s(theirs, mib), cost, beside.Target{}})
				}
			}
		}
	}
	return list
}

func (b *bench) run(ctx context.Context) error {
	root, err := host.ModuleRoot(ctx)
	if err != nil && b.page {
		return err
	}
	machine := host.Describe(ctx, root, nil)
	if b.growth != "" {
		return b.grow(ctx, machine)
	}
	only, err := regexp.Compile(b.only)
	if err != nil {
		return err
	}
	rounds, scale := 5, 1.0
	if b.quick {
		rounds, scale = 3, 0.25
	}
	if b.rounds > 0 {
		rounds = b.rounds
	}
	var out []beside.Row
	for _, r := range rows() {
		if !only.MatchString(r.what+" "+r.beside) || b.quick && r.target.None() && (r.record != 100 || r.zipf) {
			continue
		}
		measured, err := r.measure(ctx, rounds, scale)
		if err != nil {
			return err
		}
		out = append(out, measured)
	}
	jobs, err := b.runJobs(ctx, only, rounds)
	if err != nil {
		return err
	}
	if out = append(out, jobs...); len(out) == 0 {
		return fmt.Errorf("no row matches %q, or none that --quick measures", b.only)
	}
	if b.page {
		err = b.update(func(r *results) { r.add(out, rounds, machine) })
	}
	if b.json {
		return errors.Join(err, beside.Write(os.Stdout, out))
	}
	fmt.Print(beside.Table(out))
	return err
}

// measure runs rounds of ours and theirs in turns. Its error is that of ctx: a row that
// could not be measured says why.
func (r *row) measure(ctx context.Context, rounds int, scale float64) (beside.Row, error) {
	var ours, theirs []float64
	for range rounds {
		for _, one := range []struct {
			side   side
			values *[]float64
		}{{r.ours, &ours}, {r.theirs, &theirs}} {
			if one.side.system == limitSystem {
				*one.values = append(*one.values, one.side.mib*(1<<20))
				continue
			}
			l := load{System: one.side.system, Size: 8, Threads: one.side.threads, Record: r.record, Zipf: r.zipf, Cable: one.side.cable}
			if l.System == "memcpy" {
				l.Size = 1
			}
			l.Records = max(1, int(one.side.mib*scale*(1<<20))/l.partitions()/l.Record)
			m, err := drive(ctx, l)
			if ctx.Err() != nil {
				return beside.Row{}, context.Cause(ctx)
			}
			if err != nil {
				skipped := beside.Row{What: r.what, Beside: r.beside, Unit: r.unit, Skipped: err.Error()}
				skipped.Judge(r.target)
				return skipped, nil //nolint:nilerr // the row tells it
			}
			*one.values = append(*one.values, r.value(m))
		}
	}
	if beside.Middle(theirs) == 0 {
		skipped := beside.Row{What: r.what, Beside: r.beside, Unit: r.unit, Skipped: "theirs is 0; system calls are counted only where perf may trace raw_syscalls:sys_enter"}
		skipped.Judge(r.target)
		return skipped, nil
	}
	return beside.Medians(r.what, r.beside, r.unit, ours, theirs, r.target), nil
}

// grow measures sweeps.
func (b *bench) grow(ctx context.Context, machine host.Machine) error {
	only, err := regexp.Compile(b.growth)
	if err != nil {
		return err
	}
	some := false
	for _, s := range sweeps() {
		if !only.MatchString(s.name) {
			continue
		}
		some = true
		g, err := s.measure(ctx, machine, b.quick)
		if err != nil {
			return err
		}
		if b.json {
			err = json.NewEncoder(os.Stdout).Encode(g)
		} else {
			_, err = fmt.Print(s.page(&g))
		}
		if b.page {
			err = errors.Join(err, b.update(func(r *results) { r.Growth[s.name] = g }))
		}
		if err != nil {
			return err
		}
	}
	if !some {
		return fmt.Errorf("--growth %s: nothing is named so, there are %v", b.growth, sweepNames())
	}
	return nil
}

// update changes what the page shows.
func (b *bench) update(change func(*results)) error {
	r, err := read(filepath.Join(b.out, "shuffle.json"))
	if err != nil {
		return err
	}
	change(&r)
	return r.write(b.out)
}
