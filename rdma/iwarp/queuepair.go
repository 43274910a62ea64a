package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/internal/domains"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/cq"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
)

// errDisconnected is the end that this side chose.
var errDisconnected = fmt.Errorf("%w by this side", rdma.ErrDisconnected)

// queuePair implements [rdma.QueuePair]: an engine, a stream and two goroutines.
//
// The reader owns the end: when the engine has failed, for whatever reason, the
// reader waits for the writer to be through, completes what is outstanding as
// flushed, waits for the peer to hang up and closes the stream.
//
// The writer's role moves. Whoever the engine hands it to writes what the socket
// takes at once; the rest, if any, goes to the writer's goroutine or, while the
// stream keeps quiet, is left to those who poll.
type queuePair struct {
	domain *domain
	config rdma.QueuePairConfig
	uses   domains.Queues[*sharedReceives, *cq.Queue]
	number uint32
	shared *sharedReceives
	engine *engine.Engine
	done   chan struct{} // closed when the engine fails

	handOver chan *outgoing // to the writer's goroutine; by the role's holder alone
	held     atomic.Bool    // whoever clears it has the role

	peer      atomic.Pointer[string]
	localEnd  atomic.Bool // Disconnect or Close came first
	connected atomic.Pointer[connection]

	mu       sync.Mutex
	conn     net.Conn // from the beginning of the set-up on
	used     bool     // a set-up has begun
	closed   bool
	finished chan struct{} // closed when the goroutines are gone; nil before there are any

	parkMu sync.Mutex               // held to change parked, and by who writes what is there
	parked atomic.Pointer[outgoing] // with the writer's role, for those who poll

	pinMu   sync.Mutex
	waiting *engine.Batch // what the writer's goroutine may be stuck with
}

// connection is what exists once the set-up is through.
type connection struct {
	net.Conn
	stream stream
	driver cq.Driver // the stream, or nil if polls do not drive it
}

// A stream moves bytes between a connection and the engine.
type stream interface {
	// read gives what comes to the engine until that returns an error or the
	// connection does. after is called when bytes have been given. When read
	// has returned, nothing more is given.
	read(e *engine.Engine, after func()) error
	// write writes a batch, or as much as goes without waiting. It returns
	// whether all of it is written.
	write(o *outgoing, wait bool) (bool, error)
	// resume goes on after a message has waited for a receive. Whoever posts the
	// receive calls it.
	resume()
}

// A polledStream is driven by those who poll the completion queues.
type polledStream interface {
	cq.Driver
	// polledOnly tells whether the stream keeps quiet: nothing else drives it. When
	// it ends, the queue pair's unpark follows.
	polledOnly() bool
	// writeLater tells whether a poll had better not write now. The caller has the
	// writer's role.
	writeLater() bool
}

func (q *queuePair) start(config engine.Config) {
	q.done = make(chan struct{})
	config.OnFail, config.OnReceive = q.failed, q.received
	q.engine = engine.New(config)
}

// received lets a stream go on that has waited for a receive. It can only wait
// once there is a connection.
func (q *queuePair) received() { q.connected.Load().stream.resume() }

// failed is called once, with the engine locked.
func (q *queuePair) failed(bool) {
	close(q.done)
	c := q.connected.Load()
	if c == nil {
		return
	}
	// The reader has to stop, the writer to finish.
	_ = c.SetReadDeadline(time.Unix(1, 0))
	_ = c.SetWriteDeadline(time.Now().Add(q.domain.device.config.lingerTimeout))
}

func (q *queuePair) Number() uint32        { return q.number }
func (q *queuePair) Done() <-chan struct{} { return q.done }
func (q *queuePair) State() rdma.State     { return q.engine.State() }

func (q *queuePair) Err() error {
	err := q.engine.Err()
	if err == nil {
		return nil
	}
	return fmt.Errorf("iwarp: queue pair %d%s: %w", q.number, q.towards(), err)
}

func (q *queuePair) towards() string {
	if p := q.peer.Load(); p != nil {
		return " to " + *p
	}
	return ""
}

func (q *queuePair) PostSend(requests []rdma.SendRequest) (int, error) {
	n, kick, err := q.engine.PostSend(requests)
	if n > 0 {
		q.expect()
	}
	if kick {
		q.pump()
	}
	return n, err
}

// expect has polls look first at this queue pair's socket: it has posted last.
func (q *queuePair) expect() {
	c := q.connected.Load()
	if c == nil || c.driver == nil {
		return
	}
	sends, recvs := q.config.SendCompletions.(*cq.Queue), q.config.RecvCompletions.(*cq.Queue)
	sends.Posted(&c.driver)
	if recvs != sends {
		recvs.Posted(&c.driver)
	}
}

