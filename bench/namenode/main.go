// Command namenode measures the NameNode beside Apache HDFS's: one load generator makes
// the same calls of both, over TCP by Hadoop RPC, and the processor time of each server is
// taken from its accounting. Apache's comes from Maven Central.
package main

import (
	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/command"
)

func main() { command.Run(root()) }

func root() *cobra.Command {
	b := &bench{}
	cmd := &cobra.Command{
		Use:   "namenode",
		Short: "Measure the NameNode beside Apache HDFS's",
		Long: `Measure calls a second of the NameNode, and its processor time for each, beside Apache
HDFS's NameNode from Maven, with one load generator:

  go -C bench run ./namenode                  five rounds, some minutes, on a quiet machine; the page is written anew
  go -C bench run ./namenode --quick          three short rounds; the page, too
  go -C bench run ./namenode --quick --json   rows {what, beside, ours, theirs, ratio, target, met}, nothing written
  go -C bench run ./namenode --against FILE   beside another build of verbena, nothing written

Both write their logs below --dir. Each is warmed up by rounds that do not count: Java
compiles in them. It needs java and, the first time, mvn.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&b.quick, "quick", false, "three short rounds")
	flags.BoolVar(&b.json, "json", false, "print the rows as JSON and write nothing")
	flags.IntVar(&b.clients, "clients", 32, "clients, each with a connection of its own")
	flags.IntVar(&b.rounds, "rounds", 0, "rounds (default: 5, with --quick 3)")
	flags.IntVar(&b.calls, "calls", 0, "calls of each client and kind in a round (default: 600, with --quick 200)")
	flags.StringVar(&b.out, "out", "", "`directory` for the page (default: docs/benchmarks of this tree)")
	flags.StringVar(&b.against, "against", "", "another `build` of verbena, or a script that runs it, in place of Apache's NameNode")
	flags.StringVar(&b.dir, "dir", "/dev/shm", "`directory` in memory for the logs of both")
	return cmd
}
