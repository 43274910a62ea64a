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
	longest int    // that a record may be
	carry   []byte // the beginning of a line
	buffers [][]byte
}

func newScanner(format Format, longest int) *scanner {
	s := &scanner{format: format, longest: longest}
	for range blocksAhead {
		s.buffers = append(s.buffers, make([]byte, 0, blockSize))
	}
	return s
}

// scan calls take for each record that begins in the span, and read with the bytes that have
// been read. Records are valid during the call.
func (s *scanner) scan(ctx context.Context, span dataset.Span, take func(record []byte) error, read func(n int)) error {
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
	s.carry = s.carry[:0]
	for b := range blocks {
		if b.err != nil {
			return fmt.Errorf("%s: %w", span.Input.Name(), b.err)
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
	if len(s.carry) > 0 {
		return take(append(s.carry, '\n'))
	}
	return nil
}

// block takes the records of a block that begins at a place. It is done when it has come to
// a record that begins at end or behind it.
func (s *scanner) block(data []byte, at, end int64, skip *bool, take func([]byte) error) (done bool, err error) {
	if size := s.format.fixed(); size > 0 {
		if at >= end { // spans are whole records
			return true, nil
		}
		for ; len(data) >= size; data = data[size:] {
			if err := take(data[:size]); err != nil {
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
	if len(s.carry) > 0 {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			return false, s.keep(data)
		}
		if err := s.keep(data[:i+1]); err != nil {
			return false, err
		}
		if err := take(s.carry); err != nil {
			return false, err
		}
		s.carry = s.carry[:0]
		data, at = data[i+1:], at+int64(i)+1
	}
	for at < end {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			return false, s.keep(data)
		}
		if err := take(data[:i+1]); err != nil {
			return false, err
		}
		data, at = data[i+1:], at+int64(i)+1
	}
	return true, nil
}

func (s *scanner) keep(part []byte) error {
	if len(s.carry)+len(part) > s.longest {
		return fmt.Errorf("a line is longer than the %d bytes that fit into a process's share of the memory: raise --memory, or check that these are lines", s.longest)
	}
	s.carry = append(s.carry, part...)
	return nil
}
