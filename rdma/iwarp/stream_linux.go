package iwarp

import (
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/liveness"
	"github.com/verbena-data/verbena/internal/patience"
	"github.com/verbena-data/verbena/internal/waking"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/cq"
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
//
// While somebody polls all the time, and bytes come or go, the stream keeps quiet:
// SO_RCVLOWAT keeps arriving bytes from waking the poller's thread and the reader's
// goroutine, which would take the processor from those who have read the bytes already.
// It ends when one of the queues is armed, and by a timer when polls cease or nothing
// comes or goes.
//
// While a message waits for a receive nobody reads, so that TCP's window holds the
// peer back. Who posts the receive reads on.
type socketStream struct {
	conn     net.Conn
	raw      syscall.RawConn
	pair     *queuePair
	liveness *liveness.Watcher // of the peer's host while data is on its way; nil without TCP

	// reading is held by who reads: the reader's goroutine or a poll. It guards
	// the engine's reading half.
	reading sync.Mutex
	engine  *engine.Engine // nil before read
	after   func()
	over    bool
	rerr    error
	onRead  func(uintptr) bool
	onPoll  func(uintptr)
	onPost  func(uintptr)
	onStir  func(uintptr)

	given     atomic.Bool // a receive has been posted that a message waits for
	ending    bool        // one waits and the peer has ended the connection
	abandoned *time.Timer // ends the wait then
	further   *time.Timer // reads what a PostRecv has left
	tcp       bool
	expects   bool  // another one soon: the last bytes have completed something, or asked for a Read
	nextRead  trial // of looking for another Read behind a Read
	owes      bool  // a turn to others, who may have been told of something
	unheard   int   // reads of the socket since one that the scheduler has heard of
	linger    patience.Spinner
	crowd     *patience.Crowd // tells when the reader should not linger

	lowat    int           // SO_RCVLOWAT if it was set
	quiet    atomic.Bool   // changed by the holder of reading
	polls    atomic.Uint32 // since the last Rest
	fast     uint32        // polls when the quiet began, or at the watchdog's last look
	counted  time.Time     // when the last quietAfter polls were through
	fruitful atomic.Bool   // something has come or gone since then, or since the watchdog's last look
	stage    *stage        // while quiet
	watchdog *time.Timer

	// Of the holder of the writer's role.
	out     *outgoing
	skip    int // polls that do not try to write
	wait    bool
	werr    error
	onWrite func(uintptr) bool
}

// writeSkip is how many polls, of about half a microsecond each, leave a full
// socket alone.
const writeSkip = 64

// smallWrite is the size of a batch, in bytes, that is written in some
// microseconds.
const smallWrite = 8 << 10

const (
	// A stream keeps quiet after quietAfter polls within quietWithin, if something has come or
	// gone meanwhile: those who poll may wait for more of it.
	quietAfter = 64
	// quietCheck is how often the watchdog looks whether polls still come: fewer
	// than quietAfter in that time end the quiet, or if nothing has come or gone.
	quietCheck = 2 * time.Millisecond
	// quietBytes is what a quiet stream may leave in the socket before its
	// reader is woken all the same.
	quietBytes = 1 << 20
)

// quietWithin: see quietAfter. Tests change it.
var quietWithin = 500 * time.Microsecond

// dueLeast is how many bytes must be certain to follow to be awaited together.
const dueLeast = 8 << 10

// postRounds is how often a PostRecv that a stream has waited for reads from it. What is left
// after that, of half a megabyte or more, is the reader's, or a timer's. Tests change it.
var postRounds = 4

func newStream(conn net.Conn, q *queuePair) stream {
	var raw syscall.RawConn
	var err error
	switch c := conn.(type) {
	case *net.TCPConn:
		raw, err = c.SyscallConn()
	case *net.UnixConn:
		raw, err = c.SyscallConn()
	default:
		return newPlainStream(conn, q.done)
	}
	if err != nil {
		return newPlainStream(conn, q.done)
	}
	s := &socketStream{conn: conn, raw: raw, pair: q, linger: patience.NewCostlySpinner(longestLinger()), crowd: patience.Processors}
	_, s.tcp = conn.(*net.TCPConn)
	s.onRead, s.onPoll, s.onPost, s.onWrite = s.readable, s.polled, s.posted, s.writable
	s.onStir = func(fd uintptr) { s.wakeAt(fd, 1) }
	s.watchdog = time.AfterFunc(time.Hour, s.watch)
	s.watchdog.Stop()
	s.abandoned = time.AfterFunc(time.Hour, s.abandon)
	s.abandoned.Stop()
	s.further = time.AfterFunc(time.Hour, s.resume)
	s.further.Stop()
	s.liveness = liveness.Watch(conn, q.domain.device.config.PeerTimeout, s.silent)
	return s
}

// silent ends a connection whose peer's host is gone.
func (s *socketStream) silent(err error) {
	_ = s.conn.(*net.TCPConn).SetLinger(0) // nobody will take what is left
	s.pair.engine.Fail(fmt.Errorf("%w: %w", rdma.ErrDisconnected, err))
}

func (s *socketStream) read(e *engine.Engine, after func()) error {
	s.reading.Lock()
	s.engine, s.after = e, after
	s.reading.Unlock()
	err := s.raw.Read(s.onRead)
	s.reading.Lock()
	defer s.reading.Unlock()
	s.over = true
	s.abandoned.Stop()
	s.further.Stop()
	s.liveness.Stop()
	s.stir()
	_ = s.raw.Control(s.onStir) // for those who read on
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
	defer s.release()
	stage := stages.Get().(*stage)
	defer stages.Put(stage)
	var l lingering
	for vain := 0; !s.over; {
		// The deadline that failed sets is looked at before the next wait. A peer that
		// sends faster than this side reads lets none come.
		select {
		case <-s.pair.done:
			s.over, s.rerr = true, os.ErrDeadlineExceeded
			continue
		default:
		}
		if s.roundThenTell(fd, stage) {
			s.worthIt(&l)
			vain = 0
			continue
		}
		if s.engine.Waiting() {
			s.awaitReceive(fd)
			break
		}
		// In the middle of a segment more is on its way: to look again is cheaper
		// than to be woken.
		if vain++; (vain > looksWithin || !s.engine.Within()) && !s.lingers(&l) {
			break
		}
		if vain == 1 && s.owes {
			s.owes = false
			runtime.Gosched() // this wakes another thread
		}
	}
	if !s.over && !s.quiet.Load() {
		s.wakeAt(fd, s.engine.Due())
	}
	return s.over
}

// wakeAt has the kernel wake the reader when n bytes are there, which are certain
// to come. Few are not worth the call.
func (s *socketStream) wakeAt(fd uintptr, n int) bool {
	switch {
	case n < dueLeast && s.lowat <= 1:
		return true
	case n < dueLeast:
		n = 1
	case n < quietBytes:
		n = 1 << (bits.Len(uint(n)) - 1) // so that it changes rarely
	}
	if n == s.lowat {
		return true
	}
	if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) != nil {
		return false
	}
	s.lowat = n
	return true
}

