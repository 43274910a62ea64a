package verbena

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/budget"
	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/rdma"
)

// An Endpoint is one end of a connection that carries messages: whole, in
// order, in both directions, under flow control. It must be closed.
type Endpoint struct {
	env           *environment
	count         *counters // of its device, or of TCP
	tuning        Tuning    // of the transport
	service       string
	local, remote net.Addr
	selection     Selection
	peer          *rdma.Credentials // see Peer
	origin        string            // whom its memory is counted for; set before its carrier
	dialled       bool              // by this side; likewise
	began         time.Time
	openLane      func(context.Context) (net.Conn, error) // connects to the peer again, for one-sided operations; likewise
	trusted       bool                                    // the peer may see what others of the group send; likewise
	inPlace       bool                                    // messages may be used in the peer's memory; likewise
	carrier       carrier
	pooled        any      // what the pool of which it is keeps with it
	features      features // that both ends have; set before its carrier
	scarce        bool     // an end was short of receives when it was set up; likewise
	exposed       exposures

	// sendLock orders Sends; a channel, because waiting for it ends with the
	// context.
	sendLock chan struct{}
	closing  atomic.Bool
	sink     atomic.Pointer[sink] // takes the messages, instead of Receive
	closed   chan struct{}        // the first Close is through
	closeErr error

	endOnce sync.Once
	ended   atomic.Bool
	done    chan struct{}
	err     error // set before ended and done
}

// A carrier moves an endpoint's messages over one transport.
type carrier interface {
	// sendNow is send for a message that nothing holds up and no other is in front
	// of. If anything is, it reports false and has done nothing.
	sendNow(tag uint32, message []byte) bool
	// reuse makes memory free that messages were copied to, if it can be. Who has just
	// sent some calls it, without locks.
	reuse()
	// sendBufferNow is sendNow for a message in a buffer.
	sendBufferNow(p parcel) bool
	// send carries one message and has let go of it when it returns, but for its
	// buffer, to which it has references of its own. Calls are serialized. A message
	// whose sending failed by ctx never arrives, not even in part, and the next one
	// can be sent.
	send(ctx context.Context, p parcel) error
	// sendAtOnce is send for a message that nothing holds up and that need not be copied.
	// If anything is, it reports false and has done nothing. Calls are serialized with
	// those of send.
	sendAtOnce(p parcel) bool
	// buffer returns memory for what is to be sent. It may lie behind room for a header
	// of front bytes.
	buffer(ctx context.Context, front, size int) (*Buffer, error)
	// settle waits until no send of a buffer is under way.
	settle(ctx context.Context, b *Buffer) error
	// receive waits for the next message of the endpoint's inbox, and makes
	// progress meanwhile if that is the carrier's way. Calls are serialized.
	receive(ctx context.Context) (*Message, error)
	// done tells what the carrier has done: sent are the messages whose send has
	// succeeded, received those that receive has returned.
	done() activity
	// credits is how many messages the peer takes without giving credits back, -1 if
	// messages need none.
	credits() int
	// operate carries out the operations of a batch, at least one, and sends the
	// message behind them. It may be called concurrently.
	operate(ctx context.Context, b *Batch) error
	// prompt carries out a Get or a Put of one operation, if that can be done at once.
	// If not, it reports false and has done nothing.
	prompt(kind operationKind, remote rdma.Remote, local []byte) bool
	// expose makes memory that the peer may reach.
	expose(ctx context.Context, c *ExposeConfig) (exposable, error)
	// exposeFile completes what the peer needs to read a file.
	exposeFile(f *exposedFile) error
	// wrap makes a buffer of memory of the application.
	wrap(ctx context.Context, memory []byte) (*Buffer, error)
	// maxMessage is the longest message that the peer accepts.
	maxMessage() int
	// eager is the longest message that goes into a buffer that the peer has
	// posted, 0 if the carrier makes no such difference.
	eager() int
	// upcalls hands messages to a sink from here on, in the order of their arrival.
	upcalls(to sink)
	// sendPair is sendNow for a message in two parts, of which the first is a header.
	sendPair(tag uint32, header call.Header, payload []byte) bool
	// drive polls until ready for as long as that is of use, and tells whether it is.
	// sleep and awake enclose a wait without it.
	drive(ready func() bool) bool
	sleep()
	awake()
	// roused counts a caller that has been woken, until ran: before the carrier's own
	// goroutine sleeps it lets those run.
	roused()
	ran()
	// inOrder tells whether callers that were woken run in that order.
	inOrder() bool
	// wake makes all waits look at the endpoint's state.
	wake()
	// close says goodbye and returns when the peer has everything or ctx is
	// over; then it frees all and ends all goroutines of the carrier.
	close(ctx context.Context) error
}

