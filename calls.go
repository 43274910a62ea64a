package verbena

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/fifo"
	"github.com/verbena-data/verbena/internal/latch"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/release"
)

// Errors of calls.
var (
	// ErrNotSent: nothing of the request has reached the peer, so the call may be
	// made again on another endpoint.
	ErrNotSent = errors.New("verbena: the call was not sent")
	// ErrOutcomeUnknown: the request was sent and no answer came. Nobody here knows
	// whether the peer has carried it out.
	ErrOutcomeUnknown = errors.New("verbena: outcome unknown: no answer came to the call")
)

// What a CallError's Code is when the peer's runtime has answered in place of a
// handler. Codes of handlers begin at CodeApplication; lower ones are the runtime's.
const (
	// CodeUnknownMethod: there is no handler. Nothing has been done.
	CodeUnknownMethod uint32 = 1
	// CodeBusy: too many bytes of requests wait at the peer, or of answers that this
	// side has not taken. Nothing has been done; the call may be made again, a little
	// later.
	CodeBusy uint32 = 2
	// CodeLate: the deadline had passed before a handler was free. Nothing has been
	// done.
	CodeLate uint32 = 3
	// CodeCanceled: the caller had given up before a handler was free. Nobody waits
	// for this answer.
	CodeCanceled uint32 = 4
	// CodePanic: the handler panicked.
	CodePanic uint32 = 5
	// CodeTooLong: the answer is longer than this side's longest message.
	CodeTooLong uint32 = 6
	// CodeStreams: the call has streams and the handler takes none, or the other way
	// round. Nothing has been done.
	CodeStreams uint32 = 7
	// CodeApplication is the lowest code of a handler. What it means, and what codes above
	// it mean, the service says.
	CodeApplication uint32 = 256
)

// A CallError is the peer's answer to a call that has failed there.
type CallError struct {
	Code uint32 // below CodeApplication one of the runtime's, otherwise what the handler gave to Fail
	Text string // for people; what the handler gave to Fail
}

// Is tells that CodeLate is a [context.DeadlineExceeded].
func (e *CallError) Is(target error) bool {
	return e.Code == CodeLate && target == context.DeadlineExceeded
}

func (e *CallError) Error() string {
	return fmt.Sprintf("verbena: the peer answered with error %d: %s", e.Code, e.Text)
}

// Sizes of what the ends of an endpoint for calls do for each other.
const (
	// callsAtOnce is how many requests of the peer wait or are handled at a time.
	callsAtOnce = 256
	// waitingBytes is how many bytes of requests wait for a handler, and how many of
	// answers to be sent. Further calls are answered with CodeBusy.
	waitingBytes = 16 << 20
)

// A Caller makes calls on an endpoint, and serves those of the peer with a [Mux]. Both
// ends are equal. Its methods may be called concurrently. The endpoint belongs to it:
// Receive fails, and the peer has to make a Caller of its end, too.
type Caller struct {
	e          *Endpoint
	mux        *Mux
	ctx        context.Context // of requests; ends with the endpoint
	cancel     context.CancelCauseFunc
	watcher    sync.WaitGroup
	processors int // of Go, when it was made

	mu       latch.Latch
	side     *call.Side[*pendingCall, Request]
	line     fifo.Queue[*pendingCall] // callers for whom the peer has no room
	ended    bool                     // the endpoint
	closing  bool                     // the endpoint will end: nothing begins
	silent   bool                     // the greeting has not gone
	draining bool
	drained  chan struct{} // closed when nothing is pending any more; nil if nobody asks

	spare    []*pendingCall
	requests []*request           // spare ones
	queue    fifo.Queue[*request] // to be handled by run
	queued   bool                 // run is due
	bytes    int                  // of requests that wait
	turns    [crews]muxTurn       // the mux's mu guards them
	loans    []*loan              // spare ones
	// longPieces is how many bytes of pieces lie in memory for long messages.
	longPieces int
	out        outbox
}

// A pendingCall is a call that waits: first for room at the peer, then for the answer.
type pendingCall struct {
	id       call.ID
	notifies bool    // it is a notification
	stream   *Stream // of which it is, for ever; nil: none
	admitted release.Flag
	done     release.Flag
	asleep   bool          // guarded by the caller's mu
	roused   bool          // its caller is to run again, and the carrier counts it
	turn     uint32        // its number among those who were woken
	wake     chan struct{} // a token when it sleeps and may go on; there may be one too many
	answer   *Message
	err      error
	isDone   func() bool           // done.Load
	header   [call.HeaderSize]byte // of a request in a buffer, while it is sent
}

