package iwarp

import (
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

func available() error { return nil }

// maxVectors is what one writev takes of a batch.
const maxVectors = 512

// outgoing is a batch on its way.
type outgoing struct {
	batch   *engine.Batch
	vectors [maxVectors]unix.Iovec
	at, n   int // vectors[at:n] are still to be written
}

var outgoings = sync.Pool{New: func() any { return new(outgoing) }}

func newOutgoing() *outgoing {
	o := outgoings.Get().(*outgoing)
	o.batch = engine.NewBatch()
	o.at, o.n = 0, 0
	return o
}

func (o *outgoing) free() {
	o.batch.Free()
	o.batch = nil
	clear(o.vectors[:o.n])
	outgoings.Put(o)
}

// prepare turns the batch into the system's vectors.
func (o *outgoing) prepare() {
	clear(o.vectors[:o.n])
	o.at, o.n = 0, len(o.batch.Vectors)
	for i, v := range o.batch.Vectors {
		o.vectors[i].Base = unsafe.SliceData(v)
		o.vectors[i].SetLen(len(v))
	}
}

// advance drops n written bytes.
func (o *outgoing) advance(n int) {
	for n > 0 {
		v := &o.vectors[o.at]
		if size := int(v.Len); n >= size {
			n -= size
			o.at++
			continue
		}
		v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
		v.SetLen(int(v.Len) - n)
		return
	}
}

// socketStream moves bytes by readv and writev on a socket that Go's poller
// watches. Who polls a completion queue in vain reads, too, so that a spinning
// program needs no other goroutine to make progress.
type socketStream struct {
	conn net.Conn
	raw  syscall.RawConn

	// reading is held by who reads: the reader's goroutine or a poll. It guards
	// the engine's reading half.
	reading sync.Mutex
	engine  *engine.Engine // nil before read
	after   func()
	over    bool
	rerr    error
	onRead  func(uintptr) bool
	onPoll  func(uintptr)

	// Of the holder of the writer's role.
	out     *outgoing
	wait    bool
	werr    error
	onWrite func(uintptr) bool
}

func newStream(conn net.Conn) stream {
	var raw syscall.RawConn
	var err error
	switch c := conn.(type) {
	case *net.TCPConn:
		raw, err = c.SyscallConn()
	case *net.UnixConn:
		raw, err = c.SyscallConn()
	default:
		return plainStream{conn}
	}
	if err != nil {
		return plainStream{conn}
	}
	s := &socketStream{conn: conn, raw: raw}
	s.onRead, s.onPoll, s.onWrite = s.readable, s.polled, s.writable
	return s
}

func (s *socketStream) read(e *engine.Engine, after func()) error {
	s.reading.Lock()
	s.engine, s.after = e, after
	s.reading.Unlock()
	err := s.raw.Read(s.onRead)
	s.reading.Lock()
	defer s.reading.Unlock()
	s.over = true
	if s.rerr != nil {
		return s.rerr
	}
	return err
}

// readable is called when the socket may have bytes. It stays until there are
// none, and returns true at the end of the stream only, so that no wake-up can
// get lost in between. A short read does not mean that there is nothing more:
// the end of the stream may be there already, and nothing would tell of it again.
func (s *socketStream) readable(fd uintptr) bool {
	s.reading.Lock()
	defer s.reading.Unlock()
	stage := stages.Get().(*stage)
	defer stages.Put(stage)
	for vain := 0; !s.over; {
		if s.round(fd, stage) {
			vain = 0
			continue
		}
		// In the middle of a segment more is on its way: to look again is cheaper
		// than to be woken.
		if vain++; vain > patience || !s.engine.Within() {
			break
		}
		runtime.Gosched()
	}
	return s.over
}

// Drive implements [cq.Driver].
func (s *socketStream) Drive() {
	if !s.reading.TryLock() {
		return
	}
	defer s.reading.Unlock()
	if s.engine != nil && !s.over {
		_ = s.raw.Control(s.onPoll)
	}
}

func (s *socketStream) polled(fd uintptr) {
	stage := stages.Get().(*stage)
	s.round(fd, stage)
	stages.Put(stage)
	if s.over {
		// The reader's goroutine has to come and see to the rest.
		_ = s.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// round reads once and tells whether anything came.
func (s *socketStream) round(fd uintptr, stage *stage) bool {
	direct := s.engine.Direct()
	var vectors [2]unix.Iovec
	at := 1
	if len(direct) > 0 {
		at = 0
		vectors[0].Base = unsafe.SliceData(direct)
		vectors[0].SetLen(len(direct))
	}
	vectors[1].Base = &stage[0]
	vectors[1].SetLen(s.engine.Ahead(len(stage)))
	got, _, errno := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&vectors[at])), uintptr(len(vectors)-at))
	n := int(got)
	if errno != 0 {
		n = 0
	}
	if direct != nil {
		placed := min(n, len(direct))
		s.engine.Placed(placed)
		n -= placed
	}
	switch {
	case errno == unix.EINTR:
		return true
	case errno == unix.EAGAIN:
		return false
	case errno != 0:
		s.over, s.rerr = true, os.NewSyscallError("readv", errno)
		return false
	case got == 0:
		s.over, s.rerr = true, io.EOF
		return false
	}
	if err := s.engine.Feed(stage[:n]); err != nil {
		s.over, s.rerr = true, err
	}
	s.after()
	return true
}

func (s *socketStream) write(o *outgoing, wait bool) (bool, error) {
	s.out, s.wait, s.werr = o, wait, nil
	err := s.raw.Write(s.onWrite)
	s.out = nil
	if s.werr != nil {
		err = s.werr
	}
	return o.at == o.n, err
}

func (s *socketStream) writable(fd uintptr) bool {
	o := s.out
	for o.at < o.n {
		n, _, errno := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&o.vectors[o.at])), uintptr(o.n-o.at))
		switch errno {
		case 0:
			o.advance(int(n))
		case unix.EINTR:
		case unix.EAGAIN:
			return !s.wait
		default:
			s.werr = os.NewSyscallError("writev", errno)
			return true
		}
	}
	return true
}

// tune sets the socket up and adds to params what depends on it.
func (d *device) tune(conn net.Conn, params *engine.Params) {
	params.MaxULPDU = largeULPDU
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	_ = c.SetNoDelay(true)
	// Half of the time passes in silence, the rest in probes.
	_ = c.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: max(d.config.PeerTimeout/2, time.Second),
		Interval: max(d.config.PeerTimeout/10, time.Second), Count: 5,
	})
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.config.PeerTimeout.Milliseconds()))
		if !d.config.SegmentSized {
			return
		}
		if mss, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err == nil {
			params.MaxULPDU = max(wire.LargestULPDU(mss, false), leastULPDU)
		}
	})
}

// patience is how often the reader looks again in the middle of a segment.
const patience = 8
