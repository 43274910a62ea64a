package shm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

// Addresses are names of Unix sockets: "@name" in the abstract namespace, or a
// path that begins with a slash.
func checkAddress(address string) error {
	if len(address) < 2 || address[0] != '@' && address[0] != '/' {
		return fmt.Errorf("%w: address %q: want @name or the absolute path of a socket", rdma.ErrInvalid, address)
	}
	if limit := len(unix.RawSockaddrUnix{}.Path) - 1; len(address) > limit || strings.ContainsRune(address, 0) {
		return fmt.Errorf("%w: address %q is longer than the %d bytes of a socket's name", rdma.ErrInvalid, address, limit)
	}
	return nil
}

// start notes that Connect or Accept has begun. Until done is called, Close
// waits.
func (qp *queuePair) start() (done func(), err error) {
	qp.stateMu.Lock()
	defer qp.stateMu.Unlock()
	if state := qp.State(); state != rdma.StateInit || qp.started {
		return nil, fmt.Errorf("%w: %s, and a queue pair connects once", rdma.ErrState, state)
	}
	qp.started = true
	qp.ending.Add(1)
	return qp.ending.Done, nil
}

// setConn makes c the queue pair's, unless that has ended.
func (qp *queuePair) setConn(c *conn, name string) error {
	qp.stateMu.Lock()
	defer qp.stateMu.Unlock()
	if qp.State() != rdma.StateInit {
		return qp.err
	}
	qp.conn, qp.peerText = c, name
	return nil
}

// setConnected begins the connected state.
func (qp *queuePair) setConnected() error {
	qp.stateMu.Lock()
	defer qp.stateMu.Unlock()
	if qp.State() != rdma.StateInit {
		return qp.err
	}
	// The peer has it now. One descriptor for each connection, its socket, is
	// enough.
	if err := qp.inboxFile.CloseDescriptor(); err != nil {
		return err
	}
	qp.state.Store(uint32(rdma.StateConnected))
	qp.ending.Go(qp.serve)
	qp.handAlarm()
	return nil
}

// describe returns what the peer must know, and the descriptors beside it.
func (qp *queuePair) describe(private []byte) (*hello, []int) {
	h := &hello{
		least: versionMin, greatest: versionMax, domain: qp.domain.id, queuePair: qp.number, inbox: qp.inbox.shape, barriers: qp.domain.device.barriers(),
		bell: bellPlace{qp.recvCQ.index, qp.bit}, retryBit: qp.number % bellBits, private: private,
	}
	if qp.srq != nil {
		h.shared, h.least = true, versionLent
	}
	return h, []int{qp.inboxFile.FD(), qp.domain.tableFile.FD(), qp.domain.bellFile.FD()}
}

// adopt maps what the peer described and takes the descriptors out of p.
func (qp *queuePair) adopt(h *hello, p *packet, c *conn) error {
	if len(p.descriptors) != helloDescriptors {
		return fmt.Errorf("%w: %d descriptors, expected %d", errPacket, len(p.descriptors), helloDescriptors)
	}
	if qp.srq != nil && h.greatest < versionLent {
		return fmt.Errorf("the peer speaks versions %d to %d, a shared receive queue here needs %d: update the older program", h.least, h.greatest, versionLent)
	}
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	peer, err := qp.domain.device.acquirePeer(c.identify(h.domain), p.take(1), p.take(2))
	if err != nil {
		return err
	}
	peer.join(qp)
	qp.peer.Store(peer)
	// An idle connection touches little of its rings, so they are not populated.
	if qp.outMemory, err = memfd.Adopt(p.take(0), h.inbox.size(), memfd.Terms{Writable: true, Foreign: c.foreign}); err != nil {
		return fmt.Errorf("the peer's inbox: %w", err)
	}
	qp.out = viewInbox(qp.outMemory, h.inbox)
	qp.remote = *h
	if !qp.takesAlarms() {
		qp.plain = true
		qp.recvCQ.plain.Add(1)
	}
	qp.lazy.Store(h.barriers && qp.domain.device.barriers())
	return nil
}

