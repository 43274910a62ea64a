package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/bench/internal/beside"
)

// dfsio is a run of TestDFSIO: org.apache.hadoop.fs.TestDFSIO defines it. Each of so many
// tasks writes, and later reads, a file of its own by calls of 1,000,000 bytes.
type dfsio struct {
	*bench
	sizes  []int64 // MiB of all files together
	files  int
	tasks  int // at a time
	packet int // bytes, 0: each client's default
}

func dfsioCommand(b *bench) *cobra.Command {
	d := &dfsio{bench: b}
	cmd := &cobra.Command{
		Use:   "dfsio",
		Short: "TestDFSIO: Hadoop's own on both systems, and ours on our client",
		Long: `Write and read files as TestDFSIO does, three replicas: by Hadoop's jar on Apache HDFS and on
ours, and by our client on ours over each transport. It tells what TestDFSIO tells: throughput
(bytes of all tasks by their time together), the mean of the tasks' rates and its standard
deviation, in MiB/s, and the seconds of all; beside them the processor seconds of all processes.
Those of Hadoop's jar have a JVM's start and a job of MapReduce in one process in them.`,
		Example: `  go -C bench run ./hdfs dfsio                       files of 1 to 5 GiB together
  go -C bench run ./hdfs dfsio --quick               256 MiB, two rounds
  go -C bench run ./hdfs dfsio --packet 1048576      with packets of 1 MiB`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.run(cmd.Context(), func(ctx context.Context) error {
				if len(d.sizes) == 0 {
					d.sizes = []int64{1 << 10, 2 << 10, 3 << 10, 4 << 10, 5 << 10}
					if b.quick {
						d.sizes = []int64{b.size}
					}
				}
				if err := d.check(); err != nil {
					return err
				}
				return d.compare(ctx)
			})
		},
	}
	flags := cmd.Flags()
	flags.Int64SliceVar(&d.sizes, "sizes", nil, "`MiB` of all files together (default: 1024 to 5120; with --quick 256, or --size)")
	flags.IntVar(&d.files, "files", 4, "files, and tasks")
	flags.IntVar(&d.tasks, "tasks", 1, "tasks at a time")
	flags.IntVar(&d.packet, "packet", 0, "`bytes` of a packet (default: that of each client and transport)")
	return cmd
}

func (d *dfsio) check() error {
	if d.files < 1 || d.tasks < 1 || d.packet < 0 {
		return fmt.Errorf("--files %d --tasks %d --packet %d: want 1 file and 1 task or more, and no negative packets", d.files, d.tasks, d.packet)
	}
	for _, size := range d.sizes {
		if size < int64(d.files) {
			return fmt.Errorf("--sizes %d: want 1 MiB or more for each of %d files", size, d.files)
		}
	}
	return nil
}

// rates is what a run tells, as TestDFSIO does: MiB/s, and seconds.
type rates struct {
	Throughput float64 `json:"throughput"`
	Average    float64 `json:"average"`
	Deviation  float64 `json:"deviation"`
	Seconds    float64 `json:"seconds"`
	CPU        float64 `json:"cpu_seconds"`
}

// ratesOf are those of tasks that each moved size MiB.
func ratesOf(size float64, tasks []time.Duration) (r rates) {
	var sum, squares, seconds float64
	for _, t := range tasks {
		rate := size / t.Seconds()
		sum, squares, seconds = sum+rate, squares+rate*rate, seconds+t.Seconds()
	}
	n := float64(len(tasks))
	r.Throughput, r.Average = size*n/seconds, sum/n
	r.Deviation = math.Sqrt(math.Abs(squares/n - r.Average*r.Average))
	return r
}

// A runner writes or reads the files of one size.
type runner struct {
	name   string
	system *system
	run    func(ctx context.Context, size int64, read bool) (rates, error)
	stop   func() error
}

// spot is a place in the table.
type spot struct {
	size int64
	name string
	read bool
}

func (d *dfsio) compare(ctx context.Context) (err error) {
	took := map[spot][]rates{}
	var names []string
	for _, start := range d.starts(ctx) {
		r, err := start(ctx)
		if err != nil {
			return err
		}
		names = append(names, r.name)
		if err := errors.Join(d.measure(ctx, r, took), r.stop()); err != nil {
			return err
		}
	}
	text := d.ran() + fmt.Sprintf(". %d files, %d at a time, medians of %d rounds: MiB/s by TestDFSIO's formulas, seconds of all, processor seconds.\n\n", d.files, d.tasks, d.rounds) +
		d.table(names, took)
	rows := d.runs(names, took)
	return publish(d.bench, os.Stdout, "dfsio", text, rows, func(r *results) {
		r.DFSIO = &dfsioResults{d.conditions(), d.files, d.tasks, d.packet, rows}
	})
}

