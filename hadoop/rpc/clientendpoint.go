package rpc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/calls"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
	"github.com/verbena-data/verbena/internal/limit"
)

// endpointCaller makes calls on an endpoint, each as a call of the runtime. Who made
// the caller of the runtime closes it.
type endpointCaller struct {
	caller  *verbena.Caller
	memory  calls.Memory
	id      ClientID
	session *wire.Session
	timeout time.Duration   // of each call; 0 for none
	most    int             // the longest response in bytes
	closed  <-chan struct{} // the client's

	answers atomic.Uint64 // that have come
	failed  atomic.Pointer[error]
}

// introduceEndpoint starts a session on an endpoint.
func introduceEndpoint(ctx context.Context, caller *verbena.Caller, target Target, cfg *ClientConfig, id ClientID, closed <-chan struct{}) (*endpointCaller, error) {
	e := caller.Endpoint()
	c := &endpointCaller{
		caller: caller, memory: calls.NewMemory(e), id: id, session: wire.NewSession(id[:], target.Protocol, target.Version),
		timeout: cfg.CallTimeout, most: cfg.MaxFrame, closed: closed,
	}
	if err := c.introduce(ctx, &target); err != nil {
		return nil, fmt.Errorf("rpc: connect to %s: %w", e.RemoteAddr(), err)
	}
	return c, nil
}

// EndpointConn makes calls on one endpoint, any number at once. It neither reconnects
// nor repeats; [Client] does.
type EndpointConn struct {
	c    *endpointCaller
	next atomic.Uint32 // call id
	end  func()
}

// NewEndpointConn starts a session on e, which was dialled for [Service] and then belongs
// to the connection. ctx bounds the start alone. Of the configuration, it uses MaxFrame
// and CallTimeout.
func NewEndpointConn(ctx context.Context, e *verbena.Endpoint, target Target, cfg ClientConfig) (*EndpointConn, error) {
	cfg = cfg.withDefaults()
	if target.Version == 0 {
		target.Version = 1
	}
	var id ClientID
	_, _ = rand.Read(id[:]) // never fails
	caller, err := verbena.NewCaller(e, nil)
	if err != nil {
		e.Close()
		return nil, fmt.Errorf("rpc: connect to %s: %w", e.RemoteAddr(), err)
	}
	closed := make(chan struct{})
	c, err := introduceEndpoint(ctx, caller, target, &cfg, id, closed)
	if err != nil {
		caller.Close()
		return nil, err
	}
	return &EndpointConn{c: c, end: sync.OnceFunc(func() { close(closed) })}, nil
}

// Call is [Conn.Call].
func (c *EndpointConn) Call(ctx context.Context, method string, req, resp proto.Message) error {
	id := int32(c.next.Add(1)-1) & 0x7fffffff
	if err := c.c.call(ctx, id, 0, method, req, resp); err != nil {
		return named(method, c.c.caller.Endpoint().RemoteAddr().String(), plain(err))
	}
	return nil
}

// Close ends the calls under way; their error wraps [ErrClosed].
func (c *EndpointConn) Close() error {
	c.end()
	return c.c.caller.Close()
}

// introduce says who the client is, and proves it if it has a token or another login.
func (c *endpointCaller) introduce(ctx context.Context, target *Target) error {
	if login := target.login(); login != nil {
		err := login.authenticate(ctx, func(ctx context.Context, m *rpcpb.RpcSaslProto) (*rpcpb.RpcSaslProto, error) {
			answer, err := c.control(ctx, wire.CallIDSASL, m)
			if err != nil {
				return nil, err
			}
			defer answer.Release()
			return parseSASL(answer.Bytes())
		})
		if err != nil {
			return err
		}
	}
	answer, err := c.control(ctx, wire.CallIDContext, target.context())
	if err != nil {
		return err
	}
	defer answer.Release()
	if len(answer.Bytes()) == 0 {
		return nil
	}
	h, _, err := wire.ParseResponse(answer.Bytes())
	if err == nil {
		err = &exception.Error{Class: exception.Class(h.Exception), Message: h.Message}
	}
	return err
}

// control makes a call with a message that is none of Hadoop RPC's calls.
func (c *endpointCaller) control(ctx context.Context, id int32, body proto.Message) (*verbena.Message, error) {
	h := wire.Request{CallID: id, ClientID: c.id[:], RetryCount: -1}
	m, err := c.memory.Alloc(ctx, c.caller, h.Size()+wire.SizeDelimited(proto.Size(body)))
	if err != nil {
		return nil, err
	}
	if m, err = encodeControl(m, &h, body); err != nil {
		return nil, err
	}
	return c.send(ctx, calls.MethodIntroduce, m)
}

// send makes a call of the runtime, and releases m.
func (c *endpointCaller) send(ctx context.Context, method uint32, m carrier.Message) (*verbena.Message, error) {
	if b, ok := calls.Buffer(&m); ok {
		return c.caller.CallBuffer(ctx, method, b)
	}
	defer m.Release()
	return c.caller.Call(ctx, method, m.Bytes)
}

// reason tells why no further call should begin, or is nil.
func (c *endpointCaller) reason() error {
	if err := c.failed.Load(); err != nil {
		return *err
	}
	return c.caller.Endpoint().Err()
}

// isClosed tells whether the client has been closed.
func (c *endpointCaller) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// fail lets no further call begin. Those under way may still end well.
func (c *endpointCaller) fail(err error) { c.failed.CompareAndSwap(nil, &err) }

