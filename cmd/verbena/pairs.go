package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/cmd/verbena/internal/bytesize"
	"github.com/verbena-data/verbena/cmd/verbena/internal/jobcmd"
	"github.com/verbena-data/verbena/shuffle/pairs"
)

func pairsCommand(o *options) *cobra.Command {
	cfg := pairs.Config{}
	value := bytesize.Size(1000)
	j := &jobcmd.Job{What: "pairs", Divide: pairs.Divide}
	j.Threads = 2 // while one waits for a place at a receiver, the other one sends
	cmd := &cobra.Command{
		Use:   "pairs [flags] groupby|sortby",
		Short: "Measure a shuffle as Spark's GroupByTest and sortByKey do, by several processes",
		Long: `Make pairs of a random number and random bytes, keep them in memory, and then measure
how long it takes to bring each to its reducer, and the reducers to go through theirs.

  groupby  Spark's example GroupByTest: the reducer of a pair is the remainder of its key,
           and counts the different keys, with all values of a key at hand
  sortby   Spark's sortByKey: the reducers have ranges of keys, found by a sample, and go
           through their pairs in order

Each process keeps its pairs in its part of --memory; what its reducers get goes to
temporary files when that does not hold it. Processor time is that of all processes
while they shuffle and reduce. That the number of pairs is right is always checked.

` + fmt.Sprintf(jobcmd.LauncherHelp, "pairs groupby"),
		Example: `  verbena pairs groupby --pairs 1000000 --value-size 1KiB --workers 2 --memory 2GiB
  verbena pairs sortby --pairs 1000000 --mappers 16 --reducers 16 --transport tcp --json
  verbena pairs groupby --keys 1 --check   # all pairs to one reducer; compare checksums`,
		Args: cobra.ExactArgs(1), ValidArgs: []string{string(pairs.GroupBy), string(pairs.SortBy)},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Operation, cfg.ValueSize = pairs.Operation(args[0]), int(min(value, 1<<31-1))
			if cfg.Operation != pairs.GroupBy && cfg.Operation != pairs.SortBy {
				return fmt.Errorf("there is no operation %q: choose %s or %s", args[0], pairs.GroupBy, pairs.SortBy)
			}
			j.Work = func(ctx context.Context, p *jobcmd.Part) (any, error) {
				own := cfg
				own.Memory, own.Temporary, own.Progress = p.Memory, j.Temporary, p.Tell
				if own.Temporary == "" {
					own.Temporary = os.TempDir()
				}
				return pairs.Run(ctx, p.Exchange, own)
			}
			j.Report = func(w io.Writer, result any) error {
				r := result.(pairs.Result)
				_, err := fmt.Fprintf(w, "%d pairs with %d keys, %.1f MB, by %d mappers and %d reducers in %d processes%s: shuffled in %.2f s, finished by %.2f s, %.2f s of processor time (%d temporary files)\n",
					r.Pairs, r.Groups, float64(r.Bytes)/1e6, r.Mappers, r.Reducers, r.Processes, jobcmd.Over(r.Ways), r.Shuffled.Seconds(), r.Finished.Seconds(), r.CPU.Seconds(), r.Runs)
				return err
			}
			return o.runJob(cmd, j)
		},
	}
	flags := cmd.Flags()
	flags.Int64Var(&cfg.Pairs, "pairs", 100_000, "pairs of all mappers together")
	flags.Int64Var(&cfg.Keys, "keys", pairs.MaxKeys, "range of the keys, from 0 to one less")
	flags.Var(&value, "value-size", "of a value, such as 1000 or 1KiB")
	flags.IntVar(&cfg.Mappers, "mappers", 0, "tasks that make and send pairs (default: one for each thread of all processes)")
	flags.IntVar(&cfg.Reducers, "reducers", 0, "tasks that get them (default: one for each thread of all processes)")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "chooses the pairs")
	flags.BoolVar(&cfg.Check, "check", false, "compare checksums of all pairs, which takes time that counts")
	j.AddFlags(flags, choiceOfTransports())
	return cmd
}
