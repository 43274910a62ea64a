package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/hdfs"
)

// blockSize keeps the large file in several blocks.
const blockSize = 128 << 20

// file is one file to store and what it must read back as.
type file struct {
	local string // on this machine
	name  string // below the demo's directory, slashes
	size  int64
	sum   [sha256.Size]byte
}

// collect lists the tree's share, makes the large file at large and hashes all.
func collect(ctx context.Context, cfg Config, large string) ([]file, error) {
	files := []file{{local: large, name: "large"}}
	if err := makeLarge(ctx, large, cfg.LargeFile); err != nil {
		return nil, err
	}
	n := 0
	err := filepath.WalkDir(cfg.Tree, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if n++; (n-1)%cfg.Share != 0 {
			return nil
		}
		relative, err := filepath.Rel(cfg.Tree, name)
		if err != nil {
			return err
		}
		files = append(files, file{local: name, name: "tree/" + filepath.ToSlash(relative)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the tree to store: %w", err)
	}
	if len(files) < 2 {
		return nil, fmt.Errorf("no file in %s: name another directory with --tree", cfg.Tree)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cfg.Workers)
	for i := range files {
		group.Go(func() error {
			f, err := os.Open(files[i].local)
			if err != nil {
				return err
			}
			defer f.Close()
			h := sha256.New()
			if files[i].size, err = io.Copy(h, f); err != nil {
				return err
			}
			h.Sum(files[i].sum[:0])
			return ctx.Err()
		})
	}
	return files, group.Wait()
}

// makeLarge writes bytes that no compression or hole could stand for.
func makeLarge(ctx context.Context, name string, length int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	source := rand.NewChaCha8([32]byte{})
	buf := make([]byte, 1<<20)
	for length > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(int64(len(buf)), length)
		if _, err := source.Read(buf[:n]); err != nil {
			return err
		}
		if _, err := f.Write(buf[:n]); err != nil {
			return err
		}
		length -= n
	}
	return f.Close()
}

func makeDirectories(ctx context.Context, c *hdfs.Client, base string, files []file) error {
	made := map[string]bool{}
	for _, f := range files {
		dir := path.Dir(base + "/" + f.name)
		if made[dir] {
			continue
		}
		made[dir] = true
		if err := c.MkdirAll(ctx, dir, 0o755); err != nil {
			return err
		}
	}
	return c.MkdirAll(ctx, base+"/small", 0o755)
}

// forEach deals the files to the clients; each takes the next when it is free.
func forEach(ctx context.Context, clients []*hdfs.Client, files []file, f func(context.Context, *hdfs.Client, file) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for _, c := range clients {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(files) {
					return nil
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := f(ctx, c, files[i]); err != nil {
					return fmt.Errorf("%s: %w", files[i].name, err)
				}
			}
		})
	}
	return group.Wait()
}

func store(ctx context.Context, c *hdfs.Client, base string, f file, replicas int) error {
	from, err := os.Open(f.local)
	if err != nil {
		return err
	}
	defer from.Close()
	w, err := c.Create(ctx, base+"/"+f.name, hdfs.CreateOptions{Replication: replicas, BlockSize: blockSize})
	if err != nil {
		return err
	}
	_, err = w.ReadFrom(from)
	return errors.Join(err, w.Close())
}

func read(ctx context.Context, c *hdfs.Client, base string, f file) error {
	r, err := c.Open(ctx, base+"/"+f.name)
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := r.WriteTo(io.Discard)
	if err == nil && n != f.size {
		return fmt.Errorf("%d of %d bytes came", n, f.size)
	}
	return err
}

// differsError says that other bytes came back than were stored.
type differsError struct{ got, want []byte }

func (e *differsError) Error() string {
	return fmt.Sprintf("what came back has the SHA-256 %x, what was stored has %x", e.got, e.want)
}

func verify(ctx context.Context, c *hdfs.Client, base string, f file) error {
	r, err := c.Open(ctx, base+"/"+f.name)
	if err != nil {
		return err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := r.WriteTo(h); err != nil {
		return err
	}
	if got := h.Sum(nil); !bytes.Equal(got, f.sum[:]) {
		return &differsError{got, f.sum[:]}
	}
	return nil
}

// createLatency times create, one write of 1 KiB and close, one file after the
// other, and returns the median and the 99th percentile in microseconds.
func createLatency(ctx context.Context, c *hdfs.Client, dir string, n, replicas int) (p50, p99 float64, err error) {
	payload := make([]byte, 1024)
	times := make([]time.Duration, 0, n)
	for i := range n {
		began := time.Now()
		w, err := c.Create(ctx, fmt.Sprintf("%s/%06d", dir, i), hdfs.CreateOptions{Replication: replicas, BlockSize: blockSize})
		if err != nil {
			return 0, 0, err
		}
		_, err = w.Write(payload)
		if err := errors.Join(err, w.Close()); err != nil {
			return 0, 0, err
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	at := func(share float64) float64 {
		return float64(times[min(len(times)-1, int(share*float64(len(times))))].Nanoseconds()) / 1e3
	}
	return at(0.50), at(0.99), nil
}