// Drive implements [cq.Driver].
func (s *socketStream) Drive() {
	if s.reading.TryLock() {
		if s.engine != nil && !s.over {
			_ = s.raw.Control(s.onPoll)
		}
		s.release()
	}
	s.pair.driveWriter()
}

// release gives reading up, unless a receive was posted meanwhile.
func (s *socketStream) release() {
	s.reading.Unlock()
	if s.given.Load() {
		s.resume()
	}
}

// resume implements [stream]. If somebody else reads, he does it in release.
func (s *socketStream) resume() {
	s.given.Store(true)
	for s.given.Load() && s.reading.TryLock() {
		s.given.Store(false)
		if s.engine != nil && !s.over {
			_ = s.raw.Control(s.onPost)
		}
		s.reading.Unlock()
	}
}

// posted reads on after a wait.
func (s *socketStream) posted(fd uintptr) {
	stage := stages.Get().(*stage)
	defer stages.Put(stage)
	more := true
	for n := 0; more && n < postRounds; n++ {
		more = s.round(fd, stage)
	}
	switch {
	case s.over:
		_ = s.conn.SetReadDeadline(time.Unix(1, 0)) // the reader's goroutine sees to the rest
	case more && !s.tcp:
		s.further.Reset(0) // nothing tells the reader's goroutine of what is there already
	case s.quiet.Load():
	case !more:
		s.wakeAt(fd, s.engine.Due())
	case unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1) == nil:
		s.lowat = 1 // setting it has TCP tell the reader's goroutine again of what is there
	}
}

