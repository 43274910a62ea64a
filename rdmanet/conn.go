package rdmanet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
)

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
)

// Conn is a connection over an endpoint: a [net.Conn] with half-close, as
// *net.TCPConn has it. All methods may be called concurrently. Read, Write,
// WriteTo and ReadFrom allocate nothing once they are under way.
//
// Errors are *net.OpError and wrap what net's do: os.ErrDeadlineExceeded (and
// Timeout() is true), net.ErrClosed (and io.ErrClosedPipe) after the local
// Close, syscall.EPIPE for a write that the peer will not read,
// syscall.ECONNRESET when the endpoint failed or the peer was abortive.
//
// One that is forgotten instead of closed is closed by the garbage collector,
// as sockets are.
type Conn struct{ *conn }

// wrap gives out a connection. The session refers to the conn inside, so that
// nothing but its users keeps the Conn alive.
func wrap(c *conn) *Conn {
	w := &Conn{c}
	runtime.AddCleanup(w, func(c *conn) { _ = c.end(0) }, c) // nobody is left to be told
	return w
}

// Read copies received bytes into b: of one message at most, so that it
// returns what there is. The bytes are copied once.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.conn.Read(b)
	runtime.KeepAlive(c)
	return n, err
}

// Write sends b in messages of the connection's chunk size. Concurrent writes
// do not mix. It waits while the peer does not read.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.conn.Write(b)
	runtime.KeepAlive(c)
	return n, err
}

// WriteTo writes what arrives to w until the peer's end, straight from the
// received messages.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	n, err := c.conn.WriteTo(w)
	runtime.KeepAlive(c)
	return n, err
}

// ReadFrom sends what r yields until its end.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.conn.ReadFrom(r)
	runtime.KeepAlive(c)
	return n, err
}

// conn is what a Conn is of.
type conn struct {
	s       *session
	stream  uint32
	dataTag uint32

	rdl, wdl deadline

	closed      atomic.Bool  // locally, by Close
	abortive    atomic.Bool  // SetLinger(0)
	patience    atomic.Int64 // nanoseconds that Close waits
	wrote       atomic.Bool  // data was sent
	readStopped atomic.Bool  // locally, by CloseRead
	writeEnded  atomic.Bool  // locally, by CloseWrite
	closeSent   atomic.Bool
	peerFin     atomic.Bool // the peer will send no more data
	peerClosed  atomic.Bool // the peer will send nothing more
	atEOF       atomic.Bool // and the reader has seen all of it
	lingering   *time.Timer // guarded by s.mu
	accepted    bool        // guarded by the listener's mu

	// The peer has taken everything that it will: it sent STOP or CLOSE.
	isTaken bool // guarded by s.mu
	taken   chan struct{}
	closing bool // CLOSE is due or sent; guarded by s.mu

	// What follows is guarded by the token s.rx.
	current   message
	rest      []byte // of current
	queue     []message
	head      int
	queued    int // bytes
	full      atomic.Bool
	discarded int

	// When nobody reads the connection the session does; see watch.
	watching   atomic.Bool   // the timer is set, or the session reads
	reading    atomic.Bool   // a call of Read or WriteTo is under way
	reads      atomic.Uint32 // such calls so far
	readsAt    uint32        // when the timer was set
	watchTimer *time.Timer   // made once, guarded by watchMu
	watchMu    sync.Mutex
}

func newConn(s *session, stream uint32) *conn {
	c := &conn{s: s, stream: stream, dataTag: tagOf(kindData, stream), taken: make(chan struct{})}
	c.patience.Store(int64(s.cfg.wait))
	c.rdl.init()
	c.wdl.init()
	return c
}

func (c *conn) finished() bool {
	return c.closed.Load() && c.closeSent.Load() && c.peerClosed.Load()
}

// LocalAddr is the endpoint's.
func (c *conn) LocalAddr() net.Addr { return c.s.ep.LocalAddr() }

// RemoteAddr is the endpoint's.
func (c *conn) RemoteAddr() net.Addr { return c.s.ep.RemoteAddr() }

