// Package together has what the processes of a job do together, beside exchanging records:
// agree on the inputs, tell each other values, end when one fails; and how each divides its memory.
package together

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/dataset"
)

// Gather returns every process's value, by rank. All call it.
func Gather[T any](ctx context.Context, x *shuffle.Exchange, own T) (all []T, err error) {
	b, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	parts, err := x.AllGather(ctx, b)
	if err != nil {
		return nil, err
	}
	all = make([]T, len(parts))
	for rank, p := range parts {
		if err := json.Unmarshal(p, &all[rank]); err != nil {
			return nil, fmt.Errorf("what process %d tells: %w", rank, err)
		}
	}
	return all, nil
}

// Barrier waits until all have called it.
func Barrier(ctx context.Context, x *shuffle.Exchange) error {
	_, err := x.AllGather(ctx, nil)
	return err
}

// ByFirst has process 0 do something that all others wait for. If it fails, it fails in all.
func ByFirst(ctx context.Context, x *shuffle.Exchange, do func() error) error {
	if x.Rank() == 0 {
		if err := do(); err != nil {
			x.Abort(err)
			return err
		}
	}
	return Barrier(ctx, x)
}

// Keys returns every process's keys, in one list. A process's are less than 1 MiB.
func Keys(ctx context.Context, x *shuffle.Exchange, own [][]byte) (all [][]byte, err error) {
	samples, err := x.AllGather(ctx, encodeKeys(own))
	if err != nil {
		return nil, err
	}
	for rank, s := range samples {
		keys, err := decodeKeys(s)
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", rank, err)
		}
		all = append(all, keys...)
	}
	return all, nil
}

func encodeKeys(keys [][]byte) (b []byte) {
	for _, key := range keys {
		b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
	}
	return b
}

func decodeKeys(b []byte) (keys [][]byte, err error) {
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return nil, errors.New("its keys are damaged")
		}
		keys, b = append(keys, b[k:][:n]), b[uint64(k)+n:]
	}
	return keys, nil
}

// Inputs are a job's, open, in one process.
type Inputs struct {
	Files []*dataset.Input
	Total int64 // bytes
	// ID is the same in all processes, and no other job's.
	ID string
}

// Open opens files, and makes sure that all processes see the same.
func Open(ctx context.Context, x *shuffle.Exchange, files *dataset.Files, names []string) (_ *Inputs, err error) {
	in := &Inputs{}
	defer func() {
		if err != nil {
			in.Close()
		}
	}()
	for _, name := range names {
		f, err := files.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		in.Files = append(in.Files, f)
		in.Total += f.Size()
	}
	type plan struct {
		ID    string
		Total int64
	}
	plans, err := Gather(ctx, x, plan{dataset.NewID(), in.Total})
	if err != nil {
		return nil, err
	}
	for rank, p := range plans {
		if p.Total != plans[0].Total {
			return nil, fmt.Errorf("process %d sees inputs of %d bytes, process 0 of %d: all must see the same files, and nobody may write them", rank, p.Total, plans[0].Total)
		}
	}
	in.ID = plans[0].ID
	return in, nil
}

// Close closes the files.
func (in *Inputs) Close() {
	for _, f := range in.Files {
		_ = f.Close() // of files that were read
	}
}

// Parts divides the inputs into as many parts as there are partitions, and returns the
// spans of each of this process's threads. unit is what spans are a multiple of.
func (in *Inputs) Parts(x *shuffle.Exchange, unit int64) (spans [][]dataset.Span, err error) {
	for thread := range x.Threads() {
		s, err := dataset.Split(in.Files, x.Rank()*x.Threads()+thread, x.Partitions(), unit)
		if err != nil {
			return nil, err
		}
		spans = append(spans, s)
	}
	return spans, nil
}

// While returns a context that ends with the exchange's failure. stop gives back what it
// holds.
func While(ctx context.Context, x *shuffle.Exchange) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-x.Done():
			cancel(x.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

// Fail ends the exchange in all processes because of err, and removes what there is of an
// output, which may be nil. It returns the reason: what has failed first.
func Fail(ctx context.Context, x *shuffle.Exchange, output dataset.Output, err error) error {
	if why := x.Err(); why != nil {
		err = why
	}
	x.Abort(err)
	if output == nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stop()
	return errors.Join(err, output.Abort(ctx))
}
