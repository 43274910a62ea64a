package futex

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Go keeps these two for other programs: see the comments in its runtime/proc.go.

//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// block waits, and gives Go's processor to others before. The stack cannot grow between
// the two calls of the runtime, and what is called there must not ask for it.
//
//go:nosplit
//go:norace
func block(word *uint32, value uintptr, spec *unix.Timespec) unix.Errno {
	entersyscallblock()
	_, _, errno := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWait, value, uintptr(unsafe.Pointer(spec)), 0, 0)
	exitsyscall()
	return errno
}
