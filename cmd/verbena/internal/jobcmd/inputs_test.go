package jobcmd

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestSpool names inputs that can be read but once: there are files that say the same, for as long as they are needed. One that is the
// standard input from its beginning on is not copied.
func TestSpool(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has names for open files that other processes can open")
	}
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("b\na\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(at int64) *os.File {
		f, err := os.Open(plain)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for name, c := range map[string]struct {
		in    io.Reader
		want  string
		taken bool // as it is
	}{
		"no file":   {strings.NewReader("text"), "text", false},
		"file":      {open(0), "b\na\n", true},
		"read from": {open(2), "a\n", false},
	} {
		s, err := spool(t.Context(), []string{plain, "-", "nowhere", "hdfs://x/-", dir}, c.in, dir)
		if err != nil {
			t.Fatal(name, err)
		}
		path := s.paths["-"]
		got, err := os.ReadFile(path)
		if err != nil || string(got) != c.want || len(s.paths) != 1 {
			t.Errorf("%s: %q, %v; %v", name, got, err, s.paths)
		}
		if to, err := os.Readlink(path); err != nil || (to == plain) != c.taken {
			t.Errorf("%s: it is %s, %v", name, to, err)
		}
		if err := s.tell(); err != nil {
			t.Fatal(err)
		}
		if read, err := readSpooled(); err != nil || read["-"] != path || os.Getenv(spooledVariable) != "" {
			t.Errorf("%s: %v, %v", name, read, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: %s is still there", name, path)
		}
	}
	if _, err := spool(t.Context(), []string{"-", "-"}, strings.NewReader("text"), dir); err == nil || !strings.Contains(err.Error(), "named twice") {
		t.Error(err)
	}
	if _, err := spool(t.Context(), []string{"-"}, strings.NewReader("text"), "/nowhere"); err == nil || !strings.Contains(err.Error(), "-: a temporary file") {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("there are %v, %v", entries, err)
	}
}

// Nobody waits for who writes into a pipe when the command is to end.
func TestSpoolEnds(t *testing.T) {
	read, write := io.Pipe()
	ended := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		_, _ = write.Write([]byte("some")) // until it is being copied
		cancel(ended)
	}()
	if _, err := spool(ctx, []string{"-"}, read, t.TempDir()); !errors.Is(err, ended) {
		t.Error(err)
	}
	_ = write.Close()
}
