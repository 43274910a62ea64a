package verbena

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/fifo"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/release"
)

// ErrNoStreams says that the peer takes no streams: its greeting gave them no credit.
var ErrNoStreams = errors.New("verbena: the peer takes no calls with streams")

// Sizes of streams in bytes.
const (
	// streamCredit is what the peer may send on a stream before anything is consumed.
	streamCredit = 64 << 10
	// streamWindow is what may be on its way on a stream, or received and not released,
	// once its reader has shown that it keeps up.
	streamWindow = 4 << 20
	// streamMemory is what all streams of an endpoint may have for windows above
	// streamCredit.
	streamMemory = 16 << 20
)

// A Stream carries bytes in both directions beside a call: what either end sends arrives
// there in order, in pieces of any size. At the side that calls, [Caller.Stream] makes it;
// at the other one a handler gets it, see [Mux.Stream].
//
// It ends with the call. The answer comes behind everything that the handler has sent;
// then Recv returns [io.EOF], or the [*CallError]. Both directions end at once with an
// error when the context or the deadline of the call ends, at both ends, and when the
// endpoint does.
//
// The peer may send 64 KiB before something is released here, and more, up to 4 MiB, on a
// stream whose reader keeps up; all such windows of an endpoint are 16 MiB. So a
// reader who waits holds up the sender of its own stream, and nobody else.
//
// One goroutine at a time may send (Send, SendBuffer, Write, ReadFrom, CloseSend), and one
// receive (Recv, Read, WriteTo), and one wait in Answer, all at the same time. Close may be
// called at any time.
type Stream struct {
	c      *Caller
	caller bool // this side has made the call
	id     call.ID
	answer pendingCall // of the side that calls
	stop   func() bool // ends the watch over the context
	// onClose is called by Close, perhaps more than once, when nothing is left. Nil: nothing.
	onClose func()

	toRead, toSend direction
	scratch        [link.Small]byte // of the message that is being sent

	// Guarded by the caller's mu:
	flows   call.Flows
	pieces  fifo.Queue[*Message] // received, not taken
	over    bool
	recvErr error // after the last piece, once it is over
	sendErr error
	taken   bool    // the answer
	rest    *Buffer // of Read: what it has not returned
	dropped bool    // nobody reads any more

	// Of a Send that waits for the endpoint: the context that it was given, and one that
	// ends with the stream, too. They are kept for the next.
	waitFor, waitOn context.Context
	endWait         context.CancelCauseFunc
}

// A direction is where the one who reads, or sends, waits.
type direction struct {
	ready   release.Flag
	isReady func() bool   // ready.Load
	asleep  bool          // guarded by the caller's mu
	wake    chan struct{} // a token when it sleeps and may go on; there may be one too many
}

func (d *direction) init() {
	d.wake = make(chan struct{}, 1)
	d.isReady = d.ready.Load
}

// goOn lets the one who waits look again. The caller's mu is held.
func (d *direction) goOn() {
	d.ready.Set()
	if d.asleep {
		d.asleep = false
		notify(d.wake)
	}
}

func (c *Caller) newStream(caller bool) *Stream {
	s := &Stream{c: c, caller: caller}
	s.toRead.init()
	s.toSend.init()
	return s
}

// Stream is [Caller.Call] for a call with a stream in each direction. It returns when the
// request has been sent. The stream must be closed.
//
// Ctx is that of the whole call. What the errors of the stream's methods mean is as in
// Call. A peer whose runtime is too old for streams is told from others by [ErrNoStreams].
func (c *Caller) Stream(ctx context.Context, method uint32, payload []byte) (*Stream, error) {
	s := c.newStream(true)
	w := &s.answer
	w.stream, w.wake, w.isDone = s, make(chan struct{}, 1), w.done.Load
	_, err := c.enter(ctx, false, w)
	if err == nil && !c.takesStreams() {
		err = c.unsent(w, fmt.Errorf("%w: its greeting gives them no credit", ErrNoStreams))
	}
	if err == nil {
		s.id = w.id
		err = c.request(ctx, w, method, call.Header{Kind: call.Request, Flags: call.Streams, ID: w.id}, payload)
	}
	if err != nil {
		return nil, c.e.failure("call", err)
	}
	s.stop = context.AfterFunc(ctx, func() { s.giveUp(context.Cause(ctx)) })
	return s, nil
}

// takesStreams tells whether the peer, whose greeting is here, takes streams.
func (c *Caller) takesStreams() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.side.PeerStream() > 0
}

// Caller is this end of the endpoint.
func (s *Stream) Caller() *Caller { return s.c }

