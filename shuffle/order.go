package shuffle

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/shuffle/internal/external"
)

// An Order says how the records of a partition are sorted.
type Order struct {
	// Key returns a record's key, which may lie in the record. Keys are ordered as bytes, and
	// records with the same key come in any order. Nil: the whole record.
	Key func(record []byte) []byte
	// Memory is how many bytes sorting may take beside the exchange's, outside the Go heap. 0
	// means 64 MiB, 8 MiB are the least. A record, together with its key, must fit into a little less than a quarter of
	// it: with 64 MiB a record of 15 MiB does, and the longest that [Config.MaxRecord] allows does not.
	Memory int64
	// Dir is for temporary files, which have no names, of what does not fit into Memory.
	// Empty: the system's.
	Dir string
}

// InOrder takes all records of the receiver's partition, sorts them, and calls take with
// each, in order. The bytes are valid until take returns. The first call comes when all
// senders of all processes have closed. An error of take ends it and is returned as it is; the
// exchange goes on. So do ctx and the exchange's failure end it, also while it sorts: at most 1024 records or 1 MiB later, the failure up to 2 s after that, while peers are told. A record that does not fit into o.Memory is an [ErrTooLong].
func (r *Receiver) InOrder(ctx context.Context, o Order, take func(record []byte) error) (err error) {
	if o.Memory == 0 {
		o.Memory = 64 << 20
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(r.x.ctx, func() { end(context.Cause(r.x.ctx)) })()
	s, err := external.New(ctx, external.Config{Pairs: true, Memory: o.Memory, Dir: o.Dir})
	if err != nil {
		return fmt.Errorf("shuffle: order: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var pair []byte
	if err := r.Each(ctx, func(record []byte) error {
		if o.Key == nil {
			pair = external.AppendPair(pair[:0], record, nil)
		} else {
			pair = external.AppendPair(pair[:0], o.Key(record), record)
		}
		err := s.Add(pair)
		if errors.Is(err, external.ErrTooLong) {
			return fmt.Errorf("%w to be ordered: %d bytes, with its key, must fit into a quarter of Order.Memory, which is %d", ErrTooLong, len(pair), o.Memory)
		}
		if err != nil {
			return fmt.Errorf("shuffle: order: %w", err)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := s.Finish(); err != nil {
		return fmt.Errorf("shuffle: order: %w", err)
	}
	return s.Each(ctx, func(pair []byte) error {
		key, record := external.Pair(pair)
		if o.Key == nil {
			record = key
		}
		return take(record)
	})
}
