package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/fscmd"
	"github.com/verbena-data/verbena/internal/gensort"
	"github.com/verbena-data/verbena/shuffle/dataset"
)

// valsortResult is valsort's, as --json shows it.
type valsortResult struct {
	Records        uint64 `json:"records"`
	Checksum       string `json:"checksum"`
	Duplicates     uint64 `json:"duplicate_keys"`
	Unordered      uint64 `json:"unordered_records"`
	FirstUnordered uint64 `json:"first_unordered,omitempty"`
	Summaries      int64  `json:"summaries,omitempty"` // that were joined
}

// A validation is what valsort's command line says.
type validation struct {
	json, quiet bool
	summaries   bool   // the input is summaries, not records
	summary     string // the file for what was found, or empty
	threads     int
}

func valsortCommand(o *options) *cobra.Command {
	var v validation
	cmd := &cobra.Command{
		Use:   "valsort FILE",
		Short: "Check that records are in order, as the published valsort does",
		Long: `Read records of 100 bytes and tell, in the words of valsort 1.5, how many there are,
how many have the key of the one before, whether each key is at least the one before,
and the sum of the records' CRC-32, which sorting does not change: gensort -c prints it
of the input. Ends with exit status 1 if records are out of order.

Files that are parts of one order can be checked apart, by several hosts: -o writes what
was found of one of them, 280 bytes that also have its first and last record. -s takes
such summaries instead of records, one after the other in the order of the parts: it adds
them up, and compares the last key of each with the first of the next. These files are
those of valsort 1.5 on little-endian processors; either program reads the other's.`,
		Example: `  verbena gensort -c 1000000 in.dat
  verbena sort --format gensort -o out.dat in.dat
  verbena valsort out.dat
  verbena valsort -o 0.sum part0 && verbena valsort -o 1.sum part1
  cat 0.sum 1.sum > all.sum && verbena valsort -s all.sum`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			files := o.files(nil, verbena.TransportAuto)
			defer closing(&err, files)
			return v.run(cmd, files.Files, args[0])
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&v.json, "json", false, "what was found as JSON")
	flags.BoolVarP(&v.quiet, "quiet", "q", false, "say nothing of records: the exit status tells")
	flags.BoolVarP(&v.summaries, "summaries", "s", false, "FILE has summaries instead of records")
	flags.StringVarP(&v.summary, "output", "o", "", "write a summary of what was found to `FILE`, in place of what is there")
	flags.IntVarP(&v.threads, "threads", "t", 0, fmt.Sprintf("`threads` that check records, up to %d (default, and 0: one for each processor)", mostThreads))
	return cmd
}

// validated is what was found.
type validated struct {
	gensort.Summary
	joined int64 // summaries
}

// run validates a file, tells what it has found, and writes the summary if one is wanted.
func (v *validation) run(cmd *cobra.Command, files *dataset.Files, name string) (err error) {
	if v.threads < 0 {
		return fmt.Errorf("-t %d: want 0 or more", v.threads)
	}
	ctx := cmd.Context()
	in, err := files.Open(ctx, name)
	if err != nil {
		return err
	}
	defer closing(&err, in)
	save := func(gensort.Summary) error { return nil }
	if v.summary != "" {
		same, err := files.IsInput(ctx, in, v.summary)
		if err != nil {
			return fmt.Errorf("-o: %w", err)
		}
		if same {
			return fmt.Errorf("-o %s: that is the file to be validated, in whose place the summary would be put", v.summary)
		}
		// Who may not write there learns it before anything is read.
		out, err := files.Output(ctx, v.summary, dataset.NewID())
		if err == nil {
			err = out.Create(ctx, gensort.SummarySize)
		}
		if err != nil {
			return fmt.Errorf("-o: %w", err)
		}
		defer func() {
			clean, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer stop()
			_ = out.Abort(clean) // it does nothing once the summary is there; else there is a worse error
		}()
		save = func(s gensort.Summary) error { return writeOutput(ctx, out, s.Append(nil)) }
	}
	var r validated
	if v.summaries {
		r, err = joinSummaries(ctx, in, name)
	} else {
		r.Summary, err = v.validate(cmd, in, name)
	}
	if err != nil {
		return err
	}
	return v.finish(cmd.OutOrStdout(), r, save)
}

