package pairs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/internal/processes"
	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/internal/external"
	"github.com/verbena-data/verbena/shuffle/internal/together"
)

// An Operation is what is done with the pairs.
type Operation string

// The operations.
const (
	GroupBy Operation = "groupby"
	SortBy  Operation = "sortby"
)

// Operations are all of them.
var Operations = []Operation{GroupBy, SortBy}

// MaxKeys is the largest range of keys, from 0 to one less than it: the numbers that
// GroupByTest draws.
const MaxKeys = math.MaxInt32

// Config says what is made and what is done with it. All processes of a job have the same,
// but for Temporary and Progress.
type Config struct {
	Operation Operation
	// Pairs is how many there are, all mappers' together, and Keys the range from which
	// their keys are drawn evenly.
	Pairs, Keys int64
	ValueSize   int // bytes
	// Mappers and Reducers are tasks, which are divided evenly among the threads of all
	// processes. 0 stands for one for each thread.
	Mappers, Reducers int
	// Seed chooses the pairs: with the same one, and as many mappers, they are the same.
	Seed uint64
	// Check also compares a checksum of all pairs that reducers have got with that of those
	// that were made. That takes time, which is counted.
	Check bool
	// Memory is this process's share for its pairs and for reducing in bytes, without that of the
	// exchange: see [Divide]. Run fails if the pairs do not fit, with 8 MiB beside them for each reducer.
	Memory int64
	// Temporary is the directory for temporary files, which have no names there.
	Temporary string
	// Progress is told how many bytes this process has made, sent and reduced, of how many
	// of all processes. It may be nil, and is called concurrently.
	Progress func(done, total int64)
}

// Result is what was done, by all processes together. Times begin when all have made their
// pairs.
type Result struct {
	Pairs     int64         `json:"pairs"`
	Bytes     int64         `json:"bytes"`    // of keys and values
	Groups    int64         `json:"groups"`   // different keys
	Shuffled  time.Duration `json:"shuffled"` // until every pair was at its reducer
	Finished  time.Duration `json:"finished"` // until the reducers had gone through all
	CPU       time.Duration `json:"cpu"`      // processor time of all processes, until then
	Runs      int           `json:"runs"`     // temporary files
	Mappers   int           `json:"mappers"`
	Reducers  int           `json:"reducers"`
	Processes int           `json:"processes"`
	Ways      []shuffle.Way `json:"ways"` // of all processes; two that exchange count as a peer each
}

// Divide gives a process's memory, in bytes, to the exchange, as [shuffle.Config.Memory], and to the work, as
// [Config.Memory]. What the program itself takes is neither's. threads is that of the exchange. It fails if memory is less
// than a process with so many threads needs; the pairs come on top of that.
func Divide(memory int64, threads int) (exchange, work int64, err error) {
	return together.Divide(memory, int64(together.Overhead+together.LeastExchange)+int64(threads)*external.MinMemory, 0, threads)
}

func (c *Config) complete(partitions int) error {
	if c.Mappers == 0 {
		c.Mappers = partitions
	}
	if c.Reducers == 0 {
		c.Reducers = partitions
	}
	const mostTasks, mostValue = 1 << 20, 16 << 20
	switch {
	case c.Operation != GroupBy && c.Operation != SortBy:
		return fmt.Errorf("there is no operation %q: choose one of %v", c.Operation, Operations)
	case c.Pairs < 0 || c.Pairs > math.MaxInt64/(keySize+mostValue):
		return fmt.Errorf("%d pairs", c.Pairs)
	case c.Keys < 1 || c.Keys > MaxKeys:
		return fmt.Errorf("a range of %d keys: 1 to %d are possible", c.Keys, MaxKeys)
	case c.ValueSize < 0 || c.ValueSize > mostValue:
		return fmt.Errorf("values of %d bytes: 0 to %d are possible", c.ValueSize, mostValue)
	case c.Mappers < 1 || c.Mappers > mostTasks || c.Reducers < 1 || c.Reducers > mostTasks:
		return fmt.Errorf("%d mappers and %d reducers: 1 to %d are possible", c.Mappers, c.Reducers, mostTasks)
	}
	return nil
}

// record is the length of a pair: the key, four bytes in network order, and the value.
func (c *Config) record() int { return keySize + c.ValueSize }