// measure has a runner do all sizes, round after round.
func (d *dfsio) measure(ctx context.Context, r *runner, took map[spot][]rates) error {
	for round := -1; round < d.rounds; round++ { // the first one warms up
		for i, size := range d.sizes {
			if round < 0 && i > 0 {
				break
			}
			for _, read := range []bool{false, true} {
				before, err := r.system.cpu()
				if err != nil {
					return err
				}
				v, err := r.run(ctx, size, read)
				if err != nil {
					return fmt.Errorf("%s: %w", r.name, err)
				}
				after, err := r.system.cpu()
				if err != nil {
					return err
				}
				v.CPU += (after - before).Seconds()
				if round >= 0 {
					at := spot{size, r.name, read}
					took[at] = append(took[at], v)
				}
			}
			if err := d.remove(ctx, r.system); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "%s: round %d of %d\n", r.name, round+1, d.rounds)
	}
	return nil
}

// dfsioDirectory is TestDFSIO's own.
const dfsioDirectory = "/benchmarks/TestDFSIO"

// remove deletes the files, of whoever wrote them.
func (d *dfsio) remove(ctx context.Context, s *system) error {
	c, err := ourClient(ctx, d.self, "cleaner", s.nameNode, verbena.TransportTCP, d.user, 0, d.log)
	if err != nil {
		return err
	}
	_, err = c.ask("delete", dfsioDirectory)
	return errors.Join(err, c.Stop(), s.settle(ctx))
}

// starts are how to start each system with its runner, one after the other.
func (d *dfsio) starts(ctx context.Context) []func(context.Context) (*runner, error) {
	starts := []func(context.Context) (*runner, error){
		func(ctx context.Context) (*runner, error) { return d.hadoops(ctx, "apache") },
		func(ctx context.Context) (*runner, error) { return d.hadoops(ctx, verbena.TransportTCP) },
	}
	for _, col := range columnsHere(ctx, theProviders(), os.Stderr) {
		starts = append(starts, func(ctx context.Context) (*runner, error) { return d.ours(ctx, &col) })
	}
	return starts
}

// ours has our client obey.
func (d *dfsio) ours(ctx context.Context, col *column) (*runner, error) {
	s, err := col.start(ctx, d.bench)
	if err != nil {
		return nil, err
	}
	c, err := col.client(ctx, d.bench, s, d.packet)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return &runner{
		name: "our client, " + col.name, system: s,
		run: func(_ context.Context, size int64, read bool) (r rates, err error) {
			how := 0
			if read {
				how = 1
			}
			each := size / int64(d.files)
			before, err := c.CPU()
			if err != nil {
				return r, err
			}
			numbers, err := c.ask("dfsio", dfsioDirectory, d.files, each<<20, d.tasks, how)
			if err != nil {
				return r, err
			}
			after, err := c.CPU()
			tasks := make([]time.Duration, len(numbers)-1)
			for i := range tasks {
				tasks[i] = time.Duration(numbers[1+i])
			}
			r = ratesOf(float64(each), tasks)
			r.Seconds, r.CPU = float64(numbers[0])/1e9, (after - before).Seconds()
			return r, err
		},
		stop: func() error { return errors.Join(c.Stop(), s.stop()) },
	}, nil
}

// hadoops runs Hadoop's jar on a system.
func (d *dfsio) hadoops(ctx context.Context, name string) (*runner, error) {
	h, err := fetchHadoop(ctx, d.work, d.user)
	if err != nil {
		return nil, err
	}
	place := filepath.Join(d.work, "dfsio-"+name)
	if err := os.MkdirAll(place, 0o755); err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	sockets, err := os.MkdirTemp(cache, "verbena-dn-")
	if err != nil {
		return nil, err
	}
	s, err := d.startSystem(ctx, h, name, sockets)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(sockets))
	}
	conf := filepath.Join(place, "conf")
	properties := map[string]string{
		"hadoop.tmp.dir": filepath.Join(place, "tmp"), "mapreduce.local.map.tasks.maximum": strconv.Itoa(d.tasks),
	}
	if d.packet > 0 {
		properties["dfs.client-write-packet-size"] = strconv.Itoa(d.packet)
	}
	if err := os.MkdirAll(conf, 0o755); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if err := configure(conf, s.nameNode, properties); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return &runner{
		name: "TestDFSIO.java on " + s.name, system: s,
		stop: func() error { return errors.Join(s.stop(), os.RemoveAll(sockets)) },
		run: func(ctx context.Context, size int64, read bool) (rates, error) {
			how := "-write"
			if read {
				how = "-read"
			}
			result := filepath.Join(place, "result")
			if err := os.RemoveAll(result); err != nil { // it is appended to
				return rates{}, err
			}
			cmd := h.java(ctx, conf, "1g", "org.apache.hadoop.fs.TestDFSIO", how, "-nrFiles", strconv.Itoa(d.files),
				"-size", fmt.Sprint(size/int64(d.files), "MB"), "-bufferSize", strconv.Itoa(bufferSize), "-resFile", result)
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Run(); err != nil {
				return rates{}, fmt.Errorf("TestDFSIO %s: %w: %s", how, err, said.Bytes())
			}
			text, err := os.ReadFile(result)
			if err != nil {
				return rates{}, fmt.Errorf("TestDFSIO %s tells nothing: %w: %s", how, err, said.Bytes())
			}
			r, err := parseDFSIO(string(text))
			r.CPU = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
			return r, err
		},
	}, nil
}