// An environment is what endpoints need of their runtime.
type environment struct {
	log             *slog.Logger
	linger          time.Duration
	peerTimeout     time.Duration  // over TCP
	tcp             counters       // of the endpoints without a device
	longestOnStream int            // bytes of a message
	arriving        *budget.Budget // of messages over TCP until they are received
	taking          func(n int64)  // is told before n bytes of that are taken
	lent            *lending       // buffers of endpoints over TCP
	exposed         *lending       // of what is exposed over TCP
	lanes           *lanes
	user            *registrations // memory of applications that endpoints over TCP use
	forget          func(*Endpoint)
	copies          copies
}

// newEndpoint returns one that has no carrier yet.
func newEndpoint(env *environment, tuning Tuning, service string, local, remote net.Addr, selection Selection) *Endpoint {
	return &Endpoint{
		env: env, count: &env.tcp, tuning: tuning, service: service, local: local, remote: remote, selection: selection, began: time.Now(),
		sendLock: make(chan struct{}, 1), closed: make(chan struct{}), done: make(chan struct{}),
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

// scarceIdle is how long an endpoint is kept without use for which receives were scarce.
const scarceIdle = 250 * time.Millisecond

// KeepFor is how long whoever keeps endpoints for later should keep this one from its last
// use on: idle, but at most 250 ms if one of its ends was short of receives when it was set
// up. Others wait for those then.
func (e *Endpoint) KeepFor(idle time.Duration) time.Duration {
	if e.scarce {
		return min(idle, scarceIdle)
	}
	return idle
}

// MaxMessage is the longest message in bytes that the peer accepts.
func (e *Endpoint) MaxMessage() int { return e.carrier.maxMessage() }

// Eager is the longest message in bytes that goes straight into a buffer of the
// peer; it reads a longer one out of this side's memory, which takes longer and
// is easier on the buffers. It is 0 over TCP, where there is no difference.
func (e *Endpoint) Eager() int { return e.carrier.eager() }

// Tuning holds the sizes and limits that the endpoint was set up with.
func (e *Endpoint) Tuning() Tuning { return e.tuning }

// Done is closed when the endpoint has ended: it failed, or one of the ends
// closed it. Messages that had arrived can still be received unless it was this
// side that closed.
func (e *Endpoint) Done() <-chan struct{} { return e.done }

// Err is nil until Done is closed. Then it wraps [ErrClosed] or
// [ErrPeerClosed], or tells what failed.
func (e *Endpoint) Err() error {
	if e.ended.Load() {
		return e.err
	}
	return nil
}

// over tells whether the endpoint has ended.
func (e *Endpoint) over() bool { return e.ended.Load() }

// untilOver ends ctx with the endpoint, until stop is called.
func untilOver(ctx context.Context, e *Endpoint) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	go func() {
		select {
		case <-e.done:
			cancel(e.err)
		case <-over:
		}
	}()
	return ctx, func() {
		close(over)
		cancel(nil)
	}
}

// lastError is what Receive returns when nothing is left.
func (e *Endpoint) lastError() error {
	if errors.Is(e.err, ErrPeerClosed) {
		return io.EOF
	}
	return e.err
}

// Send sends one message. Any number of goroutines may call it; the order of
// messages is that in which the calls began to be carried out. The bytes of
// message may be reused when it returns, which does not mean that the peer has
// them.
//
// It waits while the peer is out of buffers. If ctx ends that wait, the
// message is not delivered and the endpoint stays usable.
func (e *Endpoint) Send(ctx context.Context, tag uint32, message []byte) error {
	if ctx.Err() == nil && len(message) <= e.carrier.maxMessage() && e.carrier.sendNow(tag, message) {
		if len(message) > soon {
			e.carrier.reuse()
		}
		return nil
	}
	_, err := e.sendInTurn(ctx, parcel{tag: tag, body: message})
	return err
}

// sendInTurn sends a message that has to wait for others, or for the peer. If it fails
// and begun is false, nothing of the message has been sent; otherwise nobody knows, if the
// endpoint has ended.
func (e *Endpoint) sendInTurn(ctx context.Context, p parcel) (begun bool, err error) {
	select {
	case e.sendLock <- struct{}{}:
	default:
		select {
		case e.sendLock <- struct{}{}:
		case <-ctx.Done():
			return false, e.failure("send to", context.Cause(ctx))
		case <-e.done:
			return false, e.failure("send to", e.err)
		}
	}
	switch {
	case e.Err() != nil:
		err = e.err
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case p.size() > e.carrier.maxMessage():
		err = fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, p.size(), e.carrier.maxMessage())
	default:
		begun, err = true, e.carrier.send(ctx, p)
	}
	<-e.sendLock
	if err != nil {
		return begun, e.failure("send to", err)
	}
	return begun, nil
}

