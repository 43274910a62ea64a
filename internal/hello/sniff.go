package hello

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Errors of a connection that was closed, or whose deadline passed, before its
// bytes told what it is.
var (
	// ErrSilent: nothing has been taken from the connection.
	ErrSilent = errors.New("hello: the connection told nothing")
	// ErrCut: it began like a hello, and those bytes are gone.
	ErrCut = errors.New("hello: the connection ended within the magic")
)

// Sniff reads from conn until its bytes either are the whole [Magic] or differ
// from it, and never asks for a byte that it does not need for that. The
// connection's deadlines are the caller's business.
//
// For a hello it returns conn itself, with the magic consumed. For anything
// else it returns a connection on which every byte can be read that conn
// delivered: conn itself if possible, else a [*Conn]. An error wraps
// [ErrSilent] or [ErrCut], and conn is still open.
func Sniff(conn net.Conn) (c net.Conn, isHello bool, err error) {
	var seen [len(Magic)]byte
	n, err := peek(conn, seen[:])
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrSilent, err)
	}
	if n > 0 && !matches(seen[:n]) {
		return conn, false, nil
	}
	for n = 0; n < len(Magic); {
		k, err := conn.Read(seen[n:])
		n += k
		if !matches(seen[:n]) {
			break
		}
		if err != nil && n < len(Magic) {
			switch {
			case n == 0:
				return nil, false, fmt.Errorf("%w: %w", ErrSilent, err)
			case !errors.Is(err, io.EOF):
				return nil, false, fmt.Errorf("%w: %w", ErrCut, err)
			}
			break // a short legacy message and its end: theirs to judge
		}
	}
	if n == len(Magic) && matches(seen[:]) {
		return conn, true, nil
	}
	return &Conn{Conn: conn, unread: append([]byte(nil), seen[:n]...)}, false, nil
}

func matches(b []byte) bool { return string(b) == string(Magic[:len(b)]) }

// A Conn gives the bytes that were read from it back first. Then it is the
// connection below it, whose half-close, splicing and raw access it passes on.
type Conn struct {
	net.Conn
	unread []byte
}

// NetConn returns the connection below. Bytes not yet read from c are lost to it.
func (c *Conn) NetConn() net.Conn { return c.Conn }

func (c *Conn) Read(p []byte) (int, error) {
	if len(c.unread) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.unread)
	if c.unread = c.unread[n:]; len(c.unread) == 0 {
		c.unread = nil
	}
	return n, nil
}

// WriteTo implements [io.WriterTo], so that a copy from c to a socket is
// spliced by the kernel once the bytes given back have gone.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for len(c.unread) > 0 {
		n, err := w.Write(c.unread)
		c.unread = c.unread[n:]
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	n, err := io.Copy(w, c.Conn)
	return total + n, err
}

// ReadFrom implements [io.ReaderFrom] for copies into the connection.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// CloseWrite ends this side's half of the connection.
func (c *Conn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return fmt.Errorf("hello: half-close of %T: %w", c.Conn, errors.ErrUnsupported)
}

// CloseRead ends the peer's half of the connection.
func (c *Conn) CloseRead() error {
	if h, ok := c.Conn.(interface{ CloseRead() error }); ok {
		return h.CloseRead()
	}
	return fmt.Errorf("hello: half-close of %T: %w", c.Conn, errors.ErrUnsupported)
}

// SyscallConn gives raw access, as soon as nothing is left to be given back.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if len(c.unread) > 0 {
		return nil, fmt.Errorf("hello: raw access with %d bytes to be read first", len(c.unread))
	}
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, fmt.Errorf("hello: raw access to %T: %w", c.Conn, errors.ErrUnsupported)
}
