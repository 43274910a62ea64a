package groupby

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/internal/unnamed"
	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/dataset"
	"github.com/verbena-data/verbena/shuffle/internal/external"
	"github.com/verbena-data/verbena/shuffle/internal/together"
)

// Config says what is grouped. All processes of a job have the same, but for Temporary and
// Progress.
type Config struct {
	Format Format
	// Inputs are files, directories or patterns: see [dataset.Files.Expand].
	Inputs []string
	// Key is the field by which records are grouped; for Words there is none to name.
	Key string
	// Sum is the field to add up. If it is empty, records are counted.
	Sum string
	// Output is a file. If it is empty, process 0 writes to Print.
	Output string
	Print  io.Writer
	// Memory is this process's share for the work in bytes, without that of the exchange: see
	// [Divide]. Run fails with less than 24 MiB for each thread, and when a line, a record of CSV or a key does not fit: into
	// a 32nd of what a thread has, an eightieth, and a 32nd divided by 24 and two for each thread of all processes.
	Memory    int64
	Temporary string
	Files     *dataset.Files
	// Progress is told how many bytes this process has read, of how many of all: CSV is read twice. It may be
	// nil, and is called concurrently.
	Progress func(read, total int64)

	threads, partitions int // of the exchange
}

// Result is what was done, by all processes together.
type Result struct {
	Bytes     int64         `json:"bytes"`    // of the input
	Groups    int64         `json:"groups"`   // of the output
	Records   int64         `json:"records"`  // that were counted or added up
	Skipped   int64         `json:"skipped"`  // records without the key
	Shuffled  int64         `json:"shuffled"` // partial results that went through the exchange
	Runs      int           `json:"runs"`     // temporary files
	Finished  time.Duration `json:"finished"`
	Processes int           `json:"processes"`
	Ways      []shuffle.Way `json:"ways"` // of all processes; two that exchange count as a peer each
}

// leastThread is what a thread needs: tables of what it sends and receives, and a sorter.
const leastThread = 3*external.MinMemory + 4*bufferSize

// Divide gives a process's memory, in bytes, to the exchange, as [shuffle.Config.Memory], and to the work, as
// [Config.Memory]. What the program itself takes is neither's. threads is that of the exchange. It fails if memory is less
// than a process with so many threads needs.
func Divide(memory int64, threads int) (exchange, work int64, err error) {
	least := int64(together.Overhead+together.LeastExchange) + int64(threads)*leastThread
	return together.Divide(memory, least, int64(threads)*4*bufferSize, threads)
}

// thirds of a thread's memory go to its table of what it sends, to that of what it receives,
// and to its sorter.
func (c *Config) third() int64 { return c.Memory / int64(c.threads) / 3 }

// Records are on Go's heap while they are read: a recordsShare-th of a thread's memory is for that. Of a record of CSV there are the line,
// the record, its fields and the key, of which two grow by copying: it may have a csvCopies-th of it. Of a line there are itself,
// which grows by copying, and at most the strings in it without what stands for them in JSON: it may have a lineCopies-th.
const (
	recordsShare          = 16
	csvCopies, lineCopies = 5, 2
)

func (c *Config) records() int64 { return c.Memory / int64(c.threads) / recordsShare }

// longest is how long a record may be, in bytes: a line without its end.
func (c *Config) longest() int64 {
	if c.Format == CSV {
		return c.records() / csvCopies
	}
	return c.records() / lineCopies
}

// Keys are on Go's heap, too, while they are sent, received and written. A keysShare-th of a thread's memory is for that. Each
// sender's thread may be in the middle of a key, which grows by copying; and keyCopies more are in the hands of the two
// that send and receive, and in the row, in which six bytes may stand for one.
const keysShare, keyCopies = 32, 24

func (c *Config) keys() int64 { return c.Memory / int64(c.threads) / keysShare }

// longestKey is how long a key may be, in bytes.
func (c *Config) longestKey() int64 { return c.keys() / int64(2*c.partitions+keyCopies) }

