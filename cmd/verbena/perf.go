package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/perf"
	"github.com/verbena-data/verbena/rdma"
)

// perfOptions are the flags of perf. Lists are measured in all combinations.
type perfOptions struct {
	plan    perf.Plan
	amount  perf.Amount
	timeout time.Duration

	levels, transports, tests, modes, waits, sizes []string
	connections, posters                           []int

	all, asJSON, details, quiet bool
	plot, device                string
	cpus, serverCPUs            []int
}

func perfCommand(o *options) *cobra.Command {
	p := &perfOptions{}
	cmd := &cobra.Command{
		Use:   "perf [HOST[:PORT]]",
		Short: "Measure latency, message rate, bandwidth and processor time of the transports",
		Long: `Measure what a transport costs between this process and a server:

  on one host    verbena perf serve --listen 0.0.0.0:8029
  on another     verbena perf db1:8029

Without a server, one is started in a process of its own on this host, and a short
table shows every transport that works here. With flags that say what to measure,
that is measured over them.

At level verbs the messages go over queue pairs, with receives posted and posted
again, keys checked and completions taken at both ends. At level runtime they go
over endpoints, as programs use them. --test call measures calls and their answers
there, with --posters callers on --connections endpoints, and --test stream the bytes
of a stream for each poster. At level rpc the calls are Hadoop RPC's: on endpoints and,
over tcp, in frames as Hadoop's own clients send them.

  --mode lat    one message at a time, there and back. Send and Write: half of the
                round trip, as perftest and UCX tell it. Read and atomic: the whole
                operation. Writes are told by their last byte, which the target polls,
                where the device allows that, else by an empty Send behind them.
  --mode bw     as many bytes as the window holds are on their way, posted one by one
  --mode rate   the same, posted --batch at a time

In bw and rate the percentiles are of the time between messages. CPU seconds are those
of both processes. --verify is a mode of its own: its times include making and
checking every byte. Lists, such as --size 8,1K --wait spin,event, are measured in
all combinations; levels in mode lat by turns of a tenth of a second, so that they
can be compared although a host moves the processors of its virtual machines.`,
		Example: `  verbena perf
  verbena perf db1:8029 --test write --mode bw --all --plot write.svg
  verbena perf --transport shm --size 8,1K,64K --wait spin,event
  verbena perf db1:8029 --mode rate --size 8 --connections 1,10,100,1000
  verbena perf --level rpc --test call --transport shm,tcp --size 1K,512K
  verbena perf --transport iwarp --test send --mode bw --verify
  verbena perf --json --all | jq -r '[.size, .p50_ns] | @tsv'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return p.run(cmd, o, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&p.transports, "transport", []string{verbena.TransportAuto}, "auto, shm, iwarp, ibverbs; tcp at the levels runtime and rpc")
	flags.StringVar(&p.device, "device", "", "the device to use where a transport has several, such as mlx5_1 (default: the first)")
	flags.StringSliceVar(&p.levels, "level", []string{perf.LevelVerbs}, "verbs (queue pairs), runtime (endpoints) or rpc (Hadoop RPC)")
	flags.StringSliceVar(&p.tests, "test", []string{perf.TestSend}, "send, write, read, atomic; at level runtime send, call or stream; at level rpc call")
	flags.StringSliceVar(&p.modes, "mode", []string{perf.ModeLatency}, "lat, bw or rate")
	flags.StringSliceVar(&p.waits, "wait", []string{perf.WaitSpin}, "spin, adaptive (spin, then sleep) or event (sleep)")
	flags.StringSliceVar(&p.sizes, "size", []string{"8"}, "message `sizes`, such as 8,1K,64K")
	flags.BoolVar(&p.all, "all", false, "all sizes from 1 B to 64 MiB")
	flags.DurationVar(&p.amount.Duration, "duration", 2*time.Second, "measure each row for so long")
	flags.IntVar(&p.amount.Iterations, "iterations", 0, "measure so many messages instead")
	flags.DurationVar(&p.amount.Pause, "pause", 0, "test call: let both ends sleep for so long before each call")
	flags.IntVar(&p.amount.Warmup, "warmup", 1000, "messages before the measurement; of long ones fewer, 256 MiB at most")
	flags.BoolVar(&p.amount.Half, "warm-half", false, "let the first half of --iterations, or of --duration, warm up instead")
	flags.DurationVar(&p.timeout, "timeout", 5*time.Minute, "give a row up after so long")
	flags.IntSliceVar(&p.connections, "connections", []int{1}, "connections")
	flags.IntSliceVar(&p.posters, "posters", []int{1}, "goroutines that post")
	flags.IntVar(&p.plan.Window, "window", 0, "messages of a poster outstanding on a connection (default: by size, up to 256)")
	flags.IntVar(&p.plan.Receives, "receives", 0, "receives posted on a connection (default: lat 16, else twice the window)")
	flags.IntVar(&p.plan.Buffers, "buffers", 0, "buffers that a connection's receives rotate over (default: up to 4; one for each with --verify or --read-payload)")
	flags.IntVar(&p.plan.Signal, "signal", 0, "ask for a completion of one request in so many (default: lat 1, else up to 64)")
	flags.IntVar(&p.plan.Batch, "batch", 0, "requests of one post (default: rate up to 16, else 1)")
	flags.IntVar(&p.plan.Inline, "inline", -1, "longest message in bytes that is posted inline (default: what the device can, up to 256)")
	flags.Lookup("inline").DefValue = "0" // which is not shown: the text above tells the default
	flags.BoolVar(&p.plan.SharedReceives, "shared-receives", false, "level verbs: all connections that a goroutine polls receive by one shared receive queue, at both ends")
	flags.BoolVar(&p.plan.RepostFirst, "repost-first", false, "mode lat: post a receive again, or release a message, before the answer, as perftest does, not after it")
	flags.BoolVar(&p.plan.ReadPayload, "read-payload", false, "the receiver reads every line of each message, the sender writes it anew")
	flags.BoolVar(&p.plan.Verify, "verify", false, "check every byte where it arrives, against patterns that depend on place and message")
	flags.IntSliceVar(&p.cpus, "cpu", nil, "bind this process to `processors`")
	flags.IntSliceVar(&p.serverCPUs, "server-cpu", nil, "bind the server's process that is started here to `processors`")
	flags.StringVar(&p.plot, "plot", "", "draw the rows over their sizes into this SVG `file`")
	flags.BoolVar(&p.asJSON, "json", false, "an object for each row, on a line of its own")
	flags.BoolVar(&p.details, "details", false, "with --json: settings and memory, too")
	flags.BoolVarP(&p.quiet, "quiet", "q", false, "no progress on the terminal")
	cmd.AddCommand(perfServeCommand(o))
	return cmd
}

func perfServeCommand(o *options) *cobra.Command {
	var (
		address  string
		device   string
		cpus     []int
		untilEOF bool
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Be the other end of measurements, for any number of clients",
		Long: `Serve measurements on one TCP port until a signal. Clients choose what is measured.
Whoever reaches the port can make this process use processors and up to 4 GiB of
memory for a measurement: keep it on networks that you trust.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if len(cpus) > 0 {
				if err := perf.Pin(cpus); err != nil {
					return err
				}
			}
			if address, err = fullAddress("--listen", address, perfPort); err != nil {
				return err
			}
			s, err := perf.Listen(cmd.Context(), perf.ServerConfig{Address: address, Providers: o.providers(), Tuning: o.settings.Tuning(), Device: device, Logger: o.logger()})
			if err != nil {
				return explainListen(err, "--listen")
			}
			defer closing(&err, s)
			if err := perf.Announce(cmd.OutOrStdout(), s.Addr().String()); err != nil {
				return err
			}
			ctx := cmd.Context()
			if untilEOF {
				var cancel context.CancelFunc
				ctx, cancel = perf.UntilEOF(ctx, os.Stdin, func() {
					o.logger().Error("measurements did not end with standard input: giving them up")
					os.Exit(1)
				})
				defer cancel()
			}
			<-ctx.Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "listen", "127.0.0.1:8029", "`HOST[:PORT]` to serve at; port 0 for any")
	cmd.Flags().StringVar(&device, "device", "", "the device to use where a transport has several (default: the first)")
	cmd.Flags().IntSliceVar(&cpus, "cpu", nil, "bind this process to `processors`")
	cmd.Flags().BoolVar(&untilEOF, "until-eof", false, "end when standard input does, as a child process")
	return cmd
}

