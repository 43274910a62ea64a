package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	client "github.com/colinmarc/hdfs/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/hdfs"
)

// leaseLimit is how long the files of a writer that has died stay open.
const leaseLimit = 3 * time.Second

func killCommand(c *common) *cobra.Command {
	var k killLoop
	cmd := &cobra.Command{
		Use:   "kill",
		Short: "Kill random processes at random moments while clients write and read",
		Long: `Writers store files over all transports, flush in the middle of some, and keep
a record of what was acknowledged; readers read acknowledged files back. All the
while a process, the NameNode or a DataNode, is killed with SIGKILL at a random
moment and started again. At the end every acknowledged file must be there with
every byte, every flushed byte must be there, and no read may ever have returned
a wrong byte. With our own client no read may fail, and no write that HDFS's client
would have saved: one fails only when all DataNodes of a block have.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return k.run(ctx, c, dir) })
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&k.kills, "kills", 100, "processes to kill")
	flags.IntVar(&k.dataNodes, "datanodes", 3, "DataNodes")
	flags.IntVar(&k.replication, "replication", 2, "replicas of each block")
	flags.IntVar(&k.writers, "writers", 4, "writers at once")
	flags.DurationVar(&k.pause, "pause", 1500*time.Millisecond, "mean time between kills")
	flags.Uint64Var(&k.seed, "seed", 1, "of the random choices")
	flags.BoolVar(&k.foreign, "foreign", false, "use the client of github.com/colinmarc/hdfs, which repairs no pipeline")
	flags.StringSliceVar(&k.transports, "transports", []string{"tcp", "shm", "iwarp"}, "what writers and readers use")
	return cmd
}

type killLoop struct {
	kills, dataNodes, replication, writers int
	pause                                  time.Duration
	seed                                   uint64
	transports                             []string
	foreign                                bool

	mu       sync.Mutex
	files    map[string]*record
	stats    map[string]int // of the report
	last     error          // of a writer or reader
	failures []failedFile
	dialers  *dialers
	nameNode string
}

// record is what a writer knows to be stored of its file.
type record struct {
	flushed int64 // acknowledged by every DataNode after a Flush
	closed  bool  // acknowledged by Close: flushed is the length
}

func (k *killLoop) count(what string) {
	k.mu.Lock()
	k.stats[what]++
	k.mu.Unlock()
}

// failedFile is a write or a read that ended with an error.
type failedFile struct {
	name string
	err  error
	read bool
}

// excusable tells of an error after which HDFS's own client would give up, too.
func (f *failedFile) excusable() bool {
	return !f.read && errors.Is(f.err, hdfs.ErrNoDataNodeLeft)
}

func (k *killLoop) failed(name string, err error, read bool) {
	k.mu.Lock()
	k.last = err
	k.failures = append(k.failures, failedFile{name, err, read})
	k.mu.Unlock()
}

func (k *killLoop) run(ctx context.Context, c *common, dir string) error {
	k.files, k.stats = map[string]*record{}, map[string]int{}
	var err error
	if k.dialers, err = newDialers(); err != nil {
		return err
	}
	defer k.dialers.Close()
	cluster, err := startCluster(ctx, c.binary, dir, k.dataNodes, k.replication, "--lease-limit", leaseLimit.String())
	if err != nil {
		return err
	}
	defer cluster.stop() //nolint:errcheck // nodes that were killed have nothing to say
	k.nameNode = cluster.nameNode

	work, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	for i := range k.writers {
		group.Go(func() error { k.write(work, i); return nil })
	}
	group.Go(func() error { return k.read(work) })
	killed, err := k.kill(ctx, cluster)
	stop()
	if err := errors.Join(err, group.Wait()); err != nil {
		return err
	}
	lost, err := k.check(ctx)
	k.print(c, killed, lost)
	for i := range k.failures {
		if f := &k.failures[i]; !k.foreign && !f.excusable() {
			err = errors.Join(err, fmt.Errorf("%s: HDFS's client would have gone on: %w", f.name, f.err))
		}
	}
	// A run in which nothing was at stake proves nothing.
	for _, transport := range k.transports {
		for _, what := range []string{"files written, ", "files read and compared, "} {
			if k.stats[what+transport] < k.kills/10 {
				err = errors.Join(err, fmt.Errorf("only %d %s%s while %d processes were killed; the last error: %w",
					k.stats[what+transport], what, transport, k.kills, k.last))
			}
		}
	}
	return err
}

// kill kills nodes and starts them again; never two DataNodes at once, so that
// with two replicas one is always left.
func (k *killLoop) kill(ctx context.Context, cluster *cluster) (map[string]int, error) {
	random := rand.New(rand.NewPCG(k.seed, 0))
	killed := map[string]int{}
	for i := range k.kills {
		n := cluster.nodes[random.IntN(len(cluster.nodes))]
		select {
		case <-ctx.Done():
			return killed, ctx.Err()
		case <-n.proc.Exited():
			return killed, fmt.Errorf("%s ended by itself:\n%s", n.name, n.proc.Log())
		case <-time.After(time.Duration(random.Int64N(int64(2 * k.pause)))):
		}
		n.proc.Kill()
		killed[n.name]++
		select {
		case <-ctx.Done():
			return killed, ctx.Err()
		case <-time.After(time.Duration(random.Int64N(int64(500 * time.Millisecond)))):
		}
		if err := cluster.start(ctx, n); err != nil {
			return killed, fmt.Errorf("%s does not come back after a kill: %w", n.name, err)
		}
		fmt.Fprintf(progress, "\r%d of %d killed ", i+1, k.kills)
	}
	fmt.Fprintln(progress)
	return killed, nil
}

// write stores files until ctx ends. Errors are expected, but what was
// acknowledged before them must not be lost.
func (k *killLoop) write(ctx context.Context, id int) {
	random := rand.New(rand.NewPCG(k.seed, uint64(id+1)))
	for i := 0; ctx.Err() == nil; i++ {
		transport := k.transports[random.IntN(len(k.transports))]
		name := fmt.Sprintf("/kill-%d-%06d-%s", id, i, transport)
		write := k.writeOne
		if k.foreign {
			write = k.writeForeign
		}
		err := write(ctx, random, name, transport)
		if ctx.Err() != nil {
			break // the end of the run, which is nobody's failure
		}
		if err != nil {
			fmt.Fprintf(progress, "\n%s: %v\n", name, err)
			k.count("writes that ended with an error, " + transport)
			k.failed(name, err, false)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		} else {
			k.count("files written, " + transport)
		}
	}
}

// fileLimit is for how long one file is written or read: longer than any process is away.
const fileLimit = 60 * time.Second

// note makes the record of a file that is about to be written.
func (k *killLoop) note(name string) *record {
	r := &record{}
	k.mu.Lock()
	k.files[name] = r
	k.mu.Unlock()
	return r
}

// acknowledged notes that so many bytes are certain to be kept.
func (k *killLoop) acknowledged(r *record, bytes int64, closed bool) {
	k.mu.Lock()
	r.flushed, r.closed = bytes, closed
	k.mu.Unlock()
}

func (k *killLoop) writeOne(ctx context.Context, random *rand.Rand, name, transport string) error {
	ctx, cancel := context.WithTimeout(ctx, fileLimit)
	defer cancel()
	c, err := k.dialers.own(k.nameNode, transport)
	if err != nil {
		return err
	}
	r := k.note(name)
	w, err := c.Create(ctx, name, hdfs.CreateOptions{Replication: k.replication, BlockSize: 4 << 20})
	if err != nil {
		return err
	}
	defer w.Abort() // of no effect after Close
	from := newContent(name)
	var written int64
	for range 1 + random.IntN(6) {
		part := make([]byte, random.IntN(3<<20))
		_, _ = from.Read(part) // never fails
		if _, err := w.Write(part); err != nil {
			return err
		}
		written += int64(len(part))
		if random.IntN(2) == 0 {
			if err := w.Flush(ctx); err != nil {
				return err
			}
			k.acknowledged(r, written, false)
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	k.acknowledged(r, written, true)
	return nil
}

// writeForeign is writeOne with colinmarc's client.
func (k *killLoop) writeForeign(ctx context.Context, random *rand.Rand, name, transport string) error {
	var acks ackWatch
	c, err := k.dialers.watched(ctx, k.nameNode, transport, acks.dial)
	if err != nil {
		return err
	}
	defer c.Close()
	w, err := c.CreateFile(name, k.replication, 4<<20, 0o644)
	if err != nil {
		return err
	}
	if err := w.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	r := &record{}
	k.mu.Lock()
	k.files[name] = r
	k.mu.Unlock()
	from := newContent(name)
	var written int64
	for range 1 + random.IntN(6) {
		part := make([]byte, random.IntN(3<<20))
		_, _ = from.Read(part) // never fails
		if _, err := w.Write(part); err != nil {
			return errors.Join(err, w.Close())
		}
		written += int64(len(part))
		if random.IntN(2) == 0 {
			err := w.Flush()
			if err == nil {
				err = acks.wait(ctx)
			}
			if err != nil {
				return errors.Join(err, w.Close())
			}
			k.mu.Lock()
			r.flushed = written
			k.mu.Unlock()
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		err = w.Close()
		if !client.IsErrReplicating(err) || time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err == nil {
		k.mu.Lock()
		r.flushed, r.closed = written, true
		k.mu.Unlock()
	}
	return err
}

// read reads acknowledged files while processes die. It may fail; it may not
// return a wrong byte, or a short file without an error.
func (k *killLoop) read(ctx context.Context) error {
	random := rand.New(rand.NewPCG(k.seed, 1<<32))
	for ctx.Err() == nil {
		k.mu.Lock()
		var closed []string
		for name, r := range k.files {
			if r.closed {
				closed = append(closed, name)
			}
		}
		k.mu.Unlock()
		if len(closed) == 0 {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		slices.Sort(closed)
		name := closed[random.IntN(len(closed))]
		transport := k.transports[random.IntN(len(k.transports))]
		err := k.verify(ctx, name, transport)
		var wrong *wrongByteError
		var short *shortError
		switch {
		case ctx.Err() != nil: // the end of the run, which is nobody's failure
		case errors.As(err, &wrong), errors.As(err, &short):
			return err
		case err != nil:
			k.count("reads that ended with an error, " + transport)
			k.failed(name, err, true)
			time.Sleep(20 * time.Millisecond)
		default:
			k.count("files read and compared, " + transport)
		}
	}
	return nil
}

type shortError struct {
	name      string
	got, want int64
}

func (e *shortError) Error() string {
	return fmt.Sprintf("LOST BYTES: %s has %d bytes, %d were acknowledged", e.name, e.got, e.want)
}

// verify compares a file with its content and its acknowledged length.
func (k *killLoop) verify(ctx context.Context, name, transport string) error {
	k.mu.Lock()
	want := *k.files[name]
	k.mu.Unlock()
	length, got, err := k.readOne(ctx, name, transport)
	if err != nil {
		return err
	}
	// The NameNode tells the length. The client reports the end of the file, too,
	// when its connection ends in the middle.
	if length < want.flushed || (want.closed && length != want.flushed) {
		return &shortError{name, length, want.flushed}
	}
	if got != length {
		return fmt.Errorf("%s: the NameNode says %d bytes, %d came: %w", name, length, got, io.ErrUnexpectedEOF)
	}
	return nil
}

// readOne reads a file and compares it. length is what the NameNode says.
func (k *killLoop) readOne(ctx context.Context, name, transport string) (length, got int64, err error) {
	if k.foreign {
		c, err := k.dialers.client(ctx, k.nameNode, transport)
		if err != nil {
			return 0, 0, err
		}
		defer c.Close()
		f, err := c.Open(name)
		if err != nil {
			return 0, 0, err
		}
		defer f.Close()
		if err := f.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return 0, 0, err
		}
		got, err = compare(name, f)
		return f.Stat().Size(), got, err
	}
	ctx, cancel := context.WithTimeout(ctx, fileLimit)
	defer cancel()
	c, err := k.dialers.own(k.nameNode, transport)
	if err != nil {
		return 0, 0, err
	}
	f, err := c.Open(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	got, err = compare(name, f)
	return f.Size(), got, err
}

// check reads everything at the end, with all processes up. Files whose writer
// failed are closed by the NameNode when their leases have expired.
func (k *killLoop) check(ctx context.Context) (lost []string, err error) {
	names := slices.Sorted(maps.Keys(k.files))
	for i, name := range names {
		r := k.files[name]
		err := until(ctx, 60*time.Second, func() error {
			err := k.verify(ctx, name, "tcp")
			var wrong *wrongByteError
			if errors.As(err, &wrong) {
				return nil // waiting does not help; reported below
			}
			return err
		})
		if err == nil {
			err = k.verify(ctx, name, "tcp")
		}
		if errors.Is(err, fs.ErrNotExist) && r.flushed == 0 && !r.closed {
			err = nil
		}
		if err != nil {
			lost = append(lost, fmt.Sprintf("%s (closed %v, %d bytes acknowledged): %v", name, r.closed, r.flushed, err))
		}
		fmt.Fprintf(progress, "\r%d of %d checked ", i+1, len(names))
	}
	fmt.Fprintln(progress)
	if len(lost) > 0 {
		return lost, fmt.Errorf("%d of %d files are not as acknowledged", len(lost), len(names))
	}
	return nil, nil
}

func (k *killLoop) print(c *common, killed map[string]int, lost []string) {
	var flushed, closed int
	var bytes int64
	for _, r := range k.files {
		if r.closed {
			closed++
		} else if r.flushed > 0 {
			flushed++
		}
		bytes += r.flushed
	}
	c.printf("# Kill loop\n\n`go run ./soak kill --kills %d --datanodes %d --replication %d --writers %d --pause %v --seed %d`\n\n",
		k.kills, k.dataNodes, k.replication, k.writers, k.pause, k.seed)
	c.printf("| what | count |\n|---|---:|\n")
	for _, name := range slices.Sorted(maps.Keys(killed)) {
		c.printf("| kill -9 of %s | %d |\n", name, killed[name])
	}
	for _, what := range slices.Sorted(maps.Keys(k.stats)) {
		c.printf("| %s | %d |\n", what, k.stats[what])
	}
	c.printf("| acknowledged files checked at the end | %d |\n| files whose writer failed after a flush, checked | %d |\n", closed, flushed)
	c.printf("| acknowledged bytes | %d |\n| files not as acknowledged | %d |\n", bytes, len(lost))
	for _, l := range lost {
		c.printf("\n- %s", l)
	}
	for i, f := range k.failures {
		if i == 0 {
			c.printf("\nWhat ended with an error:\n\n")
		}
		said, _, _ := strings.Cut(f.err.Error(), "\n")
		c.printf("- %s\n", said)
	}
}
