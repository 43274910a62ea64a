//go:build unix

package stream

import (
	"cmp"
	"io"
	"net"
	"os"
	"sync"
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

// init looks whether nc is a socket, see rawSocket.
func (w *directWriter) init(nc net.Conn) {
	w.raw = rawSocket(nc)
	w.try = func(fd uintptr) bool {
		for {
			if w.n, w.err = writeNow(int(fd), w.b); w.err != unix.EINTR {
				return true
			}
		}
	}
}

// rawSocket returns access to nc's socket if it is one, or a wrapper of one that has NetConn and gives
// raw access: what is written to either comes to the same. Else it returns nil.
func rawSocket(nc net.Conn) syscall.RawConn {
	switch below(nc).(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return nil
	}
	socket, ok := nc.(syscall.Conn)
	if !ok {
		return nil // a wrapper that is more than its socket, as tls.Conn is
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
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

// A directReader reads from a socket as its Read does, with system calls of our own.
type directReader struct {
	raw  syscall.RawConn
	try  func(fd uintptr) bool
	b    []byte
	n    int
	err  error
	told told
	once func(fd uintptr) // try, but once
	mu   *sync.Mutex      // held by who uses the reader, if several do; else nil
}

// direct returns what reads from r in the cheapest way. A wrapper of a socket may do more than that.
func direct(r io.Reader) io.Reader {
	var raw syscall.RawConn
	switch nc := r.(type) {
	case *net.TCPConn:
		raw = rawSocket(nc)
	case *net.UnixConn:
		raw = rawSocket(nc)
	}
	if raw == nil {
		return r
	}
	d := &directReader{raw: raw}
	d.once = func(fd uintptr) { d.n, d.err = readNow(int(fd), d.b) }
	_ = raw.Control(func(fd uintptr) { d.told.init(int(fd)) }) // else nothing is told
	d.try = func(fd uintptr) bool {
		for {
			switch d.n, d.err = readNow(int(fd), d.b); d.err {
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				return true
			}
		}
	}
	return d
}

// Read implements [io.Reader].
func (d *directReader) Read(b []byte) (int, error) {
	d.b = b
	err := d.raw.Read(d.try)
	d.b = nil
	switch {
	case err != nil:
		return 0, err
	case d.err != nil:
		return 0, os.NewSyscallError("read", d.err)
	case d.n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return d.n, nil
}

// look reads what has come, without waiting. It reports false if that is nothing.
func (d *directReader) look(b []byte) (n int, came bool, err error) {
	d.b = b
	err = d.raw.Control(d.once)
	d.b = nil
	switch {
	case err != nil:
		return 0, true, err
	case d.err == unix.EAGAIN || d.err == unix.EINTR:
		return 0, false, nil
	case d.err != nil:
		return 0, true, os.NewSyscallError("read", d.err)
	case d.n == 0:
		return 0, true, io.EOF
	}
	return d.n, true, nil
}

// some reads what has come, and tells whether something may be left.
func (d *directReader) some(fd int, b []byte) (n int, left bool, err error) {
	if d.mu != nil {
		n, err = readNow(fd, b)
		return n, true, err
	}
	return d.told.read(fd, b)
}

// turns is [Reader.Turns]. It stays within one Read of the socket: what has come since something was read
// ends the next wait, so that nothing has to be read again before where the system tells that
// nothing is left.
func (d *directReader) turns(r *Reader, turn func() bool) error {
	var (
		failed error
		none   bool // nothing was left
	)
	each := func(fd uintptr) bool {
		for {
			if none {
				none = false
				return false
			}
			if r.Pending() {
				return true // who looked has found the first bytes of a frame
			}
			r.room()
			n, left, err := d.some(int(fd), r.buf)
			switch {
			case err == unix.EINTR:
				continue
			case err == unix.EAGAIN:
				return false
			case err != nil:
				failed = os.NewSyscallError("read", err)
				return true
			case n == 0:
				failed = io.EOF
				return true
			}
			r.end = n
			r.full = n == len(r.buf)
			none = !left
			if !turn() || r.Pending() {
				return true
			}
		}
	}
	if d.mu != nil {
		alone := each
		each = func(fd uintptr) bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return alone(fd)
		}
	}
	err := d.raw.Read(each)
	return cmp.Or(failed, err)
}
