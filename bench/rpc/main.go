// Command rpc measures the runtime's calls and Hadoop RPC beside their peers on this
// host: our own verbs level, memcpy, gRPC-Go over TCP and over a Unix socket, Go's
// net/rpc, and Hadoop's own server in Java. The two ends are processes of their own,
// each bound to a processor; each comparison is made several times, ours and theirs in
// turns. It also shows how the cost grows with callers, peers and sizes.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/command"
)

func main() { command.Run(root()) }

func root() *cobra.Command {
	b := &bench{}
	cmd := &cobra.Command{
		Use:   "rpc",
		Short: "Measure calls and Hadoop RPC beside gRPC-Go, net/rpc, memcpy and Hadoop's Java server",
		Long: `Measure what docs/benchmarks/rpc.md shows, and write it anew:

  go -C bench run ./rpc                  all of it, half an hour, on a quiet machine
  go -C bench run ./rpc --quick          three short rounds and few sizes, under ten minutes
  go -C bench run ./rpc --quick --json   rows {what, beside, ours, theirs, ratio, target, met}, nothing written
  go -C bench run ./rpc --row 'memcpy|growth: peers'   these alone; the page keeps the others
  go -C bench run ./rpc --row 'growth: hadoop'   OSU's latency and throughput at full length, 20 minutes

It takes two processors. Hadoop's Java server is measured when java is installed, by
jars that Maven fetches once into the user's cache directory, or those of --hadoop
DIRECTORY. The page says when it was not.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&b.quick, "quick", false, "three short rounds, few sizes")
	flags.BoolVar(&b.json, "json", false, "print the rows as JSON and write nothing")
	flags.IntVar(&b.rounds, "rounds", 0, "rounds of each comparison (default: 7, with --quick 3)")
	flags.StringVar(&b.only, "row", "", "only rows, and tables of growth, that match this `regexp`")
	flags.StringVar(&b.lines, "line", "", "of tables of growth only the columns of systems that match this `regexp`; those measured at the same commit stay")
	flags.StringVar(&b.out, "out", "", "`directory` for the page (default: docs/benchmarks of this tree)")
	flags.StringVar(&b.hadoop, "hadoop", os.Getenv("HADOOP_JARS"), "`directory` with the jars of hadoop-common, of its tests and of what they need (default: $HADOOP_JARS, or fetched by Maven)")
	cmd.AddCommand(serveCommand(), driveCommand(), getCommand(), floodCommand(), wakeCommand())
	return cmd
}
