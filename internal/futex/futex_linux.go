package futex

import (
	"errors"
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
func Wait(word *uint32, value uint32, timeout time.Duration) error {
	var spec *unix.Timespec
	if timeout > 0 {
		t := unix.NsecToTimespec(int64(timeout))
		spec = &t
	}
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWait, uintptr(value),
		uintptr(unsafe.Pointer(spec)), 0, 0)
	switch {
	case errno == 0, errors.Is(errno, unix.EAGAIN), errors.Is(errno, unix.EINTR), errors.Is(errno, unix.ETIMEDOUT):
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
