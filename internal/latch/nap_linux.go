package latch

import (
	"time"

	"golang.org/x/sys/unix"
)

// nap rests for about d, and 50 us more, by which Linux gathers timers. Go's own Sleep
// takes at least 1 ms where nothing else runs: its scheduler waits in epoll then, by whole
// milliseconds.
func nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // a signal ends it early
}
