package verbena

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// An Endpoint is one end of a connection that carries messages: whole, in
// order, in both directions, under flow control. It must be closed.
type Endpoint struct {
	runtime       *Runtime
	service       string
	local, remote net.Addr
	selection     Selection
	carrier       carrier

	// sendLock orders Sends; a channel, because waiting for it ends with the
	// context.
	sendLock chan struct{}
	closing  atomic.Bool
	closed   chan struct{} // the first Close is through
	closeErr error

	in inbox

	endOnce sync.Once
	done    chan struct{}
	err     error // set before done is closed
}

// A carrier moves an endpoint's messages over one transport.
type carrier interface {
	// send carries one message and has let go of it when it returns. Calls are
	// serialized. A message whose sending failed by ctx never arrives, not even
	// in part, and the next one can be sent.
	send(ctx context.Context, tag uint32, message []byte) error
	// receive waits for the next message of the endpoint's inbox, and makes
	// progress meanwhile if that is the carrier's way. Calls are serialized.
	receive(ctx context.Context) (*Message, error)
	// sentTraffic counts the messages whose send has succeeded.
	sentTraffic() Traffic
	// maxMessage is the longest message that the peer accepts.
	maxMessage() int
	// eager is the longest message that goes into a buffer that the peer has
	// posted, 0 if the carrier makes no such difference.
	eager() int
	// close says goodbye and returns when the peer has everything or ctx is
	// over; then it frees all and ends all goroutines of the carrier.
	close(ctx context.Context) error
}

// A Message is what a peer sent. It belongs to the receiver until Release.
type Message struct {
	// Tag is what the sender gave to Send.
	Tag   uint32
	data  []byte
	owner messageOwner
	slot  int32 // the owner's

	// Of the inbox, and guarded by its mu: bytes that have not arrived yet,
	// whether they wait for memory, whether the sender gave the message up.
	due             int
	wanting         bool
	dropped, queued bool
}

type messageOwner interface{ release(*Message) }

// Bytes is the payload. The memory belongs to the runtime; it may be read and
// changed until Release, even when the endpoint or the runtime has been closed.
func (m *Message) Bytes() []byte { return m.data }

// Release gives the memory, and with it the credit to send more, back to the
// peer. It is called exactly once, by any goroutine; neither the message nor its
// bytes may be used afterwards. Receivers that hold many messages slow the
// sender down; one that holds them all stops it.
func (m *Message) Release() { m.owner.release(m) }

func newEndpoint(r *Runtime, service string, local, remote net.Addr, selection Selection) *Endpoint {
	return &Endpoint{
		runtime: r, service: service, local: local, remote: remote, selection: selection,
		sendLock: make(chan struct{}, 1), closed: make(chan struct{}), done: make(chan struct{}),
		in: inbox{ready: make(chan struct{}, 1)},
	}
}

// Service is the name of the service protocol that was asked for.
func (e *Endpoint) Service() string { return e.service }

// LocalAddr is this side's address of the TCP connection that set the endpoint up.
func (e *Endpoint) LocalAddr() net.Addr { return e.local }

// RemoteAddr is the peer's address of the TCP connection that set the endpoint up.
func (e *Endpoint) RemoteAddr() net.Addr { return e.remote }

// Selection tells which transport carries the endpoint, and why.
func (e *Endpoint) Selection() Selection { return e.selection }

// MaxMessage is the longest message in bytes that the peer accepts.
func (e *Endpoint) MaxMessage() int { return e.carrier.maxMessage() }

// Eager is the longest message in bytes that goes straight into a buffer of the
// peer; it reads a longer one out of this side's memory, which takes longer and
// is easier on the buffers. It is 0 over TCP, where there is no difference.
func (e *Endpoint) Eager() int { return e.carrier.eager() }

// Done is closed when the endpoint has ended: it failed, or one of the ends
// closed it. Messages that had arrived can still be received unless it was this
// side that closed.
func (e *Endpoint) Done() <-chan struct{} { return e.done }

// Err is nil until Done is closed. Then it wraps [ErrClosed] or
// [ErrPeerClosed], or tells what failed.
func (e *Endpoint) Err() error {
	select {
	case <-e.done:
		return e.err
	default:
		return nil
	}
}

// Send sends one message. Any number of goroutines may call it; the order of
// messages is that in which the calls began to be carried out. The bytes of
// message may be reused when it returns, which does not mean that the peer has
// them.
//
// It waits while the peer is out of buffers. If ctx ends that wait, the
// message is not delivered and the endpoint stays usable.
func (e *Endpoint) Send(ctx context.Context, tag uint32, message []byte) error {
	select {
	case e.sendLock <- struct{}{}:
	default:
		select {
		case e.sendLock <- struct{}{}:
		case <-ctx.Done():
			return e.failure("send to", context.Cause(ctx))
		case <-e.done:
			return e.failure("send to", e.err)
		}
	}
	var err error
	switch {
	case e.Err() != nil:
		err = e.err
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case len(message) > e.carrier.maxMessage():
		err = fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, len(message), e.carrier.maxMessage())
	default:
		err = e.carrier.send(ctx, tag, message)
	}
	<-e.sendLock
	if err != nil {
		return e.failure("send to", err)
	}
	return nil
}

// Receive waits for the next message. One goroutine at a time may call it.
// After the last message of a peer that closed in order it returns io.EOF
// itself, unwrapped.
func (e *Endpoint) Receive(ctx context.Context) (*Message, error) {
	m, err := e.carrier.receive(ctx)
	if err == nil || err == io.EOF {
		return m, err
	}
	return nil, e.failure("receive from", err)
}