// Connect implements rdma.QueuePair.
func (qp *queuePair) Connect(ctx context.Context, address string, private []byte) ([]byte, error) {
	if len(private) > maxPrivateData {
		return nil, fmt.Errorf("shm: connect to %s: %w: %d bytes of private data, at most %d", address, rdma.ErrInvalid, len(private), maxPrivateData)
	}
	done, err := qp.start()
	if err != nil {
		return nil, fmt.Errorf("shm: connect to %s: %w", address, err)
	}
	defer done()
	reply, err := qp.connect(ctx, address, private)
	if err == nil {
		return reply, nil
	}
	if failure := qp.Err(); failure != nil {
		err = failure // closed meanwhile
	}
	err = contextError(ctx, err)
	if rejected := (*rdma.RejectedError)(nil); !errors.As(err, &rejected) {
		err = fmt.Errorf("shm: connect to %s: %w", address, err)
	}
	qp.fail(err, "connecting failed")
	return nil, err
}

// contextError tells that the context ended rather than what that did to a socket.
func contextError(ctx context.Context, err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	if cause := ctx.Err(); errors.Is(cause, context.Canceled) {
		return cause
	}
	return fmt.Errorf("%w: %w", rdma.ErrTimeout, context.DeadlineExceeded)
}

func (qp *queuePair) connect(ctx context.Context, address string, private []byte) ([]byte, error) {
	if err := checkAddress(address); err != nil {
		return nil, err
	}
	socket, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	config := qp.domain.device.config
	c, err := newConn(socket, config)
	if err == nil {
		err = qp.setConn(c, c.name()+" at "+address)
	}
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	defer c.bound(ctx)()
	h, descriptors := qp.describe(private)
	// A listener that refuses this user does not read, but says why.
	if err := c.write(h.append(packetHello, nil), descriptors...); err != nil && !errors.Is(err, syscall.EPIPE) {
		return nil, err
	}
	p, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("no answer: %w", hangUp(err))
	}
	defer p.release()
	switch p.kind() {
	case packetAccept:
	case packetReject:
		reason, err := parseTail(p.bytes, maxPrivateData)
		if err != nil {
			return nil, err
		}
		return nil, &rdma.RejectedError{Peer: qp.peerName(), PrivateData: append([]byte(nil), reason...)}
	case packetRefuse:
		text, err := parseTail(p.bytes, maxText)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %s refused: %q", rdma.ErrDisconnected, c.name(), text)
	default:
		return nil, fmt.Errorf("%w: a %s instead of an answer", errPacket, p.kind())
	}
	answer, err := parseHello(p.bytes)
	if err != nil {
		return nil, err
	}
	if err := qp.adopt(answer, &p, c); err != nil {
		return nil, err
	}
	if err := c.write([]byte{byte(packetReady)}); err != nil {
		return nil, err
	}
	reply := answer.private
	return reply, qp.setConnected()
}

// hangUp turns the end of a socket into what it means.
func hangUp(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errPacket) {
		return err
	}
	return fmt.Errorf("%w: %w", rdma.ErrDisconnected, err)
}

func dial(ctx context.Context, address string) (*net.UnixConn, error) {
	var dialer net.Dialer
	for attempt := 64; ; attempt++ {
		connection, err := dialer.DialContext(ctx, "unixpacket", address)
		switch {
		case err == nil:
			return connection.(*net.UnixConn), nil
		case errors.Is(err, syscall.EAGAIN) && ctx.Err() == nil:
			pause(attempt) // the listener's backlog is full
			continue
		case errors.Is(err, syscall.ECONNREFUSED) && address[0] == '@':
			return nil, fmt.Errorf("%w: nobody listens there, or in another network namespace: containers need the path of a socket in a directory that they share", err)
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%w: nobody listens there, or the directory is not shared with the other container", err)
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("%w: the socket and its directories must let this process, of user %d, in; a user namespace may map its user to one that they do not", err, os.Geteuid())
		}
		return nil, err
	}
}

