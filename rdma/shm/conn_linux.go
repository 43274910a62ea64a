package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/internal/users"
)

const (
	maxDescriptors = 4
	// handshakeTimeout bounds each step of set-up that does not wait for an
	// application, only for the peer to run, unless the application's context has a
	// deadline.
	handshakeTimeout = 10 * time.Second
)

// A conn is the Unix socket of a connection. It carries set-up, descriptors and
// the news of the peer's death; no data.
type conn struct {
	socket  *net.UnixConn
	fd      int // the socket's, for as long as that is open
	peer    unix.Ucred
	foreign bool          // the peer is, or may be, of another user
	limit   time.Duration // of a write
	misses  int           // regions that a foreign peer asked for in vain; the reader's

	hungUp  atomic.Bool // the other end was closed, or its process died
	buffer  []byte
	control []byte

	wantsMu sync.Mutex
	wants   []want // that were sent and have no answer yet
}

// checkForeign tells whether memory of another user may be mapped on this host. Tests
// change it.
var checkForeign = memfd.CheckForeign

// newConn looks who is at the other end of a socket. If that is somebody who may
// not connect, it returns the conn as well as the error, which says so.
func newConn(socket *net.UnixConn, config *Config) (*conn, error) {
	c := &conn{socket: socket, limit: config.AccessTimeout}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		c.fd = int(fd)
		peer, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	if credErr != nil {
		return nil, fmt.Errorf("credentials of the peer: %w", credErr)
	}
	c.peer = *peer
	served := users.Served(config.AllowUIDs)
	c.foreign = served.Foreign(peer.Uid)
	if !served.Admits(peer.Uid) {
		return c, fmt.Errorf("%s: %s: %s", c.name(), served.Why(peer.Uid), refusal)
	}
	if c.foreign {
		if err := checkForeign(); err != nil {
			return c, fmt.Errorf("%s: memory of another user: %w", c.name(), err)
		}
	}
	return c, nil
}

// name tells the process at the other end.
func (c *conn) name() string {
	if c.peer.Pid == 0 {
		return fmt.Sprintf("a process of user %d in another process namespace", c.peer.Uid)
	}
	return fmt.Sprintf("process %d of user %d", c.peer.Pid, c.peer.Uid)
}

func (c *conn) credentials() rdma.Credentials {
	return rdma.Credentials{UID: c.peer.Uid, GID: c.peer.Gid, PID: int(c.peer.Pid)}
}

// PeerCredentials implements rdma.CredentialedQueuePair.
func (qp *queuePair) PeerCredentials() (rdma.Credentials, bool) {
	qp.stateMu.Lock()
	defer qp.stateMu.Unlock()
	if qp.conn == nil || qp.State() == rdma.StateInit {
		return rdma.Credentials{}, false
	}
	return qp.conn.credentials(), true
}

// bound makes pending calls of the connection fail when ctx ends. The returned
// function ends that.
func (c *conn) bound(ctx context.Context) (release func()) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = c.socket.SetReadDeadline(time.Unix(1, 0))
	})
	return func() {
		if stop() {
			return
		}
		<-ended
		_ = c.socket.SetReadDeadline(time.Time{})
	}
}

// write writes a packet, and waits up to the limit for a peer that reads slowly. One
// goroutine writes so at a time: whoever sets the connection up, then its reader.
func (c *conn) write(packet []byte, descriptors ...int) error {
	control := rights(descriptors)
	err := c.try(packet, control)
	if errors.Is(err, unix.EAGAIN) {
		if err := c.socket.SetWriteDeadline(time.Now().Add(c.limit)); err != nil {
			return err
		}
		_, _, err = c.socket.WriteMsgUnix(packet, control, nil)
		c.noteHangUp(err)
	}
	return err
}

// atOnce is how long writeSoon waits, which may write to many peers in a row.
const atOnce = time.Millisecond

// writeSoon writes a packet that may be lost. It fails if a peer that is suspended has
// left its socket full.
func (c *conn) writeSoon(packet []byte, descriptors ...int) error {
	control := rights(descriptors)
	err := c.try(packet, control)
	if !errors.Is(err, unix.EAGAIN) {
		return err
	}
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Control(func(fd uintptr) {
		for begun := time.Now(); ; {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(atOnce/time.Millisecond))
			if !errors.Is(err, unix.EINTR) || time.Since(begun) > atOnce {
				return // a signal, of which Go sends itself many, is no reason to give up
			}
		}
	}); err != nil {
		return err
	}
	return c.try(packet, control)
}

