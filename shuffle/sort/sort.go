package sort

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/dataset"
	"github.com/verbena-data/verbena/shuffle/internal/external"
	"github.com/verbena-data/verbena/shuffle/internal/together"
)

// Config says what is sorted. All processes of a job have the same, but for Temporary and
// Progress.
type Config struct {
	Format Format
	// Inputs are files, directories or patterns: see [dataset.Files.Expand].
	Inputs []string
	// Output is a file. If it is empty, process 0 writes to Print.
	Output string
	Print  io.Writer
	// Memory is this process's share for sorting in bytes, without that of the exchange: see
	// [Divide]. Run fails with less than 8 MiB for each thread, and when a line does not fit into a quarter of what a thread has.
	Memory int64
	// Temporary is the directory for temporary files, which have no names there.
	Temporary string
	Files     *dataset.Files
	// Progress is told how many bytes of this process's part have been read and sent, and
	// how many sorted and written, of how many bytes of all processes. It may be nil, and
	// is called concurrently.
	Progress func(Progress)
}

// Progress is how far this process is.
type Progress struct {
	Read    int64 `json:"read"`
	Written int64 `json:"written"`
	Total   int64 `json:"total"` // of all processes' input, in bytes
}

// Result is what was done, by all processes together.
type Result struct {
	Bytes     int64         `json:"bytes"`
	Records   int64         `json:"records"`
	Runs      int           `json:"runs"`      // temporary files
	Largest   int64         `json:"largest"`   // bytes of the largest partition
	Shuffled  time.Duration `json:"shuffled"`  // until all was received and sorted in parts
	Finished  time.Duration `json:"finished"`  // until the output was on the disk, under its name
	Processes int           `json:"processes"` // that took part
	Ways      []shuffle.Way `json:"ways"`      // of all processes; two that exchange count as a peer each
}

// MinMemory is the least memory of a process with one thread.
const MinMemory = together.Overhead + 19<<20

// Divide gives a process's memory, in bytes, to the exchange, as [shuffle.Config.Memory], and to sorting, as
// [Config.Memory]. What the program itself takes is neither's. threads is that of the exchange. It fails if memory is less
// than a process with so many threads needs.
func Divide(memory int64, threads int) (exchange, sorting int64, err error) {
	least := int64(MinMemory) + int64(threads-1)*(external.MinMemory+blocksAhead*blockSize)
	return together.Divide(memory, least, int64(threads)*blocksAhead*blockSize, threads)
}

// share is what a process has of the sorted records.
type share struct {
	Bytes   []int64       `json:"bytes"` // by thread
	Records int64         `json:"records"`
	Runs    int           `json:"runs"`
	Ways    []shuffle.Way `json:"ways"`
}

// job is one process's part.
type job struct {
	cfg    Config
	x      *shuffle.Exchange
	inputs *together.Inputs
	output dataset.Output
	ranges ranges
	read   atomic.Int64
	wrote  atomic.Int64
	result Result
}

// Run sorts. All processes of the exchange call it. When it fails in one, it fails in all,
// and the output is not there, or is what it was.
func Run(ctx context.Context, x *shuffle.Exchange, cfg Config) (_ Result, err error) {
	j := &job{cfg: cfg, x: x}
	ctx, stop := together.While(ctx, x)
	defer stop()
	defer func() {
		if j.inputs != nil {
			j.inputs.Close()
		}
		if err != nil {
			err = together.Fail(ctx, x, j.output, err)
		}
	}()
	begin := time.Now()
	sorters, err := j.shuffle(ctx)
	defer func() {
		for _, s := range sorters {
			err = errors.Join(err, s.Close())
		}
	}()
	if err != nil {
		return Result{}, err
	}
	j.result.Shuffled = time.Since(begin)
	if err := j.inputs.Unchanged(ctx); err != nil {
		return Result{}, err
	}
	if err := j.write(ctx, sorters); err != nil {
		return Result{}, err
	}
	if err := x.Wait(ctx); err != nil {
		return Result{}, err
	}
	j.result.Finished = time.Since(begin)
	return j.result, nil
}

// open opens the inputs and creates the output, which is as long as they are, or little longer.
func (j *job) open(ctx context.Context) (spans [][]dataset.Span, err error) {
	if j.inputs, err = together.Open(ctx, j.x, j.cfg.Files, j.cfg.Inputs); err != nil {
		return nil, err
	}
	if j.cfg.Output != "" {
		if j.output, err = j.cfg.Files.Output(ctx, j.cfg.Output, j.inputs.ID); err != nil {
			return nil, err
		}
		if err := together.Create(ctx, j.x, j.output, j.inputs.Total); err != nil {
			return nil, err
		}
	}
	return j.inputs.Parts(j.x, int64(max(1, j.cfg.Format.fixed())))
}

// shuffle sends this process's part of the input, and sorts what it receives.
func (j *job) shuffle(ctx context.Context) (sorters []*external.Sorter, err error) {
	spans, err := j.open(ctx)
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for _, s := range spans {
		k, err := sample(j.cfg.Format, s)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k...)
	}
	if keys, err = together.Keys(ctx, j.x, keys); err != nil {
		return nil, err
	}
	j.ranges = newRanges(evenBounds(keys, j.x.Partitions()))
	threads := j.x.Threads()
	for range threads {
		s, err := external.New(ctx, external.Config{Fixed: j.cfg.Format.fixed(), Memory: j.sorting(), Dir: j.cfg.Temporary})
		if err != nil {
			return sorters, err
		}
		sorters = append(sorters, s)
	}
	g, ctx := errgroup.WithContext(ctx)
	for thread := range threads {
		g.Go(func() error { return j.abortIf(j.send(ctx, j.x.Sender(thread), spans[thread])) })
		g.Go(func() error { return j.abortIf(j.receive(ctx, j.x.Receiver(thread), sorters[thread])) })
	}
	return sorters, g.Wait()
}