// perfPort is the default of serve.
const perfPort = 8029

func (p *perfOptions) run(cmd *cobra.Command, o *options, args []string) (err error) {
	ctx := cmd.Context()
	if p.details && !p.asJSON {
		return errors.New("--details goes with --json")
	}
	if len(args) > 0 && len(p.serverCPUs) > 0 {
		return errors.New("--server-cpu is for the server that is started here: give --cpu to `verbena perf serve` instead")
	}
	sizes, err := p.parseSizes()
	if err != nil {
		return err
	}
	if err := p.check(); err != nil {
		return err
	}
	if len(p.cpus) > 0 {
		if err := perf.Pin(p.cpus); err != nil {
			return err
		}
	}
	providers := o.providers()
	rt, err := verbena.New(verbena.Config{Providers: providers, Logger: o.logger()})
	if err != nil {
		return err
	}
	defer closing(&err, rt)
	c := &perf.Client{Runtime: rt, Providers: providers, Tuning: o.settings.Tuning(), Device: p.device, Logger: o.logger()}
	var plans []perf.Plan
	if len(args) == 1 {
		c.Server = args[0]
		if !strings.Contains(c.Server, ":") {
			c.Server = net.JoinHostPort(c.Server, strconv.Itoa(perfPort))
		}
		plans = p.plans(p.transports, sizes)
	} else {
		if plans, err = p.localPlans(cmd, providers, sizes); err != nil {
			return err
		}
		executable, err := os.Executable()
		if err != nil {
			return err
		}
		more := o.forChildren()
		if len(p.serverCPUs) > 0 {
			list := make([]string, len(p.serverCPUs))
			for i, cpu := range p.serverCPUs {
				list[i] = strconv.Itoa(cpu)
			}
			more = append(more, "--cpu", strings.Join(list, ","))
		}
		server, err := perf.StartServer(ctx, executable, more...)
		if err != nil {
			return err
		}
		defer closing(&err, server)
		c.Server = server.Address
	}
	return p.measure(cmd, c, plans)
}

