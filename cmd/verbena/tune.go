package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/perf"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/shuffle/dataset"
)

// tuned is a value that tune proposes.
type tuned struct {
	Name       string `json:"name"`
	Value      string `json:"value"`
	Was        string `json:"was,omitempty"`
	MeasuredOn string `json:"measured_on"`
}

type tuneOptions struct {
	transports []string
	amount     perf.Amount
	output     string
	force      bool
	asJSON     bool
}

func tuneCommand(o *options) *cobra.Command {
	t := &tuneOptions{}
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Measure which sizes and times suit this machine, and write them to a configuration file",
		Long: `Measures messages between this process and another of this host, over each transport
that is there, for about half a minute each: up to which length a message is better
copied into a posted receive than fetched (eager; alone and in a stream), how much of a long message to
offer at a time and how often (chunk, chunks), how many messages may be on their way (max-window),
and for how long a waiting caller should poll before it sleeps (spin). It prints a table, and with --output writes a file for --config, in
which each value says what it was measured on. Keep the machine quiet meanwhile.`,
		Example: `  verbena tune
  verbena tune --output tuning.yaml && verbena up --config tuning.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd, o) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&t.transports, "transport", nil, "the transports to tune: "+strings.Join(append(providers.Names(), verbena.TransportTCP), ", ")+" (default: all that are there)")
	flags.DurationVar(&t.amount.Duration, "duration", 300*time.Millisecond, "how long each measurement takes")
	flags.IntVar(&t.amount.Iterations, "iterations", 0, "messages of each measurement, instead of a time")
	flags.IntVar(&t.amount.Warmup, "warmup", 500, "messages before each measurement, which do not count")
	flags.StringVarP(&t.output, "output", "o", "", "`file` to write")
	flags.BoolVar(&t.force, "force", false, "replace the file if there is one")
	flags.BoolVar(&t.asJSON, "json", false, "one JSON object for each value instead of a table")
	return cmd
}

func (t *tuneOptions) run(cmd *cobra.Command, o *options) (err error) {
	if err := t.check(); err != nil {
		return err
	}
	ctx := cmd.Context()
	var out dataset.Output // takes its name when all is measured
	if t.output != "" {
		if out, err = t.create(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Abort(context.WithoutCancel(ctx))) }()
	}
	if len(t.transports) == 0 {
		for _, p := range o.providers() {
			if devices, err := p.Devices(ctx); err != nil || len(devices) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s is left out: %v\n", p.Name(), err)
				continue
			}
			t.transports = append(t.transports, p.Name())
		}
		t.transports = append(t.transports, verbena.TransportTCP)
	}
	m := &tuner{options: o, amount: t.amount, progress: cmd.ErrOrStderr()}
	if m.executable, err = os.Executable(); err != nil {
		return err
	}
	var all []tuned
	for _, transport := range t.transports {
		values, err := m.tune(ctx, transport)
		if err != nil {
			return fmt.Errorf("tune %s: %w", transport, err)
		}
		all = append(all, values...)
	}
	// What was measured is shown also if it cannot be saved.
	shown := t.show(cmd.OutOrStdout(), all)
	if out == nil {
		return shown
	}
	return errors.Join(shown, t.save(ctx, out, all))
}

// create makes the file under a temporary name, so that who may not write there learns it
// before minutes of measuring.
func (t *tuneOptions) create(ctx context.Context) (out dataset.Output, err error) {
	if err := t.vacant(); err != nil {
		return nil, err
	}
	var files dataset.Files // those of this host
	if out, err = files.Output(ctx, t.output, dataset.NewID()); err == nil {
		if err = out.Create(ctx, 0); err != nil {
			err = errors.Join(err, out.Abort(ctx))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("--output %s: %w", t.output, err)
	}
	return out, nil
}

// vacant refuses a file that is there, unless it may be replaced.
func (t *tuneOptions) vacant() error {
	if _, err := os.Lstat(t.output); err == nil && !t.force {
		return fmt.Errorf("%s is there already: choose another --output, or --force", t.output)
	}
	return nil
}

// save writes the file, unless somebody else has meanwhile.
func (t *tuneOptions) save(ctx context.Context, out dataset.Output, all []tuned) error {
	if err := t.vacant(); err != nil {
		return err
	}
	var content bytes.Buffer
	err := writeTuning(&content, all)
	if err == nil {
		err = writeOutput(ctx, out, content.Bytes())
	}
	if err != nil {
		return fmt.Errorf("--output %s: %w", t.output, err)
	}
	return nil
}

// check refuses what can't be measured.
func (t *tuneOptions) check() error {
	for _, transport := range t.transports {
		if all := append(providers.Names(), verbena.TransportTCP); !slices.Contains(all, transport) {
			return fmt.Errorf("there is no transport %q to tune: choose of %s", transport, strings.Join(all, ", "))
		}
	}
	if err := checkDuration(t.amount); err != nil {
		return err
	}
	switch {
	case t.amount.Iterations < 0:
		return fmt.Errorf("--iterations %d: want 0 or more", t.amount.Iterations)
	case t.amount.Warmup < 0:
		return fmt.Errorf("--warmup %d: want 0 or more", t.amount.Warmup)
	}
	return nil
}

func (t *tuneOptions) show(out io.Writer, all []tuned) error {
	if t.asJSON {
		e := json.NewEncoder(out)
		for _, v := range all {
			if err := e.Encode(v); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SETTING\tVALUE\tBUILT IN\tMEASURED")
	for _, v := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", v.Name, v.Value, v.Was, v.MeasuredOn)
	}
	return w.Flush()
}

// writeTuning writes the values as a configuration file. They come by transport.
func writeTuning(out io.Writer, all []tuned) error {
	fmt.Fprintf(out, "# By verbena tune on %s: %s/%s, %d processors, %s.\ntuning:\n",
		time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), processor())
	last := ""
	for _, v := range all {
		transport, field, _ := strings.Cut(strings.TrimPrefix(v.Name, "tuning."), ".")
		if transport != last {
			fmt.Fprintf(out, "  %s:\n", transport)
			last = transport
		}
		if _, err := fmt.Fprintf(out, "    %s: %s # %s\n", field, v.Value, v.MeasuredOn); err != nil {
			return err
		}
	}
	return nil
}

// processor is what the kernel calls it.
func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "of an unknown kind"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "of an unknown kind"
}

// tuner measures between this process and a server of its own.
type tuner struct {
	options    *options
	executable string
	amount     perf.Amount
	progress   io.Writer
}

// Header is what a layer above adds to a message; sizes leave room for it.
const tuneHeader = 48

// Candidates, the preferred ones first among those that are about as good.
var eagerSizes = []int{2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10}

// A ladder has the values of a field that costs more memory the larger it is.
type ladder struct {
	field   string
	message int // bytes of the messages whose bandwidth counts
	values  []int
	tcp     bool // it means something there
}

var ladders = []ladder{
	{field: "chunk", message: 4 << 20, values: []int{64 << 10, 128 << 10, 256 << 10, 512 << 10}, tcp: true},
	{field: "chunks", message: 4 << 20, values: []int{1, 2, 4, 8}},
	{field: "max-window", message: 4 << 10, values: []int{8, 16, 32, 64, 128}},
}

// aboutAsGood is how much less bandwidth a smaller value, which holds less memory,
// may have.
const aboutAsGood = 0.97

func (m *tuner) tune(ctx context.Context, transport string) ([]tuned, error) {
	var values []tuned
	add := func(field, value, format string, args ...any) {
		name := "tuning." + transport + "." + field
		v := tuned{Name: name, Value: value, MeasuredOn: fmt.Sprintf(format, args...)}
		v.Was = verbena.DefaultTuningOf(transport).Tuning.Fields()[field]
		values = append(values, v)
	}
	if transport != verbena.TransportTCP {
		eager, basis, err := m.eager(ctx, transport)
		if err != nil {
			return nil, err
		}
		add("eager", strconv.Itoa(eager+tuneHeader), "%s", basis)
	}
	for _, l := range ladders {
		if transport == verbena.TransportTCP && !l.tcp {
			continue
		}
		value, basis, err := m.climb(ctx, transport, &l)
		if err != nil {
			return nil, err
		}
		add(l.field, strconv.Itoa(value), "%s", basis)
	}
	if transport == verbena.TransportTCP {
		return values, nil
	}
	spin, basis, err := m.spin(ctx, transport)
	if err != nil {
		return nil, err
	}
	add("spin", spin.String(), "%s", basis)
	return values, nil
}

// A cost is what messages of one length take.
type cost struct {
	alone float64 // nanoseconds one way
	rate  float64 // bytes a second in a stream
}

func (c cost) String() string { return fmt.Sprintf("%.2f us and %.2f GB/s", c.alone/1e3, c.rate/1e9) }

// eager finds the longest message that is worth a receive of its length.
func (m *tuner) eager(ctx context.Context, transport string) (size int, basis string, err error) {
	costs := func(eager int) ([]cost, error) {
		var all []cost
		err := m.with(ctx, transport, fmt.Sprintf("eager=%d", eager), func(c *perf.Client) error {
			for _, size := range eagerSizes {
				alone, err := m.measure(ctx, c, perf.Plan{Transport: transport, Mode: perf.ModeLatency, Wait: perf.WaitSpin, Size: size})
				if err != nil {
					return err
				}
				stream, err := m.measure(ctx, c, perf.Plan{Transport: transport, Mode: perf.ModeBandwidth, Wait: perf.WaitSpin, Size: size})
				if err != nil {
					return err
				}
				all = append(all, cost{alone.Quantile(50), stream.Row().BytesPerS})
			}
			return nil
		})
		return all, err
	}
	copied, err := costs(eagerSizes[len(eagerSizes)-1] + tuneHeader)
	if err != nil {
		return 0, "", err
	}
	fetched, err := costs(1 << 10)
	if err != nil {
		return 0, "", err
	}
	best := crossover(copied, fetched)
	basis = fmt.Sprintf("%s: %v copied, %v fetched", bytesText(eagerSizes[best]), copied[best], fetched[best])
	if next := best + 1; next < len(eagerSizes) {
		basis += fmt.Sprintf("; %s: %v, %v", bytesText(eagerSizes[next]), copied[next], fetched[next])
	}
	return eagerSizes[best], basis, nil
}

// A receive twice as long doubles what a group pins, so copying must be worth it: a
// fifth faster alone or in a stream, and in the other at most a twentieth slower.
const worthwhile, bearable = 1.2, 1.05

// crossover is the index of the last size up to which copying is worth its memory.
func crossover(copied, fetched []cost) int {
	best := 0
	for i, c := range copied {
		alone, stream := fetched[i].alone/c.alone, c.rate/fetched[i].rate
		if max(alone, stream) < worthwhile || min(alone, stream)*bearable < 1 {
			break
		}
		best = i
	}
	return best
}

// climb finds the smallest value of a field that has about the best bandwidth.
func (m *tuner) climb(ctx context.Context, transport string, l *ladder) (value int, basis string, err error) {
	var rates []float64
	for _, value := range l.values {
		err := m.with(ctx, transport, fmt.Sprintf("%s=%d", l.field, value), func(c *perf.Client) error {
			r, err := m.measure(ctx, c, perf.Plan{Transport: transport, Mode: perf.ModeBandwidth, Wait: perf.WaitAdaptive, Size: l.message})
			if err == nil {
				rates = append(rates, r.Row().BytesPerS)
			}
			return err
		})
		if err != nil {
			return 0, "", err
		}
	}
	var shown []string
	for i, rate := range rates {
		shown = append(shown, fmt.Sprintf("%.2f by %s", rate/1e9, numberText(l.values[i])))
	}
	return l.values[knee(rates)], numberText(l.message) + " messages, GB/s: " + strings.Join(shown, ", "), nil
}

// knee is the first rate that is about as good as the best.
func knee(rates []float64) int {
	best := slices.Max(rates)
	return slices.IndexFunc(rates, func(r float64) bool { return r >= aboutAsGood*best })
}

// spin is how long polling may take until sleeping would have been cheaper: the time
// that being woken adds to a message.
func (m *tuner) spin(ctx context.Context, transport string) (limit time.Duration, basis string, err error) {
	var polled, woken float64
	err = m.with(ctx, transport, "", func(c *perf.Client) error {
		for _, each := range []struct {
			wait string
			into *float64
		}{{perf.WaitSpin, &polled}, {perf.WaitEvent, &woken}} {
			l, err := m.measure(ctx, c, perf.Plan{Transport: transport, Mode: perf.ModeLatency, Wait: each.wait, Size: 1 << 10})
			if err != nil {
				return err
			}
			*each.into = l.Quantile(50)
		}
		return nil
	})
	if err != nil {
		return 0, "", err
	}
	limit = time.Duration(min(max(woken-polled, 1e3), 1e6)).Round(time.Microsecond)
	return limit, fmt.Sprintf("1K messages: %.2f us polled, %.2f us woken", polled/1e3, woken/1e3), nil
}

// with runs f towards a server of its own, both tuned by "field=value".
func (m *tuner) with(ctx context.Context, transport, tuning string, f func(*perf.Client) error) (err error) {
	flags := m.options.forChildren()
	table := m.options.settings.Tuning()
	if tuning != "" {
		field, value, _ := strings.Cut(tuning, "=")
		if err := table.Set(transport+"."+field, value); err != nil {
			return err
		}
		flags = append(flags, "--tune", transport+"."+tuning)
	}
	fmt.Fprintf(m.progress, "%s %s\n", transport, cmp.Or(tuning, "spin"))
	server, err := perf.StartServer(ctx, m.executable, flags...)
	if err != nil {
		return err
	}
	defer closing(&err, server)
	list := m.options.providers()
	rt, err := verbena.New(verbena.Config{Providers: list, Tuning: table, Logger: m.options.logger()})
	if err != nil {
		return err
	}
	defer closing(&err, rt)
	return f(&perf.Client{Server: server.Address, Runtime: rt, Providers: list, Tuning: table, Logger: m.options.logger()})
}

func (m *tuner) measure(ctx context.Context, c *perf.Client, plan perf.Plan) (*perf.Measurement, error) {
	plan.Level, plan.Test, plan.Connections, plan.Posters, plan.Inline = perf.LevelRuntime, perf.TestSend, 1, 1, -1
	return c.Run(ctx, plan, m.amount)
}

// bytesText is a round size.
func bytesText(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%dM", n>>20)
	}
	return fmt.Sprintf("%dK", n>>10)
}

// numberText is a number, or a round size.
func numberText(n int) string {
	if n < 1<<10 {
		return strconv.Itoa(n)
	}
	return bytesText(n)
}
