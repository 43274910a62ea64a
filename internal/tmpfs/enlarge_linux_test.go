package tmpfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inMemory returns a file in /dev/shm of some bytes.
func inMemory(t *testing.T, size int64) (*os.File, []byte) {
	t.Helper()
	if !Holds("/dev/shm") {
		t.Skip("/dev/shm does not lie in memory")
	}
	f, err := os.CreateTemp("/dev/shm", "verbena-test-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	for off := 0; off < len(data); off += 4096 { // a page at a time, which the kernel can't make large by itself
		if _, err := f.Write(data[off:min(off+4096, len(data))]); err != nil {
			t.Fatal(err)
		}
	}
	return f, data
}

// large is how many of the first size bytes of a file lie in large pages, by the kernel's account of
// a mapping of them (smaps).
func large(t *testing.T, f *os.File, size int64) (n int64) {
	t.Helper()
	m, err := mapLarge(int(f.Fd()), size, largePage())
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	var sum byte
	for off := 0; off < len(m.bytes); off += 4096 {
		sum += m.bytes[off]
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, at, found := strings.Cut("\n"+string(maps), fmt.Sprintf("\n%x-", unsafe.SliceData(m.bytes)))
	if !found {
		t.Fatalf("no mapping at %p, whose bytes have the sum %d", unsafe.SliceData(m.bytes), sum)
	}
	_, at, _ = strings.Cut(at, "\nShmemPmdMapped:")
	if _, err := fmt.Sscanf(at, "%d kB", &n); err != nil {
		t.Fatalf("the kernel's account of a mapping is another one: %v", err)
	}
	return n << 10
}

// collapses tells whether the kernel puts files into large pages when it is asked to: since Linux 6.1, and
// where the administrator has not forbidden it.
func collapses(t *testing.T) bool {
	t.Helper()
	enabled, err := os.ReadFile(shmemEnabled)
	if err != nil || strings.Contains(string(enabled), "[deny]") {
		return false
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 1
}

func TestEnlarge(t *testing.T) {
	page := largePage()
	if page == 0 || page > 8<<20 {
		t.Skipf("large pages have %d bytes here", page)
	}
	m, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(m) }()
	if unix.Madvise(m, 1<<20) == nil {
		t.Skip("there is no such advice, and it was taken: qemu-user takes all, and passes none on")
	}
	size := 2*page + 5000
	f, data := inMemory(t, size)
	if n := large(t, f, 2*page); n != 0 {
		t.Skipf("%d bytes are in large pages from the beginning", n)
	}
	switch err := Enlarge(int(f.Fd()), size); {
	case errors.Is(err, unix.EINVAL) && !collapses(t):
		t.Skip("this kernel puts no file into large pages that it is asked for")
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EAGAIN):
		t.Skip("this machine has no large page left")
	case err != nil:
		t.Fatal(err)
	}
	if n := large(t, f, 2*page); n != 2*page {
		t.Errorf("%d bytes are in large pages, want %d", n, 2*page)
	}
	got, err := io.ReadAll(io.NewSectionReader(f, 0, size+1))
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back, and others than were written, or %v", len(got), err)
	}
	if _, err := f.WriteAt(data[:page+1], page/2); err != nil {
		t.Fatal(err)
	}
	if n := large(t, f, 2*page); n != 2*page {
		t.Errorf("written over: %d bytes are in large pages, want %d", n, 2*page)
	}
}

// What does not fill a large page is left alone, and a file that lies elsewhere is refused.
func TestEnlargeNothing(t *testing.T) {
	page := largePage()
	if page == 0 {
		t.Skip("there are no large pages here")
	}
	f, _ := inMemory(t, 5000)
	if err := Enlarge(int(f.Fd()), 5000); err != nil {
		t.Error(err)
	}
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer other.Close()
	if err := Enlarge(int(pipe.Fd()), page); err == nil {
		t.Error("a pipe was put into large pages")
	}
}
