//go:build unix

package verbena

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// A directWriter writes to a socket what it takes at once, and never waits.
type directWriter struct {
	raw  syscall.RawConn
	try  func(fd uintptr) bool // made once, so that a write does not allocate
	vec  [2][]byte
	n    int
	err  error
	many bool
}

func (w *directWriter) init(raw syscall.RawConn) {
	w.raw = raw
	w.try = func(fd uintptr) bool {
		for {
			if w.many {
				w.n, w.err = unix.Writev(int(fd), w.vec[:])
			} else {
				w.n, w.err = unix.Write(int(fd), w.vec[0])
			}
			if w.err != unix.EINTR {
				return true
			}
		}
	}
}

func (w *directWriter) ready() bool { return w.raw != nil }

// write returns how many bytes of a and then b the socket took.
func (w *directWriter) write(a, b []byte) (int, error) {
	w.vec = [2][]byte{a, b}
	w.many = len(b) > 0
	err := w.raw.Write(w.try)
	w.vec = [2][]byte{}
	if err != nil {
		return 0, err
	}
	if w.err == unix.EAGAIN {
		return 0, nil
	}
	if w.err != nil {
		return 0, w.err
	}
	return w.n, nil
}
