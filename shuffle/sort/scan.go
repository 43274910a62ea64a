package sort

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-data/verbena/internal/gensort"
	"github.com/verbena-data/verbena/shuffle/dataset"
)

// A Format says how files are divided into records.
type Format string

// The formats.
const (
	// Lines end with a newline each; the last one may lack it, and gets it. They are
	// ordered as bytes, as LC_ALL=C sort does.
	Lines Format = "lines"
	// Gensort are records of 100 bytes, ordered by their first 10 and then by the others.
	Gensort Format = "gensort"
)

// fixed is the length of each record, or 0.
func (f Format) fixed() int {
	if f == Gensort {
		return gensort.RecordSize
	}
	return 0
}

// tail is how many bytes of a record do not count in the order.
func (f Format) tail() int {
	if f == Lines {
		return 1
	}
	return 0
}

const (
	// blockSize is how much is read at once: a multiple of a record's length.
	blockSize = 1 << 20 / gensort.RecordSize * gensort.RecordSize
	// blocksAhead is how many blocks of a thread there are.
	blocksAhead = 3
	// beyond is how much is read at once to find the end of the last line.
	beyond = 64 << 10
)

// block is a part of a file.
type block struct {
	data []byte
	err  error
}

// readAhead reads a file from a place on, until what it gives to is not interested any more.
// Blocks up to border end there.
func readAhead(ctx context.Context, in *dataset.Input, at, border int64, free <-chan []byte, to chan<- block) {
	defer close(to)
	for at < in.Size() {
		var buffer []byte
		select {
		case buffer = <-free:
		case <-ctx.Done():
			return
		}
		n := min(int64(cap(buffer)), in.Size()-at)
		if at < border {
			n = min(n, border-at)
		} else {
			n = min(n, beyond)
		}
		got, err := in.ReadAt(buffer[:n], at)
		if int64(got) < n {
			if err == nil || errors.Is(err, io.EOF) {
				err = fmt.Errorf("it has become shorter: %w", io.ErrUnexpectedEOF)
			}
		} else {
			err = nil
		}
		at += int64(got)
		select {
		case to <- block{buffer[:got], err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// scanner reads records of spans.
type scanner struct {
	format  Format
	name    string // of the file
	short   int    // up to how many bytes a line is held, without its newline
	longest int64  // that a line may be, with its newline
	carry   []byte
	seen    int64 // bytes of the line that has begun, of which carry holds the first
	buffers [][]byte
}

// takers take what a scanner finds, during the call.
type takers struct {
	record func(record []byte) error
	// long takes a line that is not held: how it begins, where that is, and how many bytes it has without its newline.
	long func(head []byte, at, length int64) error
}

func newScanner(format Format, short int, longest int64) *scanner {
	s := &scanner{format: format, short: short, longest: longest, carry: make([]byte, 0, short+1)}
	for range blocksAhead {
		s.buffers = append(s.buffers, make([]byte, 0, blockSize))
	}
	return s
}

// scan gives each record that begins in the span to take, and the number of bytes that have been read to read.
func (s *scanner) scan(ctx context.Context, span dataset.Span, take takers, read func(n int)) error {
	at := span.From
	skip := s.format == Lines && at > 0
	if skip {
		at-- // a newline there ends the line before the span
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	free, blocks := make(chan []byte, blocksAhead), make(chan block, blocksAhead)
	for _, b := range s.buffers {
		free <- b
	}
	go readAhead(ctx, span.Input, at, span.To, free, blocks)
	defer func() {
		cancel()
		for range blocks { // until it has ended
		}
	}()
	s.name, s.carry, s.seen = span.Input.Name(), s.carry[:0], 0
	for b := range blocks {
		if b.err != nil {
			return fmt.Errorf("%s: %w", s.name, b.err)
		}
		done, err := s.block(b.data, at, span.To, &skip, take)
		if err != nil || done {
			return err
		}
		at += int64(len(b.data))
		read(len(b.data))
		free <- b.data[:0]
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.seen > 0 {
		return s.end(nil, at, take)
	}
	return nil
}

// block takes the records of a block that begins at a place. It is done when it has come to
// a record that begins at end or behind it.
func (s *scanner) block(data []byte, at, end int64, skip *bool, take takers) (done bool, err error) {
	if size := s.format.fixed(); size > 0 {
		if at >= end { // spans are whole records
			return true, nil
		}
		for ; len(data) >= size; data = data[size:] {
			if err := take.record(data[:size]); err != nil {
				return false, err
			}
		}
		return false, nil
	}
	if *skip {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			return at+int64(len(data)) >= end, nil
		}
		*skip = false
		data, at = data[i+1:], at+int64(i)+1
	}
	for s.seen > 0 || at < end {
		i := bytes.IndexByte(data, '\n')
		switch {
		case i < 0:
			return false, s.keep(data, at)
		case s.seen == 0 && i <= s.short:
			err = take.record(data[:i+1])
		default:
			err = s.end(data[:i], at, take)
		}
		if err != nil {
			return false, err
		}
		data, at = data[i+1:], at+int64(i)+1
	}
	return true, nil
}

// keep adds to the line that has begun what follows at a place.
func (s *scanner) keep(part []byte, at int64) error {
	s.carry = append(s.carry, part[:min(len(part), s.short-len(s.carry))]...)
	if s.seen += int64(len(part)); s.seen > s.longest+tellBeyond {
		return s.tooLong(at+int64(len(part)), "more than ")
	}
	return nil
}

// end adds the last of a line, which is at a place, and gives it away.
func (s *scanner) end(part []byte, at int64, take takers) error {
	if err := s.keep(part, at); err != nil {
		return err
	}
	at += int64(len(part))
	if s.seen >= s.longest {
		return s.tooLong(at, "")
	}
	length := s.seen
	head := s.carry
	s.carry, s.seen = s.carry[:0], 0
	if length <= int64(s.short) {
		return take.record(append(head, '\n'))
	}
	return take.long(head, at-length, length)
}

// tellBeyond is how much more than may be is read of a line, to tell how long it is.
const tellBeyond = 256 << 20

// tooLong tells of the line that has been read up to a place.
func (s *scanner) tooLong(at int64, more string) error {
	return fmt.Errorf("%s: the line at byte %d has %s%d bytes, and a thread's share of the memory holds one of %d: raise --memory, or check that these are lines",
		s.name, at-s.seen, more, s.seen, s.longest-1)
}
