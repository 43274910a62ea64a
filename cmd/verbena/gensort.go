package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/gensort"
	"github.com/verbena-data/verbena/shuffle/dataset"
)

// recordsAtOnce is how many records are made, or checked, at a time.
const recordsAtOnce = 10_000

// gensortResult is what gensort has written, as --json shows it.
type gensortResult struct {
	Records  uint64 `json:"records"`
	Bytes    int64  `json:"bytes"`
	Checksum string `json:"checksum"`
}

func gensortCommand(o *options) *cobra.Command {
	var ascii, checksum, asJSON bool
	first := "0"
	cmd := &cobra.Command{
		Use:   "gensort RECORDS FILE",
		Short: "Make records of the sort benchmarks, as the published gensort does",
		Long: `Write records of 100 bytes with keys of 10, byte for byte those of gensort 1.5
(sortbenchmark.org). Record n depends on n alone: parts of a file can be made apart.
The file may be hdfs://HOST:PORT/PATH; it appears when it is whole and on the disk.`,
		Example: `  verbena gensort 21474836 in.dat           # 2 GiB
  verbena gensort -a 1000000 lines.txt      # printable, a line each
  verbena gensort -b 1000000 500000 b.dat   # records 1,000,000 to 1,499,999`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			n, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || n < 0 || n > (1<<62)/gensort.RecordSize {
				return fmt.Errorf("%q records: want a number", args[0])
			}
			number, err := gensort.ParseUint128(first)
			if err != nil {
				return fmt.Errorf("-b: %w", err)
			}
			format := gensort.Binary
			if ascii {
				format = gensort.ASCII
			}
			files := o.files(nil, verbena.TransportAuto)
			defer closing(&err, files)
			sum, err := generate(cmd, files.Files, format, number, n, args[1], asJSON)
			if err != nil {
				return err
			}
			switch {
			case asJSON:
				return json.NewEncoder(cmd.OutOrStdout()).Encode(gensortResult{uint64(n), n * gensort.RecordSize, sum.String()})
			case checksum:
				fmt.Fprintln(cmd.OutOrStdout(), sum)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&ascii, "ascii", "a", false, "printable records that are lines")
	flags.StringVarP(&first, "begin", "b", "0", "`number` of the first record, below 2^128")
	flags.BoolVarP(&checksum, "checksum", "c", false, "print the sum of the records' CRC-32")
	flags.BoolVar(&asJSON, "json", false, "records, bytes and checksum as JSON")
	return cmd
}

// generate writes records in parallel.
func generate(cmd *cobra.Command, files *dataset.Files, format gensort.Format, first gensort.Uint128, n int64, name string, quiet bool) (sum gensort.Uint128, err error) {
	ctx := cmd.Context()
	out, err := files.Output(ctx, name, dataset.NewID())
	if err != nil {
		return sum, err
	}
	defer func() {
		if err != nil {
			clean, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer stop()
			err = errors.Join(err, out.Abort(clean))
		}
	}()
	size := n * gensort.RecordSize
	if err := out.Create(ctx, size); err != nil {
		return sum, err
	}
	if err := out.Prepare(ctx, size); err != nil {
		return sum, err
	}
	bar := bytesBar(cmd.ErrOrStderr(), "gensort", size, quiet)
	defer func() { _ = bar.Clear() }() // the terminal's matter
	parts := int64(runtime.GOMAXPROCS(0))
	sums := make([]gensort.Uint128, parts)
	g, part := errgroup.WithContext(ctx)
	for i := range parts {
		from, to := n/parts*i+min(i, n%parts), n/parts*(i+1)+min(i+1, n%parts)
		g.Go(func() (err error) {
			w, err := out.Part(part, int(i), from*gensort.RecordSize, (to-from)*gensort.RecordSize)
			if err != nil {
				return err
			}
			defer closing(&err, w)
			records := gensort.New(format, first.Plus(gensort.Uint128{Lo: uint64(from)}))
			buffer := make([]byte, recordsAtOnce*gensort.RecordSize)
			for at := from; at < to; at += recordsAtOnce {
				if part.Err() != nil {
					return context.Cause(part)
				}
				p := buffer[:min(recordsAtOnce, to-at)*gensort.RecordSize]
				records.Fill(p)
				sums[i] = sums[i].Plus(gensort.Checksum(p))
				if _, err := w.Write(p); err != nil {
					return err
				}
				_ = bar.Add(len(p))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return sum, err
	}
	for _, s := range sums {
		sum = sum.Plus(s)
	}
	return sum, out.Commit(ctx, int(parts))
}

// bytesBar is a progress bar on a terminal, and nothing elsewhere.
func bytesBar(w io.Writer, what string, size int64, quiet bool) *progressbar.ProgressBar {
	f, ok := w.(*os.File)
	if quiet || !ok || !term.IsTerminal(int(f.Fd())) {
		return progressbar.DefaultBytesSilent(size)
	}
	return progressbar.NewOptions64(size, progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true), progressbar.OptionShowTotalBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetWidth(30), progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())
}