// serve reads the connection's socket until it ends.
func (qp *queuePair) serve() {
	// What comes from now on is shorter, and there may be many connections.
	qp.conn.buffer = make([]byte, maxConnected)
	for {
		err := qp.serveNext()
		if err == nil {
			continue
		}
		if qp.State() != rdma.StateConnected {
			// The teardown waits for the peer to be out of this side's memory; its
			// hanging up is what tells.
			if qp.conn.hungUp.Load() || errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		kind, farewell, err := qp.ended(err)
		qp.failEvent(kind, err, farewell)
	}
}

// ended tells what an error of serveNext means here, and what the peer is told.
func (qp *queuePair) ended(err error) (kind rdma.EventKind, farewell string, explained error) {
	var left *farewellError
	switch {
	case errors.As(err, &left):
		return rdma.EventDisconnected, "", fmt.Errorf("shm: %s ended the connection: %q: %w", qp.peerName(), left.text, rdma.ErrDisconnected)
	case qp.conn.hungUp.Load():
		return rdma.EventDisconnected, "", fmt.Errorf("shm: %s died: %w: %w", qp.peerName(), rdma.ErrDisconnected, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		// An answer that is left out would be taken for that to the next question.
		return rdma.EventQueuePairError, fmt.Sprintf("you have asked, and have left no room in your socket for the answer for %v", qp.conn.limit),
			fmt.Errorf("shm: %s has asked, and has left no room in its socket for the answer for %v; it is probably suspended: %w: %w", qp.peerName(), qp.conn.limit, rdma.ErrDisconnected, err)
	}
	farewell = "protocol error"
	if !errors.Is(err, errPacket) {
		farewell = "an error here: " + err.Error()
	}
	return rdma.EventQueuePairError, farewell[:min(len(farewell), maxText)], fmt.Errorf("shm: connection with %s: %w: %w", qp.peerName(), rdma.ErrDisconnected, err)
}

// serveNext reads a packet and does what it asks for.
func (qp *queuePair) serveNext() error {
	p, err := qp.conn.read()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return qp.conn.socket.SetReadDeadline(time.Time{}) // left over from connecting
	}
	if err != nil {
		return err
	}
	defer p.release()
	return qp.handle(&p)
}

// failEvent fails the queue pair and tells so by an event.
func (qp *queuePair) failEvent(kind rdma.EventKind, err error, farewell string) {
	if qp.end(err, farewell, rdma.StateError) {
		qp.domain.events.Add(rdma.Event{Kind: kind, QueuePair: qp, Err: err})
	}
}

type farewellError struct{ text string }

func (e *farewellError) Error() string { return e.text }

func (qp *queuePair) handle(p *packet) error {
	switch p.kind() {
	case packetWant:
		w, err := parseWant(p.bytes)
		if err != nil {
			return err
		}
		switch {
		case w.file && qp.SharesFiles():
			return qp.giveFile(w)
		case w.pass:
			return qp.givePass(w)
		}
		return qp.give(w)
	case packetRegion:
		g, err := parseGrant(p.bytes)
		if err != nil {
			return err
		}
		if g.file {
			return qp.receiveFile(g, p)
		}
		if g.pass {
			if g.found {
				return fmt.Errorf("%w: a region to pass on without a promise", errPacket)
			}
			return qp.receivePass(g, promise{}, p)
		}
		return qp.receiveGrant(g, nil, p)
	case packetPassed:
		g, kept, err := parsePassed(p.bytes)
		if err != nil {
			return err
		}
		if g.pass {
			return qp.receivePass(g, kept, p)
		}
		return qp.receiveGrant(g, &kept, p)
	case packetRevoke:
		handle, err := parseRevoke(p.bytes)
		if err != nil {
			return err
		}
		qp.files.revoked(handle)
		qp.passing.revoked(handle)
		return qp.peer.Load().drop(handle)
	case packetAlarm:
		number, err := parseAlarm(p.bytes)
		if err != nil {
			return err
		}
		return qp.receiveAlarm(number, p)
	case packetGoodbye:
		text, err := parseTail(p.bytes, maxText)
		if err != nil {
			return err
		}
		return &farewellError{string(text)}
	}
	return fmt.Errorf("%w: a %s during the connection", errPacket, p.kind())
}

// give answers a peer that wants a region.
func (qp *queuePair) give(w want) error {
	r, access, ok := qp.domain.grantFor(w, qp, qp.conn.foreign)
	if !ok {
		return qp.giveNothing(w)
	}
	if r.passed != nil {
		return qp.givePassed(w, r)
	}
	fd, err := r.descriptor(mayWrite(access))
	if errors.Is(err, rdma.ErrClosed) {
		return qp.giveNothing(w)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	qp.granted.Store(r.handle, struct{}{})
	g := grant{want: w, found: true, handle: r.handle, key: r.key, access: uint8(access), address: r.base(), length: r.size, state: r.state}
	return qp.conn.write(g.append(nil), fd)
}

// maxMisses is how many regions that are not there for it a peer of another user
// may ask for over one connection. One that closes regions while they are asked
// for causes some; guessing one key of 1,000 regions takes 4 million on average.
const maxMisses = 1024

func (qp *queuePair) giveNothing(w want) error {
	if qp.conn.foreign {
		if qp.conn.misses++; qp.conn.misses > maxMisses {
			return fmt.Errorf("%w: %d requests for regions that are not there for it", errPacket, maxMisses)
		}
	}
	return qp.conn.write(grant{want: w}.append(nil))
}

// receiveGrant takes the answer to want. kept is the promise of a region that the peer
// passes on; nil: the region is the peer's.
func (qp *queuePair) receiveGrant(g grant, kept *promise, p *packet) error {
	if err := qp.conn.answered(g.want); err != nil {
		return err
	}
	if g.found {
		expected := 1
		if kept != nil {
			expected = 2
		}
		if len(p.descriptors) != expected {
			return fmt.Errorf("%w: a region with %d descriptors", errPacket, len(p.descriptors))
		}
		if g.byHandle && rdma.Access(g.access)&rdma.AccessLocalWrite == 0 {
			return fmt.Errorf("%w: a region that holds receives and may not be written", errPacket)
		}
		var err error
		switch {
		case kept == nil:
			err = qp.peer.Load().add(g, p.take(0))
		case qp.passes():
			err = qp.peer.Load().addPassed(g, *kept, p.take(0), p.take(1))
		default:
			err = fmt.Errorf("%w: a region of another process, from a peer that may not pass it on", errPacket)
		}
		if err != nil {
			return err
		}
		// On a full socket the peer may have told that the region has gone before it granted it.
		if err := qp.peer.Load().drop(g.handle); err != nil {
			return err
		}
	}
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	if qp.asked == g.want {
		qp.askedValid = false
	}
	qp.refused, qp.refusedValid = g.want, !g.found
	if qp.queueCount > 0 && qp.progress() {
		qp.unblock()
	}
	// It holds for the request that waited. Later ones may be granted the region:
	// another user's peer gets it once it holds a receive.
	qp.refusedValid = false
	return nil
}

// A listener accepts sockets and reads what they ask for.
type listener struct {
	device   *device
	socket   *net.UnixListener
	address  string
	requests chan *request
	context  context.Context // ends with Close
	cancel   context.CancelFunc
	closed   <-chan struct{}
	once     sync.Once
	workers  sync.WaitGroup
	silent   silent
	reading  chan struct{} // one for each socket that is read

	waitingMu sync.Mutex
	waiting   map[uint32]int // requests in the channel, by user; other users' only
}

const (
	maxWaiting = 1024 // connection requests that wait for Accept
	// maxWaitingOther is how many of those may be of one other user.
	maxWaitingOther = 64
	// maxReading is how many sockets may be open whose request has not come yet.
	maxReading = 256
)

func (d *device) Listen(ctx context.Context, address string) (rdma.Listener, error) {
	var suffix [8]byte
	if _, err := rand.Read(suffix[:]); err != nil {
		return nil, fmt.Errorf("shm: listen: %w", err)
	}
	chosen := address == ""
	if chosen {
		name := socketName[:len(socketName)-2*len(suffix)] + hex.EncodeToString(suffix[:])
		if address = "@" + name; d.config.SocketDirectory != "" {
			absolute, err := filepath.Abs(filepath.Join(d.config.SocketDirectory, name))
			if err != nil {
				return nil, fmt.Errorf("shm: listen: %w", err)
			}
			address = absolute
		}
	}
	if err := checkAddress(address); err != nil {
		return nil, fmt.Errorf("shm: listen: %w", err)
	}
	socket, err := listenAt(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("shm: listen at %s: %w", address, err)
	}
	if address[0] == '/' && len(d.config.AllowUIDs) > 0 {
		// Writing to a socket's file is what connecting takes.
		if err := os.Chmod(address, 0o666); err != nil { //nolint:gosec // the user is checked when a connection is accepted
			return nil, errors.Join(fmt.Errorf("shm: listen at %s: let the users in AllowUIDs connect: %w", address, err), socket.Close())
		}
	}
	if chosen && address[0] == '/' && !isDead(address) { // where this one seems dead, others may live, too
		removeDead(filepath.Dir(address))
	}
	life, cancel := context.WithCancel(context.Background())
	l := &listener{
		device: d, socket: socket, address: address, context: life, cancel: cancel, closed: life.Done(),
		requests: make(chan *request, maxWaiting), reading: make(chan struct{}, maxReading), waiting: make(map[uint32]int),
	}
	l.silent.byUser = make(map[uint32][]*conn)
	l.workers.Go(l.run)
	return l, nil
}

// deadAfter is how old a socket is before it may be taken for dead. The kernel makes the
// file a moment before it is a socket's.
const deadAfter = time.Minute

// ofOneKernel are the file systems of directories that no two kernels share.
var ofOneKernel = []int64{unix.TMPFS_MAGIC, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC}

// removeDead removes what listeners that chose their names have left in a directory because
// their processes were killed. Others may not be this user's to remove. In a directory that
// several kernels may share, a socket of another one seems dead.
func removeDead(directory string) {
	var system unix.Statfs_t
	if err := unix.Statfs(directory, &system); err != nil || !slices.Contains(ofOneKernel, int64(system.Type)) { //nolint:unconvert // narrower on some architectures
		return
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return // listening there tells why
	}
	for _, e := range entries {
		if !isChosen(e.Name()) || e.Type()&fs.ModeSocket == 0 {
			continue
		}
		path := filepath.Join(directory, e.Name())
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > deadAfter && isDead(path) {
			_ = os.Remove(path)
		}
	}
}

// isChosen tells whether a listener without an address chooses such names.
func isChosen(name string) bool {
	const random = 16
	if len(name) != len(socketName) || name[:len(name)-random] != socketName[:len(name)-random] {
		return false
	}
	_, err := hex.DecodeString(name[len(name)-random:])
	return err == nil
}

// isDead tells whether the file of a socket is no socket's any more. A listener does not
// see that somebody asks: a socket of its kind alone could connect.
func isDead(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: path}), unix.ECONNREFUSED)
}