// Answer waits for the handler's answer, which the caller releases. There is one, once. It
// does not receive: a handler that still sends is waited for until somebody has called
// Recv. If ctx ends the stream goes on. A handler has no answer to wait for.
func (s *Stream) Answer(ctx context.Context) (*Message, error) {
	c, w := s.c, &s.answer
	if !s.caller {
		return nil, c.e.failure("wait for an answer of", errors.New("verbena: this side gives the answer"))
	}
	if !w.done.Load() && !c.e.carrier.drive(w.isDone) {
		c.sleepForAnswer(ctx, w)
	}
	c.mu.Lock()
	w.asleep = false
	done, taken := w.done.Load(), s.taken
	s.taken = taken || done
	c.mu.Unlock()
	switch {
	case !done:
		return nil, c.e.failure("wait for an answer of", context.Cause(ctx))
	case w.err != nil:
		return nil, c.outcome(w.err)
	case taken:
		return nil, c.e.failure("wait for an answer of", ErrAnswered)
	}
	s.stop()
	return checkedMessage(c.e, w.answer), nil
}

// Close gives the call up unless it has been answered, and releases what has not been
// received. Later calls of the stream's methods fail. At the side of the handler it ends
// the stream and not the call, which has to be answered all the same; the answer closes
// the stream, too.
func (s *Stream) Close() error {
	if s.stop != nil {
		s.stop()
	}
	s.giveUp(ErrClosed)
	c, w := s.c, &s.answer
	c.mu.Lock()
	taken := s.taken
	s.taken = true
	c.mu.Unlock()
	if !taken && w.done.Load() && w.answer != nil {
		w.answer.Release()
	}
	s.drop()
	if s.onClose != nil {
		s.onClose()
	}
	return nil
}

// giveUp ends the stream unless it has ended, and the call if this side has made it.
func (s *Stream) giveUp(cause error) {
	c := s.c
	c.mu.Lock()
	if s.over {
		c.mu.Unlock()
		return
	}
	err := cause
	canceled := false
	if s.caller {
		err = fmt.Errorf("%w: %w", cause, ErrOutcomeUnknown)
		if canceled = !c.ended && c.side.Abandon(s.id); canceled {
			c.finish(&s.answer, nil, err)
		}
	} else if !c.ended {
		c.side.Drop(&s.flows)
	}
	s.end(err, err)
	s.discard()
	c.mu.Unlock()
	if canceled {
		c.post(outgoing{header: call.Header{Kind: call.Cancel, ID: s.id}})
	}
	s.drop()
}

// end ends the stream: Recv fails when it has returned all pieces, Send at once. The
// caller's mu is held.
func (s *Stream) end(recvErr, sendErr error) {
	if s.over {
		return
	}
	s.over, s.recvErr, s.sendErr = true, recvErr, sendErr
	s.toRead.goOn()
	s.toSend.goOn()
}

// answered ends the stream of a call of this side with its answer. The caller's mu is held.
func (s *Stream) answered(err error) {
	if err == nil {
		s.end(io.EOF, ErrAnswered)
	} else {
		s.end(err, err)
	}
}

// drop ends a Send that waits for the endpoint, and releases the pieces that nobody has
// taken, and what Read has left of one.
func (s *Stream) drop() {
	s.c.mu.Lock()
	end, err := s.endWait, s.sendErr
	s.waitFor, s.waitOn, s.endWait = nil, nil, nil
	s.c.mu.Unlock()
	if end != nil {
		end(err)
	}
	for {
		s.c.mu.Lock()
		s.discard()
		b := s.rest
		if s.rest = nil; b == nil && s.pieces.Len() > 0 {
			m := s.pieces.Pop()
			s.c.forget(s, m)
			b = &m.Buffer
		}
		s.c.mu.Unlock()
		if b == nil {
			return
		}
		b.Release()
	}
}

// discard lets nobody have what has not been received. The caller's mu is held.
func (s *Stream) discard() {
	s.dropped = true
	if s.recvErr == io.EOF {
		s.recvErr = ErrClosed
	}
}

// begin lets a handler have the stream, which ends with the context of its request.
func (s *Stream) begin(q Request) {
	ctx := q.Context()
	s.stop = context.AfterFunc(ctx, func() { s.giveUp(context.Cause(ctx)) })
}

// finish ends the stream of a call that this side has answered.
func (s *Stream) finish() {
	if s.stop != nil {
		s.stop()
	}
	s.giveUp(ErrAnswered)
	s.drop()
}

// wait waits until a direction may be ready. needs, which is called with the caller's mu
// held, tells whether it is not.
func (s *Stream) wait(ctx context.Context, d *direction, needs func(*Stream) bool) error {
	c := s.c
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.e.carrier.drive(d.isReady) {
		return nil
	}
	c.mu.Lock()
	if d.asleep = needs(s); !d.asleep {
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	c.e.carrier.sleep()
	defer c.e.carrier.awake()
	select {
	case <-d.wake:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	d.asleep = false
	c.mu.Unlock()
	return context.Cause(ctx)
}
