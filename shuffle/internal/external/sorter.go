package external

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
)

// Config says what is sorted, and with what.
type Config struct {
	// Fixed is the length of each record; 0 stands for lines, which end with a newline
	// that does not count in the order.
	Fixed int
	// Pairs says that records are those of AppendPair, in the order of their keys alone.
	Pairs bool
	// Memory is how many bytes the sorter may take, MinMemory at least.
	Memory int64
	// Dir is where temporary files go. They have no names, and are gone with the process.
	Dir string
}

// MinMemory is the least memory of a sorter in bytes.
const MinMemory = 8 << 20

const (
	arenas      = 4         // of which one fills while others are sorted and written
	blockSize   = 1 << 20   // of what is written at once
	leastBuffer = 128 << 10 // for reading a run
	pageSize    = 4096
)

// ErrTooLong says that a record does not fit into the sorter's memory.
var ErrTooLong = errors.New("longer than a quarter of the memory for sorting")

// errClosed is what a sorter fails with that is closed.
var errClosed = errors.New("the sorter is closed")

// A Sorter takes records by Add, by one goroutine, then Finish, then Merge, once each.
// Close frees everything at any time, but not beside another call.
type Sorter struct {
	// ctx ends with the context of New, when writing fails, and with Close. Its cause is what Add and Finish fail with.
	ctx    context.Context
	cancel context.CancelCauseFunc
	awake  func() bool // forgets that take is woken when ctx ends

	cfg    Config
	layout layout
	block  []byte
	arenas []*arena
	filled *arena // the one that Add fills
	size   int64
	count  int64
	long   int // the longest record

	work chan *arena
	done chan struct{} // closed when nobody takes work any more

	mu     sync.Mutex
	change sync.Cond
	free   []*arena
	sorted []*arena // in memory, in order
	runs   []*run
}

// New returns a sorter. When ctx ends, Add and Finish fail with its cause, and nothing more is sorted or written.
func New(ctx context.Context, cfg Config) (*Sorter, error) {
	if cfg.Memory < MinMemory {
		return nil, fmt.Errorf("sorting wants at least %d MiB of memory", MinMemory>>20)
	}
	return newSorter(ctx, cfg)
}

func blockOf(memory int64) int { return min(blockSize, int(memory/8)) }

// divide says how many arenas there are beside the block, and how many bytes each has.
func divide(memory int64, block int) (n int64, each int) {
	n = arenas
	if (memory-int64(block))/n > arenaLimit {
		n = (memory - int64(block)) / arenaLimit
	}
	return n, int((memory-int64(block))/n) / pageSize * pageSize
}

// Longest is how long a record may be, in bytes, for a sorter with so much memory.
func Longest(memory int64) int {
	_, each := divide(memory, blockOf(memory))
	return each - entrySize
}

func newSorter(ctx context.Context, cfg Config) (*Sorter, error) {
	block := blockOf(cfg.Memory)
	s := &Sorter{cfg: cfg, done: make(chan struct{})}
	s.change.L = &s.mu
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.awake = context.AfterFunc(s.ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.change.Broadcast()
	})
	switch {
	case cfg.Pairs:
		s.layout = framed{}
	case cfg.Fixed > 0:
		s.layout = fixed(cfg.Fixed)
	default:
		s.layout = lines{}
	}
	n, each := divide(cfg.Memory, block)
	s.work = make(chan *arena, 2*n)
	var err error
	failed := func(err error) (*Sorter, error) {
		s.work = nil
		close(s.done)
		return nil, errors.Join(err, s.Close())
	}
	if s.block, err = MapMemory(block); err != nil {
		return failed(err)
	}
	for range n {
		m, err := MapMemory(each)
		if err != nil {
			return failed(err)
		}
		s.arenas = append(s.arenas, &arena{memory: m})
	}
	s.free = slices.Clone(s.arenas[1:])
	s.filled = s.arenas[0]
	go s.sortAndSpill(s.work)
	return s, nil
}