// Close ends the endpoint. What was sent before is still delivered: Close
// waits for that as long as [Config.Linger] allows, and returns an error
// wrapping [ErrNotDelivered] if it was not long enough. Waiting calls, and later
// ones, fail with [ErrClosed]. Closing an endpoint that has failed frees it.
// Messages that are held stay as they are until they are released.
func (e *Endpoint) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), e.runtime.cfg.Linger)
	defer cancel()
	return e.closeWithin(ctx)
}

func (e *Endpoint) closeWithin(ctx context.Context) error {
	if e.closing.Swap(true) {
		<-e.closed
		return e.closeErr
	}
	failed := e.Err() != nil && !errors.Is(e.err, ErrPeerClosed)
	e.end(ErrClosed)
	e.in.wake()
	err := e.carrier.close(ctx)
	if err != nil && !failed {
		e.closeErr = e.failure("close to", err)
	}
	e.runtime.forget(e)
	close(e.closed)
	return e.closeErr
}

// end ends the endpoint with err, once.
func (e *Endpoint) end(err error) {
	e.endOnce.Do(func() {
		e.err = err
		close(e.done)
	})
}

// fail is end for what went wrong; it also makes the carrier's waits return.
func (e *Endpoint) fail(err error) {
	e.end(err)
	e.in.wake()
}

func (e *Endpoint) failure(op string, err error) error {
	return fmt.Errorf("verbena: %s %s at %s over %s: %w", op, e.service, e.remote, e.selection.Transport, err)
}

// An inbox holds the messages that have arrived, or are arriving, in order.
type inbox struct {
	mu      sync.Mutex
	ring    []*Message // a power of two long
	first   int
	count   int
	bytes   int           // of the messages that are there
	pending int           // messages that are not complete
	popped  Traffic       // taken by Receive
	ready   chan struct{} // one token when something changed
}

func (q *inbox) push(m *Message) {
	q.mu.Lock()
	if q.count == len(q.ring) {
		bigger := make([]*Message, max(2*len(q.ring), 8))
		for i := range q.count {
			bigger[i] = *q.at(i)
		}
		q.ring, q.first = bigger, 0
	}
	*q.at(q.count) = m
	q.count++
	if m.queued = true; m.due > 0 {
		q.pending++
	} else {
		q.bytes += len(m.data)
	}
	q.mu.Unlock()
	q.wake()
}

func (q *inbox) at(i int) **Message { return &q.ring[(q.first+i)&(len(q.ring)-1)] }

// pop returns the first message if it is complete.
func (q *inbox) pop() *Message {
	for {
		q.mu.Lock()
		if q.count == 0 || (*q.at(0)).due > 0 {
			q.mu.Unlock()
			return nil
		}
		m := q.remove()
		q.bytes -= len(m.data)
		if !m.dropped {
			q.popped.add(len(m.data))
		}
		q.mu.Unlock()
		if !m.dropped {
			return m
		}
		m.Release() // takes the carrier's lock, under which others take ours
	}
}

func (q *inbox) remove() *Message {
	slot := q.at(0)
	m := *slot
	*slot = nil
	m.queued = false
	q.first = (q.first + 1) & (len(q.ring) - 1)
	q.count--
	return m
}

func (q *inbox) received() Traffic {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.popped
}

// waiting tells whether Receive has something to do.
func (q *inbox) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count > 0 && ((*q.at(0)).due == 0 || (*q.at(0)).wanting)
}

// wanting returns the first message if it waits for memory.
func (q *inbox) wanting() *Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.count > 0 && (*q.at(0)).wanting {
		return *q.at(0)
	}
	return nil
}

// provided gives a message its memory.
func (q *inbox) provided(m *Message, data []byte) {
	q.mu.Lock()
	m.data, m.wanting = data, false
	q.mu.Unlock()
}

// arrived counts bytes that have come into the memory of a message.
func (q *inbox) arrived(m *Message, n int) {
	q.mu.Lock()
	q.settle(m, n)
	q.mu.Unlock()
}

// drop marks a message that its sender gave up when missing bytes of it had not
// been offered.
func (q *inbox) drop(m *Message, missing int) {
	q.mu.Lock()
	m.dropped, m.wanting = true, false
	q.settle(m, missing)
	q.mu.Unlock()
}

func (q *inbox) settle(m *Message, n int) {
	if m.due -= n; m.due == 0 && m.queued {
		q.pending--
		q.bytes += len(m.data)
		q.wake()
	}
}

// incomplete tells whether bytes of any message are still to come.
func (q *inbox) incomplete() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pending > 0
}

// each calls f for all messages with no lock held; the caller sees to it that
// there are no others.
func (q *inbox) each(f func(*Message)) {
	q.mu.Lock()
	var all []*Message
	for i := range q.count {
		all = append(all, *q.at(i))
	}
	q.mu.Unlock()
	for _, m := range all {
		f(m)
	}
}

func (q *inbox) wake() { notify(q.ready) }

// clear releases what nobody will receive, complete or not.
func (q *inbox) clear() {
	q.mu.Lock()
	var all []*Message
	for q.count > 0 {
		all = append(all, q.remove())
	}
	q.bytes, q.pending = 0, 0
	q.mu.Unlock()
	for _, m := range all {
		m.Release()
	}
}
