package iwarp

import "golang.org/x/sys/unix"

// unread tells whether something has come that this side has not read yet.
func (a *arrival) unread() bool {
	if a.raw == nil {
		return false
	}
	came := false
	if err := a.raw.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(polled, 0)
		came = err == nil && n > 0
	}); err != nil {
		return false
	}
	return came
}
