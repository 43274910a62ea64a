package external

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MapMemory returns memory outside Go's heap.
func MapMemory(n int) ([]byte, error) {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory: %w", n, err)
	}
	// Records are read in the order of their keys, from all over the memory: large pages
	// save most of the misses. A kernel without them is none the worse.
	_ = unix.Madvise(m, unix.MADV_HUGEPAGE)
	return m, nil
}

// Unmap gives memory of MapMemory back.
func Unmap(m []byte) error { return unix.Munmap(m) }

// free gives a part of a file back to the file system, if that can take it.
func free(f *os.File, from, length int64) {
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, length)
}
