package dataset

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A part that nobody wants any more is not brought to the disk, and its Close says why. Of a part that is wanted all comes there, also if
// it is longer than what does so at once.
func TestCloseOfAPart(t *testing.T) {
	gone := errors.New("gone")
	dir := t.TempDir()
	o := &localOutput{filepath.Join(dir, "out"), filepath.Join(dir, "partial")}
	for _, want := range []error{nil, gone} {
		f, err := os.Create(o.partial)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancelCause(t.Context())
		w, err := o.Part(ctx, 0, 3, syncAtOnce+5)
		if err != nil {
			t.Fatal(err)
		}
		p := w.(*localPart)
		p.at = p.begin + syncAtOnce // which is a hole
		if _, err := w.Write([]byte("12345")); err != nil {
			t.Error(err)
		}
		if want != nil {
			end(want)
		}
		if err := w.Close(); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if info, err := os.Stat(o.partial); err != nil || info.Size() != 3+syncAtOnce+5 {
			t.Errorf("%v, %v", info.Size(), err)
		}
		end(nil)
	}
}
