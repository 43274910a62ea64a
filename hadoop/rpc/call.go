package rpc

import (
	"context"
	"errors"
	"net"
	"runtime/debug"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/calls"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

// ClientID is what a client calls itself: 16 random bytes, or zeros if it sent
// none.
type ClientID [16]byte

// Call is a call that is being served.
type Call struct {
	User     string // effective user: who the call acts as
	RealUser string // who authenticated, if that is another
	ClientID ClientID
	CallID   int32
	// RetryCount counts from 0; -1 if the client does not count.
	RetryCount int32
	Protocol   string
	Method     string
	Peer       net.Addr
	// Host is the peer's IP address, or empty if it has none.
	Host string
	// Short says that the call runs where its connection is read, and may answer [ErrLong].
	Short bool
}

type callKey struct{}

// FromContext returns the call being served, or nil if there is none.
func FromContext(ctx context.Context) *Call {
	call, _ := ctx.Value(callKey{}).(*Call)
	return call
}

// WithCall returns a context in which call is being served, for callers that
// reach a method by another way than a connection. Host is taken from Peer if it is empty.
func WithCall(ctx context.Context, call *Call) context.Context {
	if call.Host == "" && call.Peer != nil {
		with := *call
		with.Host = hostOf(call.Peer)
		call = &with
	}
	return context.WithValue(ctx, callKey{}, call)
}

// callsAtOnce is how many calls are allocated together. A method may keep its
// context, so that they are not used again.
const callsAtOnce = 16

// call is a call on its way, and the context of its method.
type call struct {
	context.Context // the session's, or the server's
	Call

	session  *session
	method   *served
	req      proto.Message   // nil as long as body is not decoded
	body     carrier.Message // of the request, if it has memory of its own
	entry    *retryEntry
	lent     bool // req refers to memory that is lent until the method returns
	slot     bool // it counts among the session's calls under way
	deferred bool // its answer comes by Answers
	began    time.Time
	outlives bool // the session, because the retry cache keeps its answer
	size     int64
	to       replyTo
	id       ClientID     // what to.clientID refers to
	via      calls.Answer // what to.out is, if it came over an endpoint
}

// Value implements [context.Context].
func (c *call) Value(key any) any {
	switch key {
	case callKey{}:
		return &c.Call
	case deferKey{}:
		return c
	}
	return c.base().Value(key)
}

// Done implements [context.Context].
func (c *call) Done() <-chan struct{} { return c.base().Done() }

// Err implements [context.Context]. It makes no context of a request's that nobody has
// given up.
func (c *call) Err() error {
	if c.ends() && !c.via.Request.Over() {
		return nil
	}
	return c.base().Err()
}

// Deadline implements [context.Context].
func (c *call) Deadline() (time.Time, bool) {
	if c.ends() {
		return c.via.Request.Deadline()
	}
	return c.Context.Deadline()
}

// ends tells that the call ends with the runtime's call that it came by.
func (c *call) ends() bool { return c.via.Valid() && !c.outlives }

// base is the context that the call ends with.
func (c *call) base() context.Context {
	if c.ends() {
		return c.via.Request.Context()
	}
	return c.Context
}

// replyTo is where an answer goes, and what it repeats of its request.
type replyTo struct {
	out                carrier.Answerer
	callID, retryCount int32
	clientID           []byte
	size               int // in bytes of the answer's body, if that is known; else 0
}

// joiner is where an answer of n bytes goes, if that sends it from two places.
func (to *replyTo) joiner(n int) (carrier.Joiner, bool) {
	j, ok := to.out.(carrier.Joiner)
	return j, ok && j.Joins(n)
}

func toReply(out carrier.Answerer, h *wire.Request) replyTo {
	to := replyTo{out: out, callID: h.CallID, retryCount: h.RetryCount}
	if len(h.ClientID) <= len(ClientID{}) { // a longer one is not a client's id
		to.clientID = h.ClientID
	}
	return to
}

// serve is the work of a handler.
func (c *call) serve() {
	if c.Err() != nil {
		// Nobody wants the answer: the client has gone, or the server is closed.
		c.session.server.metrics.dropped.Inc()
		if c.entry == nil && !c.via.Valid() {
			c.done()
		} else { // repetitions may wait for it, and the runtime's calls need an answer
			c.answer(nil, errServerClosing, carrier.Now)
		}
		return
	}
	if c.req == nil {
		req, refers, err := c.method.decode(c.body.Bytes, longField)
		if !refers {
			c.body.Release()
		}
		if err != nil {
			c.answer(nil, badArguments(c.Method, err), carrier.Now)
			return
		}
		c.req = req
	}
	resp, err := c.invoke()
	c.answer(resp, err, c.session.urgency())
}

var errServerClosing = refuse(codeServer, exception.IO, "the server is closing")

// invoke calls the method; a panic becomes an error of this call alone.
func (c *call) invoke() (resp proto.Message, err error) {
	m := c.method
	m.running.Inc()
	c.began = time.Now()
	defer func() {
		if p := recover(); p != nil {
			err = c.panicked(p)
		}
		switch err {
		case ErrDeferred: // it is over elsewhere, or will be
		case ErrLong:
			m.running.Dec()
			if !c.Short { // else it begins anew
				c.over(err)
			}
		default:
			m.running.Dec()
			c.over(err)
		}
	}()
	return m.call(c, c.req)
}

// panicked is the error of a call in which p was caught.
func (c *call) panicked(p any) error {
	c.session.server.cfg.Logger.Error("rpc: method panicked", "method", c.Method, "peer", c.Peer, "panic", p, "stack", string(debug.Stack()))
	return refuse(codeServer, exception.IO, "the server failed at "+c.Method+"; its log tells more")
}

// over counts the call as having run.
func (c *call) over(err error) {
	c.method.seconds.Observe(time.Since(c.began).Seconds())
	if err != nil {
		c.method.failed.Inc()
	}
}

// answer sends the answer and ends the call.
func (c *call) answer(resp proto.Message, err error, urgency carrier.Urgency) {
	s, entry := c.session, c.entry
	if entry != nil {
		var body []byte
		if err == nil {
			body, err = proto.Marshal(resp)
			if err != nil {
				err = &encodeError{err}
			}
		}
		s.server.retries.finish(s.server, entry, body, err)
		if err == nil {
			s.replyBytes(&c.to, body, urgency)
		} else {
			s.replyError(&c.to, err, urgency)
		}
	} else if err == nil {
		if err = s.reply(&c.to, resp, urgency); err != nil {
			c.unencoded(err, urgency)
		}
	} else {
		s.replyError(&c.to, err, urgency)
	}
	c.done()
}

// unencoded tells the client if its answer could not be encoded.
func (c *call) unencoded(err error, urgency carrier.Urgency) {
	var encode *encodeError
	if errors.As(err, &encode) {
		c.session.server.cfg.Logger.Error("rpc: response", "method", c.Method, "peer", c.Peer, "error", err)
		c.session.replyError(&c.to, err, urgency)
	}
}

// done gives back what the call has taken.
func (c *call) done() {
	c.req, c.entry = nil, nil
	c.body.Release()
	if c.deferred {
		c.session.server.queue.End()
	}
	if c.slot {
		c.slot = false
		c.session.release(c)
	}
}

// encodeError says that a response could not be put into a frame; nothing of
// it has been sent.
type encodeError struct{ err error }

func (e *encodeError) Error() string { return "encoding the response: " + e.err.Error() }
func (e *encodeError) Unwrap() error { return e.err }

func badArguments(method string, err error) *failure {
	return refuse(codeServer, exception.RPCServer, "arguments of "+method+": "+err.Error())
}
