//go:build unix

package perf

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime is what this process has used so far, in user and kernel.
func processorTime() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("perf: getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
