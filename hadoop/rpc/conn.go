package rpc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/stream"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

const (
	preambleSize = 7
	authNone     = 0x00
	authSASL     = 0xDF
)

// mostUnknown bounds the frames of a client that has not said who it is, in
// bytes: its tokens have at most 64 KiB together with what is around them.
const mostUnknown = 64 << 10

var magic = [4]byte{'h', 'r', 'p', 'c'}

// silence is how long the host of a peer may answer nothing at all while data
// is on its way there.
const silence = 30 * time.Second

// conn is a client's connection: it carries a session's messages over a stream.
type conn struct {
	server  *Server
	nc      net.Conn
	r       *stream.Reader
	w       *stream.Writer
	session *session
	member  *member

	known    bool      // the client has introduced itself
	active   time.Time // when something came last
	deadline time.Time // of reading
	broken   error     // of the last turn
}

// ServeConn serves one connection until it ends, and closes it. After Close it
// closes it at once. A wrapper of a socket is written to as fast as the socket
// itself if it has SyscallConn, and NetConn as tls.Conn has it.
func (s *Server) ServeConn(nc net.Conn) { s.ServeConnAfter(nil, nc) }

// ServeConnAfter serves a connection from which its owner has read something
// already, to see what it is for. It copies that.
func (s *Server) ServeConnAfter(read []byte, nc net.Conn) {
	c := &conn{server: s, nc: nc, member: &member{close: func() { nc.Close() }}}
	if !s.admit(c.member) {
		nc.Close()
		return
	}
	defer s.leave(c.member)
	c.r = stream.NewReader(nc, min(mostUnknown, s.cfg.MaxFrame))
	c.r.Unread(read)
	c.w = stream.NewWriter(nc, s.cfg.WriteTimeout, silence, s.unread)
	c.session = newStreamSession(s, c.w, nc.RemoteAddr())
	c.serve()
}

func (c *conn) serve() {
	err := c.read()
	if why := c.w.Err(); why != nil {
		err = why // the writer closed the connection under the reader
	}
	c.session.cancel()
	c.session.calls.Wait()
	var told *errEnded
	switch {
	case errors.As(err, &told) || c.session.ending.Load():
		c.w.Finish()
		c.w.Wait()
		c.drain()
	case errors.Is(err, io.EOF):
		c.w.Finish() // it may read still
		c.w.Wait()
	}
	c.nc.Close()
	c.w.Stop()
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe), errors.Is(err, errIdle), errors.Is(err, errOver):
	default:
		c.server.cfg.Logger.Info("rpc: connection ended", "peer", c.nc.RemoteAddr(), "user", c.session.user, "error", err)
	}
}

var (
	errIdle = errors.New("no call within the idle timeout")
	errOver = errors.New("the last answer is out")
)

// read reads until the connection ends or the client breaks the protocol.
func (c *conn) read() error {
	if err := c.nc.SetReadDeadline(time.Now().Add(c.server.cfg.HandshakeTimeout)); err != nil {
		return err
	}
	if err := c.preamble(); err != nil {
		return err
	}
	for {
		if !c.r.Ready() {
			c.w.Flush()
			if err := c.wait(); err != nil {
				return err
			}
		}
		// Nobody waits for a client that reads no answers but who reads its calls.
		if err := c.w.Room(c.session.ctx); err != nil {
			if c.session.ending.Load() {
				return errOver
			}
			return err
		}
		if err := c.next(); err != nil {
			return err
		}
		if c.session.known && !c.known {
			c.known = true
			c.server.know(c.member)
			c.r.Limit(c.server.cfg.MaxFrame)
		}
	}
}

// next reads a message, and has the session take it.
func (c *conn) next() error {
	m, err := c.r.Next()
	if err != nil {
		if errors.Is(err, stream.ErrFrameLength) {
			return c.session.tell(c.session.unasked(wire.CallIDInvalid), fatal(codeFatalHeader, exception.RPCServer, err.Error()))
		}
		return err
	}
	if c.session.ending.Load() {
		m.Release()
		return errOver
	}
	return c.session.receive(c.w, m)
}

