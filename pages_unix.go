//go:build unix

package verbena

import (
	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/usermem"
)

// takePages returns size bytes of zeros, at least one, for which the system
// provides memory when they are written.
func takePages(size int) ([]byte, error) {
	pages, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err == nil {
		usermem.Own(pages)
	}
	return pages, err
}

func freePages(pages []byte) {
	usermem.Disown(pages)
	_ = unix.Munmap(pages) // it fails for what takePages has not returned
}