// mostSpare is how many of each are kept for later calls.
const mostSpare = callsAtOnce

// NewCaller makes an endpoint one for calls. mux serves those of the peer; if it is
// nil, they all fail with CodeUnknownMethod. What the peer had sent before its own
// Caller ends the endpoint.
func NewCaller(e *Endpoint, mux *Mux) (*Caller, error) {
	c := &Caller{e: e, mux: mux, processors: runtime.GOMAXPROCS(0), silent: true, side: call.New[*pendingCall, Request](call.Limits{
		Requests: callsAtOnce, Stream: streamCredit, Window: streamWindow, Memory: streamMemory,
	})}
	c.out.send = c.sendPosted
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	if err := e.upcalls(c); err != nil {
		return nil, e.failure("make a caller for", err)
	}
	c.watcher.Go(c.watch)
	c.greet()
	return c, nil
}

// greet tells the peer what this side takes. Messages that are sent at once pass those
// in the outbox by: no call may begin before the greeting has gone.
func (c *Caller) greet() {
	h, tag := c.side.Greeting()
	if c.e.carrier.sendPair(tag, h, nil) {
		c.greeted()
		return
	}
	c.mu.Lock()
	c.postLater(outgoing{header: h, tag: tag})
	c.mu.Unlock()
}

// greeted notes that the greeting has gone.
func (c *Caller) greeted() {
	c.mu.Lock()
	c.silent = false
	c.advance()
	c.mu.Unlock()
}

// Endpoint is what carries the calls.
func (c *Caller) Endpoint() *Endpoint { return c.e }

// Pending is how many calls of this side the peer has not answered, those included
// whose callers have given up.
func (c *Caller) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.side.Pending()
}

// Close closes the endpoint. Answers that handlers have given are delivered, as what is
// sent on an endpoint is, or the error wraps [ErrNotDelivered]. Calls that wait fail with
// [ErrOutcomeUnknown]; contexts of requests end. It does not wait for handlers:
// [Mux.Close] does.
func (c *Caller) Close() error {
	err := c.e.Close()
	c.watcher.Wait()
	return err
}

// Drain lets no further calls of this side begin, and waits until those that are under
// way have ended, or ctx has.
func (c *Caller) Drain(ctx context.Context) error {
	c.mu.Lock()
	c.draining = true
	if c.drained == nil {
		c.drained = make(chan struct{})
		c.lookDrained()
	}
	drained := c.drained
	var line []*pendingCall
	for c.line.Len() > 0 {
		line = append(line, c.line.Pop())
	}
	for _, w := range line {
		c.finish(w, nil, fmt.Errorf("%w: %w", ErrNotSent, ErrClosed))
	}
	c.mu.Unlock()
	select {
	case <-drained:
		return nil
	case <-c.e.done:
		return nil
	case <-ctx.Done():
		return c.e.failure("drain calls to", context.Cause(ctx))
	}
}

// lookDrained needs mu.
func (c *Caller) lookDrained() {
	if c.drained != nil && c.side.Pending() == 0 {
		select {
		case <-c.drained:
		default:
			close(c.drained)
		}
	}
}

// Call asks the peer's handler of method and waits for its answer, which the caller
// releases. The payload may be used again when it returns. Any number of calls may
// wait; their order at the peer is that in which they were sent.
//
// If ctx ends, the peer's handler is told: its context ends, too. Its deadline goes
// with the request. An error is one of these: a [*CallError] is the peer's answer;
// [ErrNotSent] says that the peer knows nothing of the call; everything else wraps
// [ErrOutcomeUnknown] and, where that was why, the error of ctx.
func (c *Caller) Call(ctx context.Context, method uint32, payload []byte) (*Message, error) {
	w, err := c.begin(ctx, false)
	if err == nil {
		err = c.request(ctx, w, method, call.Header{Kind: call.Request, ID: w.id}, payload)
	}
	return c.answerTo(ctx, w, err)
}

// answerTo waits for the answer to a request, unless sending it has failed with err.
func (c *Caller) answerTo(ctx context.Context, w *pendingCall, err error) (*Message, error) {
	if err != nil {
		return nil, c.e.failure("call", err)
	}
	m, err := c.await(ctx, w)
	if err != nil {
		return nil, c.outcome(err)
	}
	return m, nil
}

// outcome adds the endpoint to an error unless it is what the peer has said.
func (c *Caller) outcome(err error) error {
	var told *CallError
	if errors.As(err, &told) {
		return err
	}
	return c.e.failure("call", err)
}