// check refuses numbers that no measurement can have. Zero is a default where a flag says so.
func (p *perfOptions) check() error {
	if err := checkDuration(p.amount); err != nil {
		return err
	}
	if p.timeout <= 0 {
		return fmt.Errorf("--timeout %s: want more than 0", p.timeout)
	}
	if p.amount.Pause < 0 {
		return fmt.Errorf("--pause %s: want 0 or more", p.amount.Pause)
	}
	numbers := []struct {
		flag   string
		least  int
		values []int
	}{
		{"--connections", 1, p.connections},
		{"--posters", 1, p.posters},
		{"--iterations", 0, []int{p.amount.Iterations}},
		{"--warmup", 0, []int{p.amount.Warmup}},
		{"--window", 0, []int{p.plan.Window}},
		{"--receives", 0, []int{p.plan.Receives}},
		{"--buffers", 0, []int{p.plan.Buffers}},
		{"--signal", 0, []int{p.plan.Signal}},
		{"--batch", 0, []int{p.plan.Batch}},
		{"--inline", -1, []int{p.plan.Inline}},
	}
	for _, n := range numbers {
		for _, value := range n.values {
			if value < n.least {
				return fmt.Errorf("%s %d: want %d or more", n.flag, value, n.least)
			}
		}
	}
	return nil
}

// checkDuration refuses times that no measurement can take. A number of messages replaces the time.
func checkDuration(a perf.Amount) error {
	if a.Duration < 0 || a.Duration == 0 && a.Iterations <= 0 {
		return fmt.Errorf("--duration %s: want more than 0", a.Duration)
	}
	return nil
}

