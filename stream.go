package verbena

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// Frames on a TCP connection. docs/endpoints.md has the layout.
const (
	frameHeader    = 16
	maxFragment    = 1 << 20 // accepted; what is sent is Tuning.Chunk
	coalesceLimit  = 2 << 10 // bytes that are cheaper to copy than to gather
	backlogLimit   = 64 << 10
	inboxLimit     = 4 << 20 // bytes that wait to be received before reading pauses
	inboxOverhead  = 256     // what a message counts beside its bytes
	streamBuffer   = 16 << 10
	assemblyLimit  = 4 << 20 // memory committed to a message on its length's word alone
	openingTimeout = 10 * time.Second
)

type frameKind uint8

const (
	frameOpening frameKind = 1
	frameData    frameKind = 2
	frameGoodbye frameKind = 3
)

const (
	fragmentFirst = 1 << 0
	fragmentLast  = 1 << 1
)

type frame struct {
	kind   frameKind
	flags  uint8
	tag    uint32
	length uint32 // of what follows
	total  uint32 // of the message, in each of its fragments
}

func (f frame) put(b *[frameHeader]byte) {
	b[0], b[1], b[2], b[3] = byte(f.kind), f.flags, 0, 0
	binary.BigEndian.PutUint32(b[4:], f.tag)
	binary.BigEndian.PutUint32(b[8:], f.length)
	binary.BigEndian.PutUint32(b[12:], f.total)
}

func parseFrame(b *[frameHeader]byte) (frame, error) {
	f := frame{
		kind: frameKind(b[0]), flags: b[1],
		tag:    binary.BigEndian.Uint32(b[4:]),
		length: binary.BigEndian.Uint32(b[8:]),
		total:  binary.BigEndian.Uint32(b[12:]),
	}
	switch {
	case b[2] != 0 || b[3] != 0:
		return f, fmt.Errorf("%w: reserved bytes of a frame are not zero", ErrProtocol)
	case f.kind == frameData && f.length <= maxFragment && f.flags&^(fragmentFirst|fragmentLast) == 0:
		return f, nil
	case f.kind == frameOpening && f.length >= parametersSize && f.length <= 256:
		return f, nil
	case f.kind == frameGoodbye && f.length == 0:
		return f, nil
	}
	return f, fmt.Errorf("%w: frame of kind %d, flags %#02x and length %d", ErrProtocol, f.kind, f.flags, f.length)
}

// A stream is the carrier that frames messages on the TCP connection itself.
type stream struct {
	e        *Endpoint
	conn     net.Conn
	peerMax  int
	fragment int

	// mu guards what is not written yet. While flushing is set a goroutine
	// writes and everything else goes into backlog behind it.
	mu       sync.Mutex
	backlog  []byte
	spare    []byte
	flushing bool
	writeErr error
	drained  chan struct{} // one token when backlog got shorter
	traffic  Traffic       // sent
	direct   directWriter
	scratch  [frameHeader + coalesceLimit]byte

	room     chan struct{} // one token when the inbox got shorter
	readDone chan struct{}
	wg       sync.WaitGroup
}