func listenAt(ctx context.Context, address string) (*net.UnixListener, error) {
	var config net.ListenConfig
	for attempt := 0; ; attempt++ {
		socket, err := config.Listen(ctx, "unixpacket", address)
		if err == nil {
			return socket.(*net.UnixListener), nil
		}
		if attempt > 0 || address[0] == '@' || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, err
		}
		// A process that crashed leaves its socket, at which nobody answers.
		var dialer net.Dialer
		old, dialErr := dialer.DialContext(ctx, "unixpacket", address)
		if dialErr == nil {
			return nil, errors.Join(err, old.Close())
		}
		if info, statErr := os.Lstat(address); !errors.Is(dialErr, syscall.ECONNREFUSED) || statErr != nil || info.Mode()&fs.ModeSocket == 0 {
			return nil, err
		}
		if removeErr := os.Remove(address); removeErr != nil {
			return nil, errors.Join(err, removeErr)
		}
	}
}

func (l *listener) Address() string { return l.address }

func (l *listener) run() {
	for attempt := 0; ; {
		socket, err := l.socket.AcceptUnix()
		if err != nil {
			select {
			case <-l.closed:
				return
			default:
			}
			// Out of descriptors, most likely: that passes.
			pause(attempt + 64)
			attempt++
			continue
		}
		attempt = 0
		c, err := newConn(socket, l.device.config)
		switch {
		case c == nil:
			_ = socket.Close()
			continue
		case errors.Is(err, memfd.ErrStrictOvercommit):
			c.refuse(memfd.ErrStrictOvercommit.Error())
			continue
		case err != nil:
			c.refuse(refusal)
			continue
		}
		l.silent.add(c)
		l.reading <- struct{}{} // whoever gives way, or has sent, leaves its place soon
		l.workers.Go(func() {
			defer func() { <-l.reading }()
			l.read(c)
		})
	}
}

