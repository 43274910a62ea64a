package together_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/shuffle/dataset"
	"github.com/verbena-data/verbena/shuffle/internal/jobtest"
	"github.com/verbena-data/verbena/shuffle/internal/together"
)

// host writes the files that a process's host has, and returns their names.
func host(t *testing.T, contents ...[]byte) (names []string) {
	t.Helper()
	dir := t.TempDir()
	for i, content := range contents {
		name := filepath.Join(dir, fmt.Sprint("file-", i))
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// TestOpen has processes on hosts with files of their own: copies are the same inputs, whenever they were written, and others are not,
// also if they are as long.
func TestOpen(t *testing.T) {
	text := func(n, change int) []byte {
		b := bytes.Repeat([]byte("a line\n"), n/7+1)[:n]
		if change >= 0 {
			b[change] = '!'
		}
		return b
	}
	const large = 10 << 20
	own := [][]byte{text(100, -1), nil, text(large, -1)}
	for name, c := range map[string]struct {
		others [][]byte
		want   string // of the error; empty: none
	}{
		"copies":             {own, ""},
		"another small one":  {[][]byte{text(100, 50), nil, own[2]}, "file-0 than process 0"},
		"another beginning":  {[][]byte{own[0], nil, text(large, 0)}, "file-2 than process 0"},
		"another end":        {[][]byte{own[0], nil, text(large, large-1)}, "file-2 than process 0"},
		"another middle":     {[][]byte{own[0], nil, append(bytes.Repeat([]byte{'x'}, large/2), own[2][large/2:]...)}, "file-2 than process 0"},
		"another order":      {[][]byte{own[2], nil, own[0]}, "file-0 than process 0"},
		"other lengths":      {[][]byte{text(99, -1), text(1, -1), own[2]}, "file-0 than process 0"},
		"another total":      {[][]byte{text(99, -1), nil, own[2]}, "process 2 sees 3 inputs of 10485859 bytes, process 0 3 of 10485860"},
		"one file more":      {append([][]byte{nil}, own...), "process 2 sees 4 inputs"},
		"all are other ones": {[][]byte{text(100, 1), nil, text(large, 1)}, "file-0 than process 0"},
	} {
		t.Run(name, func(t *testing.T) {
			names := [][]string{host(t, own...), host(t, own...), host(t, c.others...)}
			for _, file := range names[1] {
				if err := os.Chtimes(file, time.Time{}, time.Unix(1, 0)); err != nil {
					t.Fatal(err)
				}
			}
			ids := make([]string, len(names))
			var all sync.WaitGroup
			for rank, x := range jobtest.Exchanges(t, len(names), 1) {
				all.Go(func() {
					in, err := together.Open(t.Context(), x, &dataset.Files{}, names[rank])
					if err == nil {
						ids[rank] = in.ID
						in.Close()
					}
					if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "process 2")) {
						t.Errorf("process %d: %v; want %q", rank, err, c.want)
					}
				})
			}
			all.Wait()
			if ids[1] != ids[0] || ids[2] != ids[0] {
				t.Error("the job has several names: ", ids)
			}
		})
	}
}

// TestUnchanged writes a file that is open, and does what leaves its contents as they are.
func TestUnchanged(t *testing.T) {
	for name, c := range map[string]struct {
		do      func(name string) error
		changed bool
	}{
		"nothing": {func(string) error { return nil }, false},
		"read":    {func(name string) error { _, err := os.ReadFile(name); return err }, false},
		"renamed": {func(name string) error { return os.Rename(name, name+"-") }, false},
		"replaced": {func(name string) error {
			return errors.Join(os.WriteFile(name+"-", nil, 0o600), os.Rename(name+"-", name))
		}, false},
		"rewritten":  {func(name string) error { return os.WriteFile(name, []byte("otherwise\n"), 0o600) }, true},
		"longer":     {func(name string) error { return os.Truncate(name, 1000) }, true},
		"shorter":    {func(name string) error { return os.Truncate(name, 1) }, true},
		"emptied":    {func(name string) error { return os.WriteFile(name, nil, 0o600) }, true},
		"in place":   {func(name string) error { return patch(name) }, true},
		"deleted":    {os.Remove, false},
		"other time": {func(name string) error { return os.Chtimes(name, time.Time{}, time.Unix(2, 0)) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			file := host(t, []byte("something\n"))[0]
			if err := os.Chtimes(file, time.Time{}, time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			in, err := together.Open(t.Context(), jobtest.Exchanges(t, 1, 1)[0], &dataset.Files{}, []string{file})
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if err := c.do(file); err != nil {
				t.Fatal(err)
			}
			if err := in.Unchanged(t.Context()); (err != nil) != c.changed || err != nil && !strings.Contains(err.Error(), file) {
				t.Error(err)
			}
		})
	}
}

func patch(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("x"), 3)
	return errors.Join(err, f.Close())
}
