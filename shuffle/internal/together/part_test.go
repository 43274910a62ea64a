package together_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/verbena-data/verbena/shuffle/dataset"
	"github.com/verbena-data/verbena/shuffle/internal/together"
)

// watched is an output of one part, which counts.
type watched struct {
	dataset.Output
	ctx            context.Context
	writes, closes int
	written        func()
	unwanted       error // what the context had ended with when the part was closed
}

func (w *watched) Part(ctx context.Context, _ int, _, _ int64) (io.WriteCloser, error) {
	w.ctx = ctx
	return w, nil
}

func (w *watched) Write(p []byte) (int, error) {
	w.writes++
	w.written()
	return len(p), nil
}

func (w *watched) Close() error {
	w.closes++
	w.unwanted = context.Cause(w.ctx)
	return w.unwanted
}

// A part whose context ends, or which cannot be written to its end, gets no further byte, and its writer need not have it on the disk.
func TestPartIsBrokenOff(t *testing.T) {
	gone := errors.New("gone")
	for name, test := range map[string]struct {
		ends, fails bool
		writes      int
		want        error
	}{
		"whole":    {writes: 10},
		"it ends":  {ends: true, writes: 1, want: gone},
		"it fails": {fails: true, writes: 10, want: gone},
	} {
		ctx, end := context.WithCancelCause(t.Context())
		w := &watched{written: func() {
			if test.ends {
				end(gone)
			}
		}}
		err := together.WritePart(ctx, w, 0, 0, 10, func(to io.Writer) error {
			for range 10 {
				if _, err := to.Write([]byte("x")); err != nil {
					return err
				}
			}
			if test.fails {
				return gone
			}
			return nil
		})
		if err != test.want || w.writes != test.writes || w.closes != 1 || w.unwanted != test.want {
			t.Errorf("%s: %v; %d writes, closed %d times, when %v had ended it", name, err, w.writes, w.closes, w.unwanted)
		}
		end(nil)
	}
}
