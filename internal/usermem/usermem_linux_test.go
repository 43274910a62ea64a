package usermem

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func mapped(t *testing.T, size, protection, flags, fd int) []byte {
	t.Helper()
	b, err := unix.Mmap(fd, 0, size, protection, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

var (
	globalBytes [1 << 16]byte
	escaped     []byte
)

// This release of Go has to be one whose heap is found.
func TestPinnerTells(t *testing.T) {
	if !pinnerTells() {
		t.Fatal("Pinners are not as onHeap knows them")
	}
}

func TestHeapIsFound(t *testing.T) {
	for _, n := range []int{1, 7, 16, 100, 4096, 32 << 10, 33 << 10, 1 << 20, 70 << 20} {
		escaped = make([]byte, n)
		for _, part := range [][]byte{escaped, escaped[n/2:], escaped[n-1:]} {
			if _, err := Look(part); !errors.Is(err, ErrGo) {
				t.Errorf("%d of %d bytes on the heap: %v", len(part), n, err)
			}
		}
	}
	escaped = []byte(strings.Repeat("x", 1000))
	if _, err := Look(escaped); !errors.Is(err, ErrGo) {
		t.Error(err)
	}
}

func TestMappings(t *testing.T) {
	const page, all = 4096, unix.PROT_READ | unix.PROT_WRITE
	private := mapped(t, 16*page, all, unix.MAP_ANON|unix.MAP_PRIVATE, -1)
	shared := mapped(t, 16*page, all, unix.MAP_ANON|unix.MAP_SHARED, -1)
	readOnly := mapped(t, page, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE, -1)
	for name, c := range map[string]struct {
		memory   []byte
		writable bool
	}{"private": {private, true}, "part": {private[100:5000], true}, "shared": {shared, true}, "read only": {readOnly, false}, "one byte": {private[:1], true}} {
		if f, err := Look(c.memory); err != nil || f.Writable != c.writable || f.File != "" {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
	// A hole, and a part without rights.
	if err := unix.Mprotect(private[4*page:5*page], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if _, err := Look(private); !errors.Is(err, ErrUnmapped) {
		t.Error(err)
	}
	if err := unix.Mprotect(private[4*page:5*page], unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if f, err := Look(private); err != nil || f.Writable {
		t.Errorf("%+v, %v", f, err)
	}
	file, err := os.CreateTemp(t.TempDir(), "with a space ")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(page); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, page); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ fd, flags int }{
		file.Name(): {int(file.Fd()), unix.MAP_SHARED}, "/memfd:unsealed": {fd, unix.MAP_SHARED}, file.Name() + "": {int(file.Fd()), unix.MAP_PRIVATE},
	} {
		if f, err := Look(mapped(t, page, unix.PROT_READ, c.flags, c.fd)); err != nil || !strings.HasPrefix(f.File, name) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

func TestJudge(t *testing.T) {
	const list = `
c000000000-c000400000 rw-p 00000000 00:00 0                              [anon: Go: heap]
7f0000000000-7f0000001000 rw-s 00000000 00:01 12                         /dev/zero (deleted)
7f0000001000-7f0000002000 rw-p 00000000 00:00 0
7f0000002000-7f0000003000 rw-s 00000000 100:1afe 99                      /mnt/huge/with a space
7f0000004000-7f0000005000 ---p 00000000 00:00 0
7f0000005000-7f0000006000 r--p 00000000 00:00 0
7ffff0000000-7ffff0001000 rw-p 00000000 00:00 0                          [stack]
7ffff0001000-7ffff0002000 r--p 00000000 00:00 0                          [vvar]
`
	for name, c := range map[string]struct {
		start, end uint64
		known      bool
		want       error
		facts      Facts
	}{
		"heap":            {0xc000000000, 0xc000000010, true, ErrGo, Facts{}},
		"shared":          {0x7f0000000010, 0x7f0000000020, false, nil, Facts{Writable: true}},
		"over two":        {0x7f0000000010, 0x7f0000001020, true, nil, Facts{Writable: true}},
		"perhaps Go's":    {0x7f0000001010, 0x7f0000001020, false, ErrGo, Facts{}},
		"a file":          {0x7f0000002000, 0x7f0000003000, true, nil, Facts{Writable: true, File: "/mnt/huge/with a space"}},
		"into a hole":     {0x7f0000002000, 0x7f0000003001, true, ErrUnmapped, Facts{}},
		"no rights":       {0x7f0000004000, 0x7f0000004001, true, ErrUnmapped, Facts{}},
		"read only":       {0x7f0000005000, 0x7f0000005001, true, nil, Facts{}},
		"stack":           {0x7ffff0000000, 0x7ffff0000001, true, ErrGo, Facts{}},
		"kernel's":        {0x7ffff0001000, 0x7ffff0001001, true, ErrUnmapped, Facts{}},
		"behind the last": {0x7fffffff0000, 0x7fffffff0001, true, ErrUnmapped, Facts{}},
	} {
		f, err := judge(strings.NewReader(list), c.start, c.end, c.known)
		if !errors.Is(err, c.want) || err == nil && f != c.facts {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
	if f, err := Look(globalBytes[:]); err != nil {
		t.Logf("a global variable: %+v, %v", f, err) // no heap; where it lies depends on the linker
	}
}

func FuzzJudge(f *testing.F) {
	f.Add("1000-2000 rw-p 00000000 00:00 0 [heap]\n", uint64(0x1000), uint64(0x2000))
	f.Add("1000-2000 rw-p 0 0:0 5 /x y\n2000-3000 r--s 0 0:0 0\n", uint64(0x1800), uint64(0x2800))
	f.Add("0-3000 r 0 0:0 5 /x\n", uint64(0x1000), uint64(0x2000)) // too few rights
	f.Fuzz(func(t *testing.T, list string, start, end uint64) {
		if start >= end {
			return
		}
		_, _ = judge(strings.NewReader(list), start, end, true) // no panic
	})
}
