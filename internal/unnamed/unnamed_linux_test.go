package unnamed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A file takes what is written, never has a name where the file system can do that, and
// leaves nothing.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	// The kernel tells which names a directory gets, however short they are there.
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	f, err := File(dir, "prefix")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("what"), 3); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 7)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "\x00\x00\x00what" {
		t.Errorf("%q, %v", b, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
	if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil || !strings.HasSuffix(to, " (deleted)") {
		t.Errorf("%s, %v", to, err)
	}
	if _, err := open(dir); err == nil {
		events := make([]byte, 4096)
		if n, err := unix.Read(watch, events); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("the file had a name: %d bytes of events, %v", n, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := File(filepath.Join(dir, "none"), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
