// Package foreign calls C functions by their address, without cgo, at the
// least cost that is safe, and brings back errno from inside the same call.
//
// There are two ways in. [Blocking] takes the route of cgo: the scheduler knows
// that the thread is away and hands its processor on when the call lasts.
// [NonBlocking] only changes to the system stack; it is several times cheaper,
// but the garbage collector waits for the call to return, so it is only for
// functions that never sleep, lock for long or make a system call.
//
// Both use two functions of the Go runtime, runtime.cgocall and
// runtime.asmcgocall, and a shim in assembly. The build tag puregocall replaces
// them by purego's public SyscallN, for a Go release that closes the door:
//
//	go build -tags puregocall ./...
//
// The package exists on Linux, amd64 and arm64, and not under the build tag
// noibverbs, because purego makes a program dynamically linked. The functions
// called must not call back into Go. Arguments are integers: whatever they are
// the address of must stay alive and in its place, as mapped memory does, and an
// object on Go's heap until its last use, but not one on a stack.
package foreign