// abortIf ends the exchange with an error, so that nobody waits for this process any more.
func (j *job) abortIf(err error) error {
	if err != nil {
		j.x.Abort(err)
	}
	return err
}

// sorting is the memory of a thread's sorter.
func (j *job) sorting() int64 { return j.cfg.Memory / int64(j.x.Threads()) }

func (j *job) send(ctx context.Context, to *shuffle.Sender, spans []dataset.Span) error {
	tail := j.cfg.Format.tail()
	s := newScanner(j.cfg.Format, shortLine(j.x), int64(external.Longest(j.sorting())))
	var encoded []byte
	for _, span := range spans {
		file := slices.Index(j.inputs.Files, span.Input)
		err := s.scan(ctx, span, takers{
			record: func(record []byte) error {
				return to.Send(j.ranges.of(record[:len(record)-tail]), record)
			},
			long: func(head []byte, at, length int64) error { // a bound is shorter than any head
				encoded = reference{file, at, length}.encode(encoded[:0])
				return to.Send(j.ranges.of(head), encoded)
			},
		}, func(n int) {
			j.read.Add(int64(n))
			j.tell()
		})
		if err != nil {
			return err
		}
	}
	return to.Close()
}

func (j *job) receive(ctx context.Context, from *shuffle.Receiver, to *external.Sorter) error {
	add := to.Add
	if j.cfg.Format == Lines {
		add = func(record []byte) error {
			if record[len(record)-1] == '\n' {
				return to.Add(record)
			}
			r, err := decode(record, j.inputs.Files)
			if err != nil {
				return err
			}
			return to.AddBy(int(r.length)+1, func(line []byte) error {
				line[r.length] = '\n'
				return r.read(ctx, j.inputs.Files[r.file], line[:r.length])
			})
		}
	}
	for {
		batch, err := from.NextBatch(ctx)
		if errors.Is(err, io.EOF) {
			return to.Finish()
		}
		if err != nil {
			return err
		}
		for record, ok := batch.Next(); ok; record, ok = batch.Next() {
			if err := add(record); err != nil {
				batch.Release()
				return err
			}
		}
		batch.Release()
	}
}

// write merges the partitions into the output.
func (j *job) write(ctx context.Context, sorters []*external.Sorter) error {
	own := share{Ways: j.x.Stats().Ways}
	for _, s := range sorters {
		own.Bytes = append(own.Bytes, s.Size())
		own.Records += s.Records()
		own.Runs += s.Runs()
	}
	shares, err := together.Gather(ctx, j.x, own)
	if err != nil {
		return err
	}
	offsets := make([]int64, len(sorters))
	for rank, s := range shares {
		if len(s.Bytes) != len(sorters) {
			return fmt.Errorf("process %d has %d threads, this one %d", rank, len(s.Bytes), len(sorters))
		}
		for thread, n := range s.Bytes {
			if rank == j.x.Rank() {
				offsets[thread] = j.result.Bytes
			}
			j.result.Bytes += n
			j.result.Largest = max(j.result.Largest, n)
		}
		j.result.Records += s.Records
		j.result.Runs += s.Runs
		j.result.Ways = together.AddWays(j.result.Ways, s.Ways)
	}
	j.result.Processes = len(shares)
	// Lines may have got a newline at the end of a file.
	if n := j.result.Bytes - j.inputs.Total; n < 0 || n > 0 && (j.cfg.Format != Lines || n > int64(len(j.inputs.Files))) {
		return fmt.Errorf("%d bytes were read and %d received: a defect, or somebody writes the input", j.inputs.Total, j.result.Bytes)
	}
	if j.output == nil {
		return j.print(ctx, sorters)
	}
	if err := together.ByFirst(ctx, j.x, func() error { return j.output.Prepare(ctx, j.result.Bytes) }); err != nil {
		return err
	}
	g, part := errgroup.WithContext(ctx)
	for thread, s := range sorters {
		g.Go(func() error {
			n := j.x.Rank()*j.x.Threads() + thread
			return j.abortIf(together.WritePart(part, j.output, n, offsets[thread], s.Size(), func(w io.Writer) error {
				return s.Merge(part, w, func(n int) {
					j.wrote.Add(int64(n))
					j.tell()
				})
			}))
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := together.Barrier(ctx, j.x); err != nil {
		return err
	}
	return together.ByFirst(ctx, j.x, func() error { return j.output.Commit(ctx, j.x.Partitions()) })
}

// print has process 0 write the records of all.
func (j *job) print(ctx context.Context, sorters []*external.Sorter) error {
	read, write := io.Pipe()
	var merging errgroup.Group
	merging.Go(func() (err error) {
		for _, s := range sorters {
			if err == nil {
				err = s.Merge(ctx, write, func(n int) {
					j.wrote.Add(int64(n))
					j.tell()
				})
			}
		}
		_ = write.CloseWithError(err) // who reads gets the error
		return err
	})
	err := together.Print(ctx, j.x, read, j.cfg.Print)
	_ = read.CloseWithError(err) // or who writes would wait
	if merged := merging.Wait(); err == nil {
		err = merged
	}
	return err
}

func (j *job) tell() {
	if j.cfg.Progress != nil {
		j.cfg.Progress(Progress{j.read.Load(), j.wrote.Load(), j.inputs.Total})
	}
}
