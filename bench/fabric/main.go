// Command fabric measures Verbena's transports beside their peers on this host:
// UCX, libfabric, bare TCP, a bare futex, and in the lab perftest. Each comparison
// is made several times, ours and theirs in turns, with a probe of how far the
// processors are apart before and after each, so that like is compared with like.
// It writes tables, plots and the raw figures into docs/benchmarks.
package main

import (
	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/command"
)

func main() { command.Run(root()) }

func root() *cobra.Command {
	b := &bench{}
	cmd := &cobra.Command{
		Use:   "fabric",
		Short: "Measure Verbena's transports beside UCX, libfabric, TCP, a futex and perftest",
		Long: `Measure everything that docs/benchmarks/fabric.md shows, and write it anew:

  go -C bench run ./fabric            all of it, some twenty minutes, on a quiet machine
  go -C bench run ./fabric --quick --json   rows {what, beside, ours, theirs, ratio, target, met} of three
                                      rounds, nothing written, under ten minutes
  go -C bench run ./fabric --short    the same path in two or three minutes; its figures mean little
  go -C bench run ./fabric --only 'shm, Send' --parts compare

It takes two processors. It needs ucx-utils and libfabric-bin (apt-get install) and,
for the part "lab", what go run ./lab asks for. A part that cannot run is left as it
was, and named.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.IntVar(&b.rounds, "rounds", 7, "rounds of each comparison, at least 5 unless --short")
	flags.BoolVar(&b.short, "short", false, "two rounds of everything, and short ones")
	flags.BoolVar(&b.quick, "quick", false, "three rounds of the comparisons alone, under ten minutes")
	flags.BoolVar(&b.json, "json", false, "print rows of JSON and write nothing")
	flags.StringVar(&b.only, "only", "", "only comparisons whose name matches this `regexp`")
	flags.StringSliceVar(&b.parts, "parts", []string{"compare", "dispatch", "lab", "growth"}, "what to do")
	flags.StringVar(&b.out, "out", "", "`directory` for the results (default: docs/benchmarks of this tree)")
	flags.StringVar(&b.verbena, "verbena", "", "the verbena binary (default: built from this tree)")
	flags.StringVar(&b.label, "label", "", "says more about the machine, in the page")
	cmd.AddCommand(childCommand(), probeCommand(), labCommand())
	return cmd
}
