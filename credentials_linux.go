package verbena

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

// socketCredentials tells whose process connected a Unix socket, or listens at it.
func socketCredentials(conn net.Conn) (rdma.Credentials, bool) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return rdma.Credentials{}, false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return rdma.Credentials{}, false
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || peerErr != nil {
		return rdma.Credentials{}, false
	}
	return rdma.Credentials{UID: peer.Uid, GID: peer.Gid, PID: int(peer.Pid)}, true
}
