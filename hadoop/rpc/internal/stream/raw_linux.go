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

// told reads from a socket, and has TCP tell how much it left there (TCP_INQ, Linux 4.18).
type told struct {
	on      bool
	message unix.Msghdr
	memory  unix.Iovec
	control [32]byte // for one message of four bytes
}

func (t *told) init(fd int) {
	t.on = unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_INQ, 1) == nil
}

// read reads into b, and tells whether something may be left, be it the end of the stream.
func (t *told) read(fd int, b []byte) (n int, left bool, err error) {
	if !t.on {
		n, err = readNow(fd, b)
		return n, true, err
	}
	t.memory.Base = &b[0]
	t.memory.SetLen(min(len(b), shortCall))
	t.message.Iov, t.message.Control = &t.memory, &t.control[0]
	t.message.SetIovlen(1)
	t.message.SetControllen(len(t.control))
	got, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&t.message)), 0)
	t.memory.Base = nil
	if n, err = moved(got, errno); err != nil {
		return 0, true, err
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&t.control))
	if int(t.message.Controllen) < unix.CmsgLen(4) || h.Level != unix.SOL_TCP || h.Type != unix.TCP_INQ {
		return n, true, nil
	}
	return n, *(*int32)(unsafe.Pointer(&t.control[unix.CmsgLen(0)])) != 0, nil
}
