//go:build linux && (amd64 || arm64) && !noibverbs && !puregocall

package foreign

import (
	"syscall"
	"unsafe"
)

// Route names how calls are made: "linkname" or "purego".
const Route = "linkname"

// frame6 and frame3 are what the shims read and write; the assembly knows their
// layout. They live on the caller's stack, which does not move while the call
// lasts.
type frame6 struct {
	fn            uintptr
	a             [6]uintptr
	result, errno uintptr
}

type frame3 struct {
	fn            uintptr
	a             [3]uintptr
	result, errno uintptr
}

//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(fn, arg unsafe.Pointer) int32

//go:linkname asmcgocall runtime.asmcgocall
//go:noescape
func asmcgocall(fn, arg unsafe.Pointer) int32

// shim6 and shim3 have C's calling convention: only their addresses are used.
func shim6() //nolint:unused // see above
func shim3() //nolint:unused // see above

// The addresses of the shims' machine code, set in assembly.
var shim6Address, shim3Address unsafe.Pointer

// Call calls fn with up to six integer or pointer arguments, in [Blocking]
// mode, and returns its result and the value of errno right after it. errno
// means something only if the function's result says that it failed.
func Call(fn, a0, a1, a2, a3, a4, a5 uintptr) (result uintptr, errno syscall.Errno) {
	f := frame6{fn: fn, a: [6]uintptr{a0, a1, a2, a3, a4, a5}}
	cgocall(shim6Address, unsafe.Pointer(&f))
	return f.result, syscall.Errno(f.errno)
}

// Call3 calls fn, which returns an int, with three arguments. errno is fetched
// only if the result is -1. It does not allocate.
func (m Mode) Call3(fn, a0, a1, a2 uintptr) (result int32, errno syscall.Errno) {
	f := frame3{fn: fn, a: [3]uintptr{a0, a1, a2}}
	if m == NonBlocking {
		asmcgocall(shim3Address, unsafe.Pointer(&f))
	} else {
		cgocall(shim3Address, unsafe.Pointer(&f))
	}
	if result = int32(f.result); result == -1 {
		errno = syscall.Errno(f.errno)
	}
	return result, errno
}
