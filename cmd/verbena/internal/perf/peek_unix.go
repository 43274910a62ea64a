//go:build unix

package perf

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// peek waits until enough says that the first bytes of conn suffice, or the
// buffer is full, and leaves them there.
func peek(conn net.Conn, into []byte, enough func([]byte) bool) (n int, err error) {
	s, ok := conn.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("perf: %T cannot be looked into", conn)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	var callErr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, callErr = syscall.Recvfrom(int(fd), into, syscall.MSG_PEEK)
			switch {
			case errors.Is(callErr, syscall.EINTR):
				continue
			case errors.Is(callErr, syscall.EAGAIN):
				return false
			case callErr != nil || n == 0 || n == len(into):
				return true
			}
			return enough(into[:n])
		}
	})
	if err == nil {
		err = callErr
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}
