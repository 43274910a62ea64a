package processes

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// CPUTime is the user and system time of a process, living threads and ended
// ones, to the nanosecond. The clock's number is made as
// clock_getcpuclockid(3) does, for the scheduler's clock of a process.
func CPUTime(pid int) (time.Duration, error) {
	const schedulerClock = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|schedulerClock, &t); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
