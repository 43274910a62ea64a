// Command sync measures what fsync costs: the journal of the NameNode, each of whose changes
// waits for one, and files of which the DataNodes sync the last block before the close. The same
// work without syncing stands beside it.
package main

import (
	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/command"
)

func main() { command.Run(root()) }

func root() *cobra.Command {
	b := &bench{}
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "Measure what fsync costs the NameNode and the DataNodes",
		Long: `Measure what fsync costs on the disk of a directory:

  go -C bench run ./sync --dir /var/tmp
  go -C bench run ./sync --quick --json   rows {what, beside, ours, theirs, ratio}

It prints a table for docs/benchmarks/sync.md. Three parts: appends of 4 KiB to a file, each
synced; changes of the NameNode's journal by 1 and by 32 callers, and the same on a file system
whose syncs do nothing; files of three sizes with three replicas on DataNodes in this process, with
and without an hsync before the close. The rounds of what is compared alternate.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&b.dir, "dir", "", "`directory` on the disk to be measured (default: a temporary one)")
	flags.BoolVar(&b.short, "quick", false, "three short rounds")
	flags.BoolVar(&b.json, "json", false, "print the rows as JSON, for a script")
	flags.IntVar(&b.rounds, "rounds", 0, "rounds (default: 5, with --quick 3)")
	flags.DurationVar(&b.each, "each", 0, "time of each part of a round (default: 500ms, with --quick 100ms)")
	return cmd
}