// newStream exchanges openings on conn and starts to read messages. On an
// error conn is still open.
func newStream(ctx context.Context, e *Endpoint, conn net.Conn) (err error) {
	defer func() {
		if err == nil {
			e.runtime.tcp.opened.Add(1)
		} else {
			e.runtime.tcp.failed.Add(1)
		}
	}()
	t := e.runtime.tuningFor(TransportTCP)
	s := &stream{
		e: e, conn: conn, fragment: t.Chunk,
		drained: make(chan struct{}, 1), room: make(chan struct{}, 1), readDone: make(chan struct{}),
	}
	mine := parameters{maxMessage: uint32(e.runtime.cfg.MaxMessage)}
	var header [frameHeader]byte
	frame{kind: frameOpening, length: parametersSize}.put(&header)
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(openingTimeout)
	}
	stop, err := bindContext(ctx, conn, deadline)
	if err != nil {
		return err
	}
	peer, err := func() (parameters, error) {
		if _, err := conn.Write(mine.append(header[:])); err != nil {
			return parameters{}, err
		}
		if _, err := io.ReadFull(conn, header[:]); err != nil {
			return parameters{}, err
		}
		f, err := parseFrame(&header)
		if err != nil {
			return parameters{}, err
		}
		if f.kind != frameOpening {
			return parameters{}, fmt.Errorf("%w: frame of kind %d where an opening is due", ErrProtocol, f.kind)
		}
		body := make([]byte, f.length)
		if _, err := io.ReadFull(conn, body); err != nil {
			return parameters{}, err
		}
		return parseParameters(body)
	}()
	if err := stop(); err != nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("exchange of openings: %w", err)
	}
	s.peerMax = int(peer.maxMessage)
	if sc, ok := conn.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			s.direct.init(raw)
		}
	}
	e.carrier = s
	s.wg.Go(s.read)
	return nil
}

func (s *stream) maxMessage() int { return s.peerMax }

func (s *stream) eager() int { return 0 }

func (s *stream) send(ctx context.Context, tag uint32, message []byte) error {
	total := len(message)
	f := frame{kind: frameData, flags: fragmentFirst, tag: tag, total: uint32(total)}
	for {
		n := min(len(message), s.fragment)
		f.length = uint32(n)
		if n == len(message) {
			f.flags |= fragmentLast
		}
		if err := s.waitBacklog(ctx, s.e.done, backlogLimit); err != nil {
			// Fragments that have gone are dropped by the peer when the next
			// message begins.
			return err
		}
		if err := s.write(f, message[:n]); err != nil {
			return err
		}
		if n == len(message) {
			s.mu.Lock()
			s.traffic.add(total)
			s.mu.Unlock()
			return nil
		}
		message, f.flags = message[n:], 0
	}
}

func (s *stream) sentTraffic() Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.traffic
}

// waitBacklog waits until less than limit bytes are left to be written, or
// ended is closed.
func (s *stream) waitBacklog(ctx context.Context, ended <-chan struct{}, limit int) error {
	for {
		s.mu.Lock()
		n, err := len(s.backlog), s.writeErr
		if s.flushing {
			n++ // bytes on their way count, too
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if n < limit {
			return nil
		}
		select {
		case <-s.drained:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ended:
			return s.e.err
		}
	}
}

// write takes a whole frame: what the socket does not take at once is copied
// and written in the background, so that a frame is never cut off.
func (s *stream) write(f frame, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writeErr != nil {
		return s.writeErr
	}
	header := (*[frameHeader]byte)(s.scratch[:])
	f.put(header)
	written := 0
	if !s.flushing && s.direct.ready() {
		var err error
		if len(payload) <= coalesceLimit {
			n := copy(s.scratch[frameHeader:], payload)
			written, err = s.direct.write(s.scratch[:frameHeader+n], nil)
		} else {
			written, err = s.direct.write(header[:], payload)
		}
		if err != nil {
			s.broken(err)
			return s.writeErr
		}
	}
	if written == frameHeader+len(payload) {
		return nil
	}
	if s.backlog == nil {
		s.backlog = takeBacklog()
	}
	if written < frameHeader {
		s.backlog = append(s.backlog, header[written:]...)
		written = frameHeader
	}
	s.backlog = append(s.backlog, payload[written-frameHeader:]...)
	if !s.flushing {
		s.flushing = true
		s.wg.Go(s.flush)
	}
	return nil
}

func (s *stream) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.writeErr == nil && len(s.backlog) > 0 {
		out := s.backlog
		if s.spare == nil {
			s.spare = takeBacklog()
		}
		s.backlog, s.spare = s.spare[:0], nil
		s.mu.Unlock()
		_, err := s.conn.Write(out)
		s.mu.Lock()
		s.spare = out[:0]
		if err != nil {
			s.broken(err)
		}
		notify(s.drained)
	}
	s.flushing = false
	// An idle connection keeps no buffers.
	giveBacklog(s.backlog)
	giveBacklog(s.spare)
	s.backlog, s.spare = nil, nil
	notify(s.drained)
}