// silent are the sockets whose connection request has not been read. When there
// are too many, one that has sent nothing gives way to a new one: the oldest of the
// user who has most. So a user's silent sockets cost nobody else a place, and nobody
// waits for them. A request that only waits for this process to read it stays.
type silent struct {
	mu     sync.Mutex
	byUser map[uint32][]*conn // the oldest first
	count  int
	polled []unix.PollFd
}

// add adds a socket. The reader of the one that has to give way, if there is one,
// ends at once.
func (s *silent) add(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count >= maxReading {
		var most uint32
		for user, sockets := range s.byUser {
			if len(sockets) > len(s.byUser[most]) {
				most = user
			}
		}
		if late := s.oldest(most); late != nil {
			s.drop(late)
			_ = late.socket.SetReadDeadline(time.Unix(1, 0))
		}
	}
	s.byUser[c.peer.Uid] = append(s.byUser[c.peer.Uid], c)
	s.count++
}

// oldest is a user's oldest socket on which nothing has come, or nil. mu is held,
// so that all of them are open.
func (s *silent) oldest(user uint32) *conn {
	s.polled = s.polled[:0]
	for _, c := range s.byUser[user] {
		s.polled = append(s.polled, unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN})
	}
	if _, err := unix.Poll(s.polled, 0); err != nil {
		return nil
	}
	for i := range s.polled {
		if s.polled[i].Revents == 0 {
			return s.byUser[user][i]
		}
	}
	return nil
}

