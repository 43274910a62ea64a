package pressure

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A poller waits for triggers of PSI files. The files report by EPOLLPRI, which
// Go's own poller does not ask for; so an epoll of ours does, and Go's waits for
// that one.
type poller struct {
	files []*os.File
	epoll *os.File
	conn  syscall.RawConn

	mu    sync.Mutex
	woken bool
}

func newWaiter(s *System) waiter {
	files := s.triggers()
	if p := newPoller(files); p != nil {
		return p
	}
	for _, f := range files {
		f.Close()
	}
	return newSleeper()
}

func newPoller(files []*os.File) *poller {
	if len(files) == 0 {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	for _, f := range files {
		n := int(f.Fd())
		if err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, n, &unix.EpollEvent{Events: unix.EPOLLPRI, Fd: int32(n)}); err != nil {
			break
		}
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	p := &poller{files: files, epoll: os.NewFile(uintptr(fd), "epoll of pressure files")}
	if err == nil {
		p.conn, err = p.epoll.SyscallConn()
	}
	if err == nil {
		err = p.epoll.SetReadDeadline(time.Time{}) // Go's poller has it
	}
	if err != nil {
		p.epoll.Close()
		return nil
	}
	return p
}

func (p *poller) wait(d time.Duration) (reported bool) {
	p.mu.Lock()
	if p.woken || p.epoll.SetReadDeadline(time.Now().Add(d)) != nil {
		p.mu.Unlock()
		return false
	}
	p.mu.Unlock()
	_ = p.conn.Read(func(fd uintptr) bool { // it fails when the time is over
		var events [4]unix.EpollEvent
		n, _ := unix.EpollWait(int(fd), events[:], 0)
		for _, e := range events[:max(n, 0)] {
			if e.Events&unix.EPOLLERR != 0 { // its cgroup is gone
				_ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_DEL, int(e.Fd), nil)
				continue
			}
			reported = true
		}
		return reported
	})
	return reported
}

func (p *poller) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.woken = true
	_ = p.epoll.SetReadDeadline(time.Unix(1, 0)) // it could before
}

func (p *poller) close() {
	p.epoll.Close()
	for _, f := range p.files {
		f.Close()
	}
}