// table is how many bytes each of a thread's two tables has.
func (c *Config) table() int64 { return c.third() - (c.records()+c.keys())/2 }

// sampleKeys is how many keys a thread adds to the sample from which the ranges come.
const (
	sampleKeys = 2000
	sampleKey  = 200
	sampleMost = 900 << 10 // bytes of a process's sample
)

type job struct {
	cfg     Config
	x       *shuffle.Exchange
	inputs  *together.Inputs
	spans   [][]dataset.Span
	quotes  [][]quotes
	output  dataset.Output
	ranges  shuffle.Partitioner
	read    atomic.Int64
	sent    atomic.Int64
	skipped atomic.Int64
	counted atomic.Int64

	sampled sync.WaitGroup // until each thread has given its sample
	ready   chan struct{}  // closed when the ranges are known
	mu      sync.Mutex
	sample  [][]byte
	result  Result
}

// Run groups. All processes of the exchange call it. When it fails in one, it fails in all,
// and the output is not there, or is what it was.
func Run(ctx context.Context, x *shuffle.Exchange, cfg Config) (_ Result, err error) {
	cfg.threads, cfg.partitions = x.Threads(), x.Partitions()
	if cfg.Format == Words {
		cfg.Key = "word"
	}
	j := &job{cfg: cfg, x: x, ready: make(chan struct{})}
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
	if err := j.open(ctx); err != nil {
		return Result{}, err
	}
	parts, err := j.shuffle(ctx)
	defer func() {
		for _, p := range parts {
			err = errors.Join(err, p.close())
		}
	}()
	if err != nil {
		return Result{}, err
	}
	if err := j.inputs.Unchanged(ctx); err != nil {
		return Result{}, err
	}
	if err := j.write(ctx, parts); err != nil {
		return Result{}, err
	}
	if err := x.Wait(ctx); err != nil {
		return Result{}, err
	}
	j.result.Finished = time.Since(begin)
	return j.result, nil
}

func (j *job) open(ctx context.Context) (err error) {
	if j.inputs, err = together.Open(ctx, j.x, j.cfg.Files, j.cfg.Inputs); err != nil {
		return err
	}
	if j.cfg.Output != "" {
		if j.output, err = j.cfg.Files.Output(ctx, j.cfg.Output, j.inputs.ID); err != nil {
			return err
		}
		if err := together.Create(ctx, j.x, j.output, 0); err != nil {
			return err
		}
	}
	if j.spans, err = j.inputs.Parts(j.x, 1); err != nil {
		return err
	}
	if j.cfg.Format == CSV {
		return j.findQuotes(ctx)
	}
	return nil
}

