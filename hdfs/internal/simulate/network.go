package simulate

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// network carries byte streams and calls between hosts. It delays them, holds them back
// while two hosts are cut off from each other, and ends them when a process dies.
type network struct {
	mu        sync.Mutex
	rng       *rand.Rand
	listeners map[string]func(net.Conn) // by address
	conns     map[*conn]struct{}        // both ends
	cuts      map[[2]string]bool        // pairs of hosts, the lesser first
	changed   chan struct{}             // closed, and made anew, when cuts changes
	slow      int                       // one of so many pieces takes up to a second
}

func newNetwork(seed uint64) *network {
	return &network{
		rng: rand.New(rand.NewPCG(seed, 1)), listeners: map[string]func(net.Conn){}, conns: map[*conn]struct{}{},
		cuts: map[[2]string]bool{}, changed: make(chan struct{}), slow: 200,
	}
}

// window is how many bytes of a stream are on their way at most.
const window = 128 << 10

func pair(a, b string) [2]string {
	if a > b {
		a, b = b, a
	}
	return [2]string{a, b}
}

// delay is how long something takes from one host to another.
func (n *network) delay() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rng.IntN(n.slow) == 0 {
		return time.Duration(n.rng.Int64N(int64(time.Second)))
	}
	return 20*time.Microsecond + time.Duration(n.rng.Int64N(int64(2*time.Millisecond)))
}

