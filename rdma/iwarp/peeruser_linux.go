package iwarp

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The library finds out the byte order at its first use, and guards that by nothing:
// two connections at once would race for it. So it is asked before there is any.
var _ = nl.NativeEndian()

// errNoSocket says that the other end of a connection is no socket of this host, or
// of another network namespace.
var errNoSocket = errors.New("the peer has no socket in this network namespace")

// The tables of the calling thread's network namespace. /proc/net is that of the
// main thread, which may have been left in another one.
const (
	socketTable  = "/proc/thread-self/net/tcp"
	socketTable6 = "/proc/thread-self/net/tcp6"
)

// peerUser tells the user of the process at the other end of a stream within this
// host: who made the socket there. Everybody may ask the kernel that.
func peerUser(stream net.Conn) (uint32, error) {
	if c, ok := stream.(*net.UnixConn); ok {
		return unixPeerUser(c)
	}
	remote, ok := stream.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return uint32(os.Geteuid()), nil // a pipe, whose other end is in this process
	}
	local, ok := stream.LocalAddr().(*net.TCPAddr)
	if !ok {
		return 0, errNoSocket
	}
	return tcpUser(remote, local)
}

func unixPeerUser(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		peer, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, fmt.Errorf("credentials of the peer: %w", credErr)
	}
	return peer.Uid, nil
}

// tcpUser tells whose the socket is whose own address is local. It asks the
// kernel by netlink and, where that is not to be had, reads /proc.
func tcpUser(local, remote *net.TCPAddr) (uint32, error) {
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	request.AddData(&diagRequest{local, remote})
	answers, err := request.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, errNoSocket
	case err == nil && len(answers) == 1 && len(answers[0]) >= diagAnswerSize:
		user := binary.NativeEndian.Uint32(answers[0][diagUser:])
		if binary.NativeEndian.Uint32(answers[0][diagInode:]) == 0 {
			return 0, errNobody // the user then is 0, or whose it was
		}
		return user, nil
	}
	// A table that changes while it is read may lack the line: the peer is refused then.
	for _, name := range []string{socketTable, socketTable6} {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		uid, err := findUser(f, local, remote)
		_ = f.Close()
		if !errors.Is(err, errNoSocket) {
			return uid, err
		}
	}
	return 0, errNoSocket
}

// diagRequest asks for one socket by its two addresses (inet_diag_req_v2 of
// linux/inet_diag.h).
type diagRequest struct{ local, remote *net.TCPAddr }

// Of the answer (inet_diag_msg): its size, and where the user and the inode stand.
const (
	diagRequestSize = 56
	diagAnswerSize  = 72
	diagUser        = 64
	diagInode       = 68
)

// Len implements [nl.NetlinkRequestData].
func (r *diagRequest) Len() int { return diagRequestSize }

// Serialize implements [nl.NetlinkRequestData].
func (r *diagRequest) Serialize() []byte {
	b := make([]byte, diagRequestSize)
	from, to := r.local.IP.To4(), r.remote.IP.To4()
	b[0] = unix.AF_INET
	if from == nil || to == nil {
		b[0], from, to = unix.AF_INET6, r.local.IP.To16(), r.remote.IP.To16()
	}
	b[1] = unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], ^uint32(0)) // in any state
	binary.BigEndian.PutUint16(b[8:], uint16(r.local.Port))
	binary.BigEndian.PutUint16(b[10:], uint16(r.remote.Port))
	copy(b[12:28], from)
	copy(b[28:44], to)
	copy(b[48:], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) // no cookie
	return b
}

// errNobody is about a socket that no process has (any more, or not yet).
var errNobody = errors.New("no process has the socket at the other end")

// findUser looks for a socket in a table of /proc/net/tcp or tcp6.
func findUser(table io.Reader, local, remote *net.TCPAddr) (uint32, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local_address rem_address st queues timer retransmits uid timeout inode
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || !isAddress(fields[1], local) || !isAddress(fields[2], remote) {
			continue
		}
		uid, err := strconv.ParseUint(fields[7], 10, 32)
		if err != nil || fields[9] == "0" {
			return 0, errNobody
		}
		return uint32(uid), nil
	}
	return 0, errNoSocket
}

// isAddress compares an address with one of the table: words of four bytes in the
// machine's order, and a port.
func isAddress(field string, address *net.TCPAddr) bool {
	host, port, _ := strings.Cut(field, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil || int(number) != address.Port {
		return false
	}
	ip, err := hex.DecodeString(host)
	if err != nil || len(ip) != net.IPv4len && len(ip) != net.IPv6len {
		return false
	}
	for at := 0; at < len(ip); at += 4 {
		binary.BigEndian.PutUint32(ip[at:], binary.NativeEndian.Uint32(ip[at:]))
	}
	return net.IP(ip).Equal(address.IP)
}
