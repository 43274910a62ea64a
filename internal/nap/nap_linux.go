package nap

import (
	"time"

	"golang.org/x/sys/unix"
)

// slack is how much later than asked for the kernel may end a nap. It takes 50 us unless
// a thread says otherwise, and a nap of 20 us lasts 75 then.
const slack = time.Microsecond

// For sleeps by the kernel's clock. It lets the kernel end the sleep 1 us late, and the
// thread keeps that slack, which nothing but the ends of sleeps depends on. If the goroutine
// changes threads before it sleeps, that one nap may last longer.
func For(d time.Duration) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0) // where it is forbidden, naps last longer
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // a signal ends it early
}