// broken records that the socket takes no more. s.mu is held.
func (s *stream) broken(err error) {
	s.writeErr = fmt.Errorf("%w: %w", ErrPeerDied, err)
	s.e.fail(s.writeErr)
}

var backlogs = sync.Pool{New: func() any { b := make([]byte, 0, backlogLimit); return &b }}

func takeBacklog() []byte { return (*backlogs.Get().(*[]byte))[:0] }

func giveBacklog(b []byte) {
	if c := cap(b); c >= backlogLimit && c <= 2*maxFragment {
		backlogs.Put(&b)
	}
}

func (s *stream) receive(ctx context.Context) (*Message, error) {
	for {
		if s.e.closing.Load() {
			return nil, ErrClosed
		}
		if m := s.e.in.pop(); m != nil {
			notify(s.room)
			return m, nil
		}
		select {
		case <-s.e.in.ready:
			continue
		default:
		}
		select {
		case <-s.e.in.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-s.e.done:
			return s.e.lastMessage()
		}
	}
}

// lastMessage is Receive once the endpoint has ended.
func (e *Endpoint) lastMessage() (*Message, error) {
	if e.closing.Load() {
		return nil, ErrClosed
	}
	if m := e.in.pop(); m != nil {
		return m, nil
	}
	if errors.Is(e.err, ErrPeerClosed) {
		return nil, io.EOF
	}
	return nil, e.err
}

// read runs until the connection has nothing more to say.
func (s *stream) read() {
	defer close(s.readDone)
	err := s.readFrames()
	switch {
	case err == nil:
		// The peer said goodbye. Answering it lets the peer know that all has
		// arrived.
		s.e.fail(ErrPeerClosed)
		if !s.e.closing.Load() {
			_ = s.write(frame{kind: frameGoodbye}, nil) // the peer may be gone already
		}
	case errors.Is(err, ErrProtocol):
		s.e.fail(err)
		_ = s.conn.Close() // tells the peer; Close frees the rest
	default:
		s.e.fail(fmt.Errorf("%w: %w", ErrPeerDied, err))
	}
}

func (s *stream) readFrames() error {
	r := bufio.NewReaderSize(s.conn, streamBuffer)
	var header [frameHeader]byte
	var m *Message // being put together
	var total int
	for {
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return err
		}
		f, err := parseFrame(&header)
		if err != nil {
			return err
		}
		switch f.kind {
		case frameGoodbye:
			return nil
		case frameOpening:
			return fmt.Errorf("%w: a second opening", ErrProtocol)
		}
		if f.flags&fragmentFirst != 0 {
			if int64(f.total) > int64(s.e.runtime.cfg.MaxMessage) {
				return fmt.Errorf("%w: message of %d bytes, at most %d are accepted", ErrProtocol, f.total, s.e.runtime.cfg.MaxMessage)
			}
			if m != nil {
				m.Release() // given up by the peer
			}
			s.waitInbox()
			total = int(f.total)
			m = takeMessage(min(total, assemblyLimit))
			m.Tag = f.tag
		}
		if err := checkFragment(m, f, total); err != nil {
			return err
		}
		n := len(m.data)
		m = growMessage(m, n+int(f.length), total)
		if _, err := io.ReadFull(r, m.data[n:]); err != nil {
			return err
		}
		if f.flags&fragmentLast != 0 {
			if s.e.closing.Load() {
				m.Release()
			} else {
				s.e.in.push(m)
			}
			m = nil
		}
	}
}

