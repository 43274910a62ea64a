package dataset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLines divides files into any number of parts: their lines are those of the whole, in order.
func TestLines(t *testing.T) {
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	var names, want []string
	for i := range 4 {
		var text bytes.Buffer
		for range 40 {
			line := strings.Repeat("x", random.IntN(30))
			if random.IntN(10) == 0 {
				line = strings.Repeat("y", 2*lineBuffer+random.IntN(3)) // in several pieces
			}
			want = append(want, line)
			text.WriteString(line + []string{"\n", "\r\n"}[random.IntN(2)])
		}
		if i == 2 { // the last line lacks its end
			want = append(want, "end")
			text.WriteString("end")
		}
		names = append(names, filepath.Join(dir, fmt.Sprint(i)))
		if err := os.WriteFile(names[i], text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, parts := range []int{1, 2, 3, 7, 100} {
		var got []string
		for part := range parts {
			if err := new(Files).Lines(t.Context(), names, part, parts, func(line []byte) error {
				got = append(got, string(line))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d parts have %d lines, want %d", parts, len(got), len(want))
		}
	}
}

func TestLinesFail(t *testing.T) {
	name := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(name, []byte("short\n"+strings.Repeat("long", lineBuffer)), 0o600); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(full)
	for _, c := range []struct {
		ctx  context.Context
		name string
		want error
	}{{t.Context(), name, full}, {ended, name, full}, {t.Context(), name + "x", os.ErrNotExist}} {
		if err := new(Files).Lines(c.ctx, []string{c.name}, 0, 1, func([]byte) error { return full }); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	in, err := new(Files).Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	n := 0
	err = Span{in, 0, in.Size()}.Lines(t.Context(), 3*lineBuffer, func(int64, []byte) error { n++; return nil })
	if want := fmt.Sprintf("that at byte 6 has %d bytes, at most %d are possible", 4*lineBuffer, 3*lineBuffer); !errors.Is(err, ErrLongLine) || n != 1 || !strings.Contains(err.Error(), want) {
		t.Errorf("%v after %d lines; want %q", err, n, want)
	}
}

// Of a file without newlines not all is read to say so.
func TestNoLines(t *testing.T) {
	name := filepath.Join(t.TempDir(), "none")
	if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 2*tellBeyond)); err != nil {
		t.Fatal(err)
	}
	in, err := new(Files).Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	err = Span{in, 0, in.Size()}.Lines(t.Context(), 100, func(int64, []byte) error { return nil })
	if want := fmt.Sprintf("has more than %d bytes", tellBeyond+lineBuffer); !errors.Is(err, ErrLongLine) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}

// A line may have as many bytes as was said, without its end, and not one more. A longer one is refused in the part in which it
// begins, and there alone.
func TestLongestLine(t *testing.T) {
	for _, longest := range []int{100, lineBuffer - 2, lineBuffer - 1, lineBuffer, lineBuffer + 1, 2*lineBuffer - 1, 2 * lineBuffer} {
		for _, end := range []string{"\n", "\r\n", ""} {
			for _, more := range []int{0, 1, lineBuffer, 5 * lineBuffer} {
				name := filepath.Join(t.TempDir(), "text")
				line := strings.Repeat("x", longest+more)
				if err := os.WriteFile(name, []byte("short\n"+line+end), 0o600); err != nil {
					t.Fatal(err)
				}
				in, err := new(Files).Open(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				take := func(_ int64, line []byte) error { got = append(got, string(line)); return nil }
				err = Span{in, 0, 7}.Lines(t.Context(), longest, take)
				if long := errors.Is(err, ErrLongLine); long != (more > 0) || !long && (err != nil || !slices.Equal(got, []string{"short", line})) {
					t.Errorf("%d bytes, then %q, at most %d: %v, %d lines", len(line), end, longest, err, len(got))
				}
				got = nil
				if err := (Span{in, 7, in.Size()}).Lines(t.Context(), longest, take); err != nil || len(got) != 0 {
					t.Errorf("behind it: %v, %d lines", err, len(got))
				}
				if err := in.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
