package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/journal"
)

type bench struct {
	dir    string
	rounds int
	each   time.Duration
	short  bool // --quick
	json   bool

	quiet *slog.Logger
	rows  []*row
}

// A row is one kind of work, as it is and without syncing, or with and without an hsync.
type row struct {
	what  string
	unit  string
	parts [2]func(ctx context.Context, until time.Time) (done int, took time.Duration, err error)
	rates [2][]float64 // a second, by round
}

func (b *bench) run(ctx context.Context, out io.Writer) (err error) {
	rounds, each := 5, 500*time.Millisecond
	if b.short {
		rounds, each = 3, 100*time.Millisecond
	}
	b.rounds, b.each = cmp.Or(b.rounds, rounds), cmp.Or(b.each, each)
	if b.rounds < 1 || b.each < 0 {
		return fmt.Errorf("%d rounds of %v: one at least", b.rounds, b.each)
	}
	b.quiet = slog.New(slog.DiscardHandler)
	if b.dir, err = os.MkdirTemp(b.dir, "verbena-sync-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	var closers []func() error
	defer func() {
		for _, c := range slices.Backward(closers) {
			err = errors.Join(err, c())
		}
	}()
	for _, add := range []func(context.Context) (func() error, error){b.addFile, b.addJournals, b.addFiles} {
		c, err := add(ctx)
		if err != nil {
			return err
		}
		closers = append(closers, c)
	}
	for range b.rounds {
		for _, r := range b.rows {
			for i, part := range r.parts {
				if part == nil {
					continue
				}
				n, took, err := part(ctx, time.Now().Add(b.each))
				if err != nil {
					return fmt.Errorf("%s: %w", r.what, err)
				}
				r.rates[i] = append(r.rates[i], float64(n)/took.Seconds())
			}
		}
	}
	return b.show(ctx, out)
}

// addFile is the disk itself: each append is synced, or only written.
func (b *bench) addFile(context.Context) (func() error, error) {
	f, err := os.Create(filepath.Join(b.dir, "file"))
	if err != nil {
		return nil, err
	}
	page := make([]byte, 4096)
	var at int64
	appends := func(sync bool) func(context.Context, time.Time) (int, time.Duration, error) {
		return func(_ context.Context, until time.Time) (n int, took time.Duration, err error) {
			start := time.Now()
			for ; time.Now().Before(until); n++ {
				at = (at + 4096) % (64 << 20)
				if _, err := f.WriteAt(page, at); err != nil {
					return 0, 0, err
				}
				if !sync {
					continue
				}
				if err := f.Sync(); err != nil {
					return 0, 0, err
				}
			}
			return n, time.Since(start), nil
		}
	}
	r := &row{what: "the disk: appends of 4 KiB", unit: "appends"}
	r.parts[0], r.parts[1] = appends(true), appends(false)
	b.rows = append(b.rows, r)
	return f.Close, nil
}

// lazy is a file system whose syncs do nothing.
type lazy struct{ vfs.FS }

type lazyFile struct{ vfs.File }

func (lazyFile) Sync() error                { return nil }
func (lazyFile) SyncData() error            { return nil }
func (lazyFile) SyncTo(int64) (bool, error) { return true, nil }

func (l lazy) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := l.FS.Create(name, c)
	return lazyFile{f}, err
}

func (l lazy) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := l.FS.ReuseForWrite(from, to, c)
	return lazyFile{f}, err
}

func (l lazy) OpenDir(name string) (vfs.File, error) {
	f, err := l.FS.OpenDir(name)
	return lazyFile{f}, err
}

// nothing is a state that has nothing.
type nothing struct{}

func (nothing) Apply(entries []journal.Entry) []any { return make([]any, len(entries)) }
func (nothing) Snapshot() (io.WriterTo, error)      { return empty{}, nil }
func (nothing) Restore(io.Reader) error             { return nil }

type empty struct{}

func (empty) WriteTo(io.Writer) (int64, error) { return 0, nil }

// addJournals is the NameNode's journal, whose appends wait for the disk.
func (b *bench) addJournals(ctx context.Context) (func() error, error) {
	var journals [2]*journal.Journal
	closing := func() error { return errors.Join(journals[0].Close(), journals[1].Close()) }
	for i, fs := range []vfs.FS{vfs.Default, lazy{vfs.Default}} {
		var err error
		if journals[i], err = journal.Open(ctx, journal.Config{Dir: filepath.Join(b.dir, fmt.Sprint("journal", i)), FS: fs, Logger: b.quiet}, nothing{}); err != nil {
			return nil, err
		}
	}
	entry := make([]byte, 120) // as that of a mkdirs
	for _, callers := range []int{1, 32} {
		r := &row{what: fmt.Sprintf("the NameNode's journal, %d callers", callers), unit: "changes"}
		if callers == 1 {
			r.what = "the NameNode's journal, one caller"
		}
		for i, j := range journals {
			r.parts[i] = func(ctx context.Context, until time.Time) (int, time.Duration, error) {
				return together(callers, until, func(int) error { _, err := j.Append(ctx, entry); return err })
			}
		}
		b.rows = append(b.rows, r)
	}
	return closing, nil
}