// Notify hands the payload to the peer's handler of method. There is no answer: an
// error wraps [ErrNotSent], or [ErrOutcomeUnknown] if the endpoint ended; without one
// the peer has it unless the endpoint fails. It waits while the peer has so many
// requests that it takes no more.
func (c *Caller) Notify(ctx context.Context, method uint32, payload []byte) error {
	w, err := c.begin(ctx, true)
	if err == nil {
		if err = c.request(ctx, w, method, call.Header{Kind: call.Notification}, payload); err == nil {
			c.giveBack(w)
		}
	}
	if err != nil {
		return c.e.failure("notify", err)
	}
	return nil
}

// request sends the request of an admitted call. If it fails the call has ended.
func (c *Caller) request(ctx context.Context, w *pendingCall, method uint32, h call.Header, payload []byte) error {
	left, late := call.LeftOf(ctx)
	if h.Value = left; late {
		return c.unsent(w, context.DeadlineExceeded) // its timer has not been run yet
	}
	if c.e.carrier.sendPair(method, h, payload) {
		return nil
	}
	if c.e.over() {
		return c.unsent(w, c.e.err)
	}
	h.Put(w.header[:])
	begun, err := c.sendBehind(ctx, parcel{tag: method, header: w.header[:], body: payload, expires: true})
	return c.sentOrNot(w, begun, err)
}

// unsent ends a call whose request could not be sent.
func (c *Caller) unsent(w *pendingCall, err error) error {
	c.mu.Lock()
	if !c.ended {
		if w.notifies {
			c.side.UnsentNotification()
		} else {
			c.side.Unsent(w.id)
		}
		c.advance()
		c.lookDrained()
	}
	c.mu.Unlock()
	return fmt.Errorf("%w: %w", ErrNotSent, err)
}

// sendBehind sends a message behind its header, and waits as long as that takes.
func (c *Caller) sendBehind(ctx context.Context, p parcel) (begun bool, err error) {
	if p.size() <= link.Small {
		j := join(p.header, p.body)
		defer j.free()
		p.header, p.body = nil, j.bytes()
	}
	return c.e.sendInTurn(ctx, p)
}

// await waits for the answer to a call that has been sent.
func (c *Caller) await(ctx context.Context, w *pendingCall) (*Message, error) {
	if !w.done.Load() && !c.e.carrier.drive(w.isDone) {
		c.sleepForAnswer(ctx, w)
	}
	if !w.done.Load() {
		c.mu.Lock()
		if !c.ended && c.side.Abandon(w.id) {
			c.mu.Unlock()
			c.post(outgoing{header: call.Header{Kind: call.Cancel, ID: w.id}})
			c.giveBack(w)
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), ErrOutcomeUnknown)
		}
		c.mu.Unlock()
		for !w.done.Load() { // the endpoint has ended, and whoever noticed tells all callers
			<-w.wake
		}
	}
	c.lets(w)
	c.runs(w)
	m, err := w.answer, w.err
	c.giveBack(w)
	return checkedMessage(c.e, m), err
}

// sleepForAnswer sleeps until w is done or ctx is over.
func (c *Caller) sleepForAnswer(ctx context.Context, w *pendingCall) {
	c.mu.Lock()
	w.asleep = true
	c.mu.Unlock()
	c.e.carrier.sleep()
	defer c.e.carrier.awake()
	over := ctx.Done()
	for !w.done.Load() {
		select {
		case <-w.wake:
		case <-over:
			return
		}
	}
}

// watch ends all calls with the endpoint.
func (c *Caller) watch() {
	<-c.e.done
	c.mu.Lock()
	c.ended = true
	var calls []*pendingCall
	c.side.Outstanding(func(_ call.ID, w *pendingCall) { calls = append(calls, w) })
	var dropped []*request
	for c.queue.Len() > 0 {
		dropped = append(dropped, c.queue.Pop())
	}
	for _, w := range calls {
		w.asleep = true // it may look for the token without having said so
		s, err := w.stream, fmt.Errorf("%w: %w", ErrOutcomeUnknown, c.e.err)
		c.finish(w, nil, err)
		if s != nil {
			s.end(err, err)
		}
	}
	for c.line.Len() > 0 {
		w := c.line.Pop()
		c.finish(w, nil, fmt.Errorf("%w: %w", ErrNotSent, c.e.err))
	}
	c.out.drop()
	c.mu.Unlock()
	c.cancel(c.e.err)
	for _, r := range dropped {
		c.drop(r)
	}
	if c.mux != nil {
		c.mux.forget(c)
	}
	c.out.sender.Wait()
}