const keySize = 4

func keyOf(record []byte) uint32 { return binary.BigEndian.Uint32(record) }

// share is which of n tasks a partition has: those from first on and below end.
func share(n, partition, partitions int) (first, end int) {
	return n * partition / partitions, n * (partition + 1) / partitions
}

// owner is the partition that has a task.
func owner(task, n, partitions int) int { return ((task+1)*partitions - 1) / n }

type job struct {
	cfg      Config
	x        *shuffle.Exchange
	made     [][]byte // by mapper of this process
	reducer  func(key uint32) int
	owners   []int // of reducers
	progress meter
	cpu      time.Duration // of this process when the pairs were made
	own      part
}

// part is what a process has done.
type part struct {
	Made     int64         `json:"made"` // pairs
	Pairs    int64         `json:"pairs"`
	Groups   int64         `json:"groups"`
	Runs     int           `json:"runs"`
	CPU      time.Duration `json:"cpu"`
	Sent     uint64        `json:"sent"` // checksums, with Check
	Received uint64        `json:"received"`
	Ways     []shuffle.Way `json:"ways"`
}

// Run makes pairs and groups or sorts them. All processes of the exchange call it. When it
// fails in one, it fails in all.
func Run(ctx context.Context, x *shuffle.Exchange, cfg Config) (_ Result, err error) {
	ctx, stop := together.While(ctx, x)
	defer stop()
	j := &job{cfg: cfg, x: x}
	defer func() {
		err = errors.Join(err, j.forget())
		if err != nil {
			err = together.Fail(ctx, x, nil, err)
		}
	}()
	if err := j.cfg.complete(x.Partitions()); err != nil {
		return Result{}, err
	}
	if err := j.make(ctx); err != nil {
		return Result{}, err
	}
	if err := together.Barrier(ctx, x); err != nil {
		return Result{}, err
	}
	if j.cpu, err = processes.CPUTime(os.Getpid()); err != nil {
		return Result{}, err
	}
	begin := time.Now()
	result, err := j.shuffleAndReduce(ctx, begin)
	if err != nil {
		return Result{}, err
	}
	return result, x.Wait(ctx)
}

func (j *job) shuffleAndReduce(ctx context.Context, begin time.Time) (r Result, err error) {
	sorters, err := j.shuffle(ctx)
	defer func() {
		for _, s := range sorters {
			err = errors.Join(err, s.Close())
		}
	}()
	if err != nil {
		return r, err
	}
	if err := together.Barrier(ctx, j.x); err != nil {
		return r, err
	}
	r.Shuffled = time.Since(begin)
	if err := j.reduce(ctx, sorters); err != nil {
		return r, err
	}
	now, err := processes.CPUTime(os.Getpid())
	if err != nil {
		return r, err
	}
	j.own.CPU, j.own.Ways = now-j.cpu, j.x.Stats().Ways
	parts, err := together.Gather(ctx, j.x, j.own)
	if err != nil {
		return r, err
	}
	r.Finished = time.Since(begin)
	var sent, received uint64
	var made int64
	for _, p := range parts {
		r.Pairs += p.Pairs
		r.Groups += p.Groups
		r.Runs += p.Runs
		r.CPU += p.CPU
		r.Ways = together.AddWays(r.Ways, p.Ways)
		made += p.Made
		sent += p.Sent
		received += p.Received
	}
	r.Bytes = r.Pairs * int64(j.cfg.record())
	r.Mappers, r.Reducers, r.Processes = j.cfg.Mappers, j.cfg.Reducers, len(parts)
	if r.Pairs != made || sent != received {
		return r, fmt.Errorf("%d pairs were made and %d reduced, checksums %016x and %016x: a defect", made, r.Pairs, sent, received)
	}
	return r, nil
}