func (p *perfOptions) parseSizes() ([]int, error) {
	if p.all {
		return perf.AllSizes(), nil
	}
	var sizes []int
	for _, s := range p.sizes {
		n, err := perf.ParseSize(s)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// plans are all combinations of what the flags list.
func (p *perfOptions) plans(transports []string, sizes []int) []perf.Plan {
	var plans []perf.Plan
	for _, transport := range transports {
		for _, level := range p.levels {
			for _, test := range p.tests {
				for _, mode := range p.modes {
					for _, wait := range p.waits {
						for _, connections := range p.connections {
							for _, posters := range p.posters {
								for _, size := range sizes {
									plan := p.plan
									plan.Transport, plan.Level, plan.Test, plan.Mode, plan.Wait = transport, level, test, mode, wait
									plan.Connections, plan.Posters, plan.Size = connections, posters, size
									plans = append(plans, plan)
									if test == perf.TestAtomic {
										break // has one size
									}
								}
							}
						}
					}
				}
			}
		}
	}
	return plans
}

// localPlans are those towards a server of this host: over every transport, if
// none is named; and if nothing at all is said, a short table.
func (p *perfOptions) localPlans(cmd *cobra.Command, providers []rdma.Provider, sizes []int) ([]perf.Plan, error) {
	changed := cmd.Flags().Changed
	transports := p.transports
	if !changed("transport") {
		transports = nil
		for _, provider := range providers {
			devices, err := provider.Devices(cmd.Context())
			if err != nil || len(devices) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s is left out: %v\n", provider.Name(), err)
				continue
			}
			transports = append(transports, provider.Name())
		}
		if !slices.Contains(p.levels, perf.LevelVerbs) {
			transports = append(transports, verbena.TransportTCP)
		}
	}
	for _, flag := range []string{"level", "test", "mode", "size", "all", "connections", "posters", "verify", "read-payload"} {
		if changed(flag) {
			return p.plans(transports, sizes), nil
		}
	}
	if !changed("duration") {
		p.amount.Duration = 300 * time.Millisecond
	}
	var plans []perf.Plan
	for _, transport := range transports {
		for _, row := range []struct {
			test, mode string
			size       int
		}{
			{perf.TestSend, perf.ModeLatency, 8}, {perf.TestSend, perf.ModeLatency, 1 << 10}, {perf.TestSend, perf.ModeLatency, 64 << 10},
			{perf.TestWrite, perf.ModeLatency, 8}, {perf.TestRead, perf.ModeLatency, 8},
			{perf.TestSend, perf.ModeRate, 8}, {perf.TestSend, perf.ModeBandwidth, 64 << 10}, {perf.TestWrite, perf.ModeBandwidth, 1 << 20},
		} {
			plan := p.plan
			plan.Transport, plan.Level, plan.Test, plan.Mode, plan.Wait, plan.Size = transport, perf.LevelVerbs, row.test, row.mode, p.waits[0], row.size
			plans = append(plans, plan)
		}
	}
	for _, transport := range append(transports, verbena.TransportTCP) {
		plan := p.plan
		plan.Transport, plan.Level, plan.Test, plan.Mode, plan.Wait, plan.Size = transport, perf.LevelRuntime, perf.TestSend, perf.ModeLatency, p.waits[0], 1<<10
		plans = append(plans, plan)
	}
	return plans, nil
}

// measure carries the plans out and shows each row as it comes.
func (p *perfOptions) measure(cmd *cobra.Command, c *perf.Client, plans []perf.Plan) (err error) {
	out := cmd.OutOrStdout()
	var plot *os.File
	if p.plot != "" { // fails before the measurement, not after it
		if plot, err = os.Create(p.plot); err != nil {
			return err
		}
		defer closing(&err, plot)
	}
	bar := p.progress(len(plans))
	table := perf.NewTable(out, p.plan.Verify, len(p.connections) > 1 || p.connections[0] > 1, len(p.posters) > 1 || p.posters[0] > 1)
	var rows []perf.Row
	for _, group := range perf.Alike(plans) {
		bar.Describe(fmt.Sprintf("%s %s %s %s", group[0].Transport, group[0].Test, group[0].Mode, perf.FormatSize(group[0].Size)))
		limit := p.timeout * time.Duration(len(group))
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), limit, fmt.Errorf("nothing came of it in %s, the --timeout: is the server still running?", limit))
		measured, err := c.RunInTurns(ctx, group, p.amount)
		cancel()
		_ = bar.Clear() // makes room for the rows; the terminal's matter
		if err != nil {
			return err
		}
		for _, m := range measured {
			row := m.Row()
			rows = append(rows, row)
			if err := p.show(out, table, row); err != nil {
				return err
			}
		}
		for _, m := range measured[1:] {
			if line := m.Beside(measured[0]); line != "" && !p.asJSON {
				fmt.Fprintln(out, line)
			}
		}
		_ = bar.Add(len(group))
	}
	_ = bar.Clear()
	if plot != nil {
		return perf.Plot(plot, rows)
	}
	return nil
}

// show prints a row as the flags want it.
func (p *perfOptions) show(out io.Writer, table *perf.Table, row perf.Row) error {
	switch {
	case p.details:
		return row.WriteDetails(out)
	case p.asJSON:
		return row.WriteJSON(out)
	}
	return table.Add(row)
}

// progress is a bar on the terminal, or nothing where there is none.
func (p *perfOptions) progress(rows int) *progressbar.ProgressBar {
	if p.quiet || rows < 2 || !term.IsTerminal(int(os.Stderr.Fd())) {
		return progressbar.DefaultSilent(int64(rows))
	}
	return progressbar.NewOptions(rows, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowCount(),
		progressbar.OptionSetWidth(20), progressbar.OptionClearOnFinish())
}