// cut begins or ends that nothing goes from a to b or back.
func (n *network) cut(a, b string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if on {
		n.cuts[pair(a, b)] = true
	} else {
		delete(n.cuts, pair(a, b))
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// heal ends all cuts.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cuts)
	close(n.changed)
	n.changed = make(chan struct{})
}

// isCut tells whether a and b are cut off, and what closes when that may be over.
func (n *network) isCut(a, b string) (yes bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cuts[pair(a, b)], n.changed
}

// pass waits as long as something takes from one host to another.
func (n *network) pass(ctx context.Context, from, to string) error {
	select {
	case <-time.After(n.delay()):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		yes, changed := n.isCut(from, to)
		if !yes {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (n *network) listen(address string, serve func(net.Conn)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[address] = serve
}

// kill ends all that a dead process had open.
func (n *network) kill(host string) {
	n.mu.Lock()
	for address := range n.listeners {
		if hostOf(address) == host {
			delete(n.listeners, address)
		}
	}
	n.mu.Unlock()
	n.end(n.chance(2), func(c *conn) bool { return hostOf(c.local) == host })
}

// breakAll ends all connections between two hosts.
func (n *network) breakAll(a, b string) {
	n.end(n.chance(2), func(c *conn) bool { return pair(hostOf(c.local), hostOf(c.remote)) == pair(a, b) })
}

// lose ends all connections of a host, and nothing of what is on its way arrives.
func (n *network) lose(host string) {
	n.end(false, func(c *conn) bool { return hostOf(c.local) == host || hostOf(c.remote) == host })
}

// end ends connections. What is on its way out still arrives, if delivered.
func (n *network) end(delivered bool, which func(c *conn) bool) {
	n.mu.Lock()
	var dead []*conn
	for c := range n.conns {
		if which(c) {
			dead = append(dead, c)
		}
	}
	n.mu.Unlock()
	for _, c := range dead {
		c.out.reset(delivered)
		c.in.reset(false)
		c.forget()
	}
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

// dial connects a process on host with whoever listens at an address.
func (n *network) dial(ctx context.Context, host, address string) (net.Conn, error) {
	if err := n.pass(ctx, host, hostOf(address)); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	n.mu.Lock()
	serve := n.listeners[address]
	if serve == nil {
		n.mu.Unlock()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	local := net.JoinHostPort(host, fmt.Sprint(1024+n.rng.IntN(60000)))
	there, back := newStream(n, local, address), newStream(n, address, local)
	client := newConn(n, local, address, back, there)
	server := newConn(n, address, local, there, back)
	n.conns[client], n.conns[server] = struct{}{}, struct{}{}
	n.mu.Unlock()
	go serve(server)
	return client, nil
}

// stream is one direction of a connection.
type stream struct {
	n        *network
	from, to string // hosts

	mu      sync.Mutex
	chunks  []chunk
	size    int
	ended   bool  // nothing more is written
	unread  bool  // nobody reads any more
	broken  error // for both ends
	changed chan struct{}
}

type chunk struct {
	at   time.Time // when it is there
	data []byte
}

func newStream(n *network, from, to string) *stream {
	return &stream{n: n, from: hostOf(from), to: hostOf(to), changed: make(chan struct{})}
}

// wake tells of a change. The caller holds mu.
func (s *stream) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// reset breaks the stream; what is on its way may arrive before.
func (s *stream) reset(deliver bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if deliver {
		s.ended = true
	} else {
		s.broken, s.chunks, s.size = syscall.ECONNRESET, nil, 0
	}
	s.wake()
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.wake()
}

func (s *stream) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread = true
	s.wake()
}

// read waits for bytes.
func (s *stream) read(p []byte, d *deadline) (int, error) {
	for {
		cut, healed := s.n.isCut(s.from, s.to)
		s.mu.Lock()
		var due <-chan time.Time
		switch {
		case s.unread:
			s.mu.Unlock()
			return 0, net.ErrClosed
		case s.broken != nil:
			err := s.broken
			s.mu.Unlock()
			return 0, err
		case len(s.chunks) > 0 && !cut:
			if wait := time.Until(s.chunks[0].at); wait > 0 {
				due = time.After(wait)
				break
			}
			c := &s.chunks[0]
			n := copy(p, c.data)
			if c.data = c.data[n:]; len(c.data) == 0 {
				s.chunks = s.chunks[1:]
			}
			s.size -= n
			s.wake()
			s.mu.Unlock()
			return n, nil
		case len(s.chunks) == 0 && s.ended && !cut:
			s.mu.Unlock()
			return 0, io.EOF
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-due:
		case <-changed:
		case <-healed:
		case <-d.passed():
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// write takes bytes as long as the window has room.
func (s *stream) write(p []byte, d *deadline) (written int, err error) {
	for len(p) > 0 {
		s.mu.Lock()
		switch {
		case s.broken != nil:
			err = s.broken
		case s.ended:
			err = net.ErrClosed
		case s.unread:
			err = syscall.EPIPE
		}
		if err != nil {
			s.mu.Unlock()
			return written, err
		}
		if room := window - s.size; room > 0 {
			n := min(room, len(p))
			at := time.Now().Add(s.n.delay())
			if k := len(s.chunks); k > 0 && s.chunks[k-1].at.After(at) {
				at = s.chunks[k-1].at
			}
			s.chunks = append(s.chunks, chunk{at, append([]byte(nil), p[:n]...)})
			s.size += n
			written, p = written+n, p[n:]
			s.wake()
			s.mu.Unlock()
			continue
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-d.passed():
			return written, os.ErrDeadlineExceeded
		}
	}
	return written, nil
}

// conn is one end of a connection.
type conn struct {
	n             *network
	local, remote string
	in, out       *stream
	rd, wd        deadline
}

var _ net.Conn = (*conn)(nil)

func newConn(n *network, local, remote string, in, out *stream) *conn {
	c := &conn{n: n, local: local, remote: remote, in: in, out: out}
	c.rd.set(time.Time{})
	c.wd.set(time.Time{})
	return c
}

func (c *conn) forget() {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
}

func (c *conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Err: err}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p, &c.rd)
	return n, c.wrap("read", err)
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p, &c.wd)
	return n, c.wrap("write", err)
}

func (c *conn) Close() error {
	c.out.end()
	c.in.abandon()
	c.forget()
	return nil
}

// CloseWrite ends one direction, as that of a TCP connection.
func (c *conn) CloseWrite() error {
	c.out.end()
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return addressOf(c.local) }
func (c *conn) RemoteAddr() net.Addr { return addressOf(c.remote) }

func (c *conn) SetDeadline(t time.Time) error {
	c.rd.set(t)
	c.wd.set(t)
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.rd.set(t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.wd.set(t)
	return nil
}

func addressOf(s string) net.Addr {
	host, port, _ := net.SplitHostPort(s)
	var p int
	_, _ = fmt.Sscan(port, &p)
	return &net.TCPAddr{IP: net.ParseIP(host), Port: p}
}

// deadline is a time that a reader or writer waits for, and that may be moved meanwhile.
type deadline struct {
	mu     sync.Mutex
	timer  *time.Timer
	expire chan struct{}
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.expire == nil || isClosed(d.expire) {
		d.expire = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	expire := d.expire
	wait := time.Until(t)
	if wait <= 0 {
		close(expire)
		return
	}
	d.timer = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.expire == expire && !isClosed(expire) && time.Until(t) <= 0 && d.timer != nil {
			close(expire)
		}
	})
}

func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expire
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
