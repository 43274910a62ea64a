package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxDescriptors = 4
	// handshakeTimeout bounds each step of set-up that does not wait for an
	// application, only for the peer to run.
	handshakeTimeout = 10 * time.Second
)

// A conn is the Unix socket of a connection. It carries set-up, descriptors and
// the news of the peer's death; no data.
type conn struct {
	socket *net.UnixConn
	peer   unix.Ucred
	limit  time.Duration // of a write

	hungUp  atomic.Bool // the other end was closed, or its process died
	writeMu sync.Mutex
	buffer  []byte
	control []byte
}

func newConn(socket *net.UnixConn, limit time.Duration) (*conn, error) {
	c := &conn{socket: socket, limit: limit, buffer: make([]byte, maxPacket), control: make([]byte, unix.CmsgSpace(4*maxDescriptors))}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		peer, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	if credErr != nil {
		return nil, fmt.Errorf("credentials of the peer: %w", credErr)
	}
	c.peer = *peer
	return c, nil
}

// name tells the process at the other end.
func (c *conn) name() string {
	if c.peer.Pid == 0 {
		return fmt.Sprintf("a process of user %d in another process namespace", c.peer.Uid)
	}
	return fmt.Sprintf("process %d of user %d", c.peer.Pid, c.peer.Uid)
}

// foreign tells whether the peer is of another user.
func (c *conn) foreign() bool { return c.peer.Uid != uint32(os.Geteuid()) }

// checkUser refuses processes of other users.
func (c *conn) checkUser(config *Config) error {
	if !c.foreign() || slices.Contains(config.AllowUIDs, c.peer.Uid) {
		return nil
	}
	return fmt.Errorf("%s is not of the user %d of this one, process %d, or a user namespace makes it look so: shared memory is for one user's processes; "+
		"name the user in AllowUIDs on both sides, run both in one user namespace, or use another provider", c.name(), os.Geteuid(), os.Getpid())
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

func (c *conn) write(packet []byte, descriptors ...int) error {
	return c.writeWithin(c.limit, packet, descriptors...)
}

// atOnce is the limit of writes that nobody may wait for. They fail when a peer
// that is suspended has left its socket full.
const atOnce = time.Millisecond

func (c *conn) writeWithin(limit time.Duration, packet []byte, descriptors ...int) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := c.socket.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	var control []byte
	if len(descriptors) > 0 {
		control = unix.UnixRights(descriptors...)
	}
	_, _, err := c.socket.WriteMsgUnix(packet, control, nil)
	c.noteHangUp(err)
	return err
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

// want asks for a region and reports whether it could. If not, the request that
// waits for it asks again, until its time is over.
func (c *conn) want(w want) bool {
	return c.writeWithin(atOnce, w.append(make([]byte, 0, wantLength))) == nil
}

// revoke tells that a region has gone. A peer that misses it finds out when it
// maps the next one.
func (c *conn) revoke(handle uint32) { _ = c.writeWithin(atOnce, appendRevoke(nil, handle)) }

func (c *conn) goodbye(why string) {
	if why == "" {
		why = "closed"
	}
	_ = c.writeWithin(atOnce, appendText(packetGoodbye, why))
}

func (c *conn) close() { _ = c.socket.Close() }