// turn takes the whole messages that have come. It reports false if who reads has to see to what is next.
func (c *conn) turn() bool {
	for c.r.Ready() {
		if c.w.Crowded() {
			return false
		}
		if c.broken = c.next(); c.broken != nil {
			return false
		}
	}
	if c.r.Pending() {
		return false
	}
	c.w.Flush()
	c.broken = c.lasts()
	return c.broken == nil
}

// wait waits for something to read, and takes what is simple of it. As long as a call is under way the
// connection is not idle, however long its client is silent.
func (c *conn) wait() error {
	if !c.known {
		return c.r.Wait()
	}
	if err := c.lasts(); err != nil {
		return err
	}
	for {
		c.broken = nil
		err := c.r.Turns(c.turn)
		if err == nil {
			return c.broken
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			return err
		}
		now := time.Now()
		if c.session.ending.Load() || !c.session.busy() && now.Sub(c.active) >= c.server.cfg.IdleTimeout {
			return errIdle
		}
		c.r.Shrink()
		c.deadline = time.Time{}
		if err := c.extend(now); err != nil {
			return err
		}
	}
}

// lasts notes that the connection is in use.
func (c *conn) lasts() error {
	now := c.session.latest // a call of microseconds, as most often
	c.session.latest = time.Time{}
	if now.IsZero() {
		now = time.Now()
	}
	c.active = now
	return c.extend(now)
}

// extend sets the deadline of reading anew when an eighth of it has passed: each time would cost more than
// it is worth.
func (c *conn) extend(now time.Time) error {
	idle := c.server.cfg.IdleTimeout
	if now.Add(idle).Sub(c.deadline) <= idle/8 {
		return nil
	}
	c.deadline = c.active.Add(idle)
	if !c.deadline.After(now) { // calls are under way
		c.deadline = now.Add(idle)
	}
	return c.nc.SetReadDeadline(c.deadline)
}

// drain reads what the client sends until it has seen that the connection
// ends, within bounds of time and bytes: a reset, which unread requests would cause,
// could destroy the last answer.
func (c *conn) drain() {
	if c.nc.SetReadDeadline(time.Now().Add(time.Second)) == nil {
		_, _ = io.CopyN(io.Discard, c.nc, 1<<20) // whatever ends it, the connection closes now
	}
}

const httpAnswer = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" +
	"This port speaks Hadoop RPC, not HTTP.\r\n"

func (c *conn) preamble() error {
	b, err := c.r.Take(4)
	if err != nil {
		return err
	}
	if string(b) == "GET " {
		err := c.nc.SetWriteDeadline(time.Now().Add(c.server.cfg.WriteTimeout))
		if err == nil {
			_, err = io.WriteString(c.nc, httpAnswer)
		}
		return &errEnded{errors.Join(errors.New("an HTTP request came"), err)}
	}
	if [4]byte(b) != magic {
		return fmt.Errorf("the first bytes %q are not Hadoop RPC's", b)
	}
	if b, err = c.r.Take(preambleSize - 4); err != nil {
		return err
	}
	if version := b[0]; version != wire.Version {
		mismatch := fatal(codeFatalVersion, exception.VersionMismatch,
			fmt.Sprintf("Server IPC version %d cannot communicate with client version %d", wire.Version, version))
		old := wire.AppendOldFatal(nil, version, string(mismatch.Class), mismatch.Message)
		if old == nil {
			return c.session.tell(c.session.unasked(wire.CallIDNone), mismatch)
		}
		err := c.nc.SetWriteDeadline(time.Now().Add(c.server.cfg.WriteTimeout))
		if err == nil {
			_, err = c.nc.Write(old)
		}
		return &errEnded{errors.Join(mismatch, err)}
	}
	return c.session.authenticates(b[2])
}

var _ carrier.Sender = (*stream.Writer)(nil)
