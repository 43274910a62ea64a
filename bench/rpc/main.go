// Command rpc measures Hadoop RPC as Verbena serves it beside its peers on this
// host: gRPC-Go over TCP and over a Unix socket, Go's net/rpc, and Hadoop's own
// server in Java. Each server is a process of its own; each comparison is made
// several times, ours and theirs in turns.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rpc:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	b := &bench{}
	cmd := &cobra.Command{
		Use:   "rpc",
		Short: "Measure Hadoop RPC beside gRPC-Go, net/rpc and Hadoop's Java server",
		Long: `Measure an echo by size and by number of callers, and write docs/benchmarks/rpc.md:

  go -C bench run ./rpc                  all sizes, some forty minutes, on a quiet machine
  go -C bench run ./rpc --quick          a few sizes, under ten minutes
  go -C bench run ./rpc --quick --json   rows {what, beside, ours, theirs, ratio, target, met}, nothing written

Hadoop's Java server is measured when --hadoop names a directory with the jars of
hadoop-common, its test jar (type test-jar) and what they need:
mvn dependency:copy-dependencies. The page says when it was not.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&b.quick, "quick", false, "few sizes and short rounds")
	flags.BoolVar(&b.json, "json", false, "print rows of JSON and write nothing")
	flags.IntVar(&b.rounds, "rounds", 5, "rounds of each comparison")
	flags.StringVar(&b.only, "only", "", "only comparisons whose name matches this `regexp`")
	flags.StringVar(&b.out, "out", "", "`directory` for the page (default: docs/benchmarks of this tree)")
	flags.StringVar(&b.hadoop, "hadoop", os.Getenv("HADOOP_JARS"), "`directory` of Hadoop's jars (default: $HADOOP_JARS)")
	cmd.AddCommand(serveCommand())
	return cmd
}