// finish tells what was found, and saves it. What goes wrong with one leaves the other.
func (v *validation) finish(out io.Writer, r validated, save func(gensort.Summary) error) error {
	var told error
	switch s := r.Summary; {
	case v.json:
		told = json.NewEncoder(out).Encode(valsortResult{s.Records, s.Checksum.String(), s.Duplicates, s.Unordered, s.FirstUnordered, r.joined})
	case !v.quiet:
		told = r.Report(out)
	}
	saved := save(r.Summary)
	if saved != nil {
		saved = fmt.Errorf("-o %s: %w", v.summary, saved)
	}
	if err := errors.Join(told, saved); err != nil {
		return err
	}
	if !r.Sorted() {
		return &fscmd.Failure{Code: 1}
	}
	return nil
}

// writeOutput writes an output that has been created, and gives it its name.
func writeOutput(ctx context.Context, out dataset.Output, content []byte) error {
	size := int64(len(content))
	if err := out.Prepare(ctx, size); err != nil {
		return err
	}
	w, err := out.Part(ctx, 0, 0, size)
	if err != nil {
		return err
	}
	_, err = w.Write(content)
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	return out.Commit(ctx, 1)
}

// summariesAtOnce is how many summaries are read at a time.
const summariesAtOnce = 1000

// joinSummaries adds up summaries, which follow each other in a file as their records do.
func joinSummaries(ctx context.Context, in *dataset.Input, name string) (r validated, err error) {
	switch rest := in.Size() % gensort.SummarySize; {
	case in.Size() == 0:
		return r, errNoRecord
	case rest != 0:
		return r, fmt.Errorf("partial partition summary found at end: %s has %d bytes, no multiple of %d", name, in.Size(), gensort.SummarySize)
	}
	buffer := make([]byte, min(in.Size(), summariesAtOnce*gensort.SummarySize))
	for at := int64(0); at < in.Size(); at += int64(len(buffer)) {
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		p := buffer[:min(int64(len(buffer)), in.Size()-at)]
		if err := readWhole(in, name, p, at); err != nil {
			return r, err
		}
		for ; len(p) > 0; p = p[gensort.SummarySize:] {
			if err := r.JoinParsed(p[:gensort.SummarySize]); err != nil {
				return r, fmt.Errorf("summary %d of %s: %w", r.joined, name, err)
			}
			r.joined++
		}
	}
	return r, nil
}

var errNoRecord = errors.New("there must be at least one record to be validated")

// readWhole fills p with what a file has from at on.
func readWhole(in *dataset.Input, name string, p []byte, at int64) error {
	if n, err := in.ReadAt(p, at); n < len(p) {
		return fmt.Errorf("%s, at byte %d: %w", name, at+int64(n), errors.Join(err, io.ErrUnexpectedEOF))
	}
	return nil
}

// mostThreads is how many threads a command line may ask for. Each holds 1 MB of records.
const mostThreads = 256

// parts is how many parts of a file are checked at the same time.
func (v *validation) parts() int {
	if v.threads == 0 {
		return runtime.GOMAXPROCS(0)
	}
	return min(v.threads, mostThreads)
}

// validate summarizes parts of a file in parallel.
func (v *validation) validate(cmd *cobra.Command, in *dataset.Input, name string) (whole gensort.Summary, err error) {
	switch {
	case in.Size() == 0:
		return whole, errNoRecord
	case in.Size()%gensort.RecordSize != 0:
		return whole, fmt.Errorf("partial record found at end: %s has %d bytes, no multiple of %d", name, in.Size(), gensort.RecordSize)
	}
	bar := bytesBar(cmd.ErrOrStderr(), "valsort", in.Size(), v.json || v.quiet)
	defer func() { _ = bar.Clear() }() // the terminal's matter
	const size = recordsAtOnce * gensort.RecordSize
	records := in.Size() / gensort.RecordSize
	parts := min(int64(v.parts()), records)
	summaries := make([]gensort.Summary, parts)
	g, ctx := errgroup.WithContext(cmd.Context())
	for i := range parts {
		at, end := records*i/parts*gensort.RecordSize, records*(i+1)/parts*gensort.RecordSize
		g.Go(func() error {
			buffer := make([]byte, size)
			for ; at < end; at += size {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				p := buffer[:min(size, end-at)]
				if err := readWhole(in, name, p, at); err != nil {
					return err
				}
				summaries[i].Add(p)
				_ = bar.Add(len(p))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return whole, err
	}
	for _, s := range summaries {
		whole.Join(s)
	}
	return whole, nil
}
