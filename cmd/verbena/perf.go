package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/perf"
)

// perfOptions are the flags of perf.
type perfOptions struct {
	plan     perf.Plan
	amount   perf.Amount
	sizes    []string
	all      bool
	asJSON   bool
	plot     string
	cpus     []int
	stall    time.Duration
	explicit bool // --iterations was given
}

func perfCommand(o *options) *cobra.Command {
	p := &perfOptions{}
	cmd := &cobra.Command{
		Use:   "perf [HOST[:PORT]]",
		Short: "Measure latency, message rate, bandwidth and processor time of the transports",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.run(cmd, o, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&p.plan.Level, "level", perf.LevelVerbs, "verbs (queue pairs) or runtime (endpoints)")
	flags.StringVar(&p.plan.Transport, "transport", verbena.TransportAuto, "auto, shm, iwarp, ibverbs, or tcp at level runtime")
	flags.StringVar(&p.plan.Test, "test", perf.TestSend, "send, write, read or atomic")
	flags.StringVar(&p.plan.Mode, "mode", perf.ModeLatency, "lat, bw or rate")
	flags.StringVar(&p.plan.Wait, "wait", perf.WaitSpin, "spin, adaptive or event")
	flags.StringSliceVar(&p.sizes, "size", []string{"8"}, "message `sizes`, such as 8,1K,64K")
	flags.BoolVar(&p.all, "all", false, "all sizes from 1 B to 64 MiB")
	flags.IntVar(&p.amount.Iterations, "iterations", 0, "measure so many messages (default: for --duration)")
	flags.DurationVar(&p.amount.Duration, "duration", 2*time.Second, "measure each row for so long")
	flags.IntVar(&p.amount.Warmup, "warmup", 1000, "messages before the measurement")
	flags.IntVar(&p.plan.Connections, "connections", 1, "connections")
	flags.IntVar(&p.plan.Posters, "posters", 1, "goroutines that post")
	flags.IntVar(&p.plan.Window, "window", 0, "messages of a poster outstanding on a connection (default: by size)")
	flags.IntVar(&p.plan.Receives, "receives", 0, "receives posted on a connection (default: by window)")
	flags.IntVar(&p.plan.Buffers, "buffers", 0, "buffers that the receives of a connection rotate over (default: up to 4; all with --verify)")
	flags.IntVar(&p.plan.Signal, "signal", 0, "ask for a completion of one request in so many (default: lat 1, else up to 64)")
	flags.IntVar(&p.plan.Batch, "batch", 0, "requests of one post (default: rate up to 16, else 1)")
	flags.IntVar(&p.plan.Inline, "inline", -1, "longest message that is posted inline (default: what the device can, up to 256)")
	flags.BoolVar(&p.plan.ReadPayload, "read-payload", false, "the receiver reads every line, the sender writes it anew")
	flags.BoolVar(&p.plan.Verify, "verify", false, "check every byte where it arrives, with patterns that depend on the place")
	flags.BoolVar(&p.asJSON, "json", false, "an object for each row")
	cmd.AddCommand(perfServeCommand(o))
	return cmd
}

func perfServeCommand(o *options) *cobra.Command {
	address := ""
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Be the other end of measurements",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			s, err := perf.Listen(cmd.Context(), perf.ServerConfig{Address: address, Providers: o.providers(), Logger: o.logger()})
			if err != nil {
				return err
			}
			defer closing(&err, s)
			fmt.Fprintf(cmd.OutOrStdout(), "perf: serving at %s; measure with: verbena perf %s\n", s.Addr(), s.Addr())
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "listen", "127.0.0.1:8029", "`address` to serve at")
	return cmd
}

func (p *perfOptions) run(cmd *cobra.Command, o *options, args []string) (err error) {
	if len(args) == 0 {
		return fmt.Errorf("name a server: start one with `verbena perf serve`")
	}
	var sizes []int
	if p.all {
		sizes = perf.AllSizes()
	} else {
		for _, s := range p.sizes {
			n, err := perf.ParseSize(s)
			if err != nil {
				return err
			}
			sizes = append(sizes, n)
		}
	}
	providers := o.providers()
	rt, err := verbena.New(verbena.Config{Providers: providers, Logger: o.logger()})
	if err != nil {
		return err
	}
	defer closing(&err, rt)
	c := &perf.Client{Server: args[0], Runtime: rt, Providers: providers, Logger: o.logger()}
	table := perf.NewTable(cmd.OutOrStdout(), p.plan.Verify, p.plan.Connections > 1, p.plan.Posters > 1)
	for _, size := range sizes {
		plan := p.plan
		plan.Size = size
		m, err := c.Run(cmd.Context(), plan, p.amount)
		if err != nil {
			return err
		}
		if p.asJSON {
			err = m.Row().WriteJSON(os.Stdout)
		} else {
			err = table.Add(m.Row())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
