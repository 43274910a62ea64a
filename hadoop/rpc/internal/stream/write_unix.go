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

// init looks whether nc is a socket, or a wrapper of one that has NetConn and
// gives raw access: what is written to either comes to the same.
func (w *directWriter) init(nc net.Conn) {
	switch below(nc).(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return
	}
	socket, ok := nc.(syscall.Conn)
	if !ok {
		return // a wrapper that is more than its socket, as tls.Conn is
	}
	raw, err := socket.SyscallConn()
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
