//go:build linux && (amd64 || arm64) && !noibverbs

package stubs

import "unsafe"

// ScriptOffset is where the script lies behind the address of a queue pair,
// completion queue or shared receive queue.
const ScriptOffset = 1024

// LogSize is how many work requests a script remembers.
const LogSize = 64

// Script is what the operations do, and what they have seen. The assembly
// knows its layout.
type Script struct {
	Limit         uint64  // work requests that are taken; the next is refused
	Taken         uint64  // work requests taken so far
	Result        int64   // what the refusal, and a poll or arm if it is not 0, returns
	Errno         uint64  // what a refusal leaves in errno if it is not 0
	ErrnoLocation uintptr // C's __errno_location
	Available     uint64  // completions that poll still has to give
	Source        uintptr // where it copies them from, 48 bytes each, the same again if Refill is set
	Refill        uint64
	Armed         uint64 // 1 + solicited of the last arming
	_             [7]uint64
	Log           [LogSize]uintptr // the addresses of the work requests taken, as a ring
}

// Addresses of the operations' machine code, set in assembly.
var (
	postAddress, pollAddress, notifyAddress, sum6Address uintptr
)

// PostSend is the address of int post_send(qp, wr, bad_wr).
func PostSend() uintptr { return postAddress }

// PostRecv is the address of int post_recv(qp, wr, bad_wr), which does for
// shared receive queues, too.
func PostRecv() uintptr { return postAddress }

// PollCQ is the address of int poll_cq(cq, n, wc).
func PollCQ() uintptr { return pollAddress }

// ReqNotifyCQ is the address of int req_notify_cq(cq, solicited).
func ReqNotifyCQ() uintptr { return notifyAddress }

// Sum6 is the address of a function that returns a0 + 2 a1 + 3 a2 + 4 a3 + 5 a4 + 6 a5.
func Sum6() uintptr { return sum6Address }

// ScriptOf is the script behind a queue's address.
func ScriptOf(queue unsafe.Pointer) *Script {
	return (*Script)(unsafe.Add(queue, ScriptOffset))
}

// The operations themselves have C's calling convention.
func post()   //nolint:unused // the assembly takes its address
func poll()   //nolint:unused // the assembly takes its address
func notify() //nolint:unused // the assembly takes its address
func sum6()   //nolint:unused // the assembly takes its address