func (c *conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	e := &net.OpError{Op: op, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
	if e.Addr != nil {
		e.Net = e.Addr.Network()
	}
	return e
}

// lockRead takes the token for receiving.
func (c *conn) lockRead() (*gate, error) {
	g := c.rdl.gate()
	if err := g.cause(); err != nil {
		return nil, err
	}
	s := c.s
	select {
	case <-s.rx:
	default:
		s.waiting.Add(1)
		s.interrupt()
		select {
		case <-s.rx:
			s.waiting.Add(-1)
		case <-g.done:
			s.waiting.Add(-1)
			return nil, g.cause()
		}
	}
	// After Close the session may be carrying another connection.
	if c.closed.Load() {
		s.rx <- struct{}{}
		return nil, errClosed
	}
	c.reading.Store(true)
	return g, nil
}

func (c *conn) unlockRead() {
	c.reads.Add(1)
	c.reading.Store(false)
	c.s.rx <- struct{}{}
	c.armWatch()
}

// fillRead makes rest hold something; it returns io.EOF when nothing will come.
// The caller holds rx.
func (c *conn) fillRead(g *gate) error {
	if err := c.s.ep.Err(); err != nil && errors.Is(err, verbena.ErrClosed) {
		return errClosed // the session gives rest back
	}
	for len(c.rest) == 0 {
		if c.readStopped.Load() {
			return io.EOF
		}
		m := c.pop()
		if m == nil {
			if c.peerFin.Load() {
				c.atEOF.Store(true)
				return io.EOF
			}
			tag, received, err := c.s.ep.receive(g)
			if err != nil {
				if cause := g.cause(); cause != nil {
					return cause
				}
				c.s.died(err)
				c.s.kick()
				return resetError(err)
			}
			if tag == c.dataTag && len(received.Bytes()) > 0 {
				m = received
			} else if m, _, err = c.s.dispatch(tag, received); err != nil {
				c.s.shutdown(err)
				return resetError(err)
			}
			if m == nil {
				continue
			}
		}
		c.current, c.rest = m, m.Bytes()
	}
	return nil
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.read(b)
	if err != nil {
		return n, c.opError("read", err)
	}
	return n, nil
}

func (c *conn) read(b []byte) (int, error) {
	if c.atEOF.Load() && !c.closed.Load() && c.rdl.gate().cause() == nil {
		return 0, io.EOF
	}
	g, err := c.lockRead()
	if err != nil {
		return 0, err
	}
	defer c.unlockRead()
	if len(b) == 0 {
		return 0, nil
	}
	if err := c.fillRead(g); err != nil {
		return 0, err
	}
	n := copy(b, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.releaseCurrent()
	}
	return n, nil
}

func (c *conn) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		m, rest, err := c.takeMessage()
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, c.opError("read", err)
		}
		n, err := c.passOn(w, m, rest)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
}

func (c *conn) passOn(w io.Writer, m message, rest []byte) (int, error) {
	// The endpoint must not be closed before the message is given back, whatever
	// becomes of w.
	defer c.s.wg.Done()
	defer m.Release()
	n, err := w.Write(rest)
	if err == nil && n < len(rest) {
		err = io.ErrShortWrite
	}
	return n, err
}

// takeMessage hands the current message and the unread rest of it to the
// caller, who writes it elsewhere without holding up the session.
func (c *conn) takeMessage() (message, []byte, error) {
	g, err := c.lockRead()
	if err != nil {
		return nil, nil, err
	}
	defer c.unlockRead()
	if err := c.fillRead(g); err != nil {
		return nil, nil, err
	}
	m, rest := c.current, c.rest
	c.current, c.rest = nil, nil
	c.s.wg.Add(1)
	return m, rest, nil
}

func (c *conn) releaseCurrent() {
	if c.current != nil {
		c.current.Release()
		c.current, c.rest = nil, nil
	}
}

func (c *conn) push(m message) {
	c.queue = append(c.queue, m)
	c.queued += len(m.Bytes())
	if len(c.queue)-c.head >= maxQueuedMessages || c.queued >= maxQueuedBytes {
		c.full.Store(true)
	}
}

