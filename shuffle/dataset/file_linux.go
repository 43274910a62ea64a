package dataset

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate gives a file its length and the room for it.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return f.Truncate(size)
	}
	return err
}

// startWriting has the kernel begin to write a part to the disk, so that a later sync has
// less to do. Its errors come with the sync.
func startWriting(f *os.File, offset, length int64) {
	_ = unix.SyncFileRange(int(f.Fd()), offset, length, unix.SYNC_FILE_RANGE_WRITE)
}
