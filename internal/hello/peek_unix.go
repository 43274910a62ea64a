//go:build unix

package hello

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// peek waits for the first bytes and looks at them without taking them, so
// that the connection of a legacy client can be handed on as it is. It returns
// 0 and no error where that is not possible.
func peek(conn net.Conn, into []byte) (n int, err error) {
	var raw syscall.RawConn
	switch s := conn.(type) {
	case *net.TCPConn:
		raw, err = s.SyscallConn()
	case *net.UnixConn:
		raw, err = s.SyscallConn()
	default:
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var callErr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, callErr = syscall.Recvfrom(int(fd), into, syscall.MSG_PEEK)
			if !errors.Is(callErr, syscall.EINTR) {
				return !errors.Is(callErr, syscall.EAGAIN)
			}
		}
	})
	if err == nil {
		err = callErr
	}
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
