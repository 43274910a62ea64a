// Package together has what the processes of a job do together, beside exchanging records:
// agree on the inputs, tell each other values, end when one fails; and how each divides its memory.
package together

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

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

// Create has process 0 create the job's output, with room for size bytes. All processes know the output by then, so that those
// that are left remove it if process 0 dies.
func Create(ctx context.Context, x *shuffle.Exchange, output dataset.Output, size int64) error {
	if err := Barrier(ctx, x); err != nil {
		return err
	}
	return ByFirst(ctx, x, func() error { return output.Create(ctx, size) })
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

// Of all inputs of a job about samples blocks are compared, and of each one 2 at least and mostSamples at most.
const samples, mostSamples = 1024, 16

// expand returns the files that names of inputs stand for, as process 0 finds them. It tells the others nothing if the names are those
// of files.
func expand(ctx context.Context, x *shuffle.Exchange, files *dataset.Files, names []string) ([]string, error) {
	var own []byte
	if x.Rank() == 0 {
		found, err := files.Expand(ctx, names)
		if err == nil && !slices.Equal(found, names) {
			own = encode(found)
		}
		if err != nil {
			x.Abort(err)
			return nil, err
		}
	}
	told, err := Told(ctx, x, own)
	if err != nil || len(told) == 0 {
		return names, err
	}
	return decode(told)
}

// encode has each name, which may be of any bytes but 0, behind a 0. There is one more in front, so that no names are not nothing.
func encode(names []string) []byte {
	b := []byte{0}
	for _, name := range names {
		b = append(append(b, name...), 0)
	}
	return b
}

func decode(b []byte) (names []string, err error) {
	if b[0] != 0 || b[len(b)-1] != 0 {
		return nil, errors.New("the names that process 0 tells are damaged")
	}
	for name := range bytes.SplitAfterSeq(b[1:], []byte{0}) {
		if len(name) > 0 { // nothing is behind the last one
			names = append(names, string(name[:len(name)-1]))
		}
	}
	return names, nil
}

// Open opens the files that names stand for, and makes sure that all processes see the same, or copies, as far as their lengths and
// samples of their contents tell.
func Open(ctx context.Context, x *shuffle.Exchange, files *dataset.Files, names []string) (_ *Inputs, err error) {
	in := &Inputs{}
	defer func() {
		if err != nil {
			in.Close()
		}
	}()
	if names, err = expand(ctx, x, files, names); err != nil {
		return nil, err
	}
	for _, name := range names {
		f, err := files.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		in.Files = append(in.Files, f)
		in.Total += f.Size()
	}
	var sums []byte // of each file
	for _, f := range in.Files {
		sum, err := f.Sample(min(mostSamples, samples/len(in.Files)))
		if err != nil {
			return nil, err
		}
		sums = binary.BigEndian.AppendUint64(sums, sum)
	}
	type plan struct {
		ID    string
		Files int
		Total int64
		Sum   uint64 // of all sums
	}
	own := plan{dataset.NewID(), len(in.Files), in.Total, xxhash.Sum64(sums)}
	plans, err := Gather(ctx, x, own)
	if err != nil {
		return nil, err
	}
	for rank, p := range plans {
		switch same := plans[0]; {
		case p.Files != same.Files || p.Total != same.Total:
			return nil, fmt.Errorf("process %d sees %d inputs of %d bytes, process 0 %d of %d: %w", rank, p.Files, p.Total, same.Files, same.Total, errOthers)
		case p.Sum != same.Sum:
			return nil, in.differ(ctx, x, sums)
		}
	}
	in.ID = plans[0].ID
	return in, nil
}

var errOthers = errors.New("all must see the same files, or copies, and nobody may write them")

// differ tells which of the inputs differ. All processes call it.
func (in *Inputs) differ(ctx context.Context, x *shuffle.Exchange, sums []byte) error {
	all, err := x.AllGather(ctx, sums[:min(len(sums), mostSums)])
	if err != nil {
		return err
	}
	for rank, other := range all {
		for i, f := range in.Files[:min(len(other), len(all[0]))/8] {
			if !bytes.Equal(other[8*i:][:8], all[0][8*i:][:8]) {
				return fmt.Errorf("process %d sees another %s than process 0: %w", rank, f.Name(), errOthers)
			}
		}
	}
	return fmt.Errorf("the processes see different inputs: %w", errOthers) // one behind those that were compared
}

// mostSums is how many bytes of sums a process tells: those of 131,072 files.
const mostSums = 1 << 20

// Unchanged fails if somebody has written an input since it was opened.
func (in *Inputs) Unchanged(ctx context.Context) error {
	for _, f := range in.Files {
		if err := f.Unchanged(ctx); err != nil {
			return err
		}
	}
	return nil
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
