//go:build linux && (amd64 || arm64) && !noibverbs && puregocall

package foreign

import (
	"runtime"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Route names how calls are made: "linkname" or "purego".
const Route = "purego"

// Call calls fn with up to six integer or pointer arguments and returns its
// result and the value of errno right after it. errno means something only if
// the function's result says that it failed.
func Call(fn, a0, a1, a2, a3, a4, a5 uintptr) (result uintptr, errno syscall.Errno) {
	runtime.LockOSThread() // errno is the thread's
	defer runtime.UnlockOSThread()
	result, _, _ = purego.SyscallN(fn, a0, a1, a2, a3, a4, a5)
	return result, fetchErrno()
}

// Call3 calls fn, which returns an int, with three arguments. errno is fetched
// only if the result is -1. On this route it allocates, and the mode makes no
// difference.
func (m Mode) Call3(fn, a0, a1, a2 uintptr) (result int32, errno syscall.Errno) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, _, _ := purego.SyscallN(fn, a0, a1, a2)
	if result = int32(r); result == -1 {
		errno = fetchErrno()
	}
	return result, errno
}

// fetchErrno makes a second call: purego brings no errno back on Linux. The
// runtime makes its own system calls without the C library in between, so the
// value is still there.
func fetchErrno() syscall.Errno {
	if errnoLocation == 0 {
		return 0
	}
	location, _, _ := purego.SyscallN(errnoLocation)
	return syscall.Errno(**(**int32)(unsafe.Pointer(&location)))
}