// remove takes a socket out that is not silent any more, and tells whether it
// had to give way.
func (s *silent) remove(c *conn) (gaveWay bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drop(c) {
		return false
	}
	_ = c.socket.SetReadDeadline(time.Time{}) // its request came just then
	return true
}

// drop takes a socket out, if it is in. mu is held.
func (s *silent) drop(c *conn) bool {
	sockets := s.byUser[c.peer.Uid]
	i := slices.Index(sockets, c)
	if i < 0 {
		return false
	}
	s.count--
	if s.byUser[c.peer.Uid] = slices.Delete(sockets, i, i+1); len(sockets) == 1 {
		delete(s.byUser, c.peer.Uid)
	}
	return true
}

// read reads a connection request from a new socket and queues it.
func (l *listener) read(c *conn) {
	ctx, cancel := context.WithTimeout(l.context, handshakeTimeout)
	release := c.bound(ctx)
	p, err := c.read()
	gaveWay := l.silent.remove(c)
	release() // before Accept can hand the socket on
	cancel()
	if err != nil {
		if gaveWay {
			c.turnAway(append([]byte{byte(packetReject)}, rdma.RejectBusy...))
			return
		}
		c.refuse(l.noRequest(err))
		return
	}
	if p.kind() != packetHello {
		c.refuse(fmt.Sprintf("a %s instead of a connection request", p.kind()))
		p.release()
		return
	}
	h, err := parseHello(p.bytes)
	if err == nil && len(p.descriptors) != helloDescriptors {
		err = fmt.Errorf("%w: %d descriptors, expected %d", errPacket, len(p.descriptors), helloDescriptors)
	}
	if err != nil {
		c.refuse(err.Error())
		p.release()
		return
	}
	p.bytes = nil
	r := &request{listener: l, conn: c, hello: h, packet: p}
	select {
	case <-l.closed:
		r.refuse(listenerClosed)
		return
	default:
	}
	if !l.mayWait(r) {
		_ = r.Reject([]byte(rdma.RejectBusy))
		return
	}
	select {
	case l.requests <- r:
		// Close may have emptied the queue before.
		select {
		case <-l.closed:
			l.refuseWaiting()
		default:
		}
	default:
		l.waited(r)
		_ = r.Reject([]byte(rdma.RejectBusy)) // maxWaiting of them wait already
	}
}

const listenerClosed = "the listener has been closed"

// noRequest is what the peer is told if no connection request came. An error of
// the socket itself would name the socket.
func (l *listener) noRequest(err error) string {
	switch {
	case errors.Is(err, errPacket):
		return err.Error()
	case l.context.Err() != nil:
		return listenerClosed
	}
	return fmt.Sprintf("no connection request came within %v", handshakeTimeout)
}

// mayWait counts a request of another user, and tells whether it has a place.
func (l *listener) mayWait(r *request) bool {
	if !r.conn.foreign {
		return true
	}
	l.waitingMu.Lock()
	defer l.waitingMu.Unlock()
	if l.waiting[r.conn.peer.Uid] == maxWaitingOther {
		return false
	}
	l.waiting[r.conn.peer.Uid]++
	return true
}

// waited takes back what mayWait counted.
func (l *listener) waited(r *request) {
	if !r.conn.foreign {
		return
	}
	l.waitingMu.Lock()
	defer l.waitingMu.Unlock()
	if l.waiting[r.conn.peer.Uid]--; l.waiting[r.conn.peer.Uid] == 0 {
		delete(l.waiting, r.conn.peer.Uid)
	}
}

func (l *listener) refuseWaiting() {
	for {
		select {
		case r := <-l.requests:
			l.waited(r)
			r.refuse(listenerClosed)
		default:
			return
		}
	}
}

