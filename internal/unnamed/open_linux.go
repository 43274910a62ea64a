package unnamed

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// open fails with errors.ErrUnsupported if the file system makes no such files.
func open(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if errors.Is(err, unix.EISDIR) { // of a kernel that does not know the flag
		return nil, errors.ErrUnsupported
	}
	return f, err // EOPNOTSUPP is errors.ErrUnsupported
}
