package shuffle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
)

// A Codec turns values into records and back. Append adds the record of v to b, as append
// does. Decode may keep nothing of the bytes, which are overwritten later. Senders and receivers of several
// goroutines that share a codec call its functions concurrently.
type Codec[T any] struct {
	Append func(b []byte, v T) []byte
	Decode func(b []byte) (T, error)
}

// A TypedSender is a [Sender] of values. It belongs to one goroutine at a time.
type TypedSender[T any] struct {
	s         *Sender
	codec     Codec[T]
	partition func(T) int
	scratch   []byte
}

// NewTypedSender returns a sender of values to the partitions that partition chooses. Senders of several goroutines that
// share that function call it concurrently.
func NewTypedSender[T any](s *Sender, codec Codec[T], partition func(T) int) *TypedSender[T] {
	return &TypedSender[T]{s: s, codec: codec, partition: partition}
}

// Send sends a value, as [Sender.Send] does a record.
func (t *TypedSender[T]) Send(v T) error {
	t.scratch = t.codec.Append(t.scratch[:0], v)
	return t.s.Send(t.partition(v), t.scratch)
}

// Flush is [Sender.Flush].
func (t *TypedSender[T]) Flush() error { return t.s.Flush() }

// Close is [Sender.Close].
func (t *TypedSender[T]) Close() error { return t.s.Close() }

// A TypedReceiver is a [Receiver] of values. It belongs to one goroutine at a time.
type TypedReceiver[T any] struct {
	r     *Receiver
	codec Codec[T]
}

// NewTypedReceiver returns a receiver of values.
func NewTypedReceiver[T any](r *Receiver, codec Codec[T]) *TypedReceiver[T] {
	return &TypedReceiver[T]{r: r, codec: codec}
}

// Next returns the next value, as [Receiver.Next] does a record.
func (t *TypedReceiver[T]) Next(ctx context.Context) (v T, err error) {
	record, err := t.r.Next(ctx)
	if err != nil {
		return v, err
	}
	if v, err = t.codec.Decode(record); err != nil {
		return v, fmt.Errorf("shuffle: decode a record of %d bytes: %w", len(record), err)
	}
	return v, nil
}

// All returns the values until the end. An error, which is never io.EOF, is the last
// thing that it yields.
func (t *TypedReceiver[T]) All(ctx context.Context) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			v, err := t.Next(ctx)
			if errors.Is(err, io.EOF) || !yield(v, err) || err != nil {
				return
			}
		}
	}
}