func (c *conn) pop() message {
	if c.head == len(c.queue) {
		return nil
	}
	m := c.queue[c.head]
	c.queue[c.head] = nil
	c.head++
	c.queued -= len(m.Bytes())
	if c.head == len(c.queue) {
		c.queue, c.head = c.queue[:0], 0
	}
	c.full.Store(false)
	return m
}

func (c *conn) queueFull() bool { return c.full.Load() }

func (c *conn) releaseAll() {
	c.releaseCurrent()
	for m := c.pop(); m != nil; m = c.pop() {
		m.Release()
	}
	c.queue = nil
}

// lockWrite takes the token for sending.
func (c *conn) lockWrite() error {
	g := c.wdl.gate()
	if err := g.cause(); err != nil {
		return err
	}
	select {
	case <-c.s.tx:
	default:
		select {
		case <-c.s.tx:
		case <-g.done:
			return g.cause()
		}
	}
	if c.closed.Load() {
		c.s.tx <- struct{}{}
		return errClosed
	}
	c.armWatch()
	return nil
}

func (c *conn) unlockWrite() { c.s.tx <- struct{}{} }

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.write(b)
	if err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}

func (c *conn) write(b []byte) (int, error) {
	if err := c.lockWrite(); err != nil {
		return 0, err
	}
	defer c.unlockWrite()
	return c.send(b)
}

// send is called with tx held.
func (c *conn) send(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		g := c.wdl.gate()
		if err := g.cause(); err != nil {
			return n, err
		}
		chunk := b[n : n+c.s.cfg.next(len(b)-n)]
		if err := c.s.ep.Send(g, c.dataTag, chunk); err != nil {
			if cause := g.cause(); cause != nil {
				return n, cause
			}
			return n, resetError(err)
		}
		c.wrote.Store(true)
		n += len(chunk)
	}
	return n, nil
}

var chunks sync.Pool // of *[]byte

