package together

import (
	"context"
	"io"

	"github.com/verbena-data/verbena/shuffle/dataset"
)

// WritePart has write write a part of an output, of which Output.Part tells more. When ctx ends it fails with its cause, at the
// next call of Write. What has been written until then, or until write fails, need not come to the disk.
func WritePart(ctx context.Context, output dataset.Output, part int, offset, length int64, write func(w io.Writer) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	w, err := output.Part(ctx, part, offset, length)
	if err != nil {
		return err
	}
	if err := write(until{ctx, w}); err != nil {
		end(err)
		_ = w.Close() // it tells the same
		return err
	}
	return w.Close()
}

// until writes until ctx ends.
type until struct {
	ctx context.Context
	w   io.Writer
}

func (u until) Write(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.w.Write(p)
}
