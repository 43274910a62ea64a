package memfd

import (
	"errors"
	"os"
	"strings"
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
	other, err := Adopt(duplicate(t, f.FD()), 10_000, Terms{Writable: true})
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
	if _, err := Adopt(duplicate(t, f.FD()), 4096, Terms{Writable: true}); err == nil {
		t.Fatal("published memory was mapped for writing")
	}
	other, err := Adopt(duplicate(t, f.FD()), 4096, Terms{})
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
	if _, err := Adopt(duplicate(t, fd), 4096, Terms{Writable: true}); err == nil {
		t.Fatal("a read-only descriptor was mapped for writing")
	}
	other, err := Adopt(fd, 4096, Terms{})
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
		if memory, err := Adopt(given.fd, given.size, Terms{Writable: true}); err == nil {
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
	other, err := Adopt(duplicate(t, f.FD()), 1<<20, Terms{Writable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(other)
	other[0] = 1
	if f.Bytes()[0] != 1 {
		t.Fatal("the mappings do not share their memory")
	}
}

// Whoever has made a memfd of huge pages can take them away again while they are mapped
// here, at which the kernel ends this process.
func TestHugePagesOfOthersAreRefused(t *testing.T) {
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skipf("the kernel makes no memfd of huge pages: %v", err)
	}
	if err := unix.Ftruncate(fd, hugePage); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, Seals); err != nil {
		t.Fatal(err)
	}
	memory, err := Adopt(fd, hugePage, Terms{Writable: true, Foreign: true})
	if err == nil {
		Unmap(memory)
		t.Fatal("accepted")
	}
	if !strings.Contains(err.Error(), "huge pages") { // there may be none to be mapped
		t.Fatalf("refused for another reason: %v", err)
	}
}

// blocks is what is allocated of the memory behind fd, in 512 bytes.
func blocks(t *testing.T, fd int) int64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Blocks
}

// Mapping memory that its maker has not allocated allocates none of it, whoever
// the maker is.
func TestAdoptAllocatesNothing(t *testing.T) {
	const size = 512 << 20
	for _, terms := range []Terms{{Writable: true}, {Writable: true, Foreign: true}, {Foreign: true}} {
		f, err := Create("sparse", size, Sparse)
		if err != nil {
			t.Fatal(err)
		}
		memory, err := Adopt(duplicate(t, f.FD()), size, terms)
		if err != nil {
			t.Fatal(err)
		}
		if got := blocks(t, f.FD()); got != 0 {
			t.Errorf("%+v: %d blocks are allocated", terms, got)
		}
		if err := errors.Join(Unmap(memory), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// The maker can take pages away that are mapped elsewhere; what touches them then
// finds zeroes. Huge pages may be all taken by then, so those are refused.
func TestForeign(t *testing.T) {
	if err := CheckForeign(); errors.Is(err, ErrStrictOvercommit) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	f, err := Create("punched", 4*os.Getpagesize(), Reserved)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	memory, err := Adopt(duplicate(t, f.FD()), 4*os.Getpagesize(), Terms{Writable: true, Foreign: true})
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(memory)
	memory[os.Getpagesize()] = 7
	if err := unix.Fallocate(f.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4*int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	if memory[os.Getpagesize()] != 0 {
		t.Error("a page that was taken away is still there")
	}
	huge, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skip("no memfds of huge pages here:", err)
	}
	if err := unix.Ftruncate(huge, hugePage); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(huge), unix.F_ADD_SEALS, Seals); err != nil {
		t.Fatal(err)
	}
	memory, err = Adopt(huge, hugePage, Terms{Writable: true, Foreign: true})
	if err == nil || !strings.Contains(err.Error(), "huge pages") {
		Unmap(memory)
		t.Errorf("huge pages of another user: %v", err)
	}
}

// Only its maker can open a memfd again for writing.
func TestRightsOfOthers(t *testing.T) {
	f, err := Create("test", 4096, Reserved)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := f.OpenReadOnly()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Mode&0o777 != 0o600 {
		t.Errorf("rights %#o", stat.Mode&0o777)
	}
}