// shuffle sends the pairs that were made here, and gives those that come to a sorter for
// each reducer.
func (j *job) shuffle(ctx context.Context) (sorters []*external.Sorter, err error) {
	if err := j.partition(ctx); err != nil {
		return nil, err
	}
	first, end := j.reducers()
	for range end - first {
		s, err := external.New(ctx, external.Config{Fixed: j.cfg.record(), Memory: j.reducing(), Dir: j.cfg.Temporary})
		if err != nil {
			return sorters, err
		}
		sorters = append(sorters, s)
	}
	g, ctx := errgroup.WithContext(ctx)
	for thread := range j.x.Threads() {
		g.Go(func() error { return j.abortIf(j.send(thread)) })
		g.Go(func() error { return j.abortIf(j.receive(ctx, thread, sorters)) })
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

// partition says which reducer a key has, and who has that.
func (j *job) partition(ctx context.Context) error {
	n := j.cfg.Reducers
	for r := range n {
		j.owners = append(j.owners, owner(r, n, j.x.Partitions()))
	}
	if j.cfg.Operation == GroupBy {
		j.reducer = func(key uint32) int { return int(key % uint32(n)) }
		return nil
	}
	keys, err := together.Keys(ctx, j.x, j.sample())
	if err != nil {
		return err
	}
	ranges := shuffle.Range(shuffle.Bounds(keys, n))
	j.reducer = func(key uint32) int {
		var b [keySize]byte
		binary.BigEndian.PutUint32(b[:], key)
		return ranges.Partition(b[:])
	}
	return nil
}

// send sends what a thread's mappers have made.
func (j *job) send(thread int) error {
	to := j.x.Sender(thread)
	size := j.cfg.record()
	for _, made := range j.of(thread) {
		for len(made) > 0 {
			n := min(len(made), progressEach/size*size+size)
			for record := made[:n]; len(record) > 0; record = record[size:] {
				if err := to.Send(j.owners[j.reducer(keyOf(record))], record[:size]); err != nil {
					return err
				}
			}
			made = made[n:]
			j.progress.add(n)
		}
	}
	return to.Close()
}

func (j *job) receive(ctx context.Context, thread int, sorters []*external.Sorter) error {
	from := j.x.Receiver(thread)
	partition := j.x.Rank()*j.x.Threads() + thread
	offset, _ := j.reducers()
	first, end := share(j.cfg.Reducers, partition, j.x.Partitions())
	for {
		record, err := from.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if len(record) != j.cfg.record() {
			return fmt.Errorf("a pair of %d bytes came, they have %d: all processes must have the same flags", len(record), j.cfg.record())
		}
		r := j.reducer(keyOf(record))
		if r < first || r >= end {
			return fmt.Errorf("a pair of reducer %d came to partition %d: all processes must have the same flags", r, partition)
		}
		if err := sorters[r-offset].Add(record); err != nil {
			return err
		}
	}
	for r := first; r < end; r++ {
		if err := sorters[r-offset].Finish(); err != nil {
			return err
		}
	}
	return nil
}

// reducers are those of this process.
func (j *job) reducers() (first, end int) { return share(j.cfg.Reducers, j.x.Rank(), j.x.Size()) }

// reduce has each reducer go through its pairs in the order of their keys.
func (j *job) reduce(ctx context.Context, sorters []*external.Sorter) error {
	offset, _ := j.reducers()
	parts := make([]part, j.x.Threads())
	g, ctx := errgroup.WithContext(ctx)
	for thread := range parts {
		first, end := share(j.cfg.Reducers, j.x.Rank()*j.x.Threads()+thread, j.x.Partitions())
		g.Go(func() error {
			for _, s := range sorters[first-offset : end-offset] {
				if err := j.reduceOne(ctx, s, &parts[thread]); err != nil {
					return err
				}
				if err := s.Close(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	for _, p := range parts {
		j.own.Pairs += p.Pairs
		j.own.Groups += p.Groups
		j.own.Runs += p.Runs
		j.own.Received += p.Received
	}
	return err
}

func (j *job) reduceOne(ctx context.Context, s *external.Sorter, p *part) error {
	last := int64(-1)
	done := 0
	err := s.Each(ctx, func(record []byte) error {
		key := int64(keyOf(record))
		switch {
		case key > last:
			p.Groups++
			last = key
		case key < last:
			return fmt.Errorf("key %d comes after %d: a defect", key, last)
		}
		p.Pairs++
		if j.cfg.Check {
			p.Received += checksum(record)
		}
		if done += len(record); done >= progressEach {
			j.progress.add(done)
			done = 0
		}
		return nil
	})
	j.progress.add(done)
	p.Runs += s.Runs()
	return err
}
