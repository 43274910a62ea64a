package dataset

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An open file has names, by which no output replaces it.
func TestDescriptor(t *testing.T) {
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd := int(file.Fd())
	for link, to := range map[string]string{"out": "/dev/stdout", "again": "out", "plain": "file", "loop": "loop", "fds": "/dev/fd"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	const no = -2
	for name, want := range map[string]int{
		"/dev/stdout": 1, "/dev/stdin": 0, "/proc/self/fd/1": 1, fmt.Sprintf("/dev/fd/%d", fd): fd, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd): fd,
		"/proc/thread-self/fd/2": 2, "/dev/../dev/fd/1": 1, "out": 1, "again": 1, "./again": 1, filepath.Join(dir, "again"): 1, fmt.Sprintf("fds/%d", fd): fd,
		"/proc/1/fd/1": -1,
		"file":         no, "plain": no, "loop": no, "fds": no, "nowhere": no, "/dev/null": no, "/dev/fd/x": no, "hdfs://x/dev/fd/1": no, "-": no, "": no,
	} {
		got, ok := Descriptor(name)
		if ok != (want != no) || ok && got != want {
			t.Errorf("%s: %d, %v; want %d", name, got, ok, want)
		}
		if !ok || got == -1 {
			continue
		}
		if _, err := new(Files).Output(t.Context(), name, NewID()); err == nil || !strings.Contains(err.Error(), "open file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