// Add copies a record: one of the fixed length, a line with its newline, or a pair.
func (s *Sorter) Add(record []byte) error {
	room, err := s.room(len(record))
	if err != nil {
		return err
	}
	copy(room, record)
	s.add(room)
	return nil
}

// AddBy is Add of a record of n bytes that write puts where the sorter keeps it: nobody else need hold it.
// If write fails nothing is added.
func (s *Sorter) AddBy(n int, write func(record []byte) error) error {
	room, err := s.room(n)
	if err != nil {
		return err
	}
	if err := write(room); err != nil {
		return err
	}
	s.add(room)
	return nil
}

// room is where a record of n bytes goes.
func (s *Sorter) room(n int) ([]byte, error) {
	for {
		if room := s.filled.room(n); room != nil {
			return room, nil
		}
		if s.filled.entries == 0 {
			if s.ctx.Err() != nil {
				return nil, context.Cause(s.ctx)
			}
			return nil, fmt.Errorf("a record of %d bytes is %w (%d MiB)", n, ErrTooLong, s.cfg.Memory>>20)
		}
		s.work <- s.filled
		if err := s.take(); err != nil {
			return nil, err
		}
	}
}

// add takes the record that lies in its room.
func (s *Sorter) add(record []byte) {
	at, length := s.layout.key(record)
	s.filled.add(record, at, length)
	s.size += int64(len(record))
	s.count++
	s.long = max(s.long, len(record))
}

// take waits for an empty arena.
func (s *Sorter) take() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.free) == 0 && s.ctx.Err() == nil {
		s.change.Wait()
	}
	if s.ctx.Err() != nil {
		s.filled = &arena{} // nothing fits
		return context.Cause(s.ctx)
	}
	s.filled = s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return nil
}

// sortAndSpill sorts filled arenas, and writes them to runs when few empty ones are left. When the sorter's context has ended it
// leaves them as they are.
func (s *Sorter) sortAndSpill(work <-chan *arena) {
	defer close(s.done)
	for a := range work {
		if s.ctx.Err() != nil {
			continue
		}
		a.sort()
		s.mu.Lock()
		s.sorted = append(s.sorted, a)
		var oldest []*arena
		if len(s.free) == 0 && s.ctx.Err() == nil {
			oldest, s.sorted = s.sorted[:1:1], s.sorted[1:]
		}
		s.mu.Unlock()
		if err := s.spill(s.ctx, oldest); err != nil {
			s.cancel(err)
		}
	}
}

// spill merges sorted arenas into a run.
func (s *Sorter) spill(ctx context.Context, from []*arena) error {
	if len(from) == 0 {
		return nil
	}
	r, err := s.write(ctx, s.memorySources(from))
	for _, a := range from {
		a.reset()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, from...)
	if err == nil {
		s.runs = append(s.runs, r)
	}
	s.change.Broadcast()
	return err
}

func (s *Sorter) memorySources(from []*arena) (sources []source) {
	for _, a := range from {
		sources = append(sources, &memorySource{a, a.all(), s.layout})
	}
	return sources
}

// write merges sources into a new run.
func (s *Sorter) write(ctx context.Context, sources []source) (*run, error) {
	r, err := newRun(s.cfg.Dir)
	if err != nil {
		return nil, err
	}
	m, err := newMerger(sources, s.layout)
	if err == nil {
		count := counter{r.file, &r.length}
		err = m.writeTo(ctx, &blockWriter{to: count, buffer: s.block}, func(int) {})
	}
	switch {
	case ctx.Err() != nil:
		return nil, errors.Join(context.Cause(ctx), r.close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("writing sorted records to %s: %w", s.cfg.Dir, err), r.close())
	}
	return r, nil
}

type counter struct {
	file *os.File
	n    *int64
}

func (c counter) Write(p []byte) (int, error) {
	n, err := c.file.Write(p)
	*c.n += int64(n)
	return n, err
}

// Finish waits until all that was added is sorted.
func (s *Sorter) Finish() error {
	last := s.filled
	s.filled = &arena{}
	if last.entries > 0 {
		s.work <- last
	}
	close(s.work)
	s.work = nil
	<-s.done
	if last.entries == 0 {
		s.free = append(s.free, last)
	}
	return context.Cause(s.ctx)
}

