package verbena

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/internal/budget"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/liveness"
)

// openingTimeout bounds the exchange of openings if the context does not.
const openingTimeout = 10 * time.Second

// A stream is the carrier that frames messages on the TCP connection itself.
// The frames are in stream_frame.go, what sends them in stream_write.go, what
// puts messages together in stream_read.go and stream_memory.go, and the way
// to the end in stream_close.go.
type stream struct {
	e       *Endpoint
	in      inbox
	conn    net.Conn
	watcher *liveness.Watcher

	peerMax  int // the longest message that the peer accepts
	ownMax   int // and this side
	fragment int // bytes of a message that are sent at a time

	// mu guards what is not written yet. While flushing is set a goroutine
	// writes and everything else goes into backlog behind it.
	mu       sync.Mutex
	backlog  *backlog // nil: there is none
	spare    *backlog
	pieces   []piece  // of buffers, between the bytes of backlog
	written  []piece  // memory for the next pieces
	flusher  func()   // flush, made once: a write allocates nothing
	pending  int      // bytes of pieces
	writing  []piece  // that flush writes
	vector   [][]byte // of flush
	rest     [][]byte // of vector, while it is written
	settling settling
	flushing bool
	writeErr error
	drained  chan struct{} // one token when backlog got shorter
	wait     stalls        // of messages and operations, also those that go by the lane
	traffic  Traffic       // sent
	direct   directWriter
	scratch  [frameHeader + MaxHeader + coalesceLimit]byte
	bye      bool // the goodbye is out
	aside    bool // it is a lane: its end is not the endpoint's

	byeOnce sync.Once
	byeErr  error

	errands errands // one-sided operations

	// The lane of those.
	lane      atomic.Pointer[sideLane]
	laneMu    sync.Mutex
	laneTurn  chan struct{} // held to open it
	laneTried atomic.Bool
	ticket    laneTicket
	laneWG    sync.WaitGroup

	// Of the reader.
	memory   *budget.Account
	letters  stock[letter] // for messages to come; an idle stream keeps what is left of them, 2 KiB
	current  *letter       // the message that is arriving
	room     chan struct{} // one token when the reader's wait may be over
	hungry   atomic.Bool   // the reader waits for memory
	awaited  atomic.Bool   // Receive waits for a message
	readDone chan struct{}
	readErr  error // set before readDone is closed; nil after a goodbye

	head [operationHead + operands]byte // of a call or an operation that is being written; who holds sendLock, or the turn of a lane, has it

	asking atomic.Int64 // bytes of requests that wait for handlers, as they are charged

	up   sync.Mutex // held to hand over a message
	sink sink       // gets messages instead of Receive, if there is one

	wg sync.WaitGroup
}

// longestOnStream is the longest message that endpoints over TCP accept. Like
// the one on a device it leaves half of the memory to other messages.
func (c Config) longestOnStream() int64 {
	return min(int64(c.MaxMessage), max(c.ReceiveMemory/2, budget.Own))
}

// newStream exchanges openings on conn and starts to read messages. On an
// error conn is still open.
func newStream(ctx context.Context, e *Endpoint, conn net.Conn) (err error) {
	defer func() {
		if err == nil {
			e.count.opened.Add(1)
		} else {
			e.count.failed.Add(1)
		}
	}()
	s := &stream{
		e: e, in: inbox{ready: make(chan struct{}, 1)}, conn: conn, fragment: e.tuning.Chunk,
		ownMax:  e.env.longestOnStream,
		drained: make(chan struct{}, 1), room: make(chan struct{}, 1), readDone: make(chan struct{}),
		laneTurn: make(chan struct{}, 1),
	}
	var shown []byte
	if s.hasLane() && !e.dialled {
		s.ticket = e.env.lanes.issue(s)
		shown = s.ticket[:]
		defer func() {
			if err != nil {
				e.env.lanes.take(s.ticket)
			}
		}()
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(openingTimeout)
	}
	stop, err := bindContext(ctx, conn, deadline)
	if err != nil {
		return err
	}
	peer, rest, err := exchangeOpenings(conn, wire.Parameters{MaxMessage: uint32(s.ownMax)}, shown)
	if err := stop(); err != nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("exchange of openings: %w", err)
	}
	s.peerMax = int(peer.MaxMessage)
	if e.dialled {
		if !s.hasLane() || copy(s.ticket[:], rest) < ticketSize {
			e.openLane = nil // the peer gave no ticket
		}
	}
	if sc, ok := conn.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			s.direct.init(raw)
		}
	}
	s.flusher = s.flush
	s.memory = e.env.arriving.Open(e.origin, func() {
		s.abort(fmt.Errorf("%w: it left a message unfinished for %s while others waited for the memory", ErrProtocol, budget.Stalled))
	})
	s.watcher = liveness.Watch(conn, e.env.peerTimeout, func(err error) {
		s.abort(fmt.Errorf("%w: %w", ErrPeerDied, err))
	})
	s.errands.init()
	e.carrier = s
	e.selection.OneSided, e.selection.Files = oneSidedOverTCP, filesServed
	if !s.servesOperations() {
		e.selection.OneSided, e.selection.Files = oneSidedUnknown, oneSidedUnknown
	}
	s.wg.Go(s.read)
	return nil
}