// findQuotes finds out which spans begin within quotes: from how many quotes stand before
// them in their file.
func (j *job) findQuotes(ctx context.Context) error {
	odd := make([][]bool, len(j.spans))
	g, counting := errgroup.WithContext(ctx)
	for thread, spans := range j.spans {
		odd[thread] = make([]bool, len(spans))
		g.Go(func() (err error) {
			for i, s := range spans {
				if odd[thread][i], err = oddQuotes(counting, s, j.tell); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	all, err := together.Gather(ctx, j.x, odd)
	if err != nil {
		return err
	}
	j.quotes = make([][]quotes, len(j.spans))
	within := map[*dataset.Input]bool{}
	for rank, threads := range all {
		for thread, odds := range threads {
			spans, err := dataset.Split(j.inputs.Files, rank*j.x.Threads()+thread, j.x.Partitions(), 1)
			if err != nil {
				return err
			}
			if len(spans) != len(odds) {
				return fmt.Errorf("process %d has divided the input otherwise", rank)
			}
			for i, s := range spans {
				q := quotes{within[s.Input], within[s.Input] != odds[i]}
				if rank == j.x.Rank() {
					j.quotes[thread] = append(j.quotes[thread], q)
				}
				within[s.Input] = q.after
			}
		}
	}
	return nil
}

// part is a range of keys, of this process.
type part struct {
	sorter *external.Sorter
	runs   int
	rows   *os.File // the output's rows, without a name
	size   int64
	groups int64
}

func (p *part) close() (err error) {
	if p.sorter != nil {
		err = p.sorter.Close()
	}
	if p.rows != nil {
		err = errors.Join(err, p.rows.Close())
	}
	return err
}

func (j *job) shuffle(ctx context.Context) (parts []*part, err error) {
	for range j.x.Threads() {
		sorter, err := external.New(ctx, external.Config{Pairs: true, Memory: j.cfg.third(), Dir: j.cfg.Temporary})
		if err != nil {
			return parts, err
		}
		parts = append(parts, &part{sorter: sorter})
	}
	j.sampled.Add(len(parts))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return j.abortIf(j.chooseRanges(ctx)) })
	for thread, p := range parts {
		g.Go(func() error { return j.abortIf(j.send(ctx, thread)) })
		g.Go(func() error { return j.abortIf(j.receive(ctx, thread, p)) })
	}
	return parts, g.Wait()
}

func (j *job) abortIf(err error) error {
	if err != nil {
		j.x.Abort(err)
	}
	return err
}

// chooseRanges waits for the samples of all threads of all processes.
func (j *job) chooseRanges(ctx context.Context) error {
	j.sampled.Wait() // no thread fails to give its part
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	keys, err := together.Keys(ctx, j.x, j.sample)
	if err != nil {
		return err
	}
	slices.SortFunc(keys, bytes.Compare)
	keys = slices.CompactFunc(keys, bytes.Equal)
	var bounds [][]byte
	for i := 1; i < j.x.Partitions() && len(keys) > 0; i++ {
		bounds = append(bounds, keys[len(keys)*i/j.x.Partitions()])
	}
	j.ranges = shuffle.Range(bounds)
	close(j.ready)
	return nil
}

// sender is a thread that reads and sends.
type sender struct {
	j      *job
	ctx    context.Context
	to     *shuffle.Sender
	gave   bool // its sample
	buffer []byte
}

// giveSample adds keys of the table to the sample, once. There is no table if its thread has
// failed before.
func (s *sender) giveSample(t *table) {
	if s.gave {
		return
	}
	s.gave = true
	defer s.j.sampled.Done()
	if t == nil {
		return
	}
	s.j.mu.Lock()
	defer s.j.mu.Unlock()
	size, n := 0, 0
	for key := range t.all() { // from all over the table
		if n++; n%(t.groups/sampleKeys+1) != 0 {
			continue
		}
		if size += min(len(key), sampleKey) + 4; size > sampleMost/s.j.x.Threads() {
			break
		}
		s.j.sample = append(s.j.sample, bytes.Clone(key[:min(len(key), sampleKey)]))
	}
}

// flush sends the partial results.
func (s *sender) flush(t *table) error {
	s.giveSample(t)
	select {
	case <-s.j.ready:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	var state []byte
	for key, v := range t.all() {
		state = v.encode(state[:0])
		s.buffer = external.AppendPair(s.buffer[:0], key, state)
		if err := s.to.Send(s.j.ranges.Partition(key), s.buffer); err != nil {
			return err
		}
	}
	s.j.sent.Add(int64(t.groups))
	return nil
}

// tell says that so many bytes more have been read.
func (j *job) tell(n int) {
	if read := j.read.Add(int64(n)); j.cfg.Progress != nil {
		total := j.inputs.Total
		if j.cfg.Format == CSV { // whose quotes are counted before
			total *= 2
		}
		j.cfg.Progress(min(read, total), total)
	}
}

func (j *job) send(ctx context.Context, thread int) (err error) {
	s := &sender{j: j, ctx: ctx, to: j.x.Sender(thread)}
	t, err := newTable(j.cfg.table(), s.flush)
	if err != nil {
		s.giveSample(nil)
		return err
	}
	defer func() {
		s.giveSample(t) // if it has failed before
		err = errors.Join(err, t.close())
	}()
	r := &reader{cfg: &j.cfg, read: j.tell}
	var counted int64
	r.take = func(key, value []byte) error {
		v, err := j.cfg.value(value)
		if err != nil {
			return err
		}
		if longest := j.cfg.longestKey(); int64(len(key)) > longest {
			return fmt.Errorf("a key of %d bytes is longer than the %d for which there is memory: raise --memory", len(key), longest)
		}
		counted++
		return t.add(key, v)
	}
	for i, span := range j.spans[thread] {
		var q quotes
		if j.quotes != nil {
			q = j.quotes[thread][i]
		}
		if err := r.span(ctx, span, q); err != nil {
			return err
		}
	}
	j.skipped.Add(r.skipped)
	j.counted.Add(counted)
	if err := s.flush(t); err != nil {
		return err
	}
	return s.to.Close()
}

// receive adds up partial results, and sorts them. Then it writes rows.
func (j *job) receive(ctx context.Context, thread int, p *part) (err error) {
	var buffer, encoded []byte
	spill := func(t *table) error {
		for key, v := range t.all() {
			encoded = v.encode(encoded[:0])
			buffer = external.AppendPair(buffer[:0], key, encoded)
			if err := p.sorter.Add(buffer); err != nil {
				return err
			}
		}
		return nil
	}
	t, err := newTable(j.cfg.table(), spill)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := j.x.Receiver(thread).Each(ctx, func(record []byte) error {
		key, value := external.Pair(record)
		v, err := decodeState(value)
		if err != nil {
			return err
		}
		return t.add(key, v)
	}); err != nil {
		return err
	}
	if err := spill(t); err != nil {
		return err
	}
	return j.rows(ctx, p)
}

// rows writes the rows of a part, in order, into a file: how long they are is known then.
func (j *job) rows(ctx context.Context, p *part) (err error) {
	if p.rows, err = unnamed.File(j.cfg.Temporary, "verbena-groupby"); err != nil {
		return fmt.Errorf("a temporary file: %w", err)
	}
	out := bufio.NewWriterSize(&sizing{p.rows, &p.size}, bufferSize)
	format := j.cfg.rowFormat()
	row := func(key []byte, s *state) error {
		p.groups++
		return format(out, key, s)
	}
	if err := p.sorter.Finish(); err != nil {
		return err
	}
	p.runs = p.sorter.Runs()
	var key []byte
	var sum state
	some := false
	err = p.sorter.Each(ctx, func(record []byte) error {
		next, value := external.Pair(record)
		v, err := decodeState(value)
		if err != nil {
			return err
		}
		if some && bytes.Equal(key, next) {
			sum.add(v)
			return nil
		}
		if some {
			if err := row(key, &sum); err != nil {
				return err
			}
		}
		key, sum, some = append(key[:0], next...), v, true
		return nil
	})
	if err == nil && some {
		err = row(key, &sum)
	}
	return errors.Join(err, out.Flush())
}

type sizing struct {
	w io.Writer
	n *int64
}

func (s *sizing) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	*s.n += int64(n)
	return n, err
}

// rowFormat writes a key and its result in the input's format; words as TSV.
func (c *Config) rowFormat() func(w *bufio.Writer, key []byte, s *state) error {
	number := func(s *state, b []byte) []byte {
		if c.Sum != "" {
			return s.sum.append(b)
		}
		return decimal{units: s.count}.append(b)
	}
	var b []byte
	switch c.Format {
	case CSV:
		return func(w *bufio.Writer, key []byte, s *state) error {
			out := csv.NewWriter(w)
			if err := out.Write([]string{string(key), string(number(s, b[:0]))}); err != nil {
				return err
			}
			out.Flush()
			return out.Error()
		}
	case JSONL:
		return func(w *bufio.Writer, key []byte, s *state) (err error) {
			quoted, err := json.Marshal(string(key))
			if err != nil {
				return err
			}
			b = append(append(b[:0], `{"key":`...), quoted...)
			b = append(append(append(b, `,"`...), c.resultName()...), `":`...)
			_, err = w.Write(append(number(s, b), "}\n"...))
			return err
		}
	}
	return func(w *bufio.Writer, key []byte, s *state) error {
		b = append(append(b[:0], key...), '\t')
		_, err := w.Write(append(number(s, b), '\n'))
		return err
	}
}

func (c *Config) resultName() string {
	if c.Sum != "" {
		return "sum"
	}
	return "count"
}

// heading is what stands before all rows.
func (c *Config) heading() string {
	var b bytes.Buffer
	switch c.Format {
	case CSV:
		w := csv.NewWriter(&b)
		_ = w.Write([]string{c.Key, c.resultName()}) // to memory
		w.Flush()
	case TSV:
		fmt.Fprintf(&b, "%s\t%s\n", c.Key, c.resultName())
	}
	return b.String()
}

type share struct {
	Sizes                           []int64
	Groups, Records, Skipped, Moved int64
	Runs                            int
	Ways                            []shuffle.Way
}

// write puts the parts one behind the other, into the output or before process 0.
func (j *job) write(ctx context.Context, parts []*part) error {
	own := share{Ways: j.x.Stats().Ways, Records: j.counted.Load(), Skipped: j.skipped.Load(), Moved: j.sent.Load()}
	for _, p := range parts {
		own.Sizes = append(own.Sizes, p.size)
		own.Groups += p.groups
		own.Runs += p.runs
	}
	shares, err := together.Gather(ctx, j.x, own)
	if err != nil {
		return err
	}
	heading := j.cfg.heading()
	at := int64(len(heading))
	offsets := make([]int64, len(parts))
	for rank, s := range shares {
		if len(s.Sizes) != len(parts) {
			return fmt.Errorf("process %d has %d threads, this one %d", rank, len(s.Sizes), len(parts))
		}
		for thread, n := range s.Sizes {
			if rank == j.x.Rank() {
				offsets[thread] = at
			}
			at += n
		}
		j.result.Groups += s.Groups
		j.result.Records += s.Records
		j.result.Skipped += s.Skipped
		j.result.Shuffled += s.Moved
		j.result.Runs += s.Runs
		j.result.Ways = together.AddWays(j.result.Ways, s.Ways)
	}
	j.result.Bytes, j.result.Processes = j.inputs.Total, len(shares)
	if j.output == nil {
		return j.print(ctx, heading, parts)
	}
	if err := together.ByFirst(ctx, j.x, func() error { return j.output.Prepare(ctx, at) }); err != nil {
		return err
	}
	for thread, p := range parts {
		n := j.x.Rank()*j.x.Threads() + thread
		head, offset := "", offsets[thread]
		if n == 0 {
			head, offset = heading, 0
		}
		if err := j.abortIf(j.copy(ctx, n, offset, head, p)); err != nil {
			return err
		}
	}
	if err := together.Barrier(ctx, j.x); err != nil {
		return err
	}
	return together.ByFirst(ctx, j.x, func() error { return j.output.Commit(ctx, j.x.Partitions()) })
}

func (j *job) copy(ctx context.Context, n int, offset int64, head string, p *part) error {
	return together.WritePart(ctx, j.output, n, offset, int64(len(head))+p.size, func(w io.Writer) error {
		_, err := io.Copy(w, io.MultiReader(strings.NewReader(head), io.NewSectionReader(p.rows, 0, p.size)))
		return err
	})
}

// print has process 0 write the rows of all.
func (j *job) print(ctx context.Context, heading string, parts []*part) error {
	var rows []io.Reader
	if j.x.Rank() == 0 {
		rows = append(rows, strings.NewReader(heading))
	}
	for _, p := range parts {
		rows = append(rows, io.NewSectionReader(p.rows, 0, p.size))
	}
	return together.Print(ctx, j.x, io.MultiReader(rows...), j.cfg.Print)
}
