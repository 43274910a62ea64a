package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/testneed"
)

// smallDisk is a file system of so many bytes.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size))
	if errors.Is(err, unix.EPERM) {
		testneed.Missing(t, "this user may not mount a file system", "run as root")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil { // busy if somebody has a file open there
			t.Error(err)
		}
	})
	return dir
}

// TestJobsFillTheDisk runs out of room for temporary files, and for the output: the command says so,
// leaves nothing, and what was there before stays.
func TestJobsFillTheDisk(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in")
	if _, err := run(t, "", "gensort", "-a", "400000", in); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"sort":    {"sort"},
		"groupby": {"groupby", "--format", "tsv", "--key", "1", "--count"},
	} {
		for full, size := range map[string]int{"temporary files": 3 << 20, "output": 16 << 20} {
			t.Run(name+"/"+full, func(t *testing.T) {
				small, large := smallDisk(t, size), t.TempDir()
				temporary, out := small, filepath.Join(large, "out")
				if full == "output" {
					temporary, out = large, filepath.Join(small, "out")
				}
				if err := os.WriteFile(out, []byte("before"), 0o600); err != nil {
					t.Fatal(err)
				}
				cmd, said := asProcess(t, nil, append(args, "--workers", "2", "--memory", "150MiB", "-T", temporary, "-o", out, in)...)
				if err := cmd.Run(); err == nil || !strings.Contains(said.String(), "no space left on device") || !strings.Contains(said.String(), "process ") {
					t.Errorf("%v: %s", err, said)
				}
				if b, err := os.ReadFile(out); err != nil || string(b) != "before" {
					t.Errorf("the old output is %q, %v", b, err)
				}
				for _, file := range glob(t, small+"/*", small+"/.*", large+"/*", large+"/.*") {
					if file != out {
						t.Errorf("%s is left behind", file)
					}
				}
				var s unix.Statfs_t
				if err := unix.Statfs(small, &s); err != nil {
					t.Fatal(err)
				}
				if used := (s.Blocks - s.Bfree) * uint64(s.Bsize); used > 64<<10 {
					t.Errorf("%d bytes of the disk are still taken", used)
				}
			})
		}
	}
}