func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	size := c.s.cfg.chunk
	buf, _ := chunks.Get().(*[]byte)
	if buf == nil || len(*buf) < size {
		b := make([]byte, size)
		buf = &b
	}
	defer chunks.Put(buf)
	var total int64
	for {
		n, err := r.Read((*buf)[:size])
		if n > 0 {
			sent, werr := c.Write((*buf)[:n])
			total += int64(sent)
			if werr != nil {
				return total, werr
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// armWatch sees to it that the session reads if nobody else does for
// watchAfter: a writer hears of its peer's close, and a peer that closes is told
// that its data has arrived.
func (c *conn) armWatch() {
	if c.watching.Load() || !c.watching.CompareAndSwap(false, true) {
		return
	}
	c.watchMu.Lock()
	defer c.watchMu.Unlock()
	c.readsAt = c.reads.Load()
	if c.closed.Load() {
		return
	}
	if c.watchTimer == nil {
		c.watchTimer = time.AfterFunc(watchAfter, c.watch)
	} else {
		c.watchTimer.Reset(watchAfter)
	}
}

func (c *conn) watch() {
	c.watchMu.Lock()
	defer c.watchMu.Unlock()
	if c.closed.Load() {
		return
	}
	if c.reading.Load() {
		// The reader arms the timer again when it goes.
		if c.watching.Store(false); c.reading.Load() || !c.watching.CompareAndSwap(false, true) {
			return
		}
		c.readsAt-- // it has gone in this moment
	}
	if reads := c.reads.Load(); reads != c.readsAt {
		c.readsAt = reads
		c.watchTimer.Reset(watchAfter)
		return
	}
	s := c.s
	s.mu.Lock()
	if s.conn == c {
		s.watch = true
	}
	s.mu.Unlock()
	s.kick()
}

// CloseWrite sends the end of the stream: the peer reads what was written and
// then io.EOF. Reading goes on.
func (c *conn) CloseWrite() error {
	if c.closed.Load() {
		return c.opError("close", errClosed)
	}
	if c.writeEnded.Swap(true) {
		return nil
	}
	c.wdl.fail(errWriteClosed)
	c.s.control(c, kindFin)
	return nil
}

// CloseRead ends reading: Read returns io.EOF, what has arrived or still
// arrives is thrown away, and the peer's writes fail once it has heard.
func (c *conn) CloseRead() error {
	if c.closed.Load() {
		return c.opError("close", errClosed)
	}
	if c.readStopped.Swap(true) {
		return nil
	}
	c.rdl.fail(io.EOF)
	c.s.control(c, kindStop)
	return nil
}

// SetLinger sets how Close behaves. With 0 it is abortive: the endpoint is closed
// at once and the peer gets ECONNRESET. Above 0 it is how many seconds Close
// waits for the peer to take what was written. Below 0 it is the usual,
// [Config.CloseWait].
func (c *conn) SetLinger(seconds int) error {
	if c.closed.Load() {
		return c.opError("set", errClosed)
	}
	c.abortive.Store(seconds == 0)
	patience := c.s.cfg.wait
	if seconds > 0 {
		patience = time.Duration(seconds) * time.Second
	}
	c.patience.Store(int64(patience))
	return nil
}

// Close ends both directions. Calls under way return net.ErrClosed, and what has
// arrived or still arrives is thrown away. When the peer has closed too, the
// endpoint serves the next connection.
//
// Close waits until the peer's process has everything that was written, so that
// this one may end: for a round trip if somebody reads there, for [Config.CloseWait]
// at most unless SetLinger says otherwise. After that it returns an error
// that wraps [verbena.ErrNotDelivered]; then what is left is still on its way,
// for [Config.Linger], as long as this process lives.
func (c *conn) Close() error { return c.end(time.Duration(c.patience.Load())) }

// end is Close with so much patience.
func (c *conn) end(patience time.Duration) error {
	if c.closed.Swap(true) {
		return c.opError("close", errClosed)
	}
	c.rdl.fail(errClosed)
	c.wdl.fail(errClosed)
	c.watchMu.Lock()
	if c.watchTimer != nil {
		c.watchTimer.Stop()
	}
	c.watchMu.Unlock()

	s := c.s
	if c.abortive.Load() {
		s.shutdown(errAbandoned)
		return nil
	}
	s.mu.Lock()
	dead := s.dead
	if !dead {
		c.lingering = time.AfterFunc(s.cfg.linger, func() {
			s.mu.Lock()
			late := s.conn == c
			s.mu.Unlock()
			if late {
				s.shutdown(errLinger)
			}
		})
	}
	s.mu.Unlock()
	if dead {
		s.kick()
		return c.delivered(0)
	}
	s.owner.draining(s)
	s.control(c, kindClose)
	// If the peer closed first the session is free, and is so before Close
	// returns.
	select {
	case <-s.rx:
		s.mu.Lock()
		mine := s.conn == c
		s.mu.Unlock()
		if mine && c.finished() {
			s.endStream()
		}
		s.rx <- struct{}{}
	default:
	}
	s.kick()
	if patience < 0 {
		return nil
	}
	return c.delivered(patience)
}

// delivered waits until the peer has everything, and tells if it has not.
func (c *conn) delivered(patience time.Duration) error {
	if !c.wrote.Load() {
		return nil
	}
	select {
	case <-c.taken:
		return nil
	default:
	}
	err := fmt.Errorf("%w: it had not within %s, and may not have been reading", verbena.ErrNotDelivered, patience)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.taken:
		return nil
	case <-c.s.life.done:
		select {
		case <-c.taken: // it went after that
			return nil
		default:
		}
		err = fmt.Errorf("%w: %w", verbena.ErrNotDelivered, c.s.life.cause())
	case <-timer.C:
	}
	return c.opError("close", err)
}

// SetDeadline sets both deadlines; the zero time removes them. Calls under way
// are subject to the new deadline.
func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline sets the time after which Read fails with
// os.ErrDeadlineExceeded.
func (c *conn) SetReadDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.opError("set", errClosed)
	}
	c.rdl.set(t)
	return nil
}

// SetWriteDeadline sets the time after which Write fails with
// os.ErrDeadlineExceeded. A write that fails may have sent a part, as it tells.
func (c *conn) SetWriteDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.opError("set", errClosed)
	}
	c.wdl.set(t)
	return nil
}