// awaitReceive looks at the connection while a message waits for its receive. One
// that is lost ends at once. One that the peer has ended behind that message ends
// after lingerTimeout without another receive.
func (s *socketStream) awaitReceive(fd uintptr) {
	look := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	if n, err := unix.Poll(look[:], 0); n == 0 || err != nil {
		return
	}
	if look[0].Revents&(unix.POLLERR|unix.POLLHUP) == 0 {
		if !s.ending {
			s.ending = true
			s.abandoned.Reset(s.pair.domain.device.config.lingerTimeout)
		}
		return
	}
	s.over, s.rerr = true, io.EOF
	if code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
		s.rerr = os.NewSyscallError("read", syscall.Errno(code))
	}
}

// abandon gives a wait up whose peer has gone.
func (s *socketStream) abandon() {
	s.reading.Lock()
	defer s.release()
	if s.over || !s.ending || !s.engine.Waiting() {
		return
	}
	s.over, s.rerr = true, io.EOF
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
}

func (s *socketStream) polled(fd uintptr) {
	if s.stage != nil {
		s.round(fd, s.stage)
	} else {
		stage := stages.Get().(*stage)
		s.round(fd, stage)
		stages.Put(stage)
	}
	if s.over {
		// The reader's goroutine has to come and see to the rest.
		_ = s.conn.SetReadDeadline(time.Unix(1, 0))
		return
	}
	if s.lowat > 1 && !s.quiet.Load() {
		s.wakeAt(fd, s.engine.Due()) // what was awaited may be what has been read
	}
	if n := s.polls.Add(1); n%quietAfter == 0 && !s.quiet.Load() {
		now := time.Now()
		if n > quietAfter && now.Sub(s.counted) < quietWithin && s.fruitful.Load() {
			s.hush(fd)
		}
		s.counted = now
		s.fruitful.Store(false)
	}
}

// hush makes the stream keep quiet, if its queues allow it.
func (s *socketStream) hush(fd uintptr) {
	s.quiet.Store(true)
	may := s.pair.mayKeepQuiet(s)
	if !may || !s.wakeAt(fd, quietBytes) {
		s.quiet.Store(false)
		if may {
			s.pair.drive((*cq.Queue).Quieted, s)
		}
		s.pair.unpark()
		return
	}
	s.stage = stages.Get().(*stage)
	s.fast = s.polls.Load()
	s.watchdog.Reset(quietCheck)
}

func (s *socketStream) polledOnly() bool { return s.quiet.Load() }

// stir ends the quiet. The kernel tells at once of what has come meanwhile.
func (s *socketStream) stir() {
	s.polls.Store(0)
	if !s.quiet.Load() {
		return
	}
	s.quiet.Store(false)
	s.watchdog.Stop()
	stages.Put(s.stage)
	s.stage = nil
	_ = s.raw.Control(s.onStir)
	s.pair.drive((*cq.Queue).Quieted, s)
	s.pair.unpark()
}

// Rest implements [cq.Driver].
func (s *socketStream) Rest() {
	if !s.quiet.Load() {
		s.polls.Store(0)
		return
	}
	s.reading.Lock()
	s.stir()
	s.release()
}

// watch ends the quiet when polls have become rare, or nothing has come or gone.
func (s *socketStream) watch() {
	s.reading.Lock()
	defer s.release()
	if !s.quiet.Load() {
		return
	}
	n := s.polls.Load()
	if n-s.fast < quietAfter || !s.fruitful.Load() {
		s.stir()
		return
	}
	s.fast = n
	s.fruitful.Store(false)
	s.watchdog.Reset(quietCheck)
}

