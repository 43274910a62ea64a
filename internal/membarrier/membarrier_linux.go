package membarrier

import (
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// A Scope is a set of processes that take part.
type Scope struct {
	command, register int
	once              sync.Once
	registered        bool
}

// Private is this process alone, and Global all processes of the host that have
// registered for it. The commands are those of linux/membarrier.h.
var (
	Private = &Scope{command: 1 << 3, register: 1 << 4}
	Global  = &Scope{command: 1 << 1, register: 1 << 2}
)

const query = 0

// Registered has this process take part, and tells whether it does, and may call
// Fence. A seccomp profile, an emulator or another system may forbid it.
func (s *Scope) Registered() bool {
	s.once.Do(func() { s.registered = s.try() })
	return s.registered
}

func (s *Scope) try() bool {
	supported, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, query, 0, 0)
	both := uintptr(s.command | s.register)
	if errno != 0 || supported&both != both {
		return false
	}
	if _, _, errno = unix.Syscall(unix.SYS_MEMBARRIER, uintptr(s.register), 0, 0); errno != 0 {
		return false
	}
	_, _, errno = unix.Syscall(unix.SYS_MEMBARRIER, uintptr(s.command), 0, 0)
	return errno == 0
}

// Fence orders what every thread of the scope's processes has stored before what it
// loads next, and does the same for the caller. It takes a microsecond, or ten if
// other processors have to be interrupted. It does nothing where Registered is false.
//
// It panics if the kernel refuses what it has done before: a filter of system calls that was
// installed meanwhile may, and whoever relied on the fence must not go on without it.
func (s *Scope) Fence() {
	if !s.Registered() {
		return
	}
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_MEMBARRIER, uintptr(s.command), 0, 0)
		switch errno {
		case 0:
			return
		case unix.ENOMEM: // for the set of processors to be interrupted
			runtime.Gosched()
			continue
		case unix.EPERM: // a checkpoint that was restored has lost it
			_, _, errno = unix.RawSyscall(unix.SYS_MEMBARRIER, uintptr(s.register), 0, 0)
		}
		if errno != 0 {
			panic(fmt.Sprintf("membarrier(%#x) has worked before, and fails: %v", s.command, errno))
		}
	}
}
