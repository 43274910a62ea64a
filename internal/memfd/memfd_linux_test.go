package memfd

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func duplicate(t *testing.T, fd int) int {
	t.Helper()
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

func TestSharedBetweenMappings(t *testing.T) {
	f, err := Create("test", 10_000, Reserved)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	other, err := Adopt(duplicate(t, f.FD()), 10_000, true, true)
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(other)
	other[9_999] = 7
	if f.Bytes()[9_999] != 7 {
		t.Fatal("the mappings do not share their memory")
	}
	if err := unix.Ftruncate(f.FD(), 1); !errors.Is(err, unix.EPERM) {
		t.Fatalf("a sealed memfd was shrunk: %v", err)
	}
}

func TestPublishedIsReadOnlyElsewhere(t *testing.T) {
	f, err := CreatePublished("test", 4096, Sparse)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Bytes()[1] = 3
	if _, err := Adopt(duplicate(t, f.FD()), 4096, true, false); err == nil {
		t.Fatal("published memory was mapped for writing")
	}
	other, err := Adopt(duplicate(t, f.FD()), 4096, false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(other)
	if other[1] != 3 {
		t.Fatal("published memory does not show what its owner wrote")
	}
}

func TestReadOnlyDescriptor(t *testing.T) {
	f, err := Create("test", 4096, Reserved)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := f.OpenReadOnly()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Adopt(duplicate(t, fd), 4096, true, false); err == nil {
		t.Fatal("a read-only descriptor was mapped for writing")
	}
	other, err := Adopt(fd, 4096, false, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := Unmap(other); err != nil {
		t.Fatal(err)
	}
}

func TestHostileDescriptorsAreRefused(t *testing.T) {
	unsealed, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(unsealed, 4096); err != nil {
		t.Fatal(err)
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	small, err := Create("small", 4096, Reserved)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	for name, given := range map[string]struct{ fd, size int }{
		"unsealed":         {unsealed, 4096},
		"a file":           {duplicate(t, int(file.Fd())), 4096},
		"a pipe":           {pipe[0], 4096},
		"too small":        {duplicate(t, small.FD()), 4097},
		"negative":         {duplicate(t, small.FD()), -1},
		"empty":            {duplicate(t, small.FD()), 0},
		"not a descriptor": {1 << 20, 4096},
	} {
		if memory, err := Adopt(given.fd, given.size, true, false); err == nil {
			Unmap(memory)
			t.Errorf("%s: accepted", name)
		}
		if _, err := unix.FcntlInt(uintptr(given.fd), unix.F_GETFD, 0); err == nil {
			t.Errorf("%s: the descriptor is still open", name)
		}
	}
}

func TestMoreThanThereIs(t *testing.T) {
	if f, err := Create("test", 1<<45, Reserved); !errors.Is(err, unix.ENOMEM) {
		f.Close()
		t.Fatalf("error %v", err)
	}
}

func TestHuge(t *testing.T) {
	f, err := Create("test", 1<<20, Huge)
	if err != nil {
		t.Skipf("no huge pages here: %v", err)
	}
	defer f.Close()
	other, err := Adopt(duplicate(t, f.FD()), 1<<20, true, true)
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(other)
	other[0] = 1
	if f.Bytes()[0] != 1 {
		t.Fatal("the mappings do not share their memory")
	}
}