func (l *listener) Accept(ctx context.Context) (rdma.ConnectRequest, error) {
	select {
	case <-l.closed:
		return nil, errClosed("accept: listener")
	default:
	}
	select {
	case r := <-l.requests:
		l.waited(r)
		return r, nil
	case <-l.closed:
		return nil, errClosed("accept: listener")
	case <-ctx.Done():
		return nil, fmt.Errorf("shm: accept: %w", ctx.Err())
	}
}

func (l *listener) Close() error {
	var err error
	l.once.Do(func() {
		l.cancel()
		err = l.socket.Close()
		l.refuseWaiting()
	})
	l.workers.Wait()
	if err != nil {
		return fmt.Errorf("shm: close listener: %w", err)
	}
	return nil
}

// A request is a connection request that has been read.
type request struct {
	listener *listener
	conn     *conn
	hello    *hello
	packet   packet
	answered sync.Once
}

// PeerCredentials implements rdma.CredentialedRequest.
func (r *request) PeerCredentials() (rdma.Credentials, bool) { return r.conn.credentials(), true }

func (r *request) PrivateData() []byte   { return r.hello.private }
func (r *request) RemoteAddress() string { return r.conn.name() }

func (r *request) refuse(why string) {
	r.answered.Do(func() {
		r.packet.release()
		r.conn.refuse(why)
	})
}

func (r *request) Reject(private []byte) error {
	if len(private) > maxPrivateData {
		return fmt.Errorf("shm: reject: %w: %d bytes of private data, at most %d", rdma.ErrInvalid, len(private), maxPrivateData)
	}
	err := errAnswered
	r.answered.Do(func() {
		r.packet.release()
		err = r.conn.write(append([]byte{byte(packetReject)}, private...))
		r.conn.close()
	})
	if err != nil {
		return fmt.Errorf("shm: reject %s: %w", r.conn.name(), err)
	}
	return nil
}

var errAnswered = fmt.Errorf("%w: the request has been answered", rdma.ErrState)

func (r *request) Accept(ctx context.Context, pair rdma.QueuePair, private []byte) error {
	qp, ok := pair.(*queuePair)
	if !ok || qp.domain.device != r.listener.device {
		return fmt.Errorf("shm: accept %s: %w", r.conn.name(), errOtherDevice)
	}
	if len(private) > maxPrivateData {
		return fmt.Errorf("shm: accept %s: %w: %d bytes of private data, at most %d", r.conn.name(), rdma.ErrInvalid, len(private), maxPrivateData)
	}
	err := errAnswered
	r.answered.Do(func() { err = r.accept(ctx, qp, private) })
	if err == nil {
		return nil
	}
	return fmt.Errorf("shm: accept %s: %w", r.conn.name(), err)
}

func (r *request) accept(ctx context.Context, qp *queuePair, private []byte) error {
	defer r.packet.release()
	done, err := qp.start()
	if err != nil {
		r.conn.refuse("the queue pair that should accept it was in use")
		return err
	}
	defer done()
	if err = r.establish(ctx, qp, private); err != nil {
		if failure := qp.Err(); failure != nil {
			err = failure
		}
		err = contextError(ctx, err)
		qp.fail(fmt.Errorf("shm: accept %s: %w", r.conn.name(), err), "accepting failed")
		r.conn.close()
	}
	return err
}

func (r *request) establish(ctx context.Context, qp *queuePair, private []byte) error {
	c := r.conn
	if err := qp.setConn(c, c.name()); err != nil {
		return err
	}
	// The peer's Connect is waiting for this, so it answers at once. How long that
	// takes on a starved host is for the caller to say.
	if _, bounded := ctx.Deadline(); !bounded {
		within, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		ctx = within
	}
	defer c.bound(ctx)()
	if err := qp.adopt(r.hello, &r.packet, c); err != nil {
		_ = c.write(appendText(packetRefuse, err.Error()))
		return err
	}
	h, descriptors := qp.describe(private)
	if err := c.write(h.append(packetAccept, nil), descriptors...); err != nil {
		return hangUp(err)
	}
	p, err := c.read()
	if err != nil {
		return fmt.Errorf("the peer did not confirm: %w", hangUp(err))
	}
	defer p.release()
	if p.kind() != packetReady {
		return fmt.Errorf("%w: a %s instead of the confirmation", errPacket, p.kind())
	}
	return qp.setConnected()
}