// PostSendHeld implements [rdma.DoorbellQueuePair]: Ring writes to the socket.
func (q *queuePair) PostSendHeld(requests []rdma.SendRequest) (n int, ring bool, err error) {
	n, ring, err = q.engine.PostSend(requests)
	if n > 0 {
		q.expect()
	}
	if ring {
		q.held.Store(true)
	}
	return n, ring, err
}

// Ring implements [rdma.DoorbellQueuePair].
func (q *queuePair) Ring() {
	if q.held.Load() && q.held.CompareAndSwap(true, false) {
		q.pump()
	}
}

func (q *queuePair) PostRecv(requests []rdma.RecvRequest) (int, error) {
	if q.shared != nil {
		return 0, fmt.Errorf("iwarp: queue pair %d: %w: its receives come from the shared receive queue", q.number, rdma.ErrInvalid)
	}
	return q.engine.Receives().Post(requests)
}

// pumped is how many batches whoever has posted writes himself. Those behind the first are
// what others have posted meanwhile.
const pumped = 4

// pump has the writer's role. It writes some batches, as far as that goes without
// waiting, and hands everything else over.
func (q *queuePair) pump() {
	c := q.connected.Load()
	o := newOutgoing()
	for batch := 0; q.engine.Fill(o.batch); batch++ {
		o.prepare()
		if batch == pumped {
			q.handOn(c, o)
			return
		}
		done, err := c.stream.write(o, false)
		if err != nil {
			q.writeFailed(c, o, err)
			break
		}
		if !done {
			q.handOn(c, o)
			return
		}
		q.engine.Written(o.batch)
	}
	o.free()
}

// handOn gives the writer's role, and a batch that is not through, to those who
// poll or to the writer's goroutine.
func (q *queuePair) handOn(c *connection, o *outgoing) {
	q.parkMu.Lock()
	if p, ok := c.stream.(polledStream); ok && p.polledOnly() {
		q.parked.Store(o)
		q.parkMu.Unlock()
		return
	}
	q.parkMu.Unlock()
	q.handOver <- o
}

// unpark gives what was left to those who poll to the writer's goroutine. The
// stream no longer keeps quiet.
func (q *queuePair) unpark() {
	q.parkMu.Lock()
	o := q.parked.Swap(nil)
	q.parkMu.Unlock()
	if o != nil {
		q.handOver <- o
	}
}

// driveWriter writes what was left to those who poll, one batch at most.
func (q *queuePair) driveWriter() {
	if q.parked.Load() == nil || !q.parkMu.TryLock() {
		return
	}
	defer q.parkMu.Unlock()
	o := q.parked.Load()
	if o == nil {
		return
	}
	c := q.connected.Load()
	if c.stream.(polledStream).writeLater() {
		return
	}
	done, err := c.stream.write(o, false)
	switch {
	case err != nil:
		q.writeFailed(c, o, err)
	case !done:
		return
	default:
		q.engine.Written(o.batch)
		if q.engine.Fill(o.batch) {
			o.prepare()
			return
		}
	}
	q.parked.Store(nil)
	o.free()
}

// mayKeepQuiet asks the queues whether the stream may keep quiet. If it may, [cq.Queue.Quieted] of
// both follows.
func (q *queuePair) mayKeepQuiet(d cq.Driver) bool {
	sends, recvs := q.config.SendCompletions.(*cq.Queue), q.config.RecvCompletions.(*cq.Queue)
	if !sends.Quiet(d) {
		return false
	}
	if recvs != sends && !recvs.Quiet(d) {
		sends.Quieted(d)
		return false
	}
	return true
}

// writer is the goroutine that waits for the socket. It gets the role with a
// batch that is not through.
func (q *queuePair) writer(c *connection) {
	for o := range q.handOver {
		for {
			q.pinMu.Lock()
			q.waiting = o.batch
			q.pinMu.Unlock()
			_, err := c.stream.write(o, true)
			q.pinMu.Lock()
			q.waiting = nil
			q.pinMu.Unlock()
			if err != nil {
				q.writeFailed(c, o, err)
				break
			}
			q.engine.Written(o.batch)
			if !q.engine.Fill(o.batch) {
				break
			}
			o.prepare()
		}
		o.free()
	}
}

// writeFailed leaves the end to the reader: what the peer said last, a Terminate
// perhaps, tells more than the error of a write.
func (q *queuePair) writeFailed(c *connection, o *outgoing, err error) {
	q.engine.WriteFailed(o.batch, err)
	if q.engine.State() == rdma.StateConnected {
		_ = c.SetReadDeadline(time.Now().Add(q.domain.device.config.lingerTimeout))
	}
}

// breakPins fails the connection if its writer is stuck with the region.
func (q *queuePair) breakPins(r *mem.Region) {
	q.parkMu.Lock()
	parked := q.parked.Load()
	stuck := parked != nil && parked.batch.Names(r)
	q.parkMu.Unlock()
	q.pinMu.Lock()
	defer q.pinMu.Unlock()
	if !stuck && (q.waiting == nil || !q.waiting.Names(r)) {
		return
	}
	q.engine.Fail(errors.New("a region was closed while its bytes waited for the peer"))
	if c := q.connected.Load(); c != nil {
		_ = c.SetWriteDeadline(time.Unix(1, 0))
	}
}

