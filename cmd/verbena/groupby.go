package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/cmd/verbena/internal/jobcmd"
	"github.com/verbena-data/verbena/shuffle/groupby"
)

const formats = "csv, tsv, jsonl or words"

func groupbyCommand(o *options) *cobra.Command {
	var format string
	var count bool
	cfg := groupby.Config{}
	j := &jobcmd.Job{What: "groupby", Divide: groupby.Divide}
	cmd := &cobra.Command{
		Use:   "groupby [flags] FILE...",
		Short: "Count records, or add up a field, for each value of a key, by several processes",
		Long: `Group the records of files by a field, and count them or add up another field. Each
process reads a part and adds up what it sees; partial results go to the process that
has the range of the key. Results come in the order of the keys (as bytes), on standard
output or in a file.

  csv     RFC 4180, with quotes and newlines within them; the first record of each file
          names the fields, which may be given by number, too
  tsv     tabs between fields, no quotes; the first line names the fields
  jsonl   a JSON object on each line; fields are paths: user.name
  words   the words of any text, which blanks separate; the key is the word

A UTF-8 byte order mark at the beginning of a file is left out.

` + inputHelp + `

Sums are exact: 0.1 and 0.2 are 0.3. A record without the key is left out, and one without
the field adds nothing. What the memory does not hold goes to temporary files.

A line must fit into a 32nd of a thread's share of --memory, which is that of all
processes, a record of CSV into an eightieth: 6 MiB and 2.4 MiB of 512MiB with two
workers. Keys may have 220 KiB then, and less with more workers. What is longer ends the
job, and the error tells in which file and at which byte it begins.

` + fmt.Sprintf(jobcmd.LauncherHelp, "groupby --count --key user FILE..."),
		Example: `  verbena groupby --format csv --key country --count visits-*.csv
  verbena groupby --format jsonl --key user.id --sum bytes -o by-user.jsonl access.jsonl
  verbena groupby --format words --count book.txt | sort -k2 -n -r | head`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if cfg.Output, err = outputFile(cmd); err != nil {
				return err
			}
			cfg.Format, cfg.Inputs, cfg.Print = groupby.Format(format), args, cmd.OutOrStdout()
			switch {
			case !slices.Contains(groupby.Formats, cfg.Format):
				return fmt.Errorf("there is no format %q: choose %s", format, formats)
			case count == (cfg.Sum != ""):
				return errors.New("what of each group? either --count or --sum FIELD")
			case cfg.Format == groupby.Words && (cfg.Sum != "" || cfg.Key != ""):
				return errors.New("words are counted by themselves: --format words --count, without --key and --sum")
			case cfg.Format != groupby.Words && cfg.Key == "":
				return errors.New("by which field? --key names it")
			case j.JSON && cfg.Output == "":
				return errJSONOutput
			}
			j.Work = func(ctx context.Context, p *jobcmd.Part) (_ any, err error) {
				files := o.files(p.Runtime, j.Transport)
				defer closing(&err, files)
				files.Instead = p.Instead
				own := cfg
				own.Memory, own.Files, own.Temporary = p.Memory, files.Files, temporary(j.Temporary, cfg.Output)
				own.Progress = p.Tell
				return groupby.Run(ctx, p.Exchange, own)
			}
			j.Report = func(_ io.Writer, result any) error {
				r := result.(groupby.Result)
				if r.Skipped > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "%d records without the field %s were left out\n", r.Skipped, cfg.Key)
				}
				if cfg.Output != "" {
					_, err := fmt.Fprintf(cmd.OutOrStdout(), "%d groups of %d records, %.1f MB, in %.1f s by %d processes%s (%d partial results exchanged, %d temporary files)\n",
						r.Groups, r.Records, float64(r.Bytes)/1e6, r.Finished.Seconds(), r.Processes, jobcmd.Over(r.Ways), r.Shuffled, r.Runs)
					return err
				}
				return nil
			}
			j.Inputs, j.Spool = args, temporary(j.Temporary, cfg.Output)
			return o.runJob(cmd, j)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&format, "format", string(groupby.CSV), formats)
	flags.StringVar(&cfg.Key, "key", "", "`FIELD` to group by")
	flags.BoolVar(&count, "count", false, "count the records of each group")
	flags.StringVar(&cfg.Sum, "sum", "", "add up this `FIELD` of each group")
	flags.StringP("output", "o", "", outputUsage)
	j.AddFlags(flags, choiceOfTransports())
	return cmd
}