// lingering is a time in which the reader looks again and again.
type lingering struct {
	budget, began, last time.Duration // by the crowd's clock; without a budget it has not begun
}

// lingers tells whether the reader looks again at a socket whose last bytes have completed
// something or asked for a Read.
func (s *socketStream) lingers(l *lingering) bool {
	if s.expects && !s.looksOn(l) {
		*l = lingering{}
		s.expects = false
	}
	return s.expects
}

// looksOn begins to linger, or goes on.
func (s *socketStream) looksOn(l *lingering) bool {
	if l.budget == 0 {
		if l.budget = s.linger.Next(); l.budget <= 0 || s.crowd.Dense() {
			return false
		}
		l.began = s.crowd.Now()
		l.last = l.began
		return true
	}
	now := s.crowd.Now()
	pushed := now-l.last > patience.Preempted
	if pushed {
		s.crowd.Pushed(now)
	}
	l.last = now
	if pushed || s.crowd.Pressed(now) || now-l.began >= l.budget {
		s.linger.Vain(l.budget)
		return false
	}
	return true
}

// worthIt ends the lingering, if the reader does, with what it has waited for.
func (s *socketStream) worthIt(l *lingering) {
	if l.budget > 0 {
		s.linger.Helped(l.last - l.began)
		*l = lingering{}
	}
}

// roundThenTell is round for the reader's goroutine, which tells of what it has completed
// itself: to wake another goroutine for that costs more than most messages do.
func (s *socketStream) roundThenTell(fd uintptr, stage *stage) bool {
	queue := s.pair.config.RecvCompletions.(*cq.Queue)
	queue.Collect()
	before := s.engine.Counts()
	came := s.round(fd, stage)
	if came {
		s.classify(before, s.engine.Counts())
	}
	if queue.Collected() {
		s.expects = true
		s.release() // whoever is told may post, poll and arm
		queue.Tell()
		s.reading.Lock()
	}
	return came
}

// classify notes what a round has brought.
func (s *socketStream) classify(before, now engine.Counts) {
	asked := now.Asked - before.Asked
	if asked > 0 && s.nextRead.read(asked, s.crowd.Now) {
		s.expects = true
	}
	if now.Messages-before.Messages != asked {
		s.owes = true
	}
}

// heardAfter is after how many reads of the socket the scheduler hears of one: some
// milliseconds while more comes all the time. The answers are on top; it hears of those
// above smallWrite.
const heardAfter = 256

// unseen tells whether the next read of the socket goes past the scheduler. It does not wait
// for bytes; for memory that has to be brought from a disk it does, as a copy to it would.
// To hear of a call wakes the scheduler's watch if all processors have
// rested since the last one, and its thread then looks around every 20 us until they rest
// again, which costs more than the read. But it is the watch that makes goroutines take
// turns on a processor. So a peer that sends all the time does not go without it, and the
// reader gives its turn away then: behind Reads, of which nobody is told, it would not
// otherwise, and a peer that reads all the time would have a processor for itself.
func (s *socketStream) unseen() bool {
	if s.quiet.Load() {
		return true // until a timer ends it
	}
	if s.unheard++; s.unheard < heardAfter {
		return true
	}
	s.unheard, s.owes = 0, true
	return false
}

// round reads once and tells whether anything came.
func (s *socketStream) round(fd uintptr, stage *stage) bool {
	if s.engine.Waiting() {
		return s.goOn()
	}
	direct := s.engine.Direct()
	got, errno := s.receive(fd, direct, stage[:s.engine.Ahead(len(stage))])
	n := got
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
	s.bearsFruit()
	if err := s.engine.Feed(stage[:n]); err != nil {
		s.over, s.rerr = true, err
	}
	s.after()
	return true
}

// bearsFruit notes that bytes have come or gone: it may be worth while to poll.
func (s *socketStream) bearsFruit() {
	if !s.fruitful.Load() {
		s.fruitful.Store(true)
	}
}