// reader runs from the end of the set-up to the end of everything.
func (q *queuePair) reader(c *connection) {
	defer close(q.finished)
	linger := q.domain.device.config.lingerTimeout
	kick := func() {
		if q.engine.Kick() {
			q.pump()
		}
	}
	err := c.stream.read(q.engine, kick)
	q.drive((*cq.Queue).RemoveDriver, c.driver)
	kick() // a Terminate may have to go out
	reason := q.engine.End(err)
	q.Ring() // whoever holds the doorbell may come too late
	<-q.engine.Stopped()
	q.engine.Flush()
	q.raise(reason)

	// Half-close, then read on: closing with unread data would send a reset,
	// which can overtake the Terminate.
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		drain(c.Conn, linger)
	}
	_ = c.Close()
	close(q.handOver)
}

// raise tells the application why the connection is over.
func (q *queuePair) raise(reason error) {
	if q.localEnd.Load() {
		return
	}
	kind := rdma.EventQueuePairError
	var terminated *TerminateError
	if errors.Is(reason, rdma.ErrDisconnected) && !errors.As(reason, &terminated) {
		kind = rdma.EventDisconnected
	}
	q.domain.events.Add(rdma.Event{Kind: kind, QueuePair: q, Err: q.Err()})
}

func drain(conn net.Conn, limit time.Duration) {
	if conn.SetReadDeadline(time.Now().Add(limit)) != nil {
		return
	}
	stage := stages.Get().(*stage)
	defer stages.Put(stage)
	for {
		if _, err := conn.Read(stage[:]); err != nil {
			return
		}
	}
}

func (q *queuePair) Disconnect() error {
	if q.engine.State() == rdma.StateInit {
		return fmt.Errorf("iwarp: queue pair %d: disconnect: %w: it is not connected", q.number, rdma.ErrState)
	}
	q.end()
	return nil
}

// end fails the queue pair by the will of this side.
func (q *queuePair) end() {
	if q.engine.State() <= rdma.StateConnected {
		q.localEnd.Store(true)
	}
	q.engine.Fail(errDisconnected)
}

func (q *queuePair) Close() error {
	q.mu.Lock()
	first := !q.closed
	q.closed = true
	conn, finished := q.conn, q.finished
	q.mu.Unlock()
	q.end()
	switch {
	case finished != nil:
		<-finished
	case conn != nil:
		_ = conn.Close() // ends the set-up that uses it
	}
	if !first {
		return nil
	}
	q.engine.Close()
	q.domain.forgetPair(q)
	return nil
}

// begin claims the queue pair for a set-up over conn.
func (q *queuePair) begin(conn net.Conn, peer string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return fmt.Errorf("queue pair %d: %w", q.number, rdma.ErrClosed)
	}
	if q.used || q.engine.State() != rdma.StateInit {
		return fmt.Errorf("queue pair %d: %w: it is or was connected, make another", q.number, rdma.ErrState)
	}
	q.used, q.conn = true, conn
	q.peer.Store(&peer)
	return nil
}

// run starts the goroutines after a set-up.
func (q *queuePair) run(conn net.Conn, params engine.Params) error {
	c := &connection{Conn: conn, stream: newStream(conn, q)}
	c.driver, _ = c.stream.(cq.Driver)
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return fmt.Errorf("queue pair %d: %w", q.number, rdma.ErrClosed)
	}
	q.handOver = make(chan *outgoing, 1)
	q.connected.Store(c)
	kick, err := q.engine.Start(params)
	if err != nil {
		q.mu.Unlock()
		return fmt.Errorf("queue pair %d: %w", q.number, err)
	}
	q.finished = make(chan struct{})
	q.mu.Unlock()
	q.drive((*cq.Queue).AddDriver, c.driver)
	go q.writer(c)
	go q.reader(c)
	if kick {
		q.pump()
	}
	return nil
}

// drive tells the completion queues of the driver, if the stream is one.
func (q *queuePair) drive(tell func(*cq.Queue, cq.Driver), d cq.Driver) {
	if d == nil {
		return
	}
	sends, recvs := q.config.SendCompletions.(*cq.Queue), q.config.RecvCompletions.(*cq.Queue)
	tell(sends, d)
	if recvs != sends {
		tell(recvs, d)
	}
}

// abandon fails the queue pair after a set-up that came to nothing.
func (q *queuePair) abandon(conn net.Conn, err error) {
	q.localEnd.Store(true)
	q.engine.Fail(err)
	q.engine.Flush()
	_ = conn.Close()
}

func (q *queuePair) Connect(ctx context.Context, address string, private []byte) ([]byte, error) {
	return q.domain.device.connect(ctx, q, address, private)
}
