// Command hdfs measures the file system beside Apache HDFS: both run on this host, three
// DataNodes of each on a file system in memory, with our client and Apache's in processes
// of their own. Apache's programs come from Maven Central.
package main

import (
	_ "embed"
	"fmt"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/command"
)

//go:embed Load.java
var loadSource []byte

func main() { command.Run(root()) }

func root() *cobra.Command {
	b := &bench{}
	var clients string
	cmd := &cobra.Command{
		Use:   "hdfs",
		Short: "Measure the file system beside Apache HDFS",
		Long: `Measure what docs/benchmarks/hdfs.md shows, beside Apache HDFS from Maven:

  go -C bench run ./hdfs                  five rounds with 1 GiB, on a quiet machine; the page is written anew
  go -C bench run ./hdfs --quick          two rounds with 256 MiB, under ten minutes
  go -C bench run ./hdfs --quick --json   rows {what, beside, ours, theirs, ratio, target, met}, nothing written
  go -C bench run ./hdfs --clients java   the rows of Java's clients alone, nothing written
  go -C bench run ./hdfs packets          the time to write files by size of packets and transport
  go -C bench run ./hdfs stages           the time of a block's write by stage and transport
  go -C bench run ./hdfs dfsio            TestDFSIO, Hadoop's own and ours
  go -C bench run ./hdfs draw             the plots anew, of what was measured before

With --json, packets, stages and dfsio print their rows as docs/benchmarks/hdfs.json has them.
Processor time is that of all processes, clients included, by the scheduler's clock.
It needs a JDK (java runs a source file) and, the first time, mvn.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if clients != "" {
				var err error
				if b.clients, err = regexp.Compile(clients); err != nil {
					return fmt.Errorf("--clients: %w", err)
				}
			}
			return b.run(cmd.Context(), b.compare)
		},
	}
	all := cmd.PersistentFlags()
	all.BoolVar(&b.quick, "quick", false, "two rounds with 256 MiB, fewer calls")
	all.BoolVar(&b.json, "json", false, "print the rows as JSON, a line each, and write nothing")
	all.StringVar(&b.dir, "dir", "/dev/shm", "`directory` in memory for the data of both")
	all.StringVar(&b.out, "out", "", "`directory` for the page (default: docs/benchmarks of this tree)")
	all.Int64Var(&b.size, "size", 0, "`MiB` of a file (default: 1024, with --quick 256)")
	all.IntVar(&b.rounds, "rounds", 0, "rounds (default: 5, with --quick 2)")
	cmd.Flags().StringVar(&clients, "clients", "", "only the clients whose names match this `regexp`, those whose files they read, and the rows that compare them")
	cmd.AddCommand(loadCommand(), packetsCommand(b), stagesCommand(b), dfsioCommand(b), drawCommand(b))
	return cmd
}