// goOn ends a wait for a receive, if that is there now, and tells whether it was.
func (s *socketStream) goOn() bool {
	went, err := s.engine.Resume()
	if err != nil {
		s.over, s.rerr = true, err
	}
	if went {
		s.after()
		if s.ending {
			s.abandoned.Reset(s.pair.domain.device.config.lingerTimeout)
		}
	}
	return went && !s.over
}

// receive reads into direct, if that is not empty, and then into ahead, without
// waiting.
func (s *socketStream) receive(fd uintptr, direct, ahead []byte) (int, syscall.Errno) {
	var got uintptr
	var errno syscall.Errno
	unseen := s.unseen()
	if len(direct) > 0 {
		vectors := [2]unix.Iovec{{Base: unsafe.SliceData(direct)}, {Base: unsafe.SliceData(ahead)}}
		vectors[0].SetLen(len(direct))
		vectors[1].SetLen(len(ahead))
		if unseen {
			got, _, errno = unix.RawSyscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&vectors)), 2)
		} else {
			got, _, errno = unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&vectors)), 2)
		}
	} else {
		to, size := uintptr(unsafe.Pointer(unsafe.SliceData(ahead))), uintptr(len(ahead))
		if unseen {
			got, _, errno = unix.RawSyscall6(unix.SYS_RECVFROM, fd, to, size, unix.MSG_DONTWAIT, 0, 0)
		} else {
			got, _, errno = unix.Syscall6(unix.SYS_RECVFROM, fd, to, size, unix.MSG_DONTWAIT, 0, 0)
		}
	}
	if errno != 0 {
		return 0, errno
	}
	return int(got), 0
}

func (s *socketStream) write(o *outgoing, wait bool) (bool, error) {
	s.out, s.wait, s.werr = o, wait, nil
	err := s.raw.Write(s.onWrite)
	s.liveness.Sent()
	s.out = nil
	if s.werr != nil {
		err = s.werr
	}
	return o.at == o.n, err
}

// writeLater tells whether a poll should not try yet to write more: the socket
// was full. Each try takes its lock, which those who empty it need, and would
// write but little.
func (s *socketStream) writeLater() bool {
	if s.skip > 0 {
		s.skip--
		return true
	}
	return false
}

func (s *socketStream) writable(fd uintptr) bool {
	o := s.out
	for o.at < o.n {
		var n uintptr
		var errno syscall.Errno
		v := &o.vectors[o.at]
		switch left := o.n - o.at; {
		case left == 1 && v.Len <= smallWrite:
			// It returns soon, so the scheduler need not hear of it.
			n, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(v.Base)), uintptr(v.Len),
				unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		default:
			n, _, errno = unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(v)), uintptr(left))
		}
		switch errno {
		case 0:
			o.advance(int(n))
			s.bearsFruit()
		case unix.EINTR:
		case unix.EAGAIN:
			s.skip = writeSkip
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
	// While data is on its way a liveness.Watcher looks.
	_ = c.SetKeepAliveConfig(liveness.KeepAlive(d.config.PeerTimeout))
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if sameHost(conn) {
			unpace(int(fd))
		}
		if !d.config.SegmentSized {
			return
		}
		if mss, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err == nil {
			params.MaxULPDU = max(wire.LargestULPDU(mss, false), leastULPDU)
		}
	})
}

// longestLinger is for how long the reader looks for what may follow, such as the next request.
// Whoever sends that may have to be woken for the last answer first.
var longestLinger = sync.OnceValue(func() time.Duration {
	return waking.Outlasting(20*time.Microsecond, waking.BySocket)
})

// looksWithin is how often the reader looks again in the middle of a segment.
const looksWithin = 8

// unpace replaces a congestion control that paces by one that does not. Within a
// host there is no queue that pacing would keep short, and its timers cost a third
// of the throughput.
func unpace(fd int) {
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil || !strings.HasPrefix(name, "bbr") {
		return
	}
	for _, other := range []string{"cubic", "reno"} { // a system may keep some for the privileged
		if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, other) == nil {
			return
		}
	}
}
