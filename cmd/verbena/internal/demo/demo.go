// Package demo is `verbena demo`: a cluster in processes of its own, a real
// directory tree and a large file stored and read back over each transport,
// every byte compared; jobs that count words and sort records over each transport,
// their results checked; and tables of what each transport delivered.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/verbena-data/verbena/hdfs"
)

// Config says what to store, where, and over what.
type Config struct {
	Tree       string   // the directory to store
	LargeFile  int64    // bytes of the one large file
	Share      int      // store one in so many of the tree's files
	Creates    int      // small files whose creation is timed, one after the other
	DataNodes  int      // processes
	Replicas   int      // of each block
	Workers    int      // clients at work at once
	Transports []string // in the order of the rows
	Records    int64    // of 100 bytes, to sort
	JobWorkers int      // processes of a job
	JobMemory  string   // of all of them together
	// Connect returns a client of the NameNode at addr; its bytes travel over
	// transport. For "tcp" it knows nothing of endpoints.
	Connect func(ctx context.Context, addr, transport string) (*hdfs.Client, error)
	// Executable is the verbena binary, to run the cluster's processes with.
	Executable string
	Flags      []string  // for each of them
	Progress   io.Writer // told what goes on; io.Discard to be quiet
}

// Row is what one transport delivered. MB are 10^6 bytes.
type Row struct {
	Transport string  `json:"transport"`
	WriteMB   float64 `json:"write_mb_per_s"`
	ReadMB    float64 `json:"read_mb_per_s"`
	CPU       float64 `json:"cpu_s"`
	CreateP50 float64 `json:"create_p50_us"`
	CreateP99 float64 `json:"create_p99_us"`
	Verified  bool    `json:"verified"`
}

// Result is the tables.
type Result struct {
	Rows    []Row    `json:"rows"`
	JobRows []JobRow `json:"jobs"`
	Jobs    *Jobs    `json:"-"`
	// Files and Bytes are what each transport stored.
	Files int   `json:"-"`
	Bytes int64 `json:"-"`
}

// JSON writes the tables as one object.
func (r *Result) JSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// Table writes the files' table for people.
func (r *Result) Table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "transport\twritten MB/s\tread MB/s\tCPU s\tcreate p50 us\tcreate p99 us\tSHA-256\t")
	for _, row := range r.Rows {
		verdict := "all equal"
		if !row.Verified {
			verdict = "DIFFERS"
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.2f\t%.0f\t%.0f\t%s\t\n", row.Transport, row.WriteMB, row.ReadMB,
			row.CPU, row.CreateP50, row.CreateP99, verdict)
	}
	return w.Flush()
}

// Run brings up the cluster, does the work over each transport and takes the
// cluster down again, also when it fails; then it runs the jobs.
func Run(ctx context.Context, cfg Config) (result *Result, err error) {
	dir, err := os.MkdirTemp("", "verbena-demo-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if result, err = runFiles(ctx, cfg, filepath.Join(dir, "files")); err != nil {
		return nil, err
	}
	place := filepath.Join(dir, "jobs")
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "files")), os.Mkdir(place, 0o755)); err != nil {
		return nil, err
	}
	if result.Jobs, err = runJobs(ctx, cfg, place); err != nil {
		return nil, err
	}
	result.JobRows = result.Jobs.Rows
	return result, nil
}

// runFiles stores and reads files in a cluster whose data lies in dir.
func runFiles(ctx context.Context, cfg Config, dir string) (result *Result, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	fmt.Fprintf(cfg.Progress, "Reading %s and making a file of %d MB to compare with...\n", cfg.Tree, cfg.LargeFile/1e6)
	files, err := collect(ctx, cfg, filepath.Join(dir, "large"))
	if err != nil {
		return nil, err
	}
	result = &Result{Files: len(files)}
	for _, f := range files {
		result.Bytes += f.size
	}

	cluster, err := start(ctx, cfg, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.stop()) }()
	fmt.Fprintf(cfg.Progress, "A NameNode at %s and %d DataNodes are up, each a process of its own, %d replica(s) of each block.\n",
		cluster.nameNode, cfg.DataNodes, cfg.Replicas)

	ctx, unwatch := cluster.watch(ctx)
	defer unwatch()
	for i, transport := range cfg.Transports {
		row, err := measure(ctx, cfg, cluster, transport, fmt.Sprintf("/demo/%d-%s", i, transport), files)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause // what the client met is its consequence
			}
			return nil, fmt.Errorf("demo over %s: %w", transport, err)
		}
		result.Rows = append(result.Rows, row)
	}
	return result, nil
}

func measure(ctx context.Context, cfg Config, cluster *cluster, transport, base string, files []file) (Row, error) {
	row := Row{Transport: transport}
	var bytes int64
	for _, f := range files {
		bytes += f.size
	}
	clients := make([]*hdfs.Client, cfg.Workers)
	defer func() {
		for _, c := range clients {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i := range clients {
		c, err := cfg.Connect(ctx, cluster.nameNode, transport)
		if err != nil {
			return row, err
		}
		clients[i] = c
	}
	if err := makeDirectories(ctx, clients[0], base, files); err != nil {
		return row, err
	}

	stage := func(name string, f func(context.Context, *hdfs.Client, file) error) (time.Duration, error) {
		fmt.Fprintf(cfg.Progress, "%-6s %-8s %d files, %d MB...", transport, name, len(files), bytes/1e6)
		began := time.Now()
		err := forEach(ctx, clients, files, f)
		took := time.Since(began)
		if err != nil {
			fmt.Fprintln(cfg.Progress)
			return took, err
		}
		fmt.Fprintf(cfg.Progress, " %.2f s\n", took.Seconds())
		return took, nil
	}
	cpu, err := cluster.cpu()
	if err != nil {
		return row, err
	}
	took, err := stage("write", func(ctx context.Context, c *hdfs.Client, f file) error { return store(ctx, c, base, f, cfg.Replicas) })
	if err != nil {
		return row, err
	}
	row.WriteMB = float64(bytes) / 1e6 / took.Seconds()
	took, err = stage("read", func(ctx context.Context, c *hdfs.Client, f file) error { return read(ctx, c, base, f) })
	if err != nil {
		return row, err
	}
	row.ReadMB = float64(bytes) / 1e6 / took.Seconds()
	after, err := cluster.cpu()
	if err != nil {
		return row, err
	}
	row.CPU = (after - cpu).Seconds()

	// Hashing costs more than moving the bytes, so it has a pass of its own.
	if _, err := stage("verify", func(ctx context.Context, c *hdfs.Client, f file) error { return verify(ctx, c, base, f) }); err != nil {
		var differs *differsError
		if !errors.As(err, &differs) {
			return row, err
		}
		fmt.Fprintln(cfg.Progress, err)
		return row, nil
	}
	row.Verified = true

	row.CreateP50, row.CreateP99, err = createLatency(ctx, clients[0], base+"/small", cfg.Creates, cfg.Replicas)
	if err != nil {
		return row, err
	}
	// Only the large file goes. The small ones wait for the end: DataNodes remove
	// replicas in the background, in the time of the next transport, and file
	// systems pass over inodes freed just before, one by one, for each new file.
	return row, clients[0].Remove(ctx, base+"/"+files[0].name)
}