// Size is how many bytes were added.
func (s *Sorter) Size() int64 { return s.size }

// Records is how many records were added.
func (s *Sorter) Records() int64 { return s.count }

// Runs is how many temporary files there are.
func (s *Sorter) Runs() int { return len(s.runs) }

// Merge writes all records in order, in blocks of 1 MiB. It calls progress with the bytes
// that are done since the last call. When ctx ends it fails with its cause, before the next block.
func (s *Sorter) Merge(ctx context.Context, w io.Writer, progress func(bytes int)) error {
	m, err := s.merger(ctx)
	if m == nil || err != nil {
		return err
	}
	return m.writeTo(ctx, &blockWriter{to: w, buffer: s.block}, progress)
}

// Each calls take for all records in order. It stands in place of Merge. When ctx ends it fails with its cause, at most 1024
// records or 1 MiB later.
func (s *Sorter) Each(ctx context.Context, take func(record []byte) error) error {
	m, err := s.merger(ctx)
	if m == nil || err != nil {
		return err
	}
	return m.each(ctx, take)
}

// merger merges runs until all that is left can be merged at once. It is nil if there are no
// records.
func (s *Sorter) merger(ctx context.Context) (*merger, error) {
	buffer, fanIn := s.buffers()
	if len(s.runs) > fanIn || len(s.runs) > 0 && len(s.free) == 0 {
		// More runs than can be read at a time: all the memory goes to buffers.
		sorted := s.sorted
		s.sorted = nil
		if err := s.spill(ctx, sorted); err != nil {
			return nil, err
		}
		buffer, fanIn = s.buffers()
	}
	for len(s.runs) > fanIn {
		// No more than what is needed, the shortest first.
		slices.SortFunc(s.runs, func(a, b *run) int { return int(min(max(a.length-b.length, -1), 1)) })
		n := min(fanIn, len(s.runs)-fanIn+1)
		r, err := s.write(ctx, s.runSources(s.runs[:n], buffer))
		if err != nil {
			return nil, err
		}
		for _, old := range s.runs[:n] {
			if err := old.close(); err != nil {
				return nil, err
			}
		}
		s.runs = append(s.runs[n:], r)
	}
	sources := append(s.memorySources(s.sorted), s.runSources(s.runs, buffer)...)
	if len(sources) == 0 {
		return nil, nil
	}
	return newMerger(sources, s.layout)
}

// buffers says how large a buffer of a run is, and how many there can be: two at least,
// since no record is longer than an arena.
func (s *Sorter) buffers() (size, count int) {
	if len(s.free) == 0 {
		return 0, 0
	}
	each := len(s.free[0].memory)
	least := max(min(leastBuffer, each/8), s.long)
	size = max(least, each/max(1, (len(s.runs)+len(s.free)-1)/len(s.free)))
	return size, each / size * len(s.free)
}

// runSources reads runs with buffers in the free arenas.
func (s *Sorter) runSources(runs []*run, size int) (sources []source) {
	for i, r := range runs {
		each := len(s.free[0].memory) / size
		memory := s.free[i/each].memory
		sources = append(sources, &runSource{run: r, layout: s.layout, buffer: memory[i%each*size:][:size]})
	}
	return sources
}

// Close frees the memory and the temporary files. It waits for the arena that is being sorted, or for the block that is being
// written; what is queued behind them is left.
func (s *Sorter) Close() error {
	s.awake() // nobody waits
	s.cancel(errClosed)
	if s.work != nil {
		close(s.work)
		s.work = nil
	}
	<-s.done
	var errs []error
	for _, r := range s.runs {
		errs = append(errs, r.close())
	}
	s.runs = nil
	for _, a := range s.arenas {
		errs = append(errs, Unmap(a.memory))
	}
	s.arenas = nil
	if s.block != nil {
		errs = append(errs, Unmap(s.block))
		s.block = nil
	}
	return errors.Join(errs...)
}
