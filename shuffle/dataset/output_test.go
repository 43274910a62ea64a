package dataset

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// An output is a file from Create on, gets its size from Prepare, whichever was expected, and its name from Commit.
func TestOutput(t *testing.T) {
	for _, expected := range []int64{0, 3, 10, 100} {
		dir := t.TempDir()
		out, err := new(Files).Output(t.Context(), filepath.Join(dir, "out"), NewID())
		if err != nil {
			t.Fatal(err)
		}
		if err := out.Create(t.Context(), expected); err != nil {
			t.Fatal(err)
		}
		partial, err := filepath.Glob(filepath.Join(dir, ".out.*"))
		if err != nil || len(partial) != 1 {
			t.Fatal(partial, err)
		}
		if info, err := os.Stat(partial[0]); err != nil || info.Size() != expected {
			t.Errorf("%d bytes, want %d; %v", info.Size(), expected, err)
		}
		if err := out.Prepare(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		w, err := out.Part(t.Context(), 0, 0, 5)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("whole")); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Close(), out.Commit(t.Context(), 1), out.Abort(t.Context())); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "out")); err != nil || !bytes.Equal(got, []byte("whole\x00\x00\x00\x00\x00")) {
			t.Errorf("%q, %v", got, err)
		}
	}
	out, err := new(Files).Output(t.Context(), filepath.Join(t.TempDir(), "none", "out"), NewID())
	if err != nil {
		t.Fatal(err)
	}
	if err := out.Create(t.Context(), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