var dfsioLine = regexp.MustCompile(`(?m)^ *(Throughput mb/sec|Average IO rate mb/sec|IO rate std deviation|Test exec time sec): *([0-9.]+) *$`)

// parseDFSIO reads what TestDFSIO has written of one run.
func parseDFSIO(text string) (r rates, err error) {
	of := map[string]*float64{
		"Throughput mb/sec": &r.Throughput, "Average IO rate mb/sec": &r.Average, "IO rate std deviation": &r.Deviation, "Test exec time sec": &r.Seconds,
	}
	for _, m := range dfsioLine.FindAllStringSubmatch(text, -1) {
		at := of[m[1]]
		if at == nil {
			return r, fmt.Errorf("TestDFSIO tells %q twice: %q", m[1], text)
		}
		delete(of, m[1])
		if *at, err = strconv.ParseFloat(m[2], 64); err != nil {
			return r, err
		}
	}
	if len(of) > 0 {
		return r, fmt.Errorf("TestDFSIO's result lacks some of its numbers: %q", text)
	}
	return r, nil
}

// runs are what was measured, in the table's order.
func (d *dfsio) runs(names []string, took map[spot][]rates) (out []dfsioRun) {
	for _, size := range d.sizes {
		for _, read := range []bool{false, true} {
			for _, name := range names {
				out = append(out, dfsioRun{size, read, name, took[spot{size, name, read}]})
			}
		}
	}
	return out
}

// table shows the medians.
func (d *dfsio) table(names []string, took map[spot][]rates) string {
	var s strings.Builder
	fmt.Fprint(&s, "| all files | | | throughput | mean rate | deviation | seconds | CPU |\n|---|---|---|---:|---:|---:|---:|---:|\n")
	for _, size := range d.sizes {
		for _, read := range []bool{false, true} {
			how := "write"
			if read {
				how = "read"
			}
			for _, name := range names {
				fmt.Fprintf(&s, "| %s | %s | %s |", beside.Bytes(float64(size<<20)), how, name)
				for _, of := range []func(rates) float64{
					func(r rates) float64 { return r.Throughput }, func(r rates) float64 { return r.Average }, func(r rates) float64 { return r.Deviation },
					func(r rates) float64 { return r.Seconds }, func(r rates) float64 { return r.CPU },
				} {
					var all []float64
					for _, r := range took[spot{size, name, read}] {
						all = append(all, of(r))
					}
					fmt.Fprintf(&s, " %.2f |", beside.Middle(all))
				}
				fmt.Fprintln(&s)
			}
		}
	}
	return s.String()
}

// dfsio writes or reads count files of length bytes each, so many at a time, and tells the
// nanoseconds of all and of each.
func (l *loader) dfsio(ctx context.Context, dir string, count, length int64, tasks int, read bool) ([]int64, error) {
	var (
		wg    sync.WaitGroup
		took  = make([]int64, 1+count)
		errs  = make([]error, count)
		turns = make(chan struct{}, max(tasks, 1))
		began = time.Now()
	)
	for i := range count {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			path, began := fmt.Sprintf("%s/io_data/test_io_%d", dir, i), time.Now()
			if read {
				errs[i] = l.read(ctx, path, length)
			} else {
				errs[i] = l.write(ctx, path, length, 0)
			}
			took[1+i] = time.Since(began).Nanoseconds()
		})
	}
	wg.Wait()
	took[0] = time.Since(began).Nanoseconds()
	return took, errors.Join(errs...)
}