// try writes a packet if there is room for it. It takes no lock, so nobody waits for a
// goroutine that is in the middle of write. The kernel keeps packets whole.
func (c *conn) try(packet, control []byte) error {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return err
	}
	var tried error
	if err := raw.Control(func(fd uintptr) {
		for {
			if _, tried = unix.SendmsgN(int(fd), packet, control, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); !errors.Is(tried, unix.EINTR) {
				return
			}
		}
	}); err != nil {
		return err
	}
	c.noteHangUp(tried)
	return tried
}

func rights(descriptors []int) []byte {
	if len(descriptors) == 0 {
		return nil
	}
	return unix.UnixRights(descriptors...)
}

// noteHangUp notes what an error tells about the other end.
func (c *conn) noteHangUp(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		c.hungUp.Store(true)
	}
}

// A packet is what read returns. Its bytes are valid until the next read; its
// descriptors belong to whoever takes them, and release closes the others.
type packet struct {
	bytes       []byte
	descriptors []int
}

func (p *packet) kind() packetType { return packetType(p.bytes[0]) }

// take hands descriptor i over.
func (p *packet) take(i int) int {
	fd := p.descriptors[i]
	p.descriptors[i] = -1
	return fd
}

func (p *packet) release() {
	for i, fd := range p.descriptors {
		if fd >= 0 {
			_ = unix.Close(fd)
			p.descriptors[i] = -1
		}
	}
}

// read reads a packet. At most one goroutine reads at a time.
func (c *conn) read() (p packet, err error) {
	if c.buffer == nil {
		c.buffer, c.control = make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4*maxDescriptors))
	}
	n, controlBytes, flags, _, err := c.socket.ReadMsgUnix(c.buffer, c.control)
	if err != nil {
		c.noteHangUp(err)
		return p, err
	}
	defer func() {
		if err != nil {
			p.release()
		}
	}()
	if controlBytes > 0 {
		messages, err := unix.ParseSocketControlMessage(c.control[:controlBytes])
		if err != nil {
			return p, fmt.Errorf("%w: control message: %w", errPacket, err)
		}
		for i := range messages {
			// Only rights carry descriptors.
			if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
				p.descriptors = append(p.descriptors, fds...)
			}
		}
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || n == 0 {
		return p, fmt.Errorf("%w: longer than %d bytes, with more than %d descriptors, or empty", errPacket, len(c.buffer), maxDescriptors)
	}
	p.bytes = c.buffer[:n]
	return p, nil
}

// maxWants is how many questions for regions may be without an answer. A queue
// pair asks one at a time; more come together when another connection brings the
// answer first.
const maxWants = 64

// want asks for a region and reports whether it could. If not, the request that
// waits for it asks again, until its time is over. One goroutine asks at a time; it
// holds locks that polls need, and waits for nothing.
func (c *conn) want(w want) bool {
	c.wantsMu.Lock()
	n := len(c.wants)
	if n >= maxWants {
		c.wantsMu.Unlock()
		return false
	}
	c.wants = append(c.wants, w) // before the answer can come
	c.wantsMu.Unlock()
	if c.try(w.append(make([]byte, 0, wantLength)), nil) == nil {
		return true
	}
	c.wantsMu.Lock()
	c.wants = c.wants[:len(c.wants)-1]
	c.wantsMu.Unlock()
	return false
}

// answered notes the answer to a want. They come in the order of the questions.
func (c *conn) answered(w want) error {
	c.wantsMu.Lock()
	defer c.wantsMu.Unlock()
	if len(c.wants) == 0 || c.wants[0] != w {
		return fmt.Errorf("%w: a region that was not asked for", errPacket)
	}
	c.wants = slices.Delete(c.wants, 0, 1)
	return nil
}

// revoke tells that a region has gone. A peer that misses it finds out when it
// maps the next one.
func (c *conn) revoke(handle uint32) { _ = c.writeSoon(appendRevoke(nil, handle)) }

func (c *conn) goodbye(why string) {
	if why == "" {
		why = "closed"
	}
	_ = c.writeSoon(appendText(packetGoodbye, why))
}

func (c *conn) close() { _ = c.socket.Close() }

// refuse tells the peer why it is not served, and closes.
func (c *conn) refuse(why string) { c.turnAway(appendText(packetRefuse, why)) }

// turnAway writes a last packet and closes. What the peer has sent is thrown away
// first: a socket that is closed with something unread takes along what was
// written to it.
func (c *conn) turnAway(last []byte) {
	_ = c.socket.CloseRead() // the peer can send nothing more
	if raw, err := c.socket.SyscallConn(); err == nil {
		var b [1]byte
		_ = raw.Control(func(fd uintptr) {
			for range maxUnread {
				if _, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT); err != nil {
					return
				}
			}
		})
	}
	_ = c.writeSoon(last)
	c.close()
}

// maxUnread is how many packets turnAway throws away. Who has sent more does not
// learn the reason.
const maxUnread = 16
