package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-data/verbena/cmd/verbena/internal/fscmd"
	"github.com/verbena-data/verbena/shuffle/dataset"
)

// TestJobsPrint has jobs write to the standard output, which is a file that has something in it already, by all the names that it has:
// what the file has stays.
func TestJobsPrint(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	if err := os.WriteFile(in, []byte("b\nc\na\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	words := []string{"groupby", "--format", "words", "--count"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sort", "--workers", "2"}, "a\nb\nb\nc\n"},
		{[]string{"sort", "--workers", "1", "-o", "/dev/stdout"}, "a\nb\nb\nc\n"},
		{[]string{"sort", "--workers", "2", "-o", "/dev/stdout"}, "a\nb\nb\nc\n"},
		{append(words, "--workers", "2", "-o", "/dev/fd/1"), "a\t1\nb\t2\nc\t1\n"},
		{append(words, "--workers", "1", "-o", "-"), "a\t1\nb\t2\nc\t1\n"},
	} {
		out, err := os.Create(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.WriteString("before\n"); err != nil {
			t.Fatal(err)
		}
		cmd, said := asProcess(t, nil, append(c.args, "--memory", "256MiB", in)...)
		cmd.Stdout = out
		if err := errors.Join(cmd.Run(), out.Close()); err != nil {
			t.Errorf("%v: %v\n%s", c.args, err, said)
		}
		if got, err := os.ReadFile(out.Name()); err != nil || string(got) != "before\n"+c.want {
			t.Errorf("%v: %q, %v", c.args, got, err)
		}
	}
	// Nobody reads any more, which the command need not tell.
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	cmd, said := asProcess(t, nil, "sort", "--workers", "2", "--memory", "256MiB", in)
	cmd.Stdout = write
	err = cmd.Run()
	write.Close()
	if ended := (*exec.ExitError)(nil); !errors.As(err, &ended) || ended.ExitCode() != 128+int(syscall.SIGPIPE) || said.Len() > 0 {
		t.Errorf("%v\n%s", err, said)
	}
}

// TestJobsReadOnce sorts what can be read but once, by two processes.
func TestJobsReadOnce(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has names for open files that other processes can open")
	}
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.WriteFile(file, []byte("d\nc\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	third, into, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	writers.Go(func() {
		if err := errors.Join(os.WriteFile(fifo, []byte("b\na"), 0), write(into, "f\ne\n")); err != nil {
			t.Error(err)
		}
	})
	cmd, said := asProcess(t, nil, "sort", "--workers", "2", "--memory", "256MiB", "-T", dir, fifo, "-", os.DevNull, "/dev/fd/3", file)
	cmd.Stdin, cmd.ExtraFiles = strings.NewReader("h\ng\n"), []*os.File{third}
	if err := cmd.Run(); err != nil || said.String() != "a\nb\nc\nd\ne\nf\ng\nh\n" {
		t.Errorf("%v\n%s", err, said)
	}
	third.Close()
	writers.Wait()
	for _, name := range glob(t, dir+"/*", dir+"/.*") {
		if name != fifo && name != file {
			t.Errorf("%s is left behind", name)
		}
	}
	// The processes of a launcher have not all the same standard input.
	var all sync.WaitGroup
	for rank := range 2 {
		cmd, said := asProcess(t, nil, "sort", "--rank", fmt.Sprint(rank), "--size", "2", "--rendezvous", "unix:"+dir+"/meet/socket", "--memory", "256MiB", "-")
		cmd.Stdin = bytes.NewReader([]byte("text\n"))
		all.Go(func() {
			if err := cmd.Run(); err == nil || !strings.Contains(said.String(), "-: that can't be read by all processes") {
				t.Errorf("process %d: %v\n%s", rank, err, said)
			}
		})
	}
	all.Wait()
}

func write(f io.WriteCloser, text string) error {
	_, err := io.WriteString(f, text)
	return errors.Join(err, f.Close())
}

// TestLocalInputs names local files by patterns, as the commands have them: below a directory whose name looks like a pattern, behind
// links to directories, and with names that are no UTF-8. What is no file is refused, and nobody waits for who writes to a pipe.
func TestLocalInputs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run[1]{a}")
	for _, name := range []string{"in/one/part-0", "real/part-1", "caf\xe9/part-2"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700), os.WriteFile(filepath.Join(dir, name), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("../real", filepath.Join(dir, "in/two")), syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	files := &dataset.Files{Glob: fscmd.Glob}
	for name, want := range map[string]string{
		"in/*/part-*":       "in/one/part-0 in/two/part-1",
		"../*/in/o*/part-0": "in/one/part-0",
		"in/two":            "in/two/part-1",
		"caf\xe9":           "caf\xe9/part-2",
		"c*":                "caf\xe9/part-2",
	} {
		got, err := files.Expand(t.Context(), []string{name})
		if said := strings.Join(got, " "); err != nil || said != want {
			t.Errorf("%q: %q, %v; want %q", name, said, err, want)
		}
	}
	if _, err := files.Open(t.Context(), "fifo"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
}
