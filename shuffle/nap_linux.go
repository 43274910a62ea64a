package shuffle

import (
	"time"

	"golang.org/x/sys/unix"
)

// nap sleeps for less than a millisecond. Go's timers do not: a process in which nothing runs
// waits for whole milliseconds.
func nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // a signal ends it early
}
