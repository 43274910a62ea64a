package sort

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/dataset"
)

// A long line does not go through the exchange, in which each of many senders may have one that is half received.
// Who sorts it gets a reference, and reads it from the input to where it stays.

// The lines that a process's threads may have half received together are bounded, and so shorter for more senders. What is
// held of a longer one decides between bounds, which have sampleKey bytes at most.
const (
	halfReceived          = 4 << 20
	mostShort, leastShort = 64 << 10, 4 << 10
)

// shortLine is up to how many bytes a line goes through the exchange.
func shortLine(x *shuffle.Exchange) int {
	return min(max(halfReceived/(x.Partitions()*x.Threads()), leastShort), mostShort)
}

// reference tells where a line lies in the inputs.
type reference struct {
	file       int
	at, length int64 // without its newline
}

// encode appends it as a record, which does not end with a newline as lines do.
func (r reference) encode(b []byte) []byte {
	for _, n := range []int64{int64(r.file), r.at, r.length} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return append(b, 0)
}

// decode reads a reference to a line of the inputs.
func decode(record []byte, inputs []*dataset.Input) (r reference, err error) {
	var numbers [3]uint64
	rest := record
	for i := range numbers {
		n, width := binary.Uvarint(rest)
		if width <= 0 {
			return r, fmt.Errorf("%w: %x", errReference, record)
		}
		numbers[i], rest = n, rest[width:]
	}
	if len(rest) != 1 || numbers[0] >= uint64(len(inputs)) {
		return r, fmt.Errorf("%w: %x", errReference, record)
	}
	size := uint64(inputs[numbers[0]].Size())
	if numbers[1] > size || numbers[2] > size-numbers[1] {
		return r, fmt.Errorf("%w: %x", errReference, record)
	}
	return reference{int(numbers[0]), int64(numbers[1]), int64(numbers[2])}, nil
}

var errReference = errors.New("a damaged reference to a line")

// read reads the line, of which another process has found the ends.
func (r reference) read(ctx context.Context, in *dataset.Input, line []byte) error {
	for at, rest := r.at, line; len(rest) > 0; {
		part := rest[:min(len(rest), blockSize)]
		n, err := in.ReadAt(part, at)
		if n < len(part) {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("%s: read the line at byte %d: %w", in.Name(), r.at, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at, rest = at+int64(n), rest[n:]
	}
	if bytes.IndexByte(line, '\n') >= 0 {
		return fmt.Errorf("%s: the line at byte %d is another one than for who has found it: all must see the same files, or copies, and nobody may write them", in.Name(), r.at)
	}
	return nil
}
