package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/fscmd"
	"github.com/verbena-data/verbena/cmd/verbena/internal/jobcmd"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/dataset"
	"github.com/verbena-data/verbena/shuffle/job"
	"github.com/verbena-data/verbena/shuffle/sort"
	"github.com/verbena-data/verbena/status"
)

func sortCommand(o *options) *cobra.Command {
	var format string
	j := &jobcmd.Job{What: "sort", Divide: sort.Divide}
	cmd := &cobra.Command{
		Use:   "sort [flags] [-o OUT] FILE...",
		Short: "Sort files that are larger than the memory, by several processes",
		Long: `Sort the lines, or gensort's records, of files into one file. Each process reads a part,
sends every record to the process that has its range of keys (the ranges come from a
sample), sorts what it receives, with temporary files if that is more than its memory,
and writes its range into the output. Without -o, or with -o -, process 0 writes all of
it to the standard output, which is slower.

Lines are ordered as bytes, as LC_ALL=C sort does; a last line without a newline gets
one. The output appears under its name when it is whole and on the disk.

` + inputHelp + `

A line must fit into a quarter of a thread's share of --memory, which is that of all
processes: 48 MiB of 512MiB with two workers. A longer one ends the job, and the error
tells in which file, at which byte it begins and how long it is.

` + fmt.Sprintf(jobcmd.LauncherHelp, "sort -o OUT FILE..."),
		Example: `  verbena sort -o sorted.txt access-*.log
  zcat access-*.gz | verbena sort - | uniq -c
  verbena sort --format gensort --workers 4 --memory 2GiB -o out.dat in.dat
  verbena sort -o hdfs:///logs/sorted hdfs:///logs/2026-11-01 'hdfs:///logs/2026-11-0[2-9]'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			output, err := outputFile(cmd)
			if err != nil {
				return err
			}
			cfg := sort.Config{Format: sort.Format(format), Inputs: args, Output: output, Print: cmd.OutOrStdout()}
			switch {
			case j.JSON && output == "":
				return errJSONOutput
			case cfg.Format != sort.Lines && cfg.Format != sort.Gensort:
				return fmt.Errorf("there is no format %q: choose %s or %s", format, sort.Lines, sort.Gensort)
			}
			j.Work = func(ctx context.Context, p *jobcmd.Part) (_ any, err error) {
				files := o.files(p.Runtime, j.Transport)
				defer closing(&err, files)
				cfg.Memory, cfg.Files = p.Memory, files.Files
				files.Instead, cfg.Temporary = p.Instead, temporary(j.Temporary, output)
				cfg.Progress = func(n sort.Progress) { p.Tell(n.Read+n.Written, 2*n.Total) }
				return sort.Run(ctx, p.Exchange, cfg)
			}
			j.Report = func(w io.Writer, result any) error {
				r := result.(sort.Result)
				if output == "" {
					return nil
				}
				_, err := fmt.Fprintf(w, "%d records, %.1f MB: shuffled and sorted in %.1f s by %d processes%s (%d temporary files), written by %.1f s\n",
					r.Records, float64(r.Bytes)/1e6, r.Shuffled.Seconds(), r.Processes, jobcmd.Over(r.Ways), r.Runs, r.Finished.Seconds())
				return err
			}
			j.Inputs, j.Spool = args, temporary(j.Temporary, output)
			return o.runJob(cmd, j)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&format, "format", string(sort.Lines), "lines or gensort (records of 100 bytes)")
	flags.StringP("output", "o", "", outputUsage)
	j.AddFlags(flags, choiceOfTransports())
	return cmd
}

// runJob runs a job with what this command line says.
func (o *options) runJob(cmd *cobra.Command, j *jobcmd.Job) (err error) {
	if err := checkTransport(j.Transport); err != nil {
		return err
	}
	if _, err := metricsAddress(j.Metrics, 0); err != nil {
		return err
	}
	j.Runtime = func(cfg verbena.Config) (*verbena.Runtime, error) {
		if o.verbose {
			cfg.Logger = nil // the command's, for which a dial that comes again is news
		}
		return o.runtimeWith(cfg)
	}
	j.Input, j.Output, j.Errors = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	work := j.Work
	j.Work = func(ctx context.Context, p *jobcmd.Part) (_ any, err error) {
		at, err := metricsAddress(j.Metrics, p.Exchange.Rank())
		if err == nil {
			var m *metricsServer
			if m, err = serveMetrics(ctx, at, told{
				command: fmt.Sprintf("%s, process %d of %d", cmd.CommandPath(), p.Exchange.Rank(), p.Exchange.Size()), runtime: p.Runtime,
				collectors: []prometheus.Collector{shuffle.NewCollector(p.Exchange)}, sources: []status.Source{shuffle.NewStatus(p.Exchange)},
			}); err == nil {
				defer closing(&err, m)
				m.tell(j.Errors)
				return work(ctx, p)
			}
		}
		p.Exchange.Abort(err)
		return nil, p.Exchange.Err()
	}
	if err = j.Run(cmd.Context()); errors.Is(err, job.ErrTold) {
		return &fscmd.Failure{Code: 1}
	}
	return err
}

// inputHelp tells what the names of inputs may be, for the help of commands.
const inputHelp = `FILE may be in HDFS: hdfs://HOST:PORT/PATH. It may be a directory, which stands for the files
in it, without those that begin with _ or a dot; or a pattern in quotes: *, ?, [a-z] and
{one,two}. - is the standard input. That, and what else can be read but once, such as a
pipe, first goes to a temporary file, which takes as much of the disk again; under a
launcher it is refused.`

const outputUsage = "`FILE` to write, in place of what is there (default, and -: standard output)"

var errJSONOutput = errors.New("--json tells what was done on standard output, where the results go: name a file with -o")

// outputFile is the file that -o names, or empty for the standard output.
func outputFile(cmd *cobra.Command) (string, error) {
	flag := cmd.Flags().Lookup("output")
	name := flag.Value.String()
	switch {
	case name == "" && flag.Changed:
		return "", errors.New("-o names no file: - is the standard output")
	case name == "" || name == "-":
		return "", nil
	case dataset.Remote(name):
		return name, nil
	}
	if number, ok := dataset.Descriptor(name); ok && number == 1 {
		return "", nil
	} else if ok {
		return "", fmt.Errorf("-o %s: that is an open file, in whose place no other can be put: %s", name, redirect)
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return "", fmt.Errorf("-o %s: that is not a regular file, so that its parts can't be written in parallel: %s", name, redirect)
	}
	return name, nil
}

// redirect is what to do with an output that is no file.
const redirect = "leave -o out, and redirect the standard output there"

// metricsAddress is where a process of a job serves its metrics, if those of process 0 are at an address.
func metricsAddress(first string, rank int) (string, error) {
	if first == "" {
		return "", nil
	}
	host, text, err := net.SplitHostPort(first)
	if err != nil {
		return "", fmt.Errorf("--metrics: %w", err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return "", fmt.Errorf("--metrics %s: the port is no number", first)
	}
	if port == 0 { // any
		return first, nil
	}
	if n := port + rank; port < 0 || n > 1<<16-1 {
		return "", fmt.Errorf("--metrics %s: there is no port %d, which process %d would have", first, n, rank)
	}
	port += rank
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// temporary is where a job's temporary files go: beside the output rather than into a
// /tmp that may be memory.
func temporary(flag, output string) string {
	switch {
	case flag != "":
		return flag
	case os.Getenv("TMPDIR") != "" || dataset.Remote(output) || output == "":
		return os.TempDir()
	}
	return filepath.Dir(output)
}

// jobFiles are a job's files, with what the clients of HDFS need.
type jobFiles struct {
	*dataset.Files
	closers []io.Closer
}

// Close frees all.
func (f *jobFiles) Close() (err error) {
	err = f.Files.Close()
	for _, c := range f.closers {
		closing(&err, c)
	}
	return err
}

// files opens local files and those of HDFS, over the runtime, or one of its own.
func (o *options) files(rt *verbena.Runtime, transport string) *jobFiles {
	f := &jobFiles{}
	once := sync.OnceValues(func() (*hdfs.Dialer, error) {
		if rt == nil {
			var err error
			if rt, err = o.runtime(); err != nil {
				return nil, err
			}
			f.closers = append(f.closers, rt)
		}
		d := hdfs.NewDialer(rt, transport)
		f.closers = append([]io.Closer{d}, f.closers...)
		return d, nil
	})
	f.Files = &dataset.Files{Glob: fscmd.Glob, Connect: func(ctx context.Context, address string) (*hdfs.Client, error) {
		d, err := once()
		if err != nil {
			return nil, err
		}
		cfg := hdfs.ClientConfig{Dialer: d}
		if err := findNameNode(&cfg, address, &hadoopFlags{}); err != nil {
			return nil, err
		}
		if err := answers(ctx, cfg); err != nil {
			return nil, err
		}
		return hdfs.NewClient(cfg)
	}}
	return f
}

// answers tells soon of NameNodes that are not there; those that go away while a job runs are waited for.
func answers(ctx context.Context, cfg hdfs.ClientConfig) (err error) {
	cfg.Patience, cfg.Timeouts, cfg.CallTimeout, cfg.ConnectTimeout = fsPatience, -1, fsPatience, fsPatience
	client, err := hdfs.NewClient(cfg)
	if err != nil {
		return err
	}
	defer closing(&err, client)
	_, err = client.Stat(ctx, "/")
	return absent(ctx, err)
}

// absent is the error of a call that no NameNode has served, or nil. It asks for a NameNode
// unless one has refused the call, or the call was ended from here.
func absent(ctx context.Context, err error) error {
	var refused *hdfs.ServerError
	switch {
	case !errors.Is(err, hdfs.ErrNoNameNode):
		return nil // what else is wrong the call for the file tells
	case ctx.Err() != nil || errors.As(err, &refused):
		return err
	}
	return fmt.Errorf("%w: is a NameNode running there? hdfs://HOST:PORT/PATH names it", err)
}
