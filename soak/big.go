package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/hdfs"
)

func filesCommand(c *common) *cobra.Command {
	var count, clients int
	cmd := &cobra.Command{
		Use:   "files",
		Short: "Store very many small files in one directory, list them, restart, read them back",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return manyFiles(ctx, c, dir, count, clients) })
		},
	}
	cmd.Flags().IntVar(&count, "count", 100_000, "files")
	cmd.Flags().IntVar(&clients, "clients", 16, "clients at work at once")
	return cmd
}

func manyFiles(ctx context.Context, c *common, dir string, count, clients int) (err error) {
	cluster, err := startCluster(ctx, c.binary, dir, 1, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.stop()) }()
	d, err := newDialers()
	if err != nil {
		return err
	}
	defer d.Close()
	c.printf("# %d small files in one directory\n\n`go run ./soak files --count %d --clients %d`\n\n| what | value |\n|---|---:|\n", count, count, clients)
	name := func(i int) string { return fmt.Sprintf("/many/file-%07d", i) }
	length := func(i int) int { return i % 2048 }
	all := func(what string, f func(context.Context, *hdfs.Client, int) error) error {
		began := time.Now()
		err := deal(ctx, d, cluster.nameNode, clients, count, func(ctx context.Context, own *hdfs.Client, i int) error {
			if err := f(ctx, own, i); err != nil {
				return fmt.Errorf("%s: %w", name(i), err)
			}
			if i%1000 == 0 {
				fmt.Fprintf(progress, "\r%s: %d of %d ", what, i, count)
			}
			return nil
		})
		fmt.Fprintln(progress)
		c.printf("| %s, files a second | %.0f |\n", what, float64(count)/time.Since(began).Seconds())
		return err
	}
	first, err := d.own(cluster.nameNode, "tcp")
	if err != nil {
		return err
	}
	if err := first.Mkdir(ctx, "/many", 0o755); err != nil {
		return err
	}
	err = all("written", func(ctx context.Context, own *hdfs.Client, i int) error {
		w, err := own.Create(ctx, name(i), hdfs.CreateOptions{Replication: 1, BlockSize: 1 << 20})
		if err != nil {
			return err
		}
		_, err = io.CopyN(w, newContent(name(i)), int64(length(i)))
		return errors.Join(err, w.Close())
	})
	if err != nil {
		return err
	}
	if err := peaks(c, cluster, "after writing"); err != nil {
		return err
	}
	// Run the command itself: its paging is what is tested.
	began := time.Now()
	out, err := exec.CommandContext(ctx, c.binary, "fs", "ls", "-C", "--namenode", cluster.nameNode, "/many").Output()
	if err != nil {
		return fmt.Errorf("verbena fs ls: %w", err)
	}
	if lines := strings.Count(string(out), "\n"); lines != count {
		return fmt.Errorf("verbena fs ls shows %d files of %d", lines, count)
	}
	c.printf("| `verbena fs ls` of all, s | %.2f |\n", time.Since(began).Seconds())
	for _, n := range cluster.nodes {
		n.proc.Kill()
	}
	for _, n := range cluster.nodes {
		began := time.Now()
		if err := cluster.start(ctx, n); err != nil {
			return err
		}
		c.printf("| start of %s after kill -9, s | %.2f |\n", n.name, time.Since(began).Seconds())
	}
	err = all("read and compared after the restart", func(ctx context.Context, own *hdfs.Client, i int) error {
		return until(ctx, 30*time.Second, func() error {
			f, err := own.Open(ctx, name(i))
			if err != nil {
				return err
			}
			defer f.Close()
			n, err := compare(name(i), f)
			if err == nil && n != int64(length(i)) {
				return &shortError{name(i), n, int64(length(i))}
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	return peaks(c, cluster, "after reading")
}

// deal calls f with the numbers below count, from so many clients at a time, which work
// over the transports in turn.
func deal(ctx context.Context, d *dialers, nameNode string, clients, count int, f func(context.Context, *hdfs.Client, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for w := range clients {
		group.Go(func() error {
			own, err := d.own(nameNode, []string{"tcp", "shm", "iwarp"}[w%3])
			if err != nil {
				return err
			}
			for {
				i := int(next.Add(1)) - 1
				if i >= count {
					return nil
				}
				if err := errors.Join(f(ctx, own, i), ctx.Err()); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// peaks prints the peak memory of a cluster's processes.
func peaks(c *common, cluster *cluster, when string) error {
	for _, n := range cluster.nodes {
		peak, err := peakMemory(n.proc.Pid())
		if err != nil {
			return err
		}
		c.printf("| peak resident memory of %s %s, MB | %d |\n", n.name, when, peak/1e6)
	}
	return nil
}

func largeCommand(c *common) *cobra.Command {
	var gib int64
	var transports []string
	cmd := &cobra.Command{
		Use:   "large",
		Short: "Store one very large file and read it back, over each transport",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return largeFile(ctx, c, dir, gib, transports) })
		},
	}
	cmd.Flags().Int64Var(&gib, "gib", 10, "length in GiB")
	cmd.Flags().StringSliceVar(&transports, "transports", []string{"tcp", "shm", "iwarp"}, "one after the other")
	return cmd
}

func largeFile(ctx context.Context, c *common, dir string, gib int64, transports []string) (err error) {
	cluster, err := startCluster(ctx, c.binary, dir, 1, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.stop()) }()
	d, err := newDialers()
	if err != nil {
		return err
	}
	defer d.Close()
	c.printf("# One file of %d GiB, replication 1\n\n`go run ./soak large --gib %d`; the client makes the bytes while writing and compares each while reading.\n\n", gib, gib)
	c.printf("| transport | written MB/s | read and compared MB/s | peak resident NameNode MB | DataNode MB | client's Go heap MB |\n|---|---:|---:|---:|---:|---:|\n")
	for _, transport := range transports {
		own, err := d.own(cluster.nameNode, transport)
		if err != nil {
			return err
		}
		name := "/large-" + transport
		fmt.Fprintf(progress, "%s...\n", name)
		began := time.Now()
		w, err := own.Create(ctx, name, hdfs.CreateOptions{Replication: 1, BlockSize: 128 << 20})
		if err != nil {
			return err
		}
		if _, err := io.Copy(w, io.LimitReader(newContent(name), gib<<30)); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		written := time.Since(began)
		began = time.Now()
		f, err := own.Open(ctx, name)
		if err != nil {
			return err
		}
		n, err := compare(name, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		if n != gib<<30 {
			return &shortError{name, n, gib << 30}
		}
		read := time.Since(began)
		var peaks [2]int64
		for i := range peaks {
			if peaks[i], err = peakMemory(cluster.nodes[i].proc.Pid()); err != nil {
				return err
			}
		}
		var heap runtime.MemStats
		runtime.ReadMemStats(&heap)
		mb := float64(gib<<30) / 1e6
		c.printf("| %s | %.0f | %.0f | %d | %d | %d |\n", transport, mb/written.Seconds(), mb/read.Seconds(), peaks[0]/1e6, peaks[1]/1e6, heap.HeapSys/1e6)
		if err := own.Remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
