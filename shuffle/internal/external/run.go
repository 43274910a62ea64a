package external

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/verbena-data/verbena/internal/unnamed"
)

// A run is sorted records in a temporary file without a name.
type run struct {
	file   *os.File
	length int64
}

func (r *run) close() error { return r.file.Close() }

// newRun makes a file in dir.
func newRun(dir string) (*run, error) {
	f, err := unnamed.File(dir, "verbena-sort")
	if err != nil {
		return nil, fmt.Errorf("a temporary file: %w", err)
	}
	return &run{file: f}, nil
}

// A source yields records in order.
type source interface {
	// next returns the next record, which is valid until the call after it, or io.EOF.
	next() ([]byte, error)
}

// memorySource yields the records of a sorted arena.
type memorySource struct {
	arena   *arena
	entries []entry
	layout  layout
}

func (m *memorySource) next() ([]byte, error) {
	if len(m.entries) == 0 {
		return nil, io.EOF
	}
	e := m.entries[0]
	m.entries = m.entries[1:]
	return m.layout.whole(m.arena.memory, int(e.at), int(e.length)), nil
}

// runSource reads a run through a buffer that holds the longest record at least.
type runSource struct {
	run    *run
	layout layout
	buffer []byte
	from   int   // where the next record begins in the buffer
	to     int   // how far the buffer is filled
	read   int64 // bytes of the run that have been read
	freed  int64 // bytes of the run that the file system has got back
}

// freeAfter is after how many bytes a run gives back what has been read, so that the kernel
// need not write it to the disk any more.
const freeAfter = 16 << 20

func (r *runSource) next() ([]byte, error) {
	for {
		rest := r.buffer[r.from:r.to]
		if n := r.layout.first(rest); n > 0 {
			r.from += n
			return rest[:n], nil
		}
		if err := r.fill(); err != nil {
			return nil, err
		}
	}
}

func (r *runSource) fill() error {
	if r.read == r.run.length {
		if r.from < r.to {
			return fmt.Errorf("a temporary file ends within a record: %w", io.ErrUnexpectedEOF)
		}
		return io.EOF
	}
	r.to = copy(r.buffer, r.buffer[r.from:r.to])
	r.from = 0
	if r.to == len(r.buffer) {
		return errors.New("a temporary file holds a record that is longer than any written")
	}
	n, err := r.run.file.ReadAt(r.buffer[r.to:][:min(int64(len(r.buffer)-r.to), r.run.length-r.read)], r.read)
	r.to += n
	r.read += int64(n)
	if n == 0 && err != nil {
		return fmt.Errorf("reading a temporary file back: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	if r.read-r.freed >= freeAfter {
		free(r.run.file, r.freed, r.read-r.freed)
		r.freed = r.read
	}
	return nil
}

// blockWriter gathers what is written into large blocks.
type blockWriter struct {
	to     io.Writer
	buffer []byte
	n      int
}

func (b *blockWriter) write(ctx context.Context, p []byte) error {
	for b.n+len(p) > len(b.buffer) {
		k := copy(b.buffer[b.n:], p)
		b.n += k
		p = p[k:]
		if err := b.flush(ctx); err != nil {
			return err
		}
	}
	b.n += copy(b.buffer[b.n:], p)
	return nil
}

func (b *blockWriter) flush(ctx context.Context) error {
	if ctx.Err() != nil { // a record may have many blocks
		return context.Cause(ctx)
	}
	_, err := b.to.Write(b.buffer[:b.n])
	b.n = 0
	return err
}
