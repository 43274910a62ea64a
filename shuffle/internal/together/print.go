package together

import (
	"context"
	"io"

	"github.com/verbena-data/verbena/shuffle"
)

// atOnce is how much of a process's data the others get at a time.
const atOnce = 512 << 10

// Print has process 0 write to out what all processes read from own, one process's behind the other's, in the order of their
// numbers. The others' out may be nil.
func Print(ctx context.Context, x *shuffle.Exchange, own io.Reader, out io.Writer) error {
	buffer := make([]byte, atOnce)
	for rank := range x.Size() {
		for more := true; more; {
			n := 0
			if rank == x.Rank() {
				var err error
				if n, err = fill(own, buffer); err != nil {
					x.Abort(err)
					return err
				}
			}
			all, err := x.AllGather(ctx, buffer[:n])
			if err != nil {
				return err
			}
			if x.Rank() == 0 {
				if _, err := out.Write(all[rank]); err != nil {
					x.Abort(err)
					return err
				}
			}
			more = len(all[rank]) == atOnce
		}
	}
	return nil
}

// fill reads as much as a buffer holds, or up to the end. Unlike io.ReadFull it does not take an end that a reader finds unexpected for
// the end.
func fill(r io.Reader, buffer []byte) (n int, err error) {
	for n < len(buffer) && err == nil {
		var k int
		k, err = r.Read(buffer[n:])
		n += k
	}
	if err == io.EOF { // io.Reader's contract
		err = nil
	}
	return n, err
}

// Told gives all processes what process 0 has, which may be of any length.
func Told(ctx context.Context, x *shuffle.Exchange, own []byte) (all []byte, err error) {
	if x.Rank() != 0 {
		own = nil
	}
	for more := true; more; {
		n := min(len(own), atOnce)
		parts, err := x.AllGather(ctx, own[:n])
		if err != nil {
			return nil, err
		}
		own, all = own[n:], append(all, parts[0]...)
		more = len(parts[0]) == atOnce
	}
	return all, nil
}
