package store

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// links is how many names a file has.
func links(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink) //nolint:unconvert // it has 32 bits on arm64
	}
	return 1 // of a file system without them
}

// openOnce tells whether no descriptor of a file is open but this one. The kernel gives a lease to
// write to nobody else's file.
func openOnce(fd uintptr) bool {
	if _, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return false // or the file system has no leases
	}
	_, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}
