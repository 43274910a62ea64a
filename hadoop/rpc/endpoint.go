package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/calls"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

// Service is what endpoints that carry Hadoop RPC are dialled for; its number is that of
// Hadoop RPC's version. Their messages are
// those of a TCP connection, but each request is a call of the runtime:
//
//   - method 1, before all else: a message of the SASL negotiation, or the connection
//     context, one after the other. The call's answer is the response; it is empty
//     where a TCP connection would have none.
//   - method 2: a call and its response.
//
// docs/hadoop-rpc.md defines it. A payload is what a frame holds behind its length. The deadline of a call goes with
// it, and its end: so does the context of its method end.
const Service = "hadoop-rpc/9"

// ServeEndpoint serves the calls of an endpoint that was dialled for [Service], until
// the endpoint, ctx or the server ends. Then it closes the endpoint.
func (s *Server) ServeEndpoint(ctx context.Context, e *verbena.Endpoint) error {
	c := &endpointConn{server: s, end: make(chan struct{})}
	c.member = &member{close: func() { c.fail(nil) }}
	if !s.admit(c.member) {
		e.Close()
		return nil
	}
	defer s.leave(c.member)
	c.memory = calls.NewMemory(e)
	c.session = newSession(s, c, e.RemoteAddr())
	mux := verbena.NewMux(verbena.MuxConfig{Handlers: 1})
	mux.Long(calls.MethodIntroduce, c.introduce)
	mux.Short(calls.MethodCall, c.call)
	caller, err := verbena.NewCaller(e, mux)
	if err != nil {
		e.Close()
		return err
	}
	c.wait(ctx, e)
	c.session.cancel()
	closed := caller.Close()
	mux.Close()
	c.serving.Lock() // the worker may still be in call
	c.closed = true
	c.serving.Unlock()
	c.session.waits.Wait()
	c.session.calls.Wait()
	var told *errEnded
	switch {
	case errors.As(c.reason(), &told):
		return told
	case errors.Is(c.reason(), errIdle):
		return nil
	case e.Err() != nil && !errors.Is(e.Err(), verbena.ErrClosed) && !errors.Is(e.Err(), verbena.ErrPeerClosed):
		return e.Err()
	case c.reason() != nil:
		return c.err
	case ctx.Err() != nil || s.ctx.Err() != nil: // answers that were under way are nobody's matter
		return nil
	}
	return closed
}

// endpointConn is a client's endpoint. It is the session's line.
type endpointConn struct {
	server  *Server
	session *session
	member  *member
	memory  calls.Memory

	introducing sync.Mutex
	known       atomic.Bool  // the session's, for calls
	active      atomic.Int64 // calls that have come

	serving sync.Mutex
	closed  bool         // nothing begins any more
	answer  calls.Answer // of the message that call handles

	once sync.Once
	end  chan struct{} // closed when the endpoint has to end, with the reason in err
	err  error
}

// fail has the endpoint closed, for the first reason that it is given.
func (c *endpointConn) fail(err error) {
	c.once.Do(func() {
		c.err = err
		close(c.end)
	})
}

// reason is what fail was given, or nil.
func (c *endpointConn) reason() error {
	select {
	case <-c.end:
		return c.err
	default:
		return nil
	}
}

// Flush implements [carrier.Line]: nothing waits.
func (c *endpointConn) Flush() {}

// Finish implements [carrier.Line].
func (c *endpointConn) Finish() { c.fail(nil) }

// Abort implements [carrier.Line].
func (c *endpointConn) Abort(reason error) { c.fail(reason) }

var _ carrier.Line = (*endpointConn)(nil)

// wait waits until the endpoint has to be closed: for a client that does not introduce
// itself or makes no call, too.
func (c *endpointConn) wait(ctx context.Context, e *verbena.Endpoint) {
	idle, handshake := c.server.cfg.IdleTimeout, c.server.cfg.HandshakeTimeout
	timer := time.NewTimer(min(idle, handshake))
	defer timer.Stop()
	began, seen := time.Now(), int64(-1)
	for {
		select {
		case <-e.Done():
			return
		case <-c.end:
			return
		case <-ctx.Done():
			return
		case <-c.server.ctx.Done():
			return
		case <-timer.C:
		}
		if !c.known.Load() {
			left := handshake - time.Since(began)
			if left <= 0 {
				c.fail(errIdle)
				return
			}
			timer.Reset(min(idle, left))
			continue
		}
		now := c.active.Load()
		if now == seen && c.session.underWay.Load() == 0 {
			c.fail(errIdle)
			return
		}
		seen = now
		timer.Reset(idle)
	}
}