// exchangeOpenings tells the peer about this end, and more that it may understand, and
// learns about it.
func exchangeOpenings(conn net.Conn, mine wire.Parameters, more []byte) (peer wire.Parameters, rest []byte, err error) {
	var header [frameHeader]byte
	frame{kind: frameOpening, length: uint32(wire.ParametersSize + len(more))}.put(&header)
	if _, err := conn.Write(append(mine.Append(header[:]), more...)); err != nil {
		return peer, nil, err
	}
	if _, err := io.ReadFull(conn, header[:]); err != nil {
		return peer, nil, err
	}
	f, err := parseFrame(&header)
	if err != nil {
		return peer, nil, err
	}
	if f.kind != frameOpening {
		return peer, nil, fmt.Errorf("%w: frame of kind %d where an opening is due", ErrProtocol, f.kind)
	}
	body := make([]byte, f.length)
	if _, err := io.ReadFull(conn, body); err != nil {
		return peer, nil, err
	}
	peer, err = wire.ParseParameters(body)
	if err == nil {
		rest = body[wire.ParametersSize:]
	}
	return peer, rest, err
}

func (s *stream) maxMessage() int { return s.peerMax }

func (s *stream) eager() int { return 0 }

// fail ends the endpoint, and with it all waits.
func (s *stream) fail(err error) {
	s.e.end(err)
	s.wake()
}

func (s *stream) wake() { s.in.wake() }

func (s *stream) sendNow(uint32, []byte) bool { return false }

// reuse implements carrier: the kernel has its own memory.
func (s *stream) reuse() {}

func (s *stream) done() activity {
	a := activity{sent: s.sentTraffic(), received: s.in.received()}
	s.errands.mu.Lock()
	a.operations = s.errands.operated
	s.errands.mu.Unlock()
	a.stalls, a.stalled = s.wait.total()
	return a
}

// credits implements carrier: TCP has its own flow control.
func (s *stream) credits() int { return -1 }

func (s *stream) sentTraffic() Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.traffic
}

func (s *stream) receive(ctx context.Context) (*Message, error) {
	for {
		if s.e.closing.Load() {
			return nil, ErrClosed
		}
		if m := s.in.pop(); m != nil {
			return s.handOver(m), nil
		}
		select {
		case <-s.in.ready:
			continue
		default:
		}
		s.await(true)
		select {
		case <-s.in.ready:
			s.await(false)
		case <-ctx.Done():
			s.await(false)
			return nil, context.Cause(ctx)
		case <-s.e.done:
			s.await(false)
			return s.last()
		}
	}
}

// await tells the reader whether Receive waits: then the message that is
// arriving may have memory before others.
func (s *stream) await(waits bool) {
	s.awaited.Store(waits)
	if waits && s.hungry.Load() {
		notify(s.room)
	}
}

// handOver gives a message to the application, whose memory it is from here on.
func (s *stream) handOver(m *Message) *Message {
	m.owner.(*letter).settle()
	notify(s.room)
	return m
}

// last is Receive once the endpoint has ended.
func (s *stream) last() (*Message, error) {
	if s.e.closing.Load() {
		return nil, ErrClosed
	}
	if m := s.in.pop(); m != nil {
		return s.handOver(m), nil
	}
	return nil, s.e.lastError()
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