// together has callers do something again and again.
func together(callers int, until time.Time, do func(n int) error) (int, time.Duration, error) {
	var (
		wg   sync.WaitGroup
		n    atomic.Int64
		errs = make([]error, callers)
	)
	start := time.Now()
	for c := range callers {
		wg.Go(func() {
			for time.Now().Before(until) && errs[c] == nil {
				errs[c] = do(int(n.Add(1)))
			}
		})
	}
	wg.Wait()
	return int(n.Load()), time.Since(start), errors.Join(errs...)
}

// addFiles is files of one block on three DataNodes, which sync when they are told so by the
// client's hsync, and else within a minute.
func (b *bench) addFiles(ctx context.Context) (func() error, error) {
	rt, err := verbena.New(verbena.Config{})
	if err != nil {
		return nil, err
	}
	cluster, err := hdfs.StartCluster(ctx, hdfs.ClusterConfig{Runtime: rt, Logger: b.quiet, Dir: filepath.Join(b.dir, "cluster"), Host: "127.0.0.1", DataNodes: 3})
	if err != nil {
		return nil, errors.Join(err, rt.Close())
	}
	client, err := hdfs.NewClient(hdfs.ClientConfig{NameNodes: []string{cluster.NameNode.Addr()}, NoLocalReads: true})
	if err != nil {
		return nil, errors.Join(err, cluster.Close(), rt.Close())
	}
	for _, size := range []int{4 << 10, 1 << 20, 16 << 20} {
		data := make([]byte, size)
		write := func(sync bool) func(context.Context, time.Time) (int, time.Duration, error) {
			return func(ctx context.Context, until time.Time) (int, time.Duration, error) {
				return together(1, until, func(n int) error {
					return writeFile(ctx, client, fmt.Sprintf("/f%d-%d", size, n%20), data, sync)
				})
			}
		}
		r := &row{what: fmt.Sprintf("files of %d KiB, three replicas, one writer", size>>10), unit: "files"}
		r.parts[0], r.parts[1] = write(true), write(false)
		b.rows = append(b.rows, r)
	}
	return func() error { return errors.Join(client.Close(), cluster.Close(), rt.Close()) }, nil
}

func writeFile(ctx context.Context, client *hdfs.Client, name string, data []byte, sync bool) error {
	w, err := client.Create(ctx, name, hdfs.CreateOptions{Replace: true, Replication: 3})
	if err != nil {
		return err
	}
	if _, err = w.Write(data); err == nil && sync {
		err = w.Sync(ctx, false)
	}
	if err != nil {
		w.Abort()
		return err
	}
	return w.Close()
}

// number has three digits at least, and none behind the point where they are not needed.
func number(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

func (b *bench) show(ctx context.Context, out io.Writer) error {
	if b.json {
		var rows []beside.Row
		for _, r := range b.rows {
			rows = append(rows, beside.Medians(r.what+", a second", "the same, not synced", r.unit, r.rates[0], r.rates[1], beside.Target{}))
		}
		return beside.Write(out, rows)
	}
	root, err := host.ModuleRoot(ctx)
	if err != nil {
		return err
	}
	m := host.Describe(ctx, root, nil)
	var fs string
	if usage, err := vfs.Default.GetDiskUsage(b.dir); err == nil {
		fs = fmt.Sprintf(", %d GiB free", usage.AvailBytes>>30)
	}
	fmt.Fprintf(out, "%s, %s, %d processors (%s), load %.1f, commit %s, %d rounds of %v%s; medians, with the least and the most.\n\n", m.Date, m.OS, m.Processors, m.Processor, m.Load, m.Commit, b.rounds, b.each, fs)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "| what\t| a second, synced\t| not synced\t| a sync costs\t|")
	fmt.Fprintln(w, "|---\t|---:\t|---:\t|---:\t|")
	for _, r := range b.rows {
		var mid [2]float64
		var text [2]string
		for i, rates := range r.rates {
			slices.Sort(rates)
			mid[i] = rates[len(rates)/2]
			text[i] = fmt.Sprintf("%s %s (%s to %s)", number(mid[i]), r.unit, number(rates[0]), number(rates[len(rates)-1]))
		}
		cost := time.Duration((1/mid[0] - 1/mid[1]) * float64(time.Second))
		fmt.Fprintf(w, "| %s\t| %s\t| %s\t| %v each\t|\n", r.what, text[0], text[1], cost.Round(10*time.Microsecond))
	}
	return w.Flush()
}
