package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

// An alarm wakes who waits at a completion queue where Go has one processor. It is an
// eventfd that Go's network poller watches.
//
// Who sleeps in a futex is in a system call, as far as Go can tell, so that its thread
// keeps Go's processor until Go's monitor takes it away. Who waits for an alarm sleeps as
// one does at a socket: the next goroutine runs at once, in the same thread. With more
// processors another thread has to be woken for the goroutine, and the futex is faster.
// Where some goroutine polls, and lets others run only in between, Go asks its poller every
// 10 ms only. So alarms are used while nobody polls ([rdma.DomainConfig]).
//
// Every write is an edge to the poller, whatever the counter holds. So nobody reads it,
// and it would be full after 2^64 writes.
type alarm struct {
	number uint32 // among the alarms of the domain
	fd     int
	file   *os.File
	raw    syscall.RawConn
	write  func(fd uintptr) // ringEventfd, kept so that ring allocates nothing
	asleep atomic.Bool
}

// alarmsWhile returns what a queue asks before each wait: true has it wait for its alarm. It
// returns nil where the queues of the domain are to have no alarms. Tests change it.
var alarmsWhile = func(config rdma.DomainConfig) func() bool {
	if runtime.GOMAXPROCS(0) > 1 {
		return nil
	}
	return config.Unpolled
}

// newAlarm makes an alarm, or returns nil: where there is no eventfd, futexes will do.
func newAlarm(number uint32) *alarm {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil
	}
	a := &alarm{number: number, fd: fd, file: os.NewFile(uintptr(fd), "verbena-alarm")}
	a.write = func(fd uintptr) { ringEventfd(int(fd)) }
	if a.raw, err = a.file.SyscallConn(); err == nil {
		err = a.file.SetReadDeadline(time.Time{}) // fails if the poller does not watch it
	}
	if err != nil {
		_ = a.file.Close()
		return nil
	}
	return a
}

// sleep waits until over returns true. It looks at once, and after each ring. One goroutine
// sleeps at a time.
func (a *alarm) sleep(over func(fd uintptr) bool) error {
	a.asleep.Store(true)
	defer a.asleep.Store(false)
	return a.raw.Read(over)
}

// ring wakes who sleeps, or does nothing after close.
func (a *alarm) ring() { _ = a.raw.Control(a.write) }

func (a *alarm) close() error { return a.file.Close() }

var one = binary.NativeEndian.AppendUint64(nil, 1)

// ringEventfd never blocks, so Go's runtime need not be told of the system call.
func ringEventfd(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one[0])), uintptr(len(one)))
}

// A peerAlarm is a descriptor of a peer's alarm. Connections to one queue of the peer
// share it.
type peerAlarm struct {
	number uint32
	fd     int
	users  int // guarded by the peer domain's mu
}

func (a *peerAlarm) ring() { ringEventfd(a.fd) }

// takesAlarms tells whether the peer is given this side's alarm, and this side takes the
// peer's. Whoever holds an alarm could make writes to it block, so it is only for
// processes that trust each other.
func (qp *queuePair) takesAlarms() bool {
	return !qp.conn.foreign && qp.remote.greatest >= versionAlarms
}

// handAlarm hands the peer the alarm of the queue that it rings. Until it has come, and
// if it never does, the peer rings the agent.
func (qp *queuePair) handAlarm() {
	if a := qp.recvCQ.alarm; a != nil && qp.takesAlarms() {
		_ = qp.conn.writeSoon(appendAlarm(nil, a.number), a.fd)
	}
}

// receiveAlarm takes the peer's alarm.
func (qp *queuePair) receiveAlarm(number uint32, p *packet) error {
	if !qp.takesAlarms() {
		return fmt.Errorf("%w: an alarm from a peer that has none to give", errPacket)
	}
	if len(p.descriptors) != 1 {
		return fmt.Errorf("%w: an alarm with %d descriptors", errPacket, len(p.descriptors))
	}
	if err := checkEventfd(p.descriptors[0]); err != nil {
		if errors.Is(err, errPacket) {
			return err
		}
		return nil // nobody can tell what it is: without /proc, or where that is not readable
	}
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	if qp.peerAlarm != nil {
		return fmt.Errorf("%w: a second alarm", errPacket)
	}
	a, err := qp.peer.Load().addAlarm(qp.remote.bell.queue, number, p.take(0))
	qp.peerAlarm = a
	return err
}

// checkEventfd returns an error if a descriptor of a peer is none of an eventfd that
// never blocks.
func checkEventfd(fd int) error {
	what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if what != "anon_inode:[eventfd]" || flags&unix.O_NONBLOCK == 0 || flags&unix.O_ACCMODE == unix.O_RDONLY {
		return fmt.Errorf("%w: an alarm that is %s with flags %#x, and no eventfd that does not block", errPacket, what, flags)
	}
	return nil
}

// addAlarm notes one use of a queue's alarm and takes fd over.
func (p *peerDomain) addAlarm(queue, number uint32, fd int) (*peerAlarm, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.alarms[queue]; a != nil && a.number == number {
		a.users++
		return a, unix.Close(fd)
	}
	a := &peerAlarm{number: number, fd: fd, users: 1}
	p.alarms[queue] = a
	return a, nil
}

// dropAlarm ends one use of an alarm, and closes it after the last.
func (p *peerDomain) dropAlarm(queue uint32, a *peerAlarm) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.users--; a.users > 0 {
		return nil
	}
	if p.alarms[queue] == a {
		delete(p.alarms, queue)
	}
	return unix.Close(a.fd)
}