// call makes one call. The error is an [*unsent], a [*lost], the context's,
// [ErrTimeout], or what the server said.
func (c *endpointCaller) call(ctx context.Context, id, retry int32, method string, req, resp proto.Message) error {
	if err := c.reason(); err != nil {
		return &unsent{err}
	}
	bound := limit.New(ctx, time.Now(), c.timeout)
	defer bound.End()
	answered := c.answers.Load()
	answer, encoding, err := c.ask(bound, id, retry, method, req)
	if encoding {
		return err
	}
	if err != nil {
		return c.explain(ctx, bound, answered, err)
	}
	c.answers.Add(1)
	kept := carrier.Message{Bytes: answer.Bytes(), Owner: answer}
	defer func() { kept.Release() }() // unless resp has taken it
	if err = c.tooLong(answer); err != nil {
		return err
	}
	err = c.decode(&kept, resp)
	if err != nil && bound.Passed() {
		return c.explain(ctx, bound, answered, err) // the method may have failed because of that
	}
	return err
}

// ask encodes a request and waits for the answer. An error while encoding is no error of
// the call.
func (c *endpointCaller) ask(ctx context.Context, id, retry int32, method string, req proto.Message) (answer *verbena.Message, encoding bool, err error) {
	n := proto.Size(req)
	size := c.session.Size(id, retry, method, n)
	if c.memory.Long(size) {
		if l, ok := findLong(req, n); ok {
			return c.askJoined(ctx, id, retry, method, n, size, &l)
		}
	}
	m, err := c.memory.Alloc(ctx, c.caller, size)
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", verbena.ErrNotSent, err)
	}
	m.Bytes = c.session.Append(m.Bytes, id, retry, method, n)
	if err = appendRequest(&m, req); err != nil {
		return nil, true, err
	}
	answer, err = c.send(ctx, calls.MethodCall, m)
	return answer, false, err
}

// askJoined is ask for a request of n bytes that goes out from two places, size bytes with
// what stands before it.
func (c *endpointCaller) askJoined(ctx context.Context, id, retry int32, method string, n, size int, l *long) (answer *verbena.Message, encoding bool, err error) {
	m, err := c.memory.Alloc(ctx, c.caller, size-len(l.value))
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", verbena.ErrNotSent, err)
	}
	defer m.Release()
	if m.Bytes, err = l.appendRest(c.session.Append(m.Bytes, id, retry, method, n)); err != nil {
		return nil, true, fmt.Errorf("encode the request: %w", err)
	}
	answer, err = c.caller.CallJoined(ctx, calls.MethodCall, m.Bytes, l.value)
	return answer, false, err
}

func (c *endpointCaller) tooLong(answer *verbena.Message) error {
	if n := len(answer.Bytes()); n > c.most {
		return fmt.Errorf("an answer of %d bytes, at most %d are taken", n, c.most)
	}
	return nil
}

// raw makes a call of a request that is encoded already, and returns the response, which
// the caller releases. Its errors are those of call; what the server refuses is a
// response.
func (c *endpointCaller) raw(ctx context.Context, request []byte) (*verbena.Message, error) {
	if err := c.reason(); err != nil {
		return nil, &unsent{err}
	}
	bound := limit.New(ctx, time.Now(), c.timeout)
	defer bound.End()
	answered := c.answers.Load()
	answer, err := c.caller.Call(bound, calls.MethodCall, request)
	if err != nil {
		return nil, c.explain(ctx, bound, answered, err)
	}
	c.answers.Add(1)
	if err = c.tooLong(answer); err != nil {
		answer.Release()
		return nil, err
	}
	return answer, nil
}

// decode decodes an answer into resp, which may take m over, or returns the error that it
// tells.
func (c *endpointCaller) decode(m *carrier.Message, resp proto.Message) error {
	h, rest, err := wire.ParseResponse(m.Bytes)
	if err != nil {
		err = fmt.Errorf("response header: %w", err)
		c.fail(err)
		return &lost{err}
	}
	if h.Status != wire.StatusSuccess {
		err := &exception.Error{Class: exception.Class(h.Exception), Message: h.Message}
		if h.Status != wire.StatusError {
			c.fail(err)
		}
		return err
	}
	body, _, err := wire.Next(rest)
	if err != nil {
		return fmt.Errorf("response: %w", err)
	}
	return unmarshalAnswer(m, body, resp)
}

// explain is an error of the runtime as one of calls.
func (c *endpointCaller) explain(ctx context.Context, l *limit.Limit, answered uint64, err error) error {
	var told *verbena.CallError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case l.Passed():
		if !l.Own() {
			return context.DeadlineExceeded // its timer has not been run yet
		}
		// Nothing at all has come since the call began: another endpoint may do better.
		if c.answers.Load() == answered {
			c.fail(ErrTimeout)
		}
		return ErrTimeout
	case errors.As(err, &told):
		if told.Code == verbena.CodeBusy {
			return &exception.Error{Class: exception.Retriable, Message: told.Text}
		}
		return err
	case c.isClosed():
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	case c.failed.Load() != nil:
		err = fmt.Errorf("%w: %w", *c.failed.Load(), err)
	}
	switch {
	case errors.Is(err, verbena.ErrTooLong):
		return err // it would be so again
	case errors.Is(err, verbena.ErrNotSent):
		return &unsent{err}
	}
	return &lost{err}
}
