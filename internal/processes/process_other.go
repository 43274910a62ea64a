//go:build !linux

package processes

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// CPUTime knows this process alone: other systems have no portable way to ask
// for a running child's.
func CPUTime(pid int) (time.Duration, error) {
	if pid != os.Getpid() {
		return 0, nil
	}
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0, err
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}