// checkFragment judges a fragment that continues m, of which total bytes are due.
func checkFragment(m *Message, f frame, total int) error {
	if m == nil {
		return fmt.Errorf("%w: a fragment of no message", ErrProtocol)
	}
	end := len(m.data) + int(f.length)
	last := f.flags&fragmentLast != 0
	if m.Tag != f.tag || int(f.total) != total || end > total || last != (end == total) || (f.length == 0 && !last) {
		return fmt.Errorf("%w: fragment of %d bytes with tag %d in a message of %d with tag %d, flags %#02x",
			ErrProtocol, f.length, f.tag, total, m.Tag, f.flags)
	}
	return nil
}

// waitInbox waits until the inbox has room. While it does not, the socket fills
// and the peer's sends wait.
func (s *stream) waitInbox() {
	for !s.e.closing.Load() {
		s.e.in.mu.Lock()
		full := s.e.in.bytes+s.e.in.count*inboxOverhead >= inboxLimit
		s.e.in.mu.Unlock()
		if !full {
			return
		}
		select {
		case <-s.room:
		case <-s.e.done:
			if !s.e.closing.Load() {
				return
			}
		}
	}
}

func (s *stream) close(ctx context.Context) error {
	notify(s.room)
	err := s.goodbye(ctx)
	_ = s.conn.Close() // nothing is left to be lost
	s.wg.Wait()
	s.e.in.clear()
	return err
}

// goodbye hands over what is left and waits for the peer's goodbye.
func (s *stream) goodbye(ctx context.Context) error {
	peerClosed := errors.Is(s.e.err, ErrPeerClosed)
	// Sends that wait have been told; the lock is theirs only for a moment.
	select {
	case s.e.sendLock <- struct{}{}:
		defer func() { <-s.e.sendLock }()
	case <-ctx.Done():
		return ErrNotDelivered
	}
	if !peerClosed {
		if err := s.write(frame{kind: frameGoodbye}, nil); err != nil {
			return err
		}
	}
	if err := s.waitBacklog(ctx, nil, 1); err != nil {
		switch {
		case peerClosed: // it wants nothing any more
			return nil
		case ctx.Err() != nil:
			return ErrNotDelivered
		}
		return err
	}
	if h, ok := s.conn.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite() // the goodbye says the same
	}
	// Closing a socket with unread data resets it, and the peer may lose what it
	// has not read. So the peer goes first.
	select {
	case <-s.readDone:
	case <-ctx.Done():
	}
	return nil
}

// bindContext makes deadline and the end of ctx end reads and writes of conn.
// The function it returns undoes that and returns the context's error if it
// was over.
func bindContext(ctx context.Context, conn net.Conn, deadline time.Time) (stop func() error, err error) {
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	over := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(over)
		_ = conn.SetDeadline(time.Unix(1, 0)) // in the past; a closed conn needs none
	})
	return func() error {
		if !cancel() {
			<-over
			return context.Cause(ctx)
		}
		return conn.SetDeadline(time.Time{})
	}, nil
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A messageClass pools messages whose memory is of one size on the Go heap.
type messageClass struct {
	size int
	pool sync.Pool
}

func (c *messageClass) release(m *Message) {
	m.data = m.data[:0]
	c.pool.Put(m)
}

var messageClasses = [...]*messageClass{{size: 1 << 10}, {size: 16 << 10}, {size: 256 << 10}, {size: 1 << 20}, {size: 4 << 20}}

type garbage struct{}

func (garbage) release(*Message) {}

// takeMessage returns an empty message with room for size bytes.
func takeMessage(size int) *Message {
	for _, c := range messageClasses {
		if size <= c.size {
			if m, ok := c.pool.Get().(*Message); ok {
				return m
			}
			return &Message{data: make([]byte, 0, c.size), owner: c}
		}
	}
	return &Message{data: make([]byte, 0, size), owner: garbage{}}
}

// growMessage makes m size bytes long, moving it into more memory if it must.
func growMessage(m *Message, size, total int) *Message {
	if size > cap(m.data) {
		bigger := takeMessage(min(total, max(size, 2*cap(m.data))))
		bigger.Tag = m.Tag
		bigger.data = append(bigger.data, m.data...)
		m.Release()
		m = bigger
	}
	m.data = m.data[:size]
	return m
}
