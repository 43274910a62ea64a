//go:build unix

package stream

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// A directWriter writes to a socket what it takes at once, and never waits.
type directWriter struct {
	raw syscall.RawConn
	try func(fd uintptr) bool // made once, so that a write does not allocate
	b   []byte
	n   int
	err error
}

// init reports whether nc is a socket.
func (w *directWriter) init(nc net.Conn) {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return
	}
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	w.raw = raw
	w.try = func(fd uintptr) bool {
		for {
			if w.n, w.err = unix.Write(int(fd), w.b); w.err != unix.EINTR {
				return true
			}
		}
	}
}

func (w *directWriter) ready() bool { return w.raw != nil }

// write returns how many bytes the socket took.
func (w *directWriter) write(b []byte) (int, error) {
	w.b = b
	err := w.raw.Write(w.try)
	w.b = nil
	switch {
	case err != nil:
		return 0, err
	case w.err == unix.EAGAIN:
		return 0, nil
	case w.err != nil:
		return 0, w.err
	}
	return w.n, nil
}