// Receive waits for the next message. One goroutine at a time may call it.
// After the last message of a peer that closed in order it returns io.EOF
// itself, unwrapped.
func (e *Endpoint) Receive(ctx context.Context) (*Message, error) {
	if e.sink.Load() != nil {
		return nil, e.failure("receive from", errUpcalled)
	}
	m, err := e.carrier.receive(ctx)
	if err == nil || err == io.EOF {
		return checkedMessage(e, m), err
	}
	return nil, e.failure("receive from", err)
}

// Close ends the endpoint. What was sent before is still delivered: Close
// waits for that as long as [Config.Linger] allows, and returns an error
// wrapping [ErrNotDelivered] if it was not long enough. Waiting calls, and later
// ones, fail with [ErrClosed]. Closing an endpoint that has failed frees it.
// Messages that are held stay as they are until they are released.
func (e *Endpoint) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), e.env.linger)
	defer cancel()
	return e.closeWithin(ctx)
}

func (e *Endpoint) closeWithin(ctx context.Context) error {
	if e.closing.Swap(true) {
		<-e.closed
		return e.closeErr
	}
	var unsent error
	if to := e.sink.Load(); to != nil {
		unsent = (*to).flush(ctx)
	}
	failed := e.Err() != nil && !errors.Is(e.err, ErrPeerClosed)
	e.end(ErrClosed)
	e.carrier.wake()
	if e.err != ErrClosed {
		e.exposed.close() // they end with the endpoint, not with its Close
	}
	err := e.carrier.close(ctx)
	if err == nil && !errors.Is(e.err, ErrPeerClosed) { // which wants nothing more
		err = unsent
	}
	e.exposed.close()
	if err != nil && !failed {
		e.closeErr = e.failure("close to", err)
	}
	e.env.forget(e)
	close(e.closed)
	return e.closeErr
}

// end ends the endpoint with err, once.
func (e *Endpoint) end(err error) {
	e.endOnce.Do(func() {
		e.err = err
		e.ended.Store(true)
		close(e.done)
	})
}

func (e *Endpoint) failure(op string, err error) error {
	return fmt.Errorf("verbena: %s %s at %s over %s: %w", op, e.service, e.remote, e.selection.Transport, err)
}
