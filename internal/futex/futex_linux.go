package futex

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	opWait = 0
	opWake = 1
)

// Wait blocks the calling thread while the word holds value, until a Wake, the
// timeout or a signal. A timeout of zero or less waits without one. Wake-ups may
// be spurious: the caller looks at its condition again. The returned error is
// about the word itself, never about a time that has passed.
//
// The thread keeps Go's processor until Go's monitor takes it, after 20 us to 10 ms. With
// as many waiters as processors, whoever is woken may have to wait for that.
func Wait(word *uint32, value uint32, timeout time.Duration) error {
	var t unix.Timespec
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWait, uintptr(value),
		uintptr(unsafe.Pointer(spec(&t, timeout))), 0, 0)
	return waitError(errno)
}

// WaitIdle is Wait for who is woken seldom: it gives Go's processor to others at once,
// which may wake a thread that looks for work.
func WaitIdle(word *uint32, value uint32, timeout time.Duration) error {
	var t unix.Timespec
	return waitError(block(word, uintptr(value), spec(&t, timeout)))
}

// spec puts a timeout into t for the kernel; nil: none.
func spec(t *unix.Timespec, timeout time.Duration) *unix.Timespec {
	if timeout <= 0 {
		return nil
	}
	*t = unix.NsecToTimespec(int64(timeout))
	return t
}

func waitError(errno unix.Errno) error {
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR, unix.ETIMEDOUT:
		return nil
	}
	return fmt.Errorf("futex wait: %w", errno)
}

// Wake wakes up to count waiters of the word and returns how many there were.
func Wake(word *uint32, count int) (int, error) {
	// A wake-up never blocks, so the runtime need not be told of it.
	woken, _, errno := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWake, uintptr(count), 0, 0, 0)
	if errno != 0 {
		return 0, fmt.Errorf("futex wake: %w", errno)
	}
	return int(woken), nil
}
