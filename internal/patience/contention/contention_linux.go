package contention

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// account is the kernel's, opened when it is asked for first and never closed: there is one
// in a process.
var account = sync.OnceValue(func() int {
	fd, err := unix.Open("/proc/pressure/cpu", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
})

// Waited is for how long, since the machine came up, at least one thread was ready to run and
// had no processor. It reports false if that is not known.
func Waited() (time.Duration, bool) {
	fd := account()
	if fd < 0 {
		return 0, false
	}
	var b [256]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		return 0, false
	}
	return parse(b[:n])
}
