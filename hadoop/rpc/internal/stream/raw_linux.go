package stream

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shortCall is how many bytes a system call moves of which Go's scheduler is not told, 10 to 20 us of work.
// Of others it is told, and takes the processor's other work elsewhere when they take 20 us, as a write
// does that wakes up its reader on the same processor: a thread is woken for that, and one that watches
// over calls under way sleeps 20 us at a time.
const shortCall = 64 << 10

// writeNow is write(2) to a socket that does not block, by a call that knows of sockets alone.
func writeNow(fd int, b []byte) (int, error) {
	if len(b) == 0 || len(b) > shortCall {
		return unix.Write(fd, b)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return moved(n, errno)
}

// readNow is read(2) from a socket that does not block, of shortCall bytes at most.
func readNow(fd int, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(min(len(b), shortCall)), 0, 0, 0)
	return moved(n, errno)
}

func moved(n uintptr, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
