package dataset

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// ErrLongLine says that a line is longer than may be.
var ErrLongLine = errors.New("dataset: line too long")

const (
	// lineBuffer is how much of a file is read at once.
	lineBuffer = 256 << 10
	// longestLine bounds the lines of Files.Lines.
	longestLine = 64 << 20
)

// Lines calls take with each line that begins in one of several parts of files, without its end, which is a newline with
// or without a carriage return before it. The parts have about the same length, so that the threads of a job which take a
// part each have the same to do. Lines are valid during the call, and have at most 64 MiB.
func (f *Files) Lines(ctx context.Context, names []string, part, parts int, take func(line []byte) error) (err error) {
	var inputs []*Input
	defer func() {
		for _, i := range inputs {
			err = errors.Join(err, i.Close())
		}
	}()
	for _, name := range names {
		i, err := f.Open(ctx, name)
		if err != nil {
			return err
		}
		inputs = append(inputs, i)
	}
	spans, err := Split(inputs, part, parts, 1)
	if err != nil {
		return err
	}
	for _, s := range spans {
		if err := s.Lines(ctx, longestLine, func(_ int64, line []byte) error { return take(line) }); err != nil {
			return fmt.Errorf("%s: %w", s.Input.name, err)
		}
	}
	return nil
}

// Lines calls take with each line that begins in the span, and where it begins in the file. They come without their ends,
// and are valid during the call; one of more than longest bytes, without its end, is an [ErrLongLine].
func (s Span) Lines(ctx context.Context, longest int, take func(at int64, line []byte) error) error {
	at := s.From
	skip := at > 0
	if skip {
		at-- // a newline there ends the line before the span
	}
	in := bufio.NewReaderSize(io.NewSectionReader(s.Input, at, s.Input.Size()-at), lineBuffer)
	if skip {
		n, err := skipLine(ctx, in, s.To-at)
		if err != nil {
			return err
		}
		at += n
	}
	var long []byte
	for n := 0; at < s.To; n++ {
		if n&1023 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long[:0], line...)
			for errors.Is(err, bufio.ErrBufferFull) && len(long) <= longest+len(lineEnd) {
				line, err = in.ReadSlice('\n')
				if n := len(long) + len(line); n > cap(long) { // not far beyond what a line may have
					long = append(make([]byte, 0, max(n, min(2*cap(long), longest+len(lineEnd)))), long...)
				}
				long = append(long, line...)
			}
			line = long
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		if len(line) == 0 {
			return nil
		}
		content := trimEnd(line)
		if len(content) > longest {
			n, more := len(content), ""
			if errors.Is(err, bufio.ErrBufferFull) {
				if n, more, err = lineGoesOn(ctx, in, len(line)); err != nil {
					return err
				}
			}
			return fmt.Errorf("%w: that at byte %d has %s%d bytes, at most %d are possible", ErrLongLine, at, more, n, longest)
		}
		if err := take(at, content); err != nil {
			return err
		}
		at += int64(len(line))
	}
	return nil
}

// tellBeyond is how much more than may be is read of a line, to tell how long it is.
const tellBeyond = 256 << 20

// lineGoesOn reads on in a line of which n bytes have been read, and returns how long it is without its end, or "more than" what
// has been read when that is enough.
func lineGoesOn(ctx context.Context, in *bufio.Reader, n int) (length int, more string, err error) {
	for most := n + tellBeyond; n < most && ctx.Err() == nil; {
		part, err := in.ReadSlice('\n')
		if err == nil {
			part = trimEnd(part)
		}
		n += len(part)
		if err == nil || errors.Is(err, io.EOF) {
			return n, "", nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return n, "", err
		}
	}
	return n, "more than ", context.Cause(ctx)
}

// trimEnd takes its end off a line.
func trimEnd(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte(lineEnd[1:])), []byte(lineEnd[:1]))
}

// lineEnd ends lines; the carriage return may be missing.
const lineEnd = "\r\n"

// skipLine reads the rest of a line, as long as that is within the next most bytes, and returns how long it is. Who reads what is
// before the span finds it too long, if it is.
func skipLine(ctx context.Context, in *bufio.Reader, most int64) (n int64, err error) {
	for n < most && ctx.Err() == nil {
		part, err := in.ReadSlice('\n')
		n += int64(len(part))
		if err == nil || errors.Is(err, io.EOF) {
			return n, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return n, err
		}
	}
	return n, context.Cause(ctx)
}
