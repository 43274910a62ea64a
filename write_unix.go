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
	vec  [3][]byte
	used int // of vec
	n    int
	err  error
}

func (w *directWriter) init(raw syscall.RawConn) {
	w.raw = raw
	w.try = func(fd uintptr) bool {
		for {
			if w.used > 1 {
				w.n, w.err = unix.Writev(int(fd), w.vec[:w.used])
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

// write returns how many bytes of a, then b and then c the socket took. There is an a.
func (w *directWriter) write(a, b, c []byte) (int, error) {
	w.used = 0
	for _, piece := range [...][]byte{a, b, c} {
		if len(piece) > 0 {
			w.vec[w.used] = piece
			w.used++
		}
	}
	err := w.raw.Write(w.try)
	w.vec = [3][]byte{}
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
