package verbena

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hungUp tells whether the peer of a connection has gone for certain, and whether
// it will at least send no more.
func hungUp(conn net.Conn) (gone, half bool) {
	if below, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = below.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false, false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false, false
	}
	var events int16
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if _, err := unix.Poll(poll, 0); err == nil {
			events = poll[0].Revents
		}
	})
	if err != nil {
		return true, true // closed on this side
	}
	return events&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0, events&unix.POLLRDHUP != 0
}
