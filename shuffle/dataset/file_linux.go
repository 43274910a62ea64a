package dataset

import (
	"errors"
	"fmt"
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

// finishWriting waits until the bytes of a part are on the disk; what says where they lie comes there with a sync. An error of
// the disk may come here, and then does not come with the sync. Where the kernel cannot do this, the sync does all.
func finishWriting(f *os.File, offset, length int64) error {
	err := unix.SyncFileRange(int(f.Fd()), offset, length,
		unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	switch {
	case err == nil, errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ESPIPE), errors.Is(err, unix.EPERM):
		return nil
	}
	return fmt.Errorf("writing %s to the disk: %w", f.Name(), err)
}