// introduce handles what comes before the calls. Tokens may take time to be looked up.
func (c *endpointConn) introduce(q verbena.Request) {
	c.introducing.Lock()
	defer c.introducing.Unlock()
	answer := calls.NewAnswer(q, &c.memory)
	s := c.session
	m := q.Payload()
	h, _, err := wire.ParseRequest(m)
	switch {
	case s.ending.Load():
		return // the endpoint is being closed
	case err == nil && h.CallID >= 0:
		err = s.tell(toReply(&answer, &h), fatal(codeFatalHeader, exception.RPCServer, "a call where the client introduces itself"))
	case len(m) > mostUnknown:
		err = s.tell(toReply(&answer, &h), fatal(codeFatalHeader, exception.RPCServer, fmt.Sprintf("a message of %d bytes from a client that has not said who it is", len(m))))
	default:
		if err == nil && h.CallID == wire.CallIDSASL && !s.known && !s.auth.offered && s.auth.chosen == nil {
			s.auth.negotiating = true // here no preamble asks for it
		}
		err = s.receive(&answer, carrier.Message{Bytes: m})
	}
	if err != nil {
		c.fail(err)
		return
	}
	if s.known && !c.known.Load() {
		c.server.know(c.member)
		c.known.Store(true)
	}
	if !answer.Sent {
		_ = q.Reply(nil) // the endpoint's end tells
	}
}

// call handles a call, on the runtime's worker.
func (c *endpointConn) call(q verbena.Request) {
	c.serving.Lock()
	defer c.serving.Unlock()
	s := c.session
	if c.closed || s.ending.Load() {
		return // the endpoint has been closed, or will be
	}
	c.active.Add(1)
	c.answer = calls.NewAnswer(q, &c.memory)
	m := q.Payload()
	var err error
	switch {
	case !c.known.Load():
		err = s.tell(replyTo{out: &c.answer, callID: wire.CallIDInvalid, retryCount: -1},
			fatal(codeFatalHeader, exception.RPCServer, "Connection context not established"))
	case len(m) > c.server.cfg.MaxFrame:
		h, _, _ := wire.ParseRequest(m)
		to := toReply(&c.answer, &h)
		s.replyError(&to, refuse(codeServer, exception.RPCServer,
			fmt.Sprintf("a request of %d bytes, at most %d are taken", len(m), c.server.cfg.MaxFrame)), carrier.Now)
		return
	default:
		err = s.receive(&c.answer, carrier.Message{Bytes: m})
	}
	if err != nil {
		c.fail(err)
	}
}

// enqueueCall gives a call of an endpoint to the handlers. It never waits: where the
// queue is full, a goroutine does. The runtime bounds the calls of an endpoint.
func (s *session) enqueueCall(c *call, body []byte) error {
	c.size = int64(len(body))
	if c.via.Long(len(body)) {
		c.body = carrier.Message{Bytes: body, Owner: c.via.Request.Keep()} // a handler decodes it
	} else {
		req, _, err := c.method.decode(body, 0)
		c.via.Request.Keep().Release() // who waits must not hold a receive
		if err != nil {
			c.answer(nil, badArguments(c.Method, err), carrier.Now)
			return nil
		}
		c.req = req
	}
	s.underWay.Add(1)
	if !s.begin(c) {
		return nil
	}
	in, level := s.server.queue.Push(c, c.User, c.method.urgent, c.size)
	if !in {
		s.waits.Go(func() {
			if most := s.server.cfg.QueueWait; most < 0 || !s.server.queue.PushWait(c, c, level, c.size, most) {
				c.refuseBusy(carrier.Now)
			}
		})
	}
	return nil
}
