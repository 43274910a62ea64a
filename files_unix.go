//go:build unix

package verbena

import (
	"os"

	"golang.org/x/sys/unix"
)

// duplicate returns another descriptor of a file. What is read through it has places of
// its own.
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	own := -1
	if controlErr := raw.Control(func(fd uintptr) { own, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); controlErr != nil {
		return nil, controlErr
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(own), f.Name()), nil
}
