package rpc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
)

// keepBuffer is the largest buffer that an idle connection holds on to.
const keepBuffer = 64 << 10

// maxPending is how many bytes of responses may wait for a client that does
// not read them before its calls wait, too.
const maxPending = 4 << 20

// conn is a client's connection.
type conn struct {
	server *Server
	nc     net.Conn
	ctx    context.Context
	cancel context.CancelFunc
	calls  sync.WaitGroup
	slots  chan struct{}       // one token for each call under way
	bytes  *semaphore.Weighted // of the requests of calls under way
	ending atomic.Bool         // the last answer is out; whatever still comes is dropped

	// What the client said of itself; set before its first call.
	user, realUser string
	known          bool
	negotiating    bool // it asked for SASL and has not been answered yet

	out struct {
		sync.Mutex
		ready   sync.Cond // pending has room again, is out, or failed
		pending []byte
		spare   []byte
		writing bool
		failed  error
	}
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{
		server: s, nc: nc,
		slots: make(chan struct{}, s.cfg.MaxInFlight),
		bytes: semaphore.NewWeighted(int64(s.cfg.MaxFrame)),
	}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.out.ready.L = &c.out
	return c
}

func (c *conn) serve() {
	err := c.read()
	c.cancel()
	c.calls.Wait()
	c.nc.Close()
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe), errors.Is(err, errIdle):
	default:
		c.server.cfg.Logger.Info("rpc: connection ended", "peer", c.nc.RemoteAddr(), "user", c.user, "error", err)
	}
}

var errIdle = errors.New("no call within the idle timeout")

// read reads until the connection ends or the client breaks the protocol, which
// it is then told.
func (c *conn) read() error {
	if err := c.nc.SetReadDeadline(time.Now().Add(c.server.cfg.HandshakeTimeout)); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c.nc, 8<<10)
	if err := c.preamble(r); err != nil {
		return c.tell(&rpcpb.RpcRequestHeaderProto{CallId: proto.Int32(-1)}, err)
	}
	var buf []byte
	for {
		if err := c.wait(r); err != nil {
			return err
		}
		var err error
		if buf, err = readFrame(r, buf, c.server.cfg.MaxFrame); err != nil {
			if errors.Is(err, errFrameLength) {
				return c.tell(&rpcpb.RpcRequestHeaderProto{CallId: proto.Int32(callIDInvalid)},
					fatal(codeFatalHeader, exception.RPCServer, err.Error()))
			}
			return err
		}
		if c.ending.Load() {
			c.drain()
			return nil
		}
		if err := c.frame(buf); err != nil {
			return err
		}
		if cap(buf) > keepBuffer {
			buf = nil
		}
	}
}

// wait waits for a frame to begin. As long as a call is under way the
// connection is not idle, however long its client is silent.
func (c *conn) wait(r *bufio.Reader) error {
	for {
		if c.known && !c.ending.Load() {
			if err := c.nc.SetReadDeadline(time.Now().Add(c.server.cfg.IdleTimeout)); err != nil {
				return err
			}
		}
		_, err := r.Peek(1)
		var timeout net.Error
		if err == nil || !c.known || !errors.As(err, &timeout) || !timeout.Timeout() {
			return err
		}
		if c.ending.Load() || len(c.slots) == 0 {
			return errIdle
		}
	}
}

// tell answers with an error that ends the connection, and returns it.
func (c *conn) tell(header *rpcpb.RpcRequestHeaderProto, err error) error {
	var e *failure
	if errors.As(err, &e) {
		if serr := c.respond(header, e, nil); serr != nil {
			return errors.Join(err, serr)
		}
		c.finish()
		c.drain()
	}
	return err
}

// finish ends the sending side once all answers are out. It sends a FIN: a reset,
// which unread requests would cause, could destroy the last answer.
func (c *conn) finish() {
	out := &c.out
	out.Lock()
	for (out.writing || len(out.pending) > 0) && out.failed == nil {
		out.ready.Wait()
	}
	out.Unlock()
	c.ending.Store(true)
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.nc.SetReadDeadline(time.Now().Add(time.Second)) != nil {
		c.nc.Close()
	}
}

// drain reads what the client sends until it has seen that the connection
// ends, within bounds of time and bytes.
func (c *conn) drain() {
	_, _ = io.CopyN(io.Discard, c.nc, 1<<20) // whatever ends it, the connection closes now
}

// fail ends a connection, its reading included, when answers can't be sent.
func (c *conn) fail() {
	c.cancel()
	c.nc.Close()
}

const httpAnswer = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" +
	"This port speaks Hadoop RPC, not HTTP.\r\n"

func (c *conn) preamble(r *bufio.Reader) error {
	var b [preambleSize]byte
	if _, err := io.ReadFull(r, b[:4]); err != nil {
		return err
	}
	if bytes.Equal(b[:4], []byte("GET ")) {
		err := c.nc.SetWriteDeadline(time.Now().Add(c.server.cfg.WriteTimeout))
		if err == nil {
			_, err = io.WriteString(c.nc, httpAnswer)
		}
		if err == nil {
			c.finish()
			c.drain()
		}
		return errors.Join(errors.New("an HTTP request came"), err)
	}
	if [4]byte(b[:4]) != magic {
		return fmt.Errorf("the first bytes %q are not Hadoop RPC's", b[:4])
	}
	if _, err := io.ReadFull(r, b[4:]); err != nil {
		return err
	}
	if b[4] != version {
		return fatal(codeFatalVersion, exception.VersionMismatch,
			fmt.Sprintf("Server IPC version %d cannot communicate with client version %d", version, b[4]))
	}
	switch b[6] {
	case authNone, authSASL:
		c.negotiating = b[6] == authSASL
		return nil
	}
	return fatal(codeFatalUnauthorized, exception.AccessControl, fmt.Sprintf("authentication of kind %#x is not known here", b[6]))
}

// frame takes one frame. The error ends the connection.
func (c *conn) frame(b []byte) error {
	header := &rpcpb.RpcRequestHeaderProto{}
	rest, err := decodeNext(b, header)
	if err != nil {
		return c.tell(&rpcpb.RpcRequestHeaderProto{CallId: proto.Int32(callIDInvalid)},
			fatal(codeFatalHeader, exception.RPCServer, "request header: "+err.Error()))
	}
	if header.RpcOp == nil || header.GetRpcOp() != rpcpb.RpcRequestHeaderProto_RPC_FINAL_PACKET {
		return c.tell(header, fatal(codeFatalHeader, exception.RPCServer, "the operation in the request header is not RPC_FINAL_PACKET"))
	}
	if header.RpcKind == nil {
		return c.tell(header, fatal(codeFatalHeader, exception.RPCServer, "the request header has no kind of RPC"))
	}
	if header.GetRpcKind() != rpcpb.RpcKindProto_RPC_PROTOCOL_BUFFER {
		return c.tell(header, fatal(codeFatalSerializing, exception.RPCServer, "only RPC_PROTOCOL_BUFFER is spoken here, not "+header.GetRpcKind().String()))
	}
	if header.GetCallId() < 0 {
		return c.control(header, rest)
	}
	return c.call(header, rest)
}

// control takes the messages that are not calls.
func (c *conn) control(header *rpcpb.RpcRequestHeaderProto, rest []byte) error {
	switch header.GetCallId() {
	case callIDPing:
		return nil
	case callIDSASL:
		if !c.negotiating {
			return c.tell(header, fatal(codeFatalHeader, exception.RPCServer, "SASL protocol not requested by client"))
		}
		sasl := &rpcpb.RpcSaslProto{}
		if _, err := decodeNext(rest, sasl); err != nil {
			return c.tell(header, fatal(codeFatalRequest, exception.RPCServer, "SASL message: "+err.Error()))
		}
		if sasl.GetState() != rpcpb.RpcSaslProto_NEGOTIATE {
			return c.tell(header, fatal(codeFatalUnauthorized, exception.AccessControl, "this server has simple authentication only"))
		}
		// SUCCESS without a mechanism: go on as simple.
		c.negotiating = false
		return c.respond(header, nil, &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_SUCCESS.Enum()})
	case callIDContext:
		if c.known {
			return c.tell(header, fatal(codeFatalHeader, exception.RPCServer, "a second connection context"))
		}
		if c.negotiating {
			return c.tell(header, fatal(codeFatalHeader, exception.RPCServer, "Connection header sent during SASL negotiation"))
		}
		hello := &rpcpb.IpcConnectionContextProto{}
		if _, err := decodeNext(rest, hello); err != nil {
			return c.tell(header, fatal(codeFatalRequest, exception.RPCServer, "connection context: "+err.Error()))
		}
		// The protocol named here only matters to a server that authorizes by
		// it: each call names its own, and an unknown one is that call's error.
		c.user, c.realUser = hello.GetUserInfo().GetEffectiveUser(), hello.GetUserInfo().GetRealUser()
		c.known = true
		return nil
	}
	return c.tell(header, fatal(codeFatalHeader, exception.RPCServer, fmt.Sprintf("call id %d is not known", header.GetCallId())))
}

// call starts a call. What is wrong with the call alone is answered; the
// connection goes on.
func (c *conn) call(header *rpcpb.RpcRequestHeaderProto, rest []byte) error {
	if !c.known {
		return c.tell(header, fatal(codeFatalHeader, exception.RPCServer, "Connection context not established"))
	}
	request := &rpcpb.RequestHeaderProto{}
	rest, err := decodeNext(rest, request)
	if err != nil {
		return c.tell(header, fatal(codeFatalRequest, exception.RPCServer, "request: "+err.Error()))
	}
	class, name := request.GetDeclaringClassProtocolName(), request.GetMethodName()
	p, ok := c.server.protocols[class]
	if !ok {
		return c.respond(header, refuse(codeNoSuchProtocol, exception.NoSuchProtocol, "Unknown protocol: "+class), nil)
	}
	if request.GetClientProtocolVersion() != p.version {
		return c.respond(header, refuse(codeProtocolVersion, exception.VersionMismatch, fmt.Sprintf(
			"Protocol %s version mismatch. (client = %d, server = %d)", class, request.GetClientProtocolVersion(), p.version)), nil)
	}
	m, ok := p.methods[name]
	if !ok {
		return c.respond(header, refuse(codeNoSuchMethod, exception.NoSuchMethod, "Unknown method "+name+" called on "+class+" protocol."), nil)
	}
	body, _, err := nextMessage(rest)
	if err != nil {
		return c.respond(header, refuse(codeServer, exception.RPCServer, "arguments of "+name+": "+err.Error()), nil)
	}
	// While the calls under way are too many or too large, nothing more is read
	// from the client.
	size := int64(len(body))
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return net.ErrClosed
	}
	if c.bytes.Acquire(c.ctx, size) != nil {
		<-c.slots
		return net.ErrClosed
	}
	release := func() {
		c.bytes.Release(size)
		<-c.slots
	}
	req, err := m.decode(body)
	if err != nil {
		release()
		return c.respond(header, refuse(codeServer, exception.RPCServer, "arguments of "+name+": "+err.Error()), nil)
	}
	call := &Call{
		User: c.user, RealUser: c.realUser, CallID: header.GetCallId(), RetryCount: header.GetRetryCount(),
		Protocol: class, Method: name, Peer: c.nc.RemoteAddr(),
	}
	if len(header.GetClientId()) == len(call.ClientID) {
		call.ClientID = ClientID(header.GetClientId())
	}
	c.calls.Go(func() {
		defer release()
		resp, err := c.invoke(m, call, req)
		if err == nil {
			err = c.respond(header, nil, resp)
			var encode *encodeError
			if errors.As(err, &encode) {
				c.server.cfg.Logger.Error("rpc: response", "method", name, "peer", call.Peer, "error", err)
				err = c.respond(header, refuse(codeSerializing, exception.IO, encode.Error()), nil)
			}
		} else {
			e := onTheWire(err)
			err = c.respond(header, e, nil)
			if e.fatal && err == nil {
				c.finish()
			}
		}
		if err != nil {
			c.fail()
		}
	})
	return nil
}

// invoke calls the method; a panic becomes an error of this call alone.
func (c *conn) invoke(m *served, call *Call, req proto.Message) (resp proto.Message, err error) {
	m.running.Inc()
	start := time.Now()
	defer func() {
		m.running.Dec()
		m.seconds.Observe(time.Since(start).Seconds())
		if err != nil {
			m.failed.Inc()
		}
	}()
	defer func() {
		if p := recover(); p != nil {
			c.server.cfg.Logger.Error("rpc: method panicked", "method", call.Method, "peer", call.Peer, "panic", p, "stack", string(debug.Stack()))
			err = refuse(codeServer, exception.IO, "the server failed at "+call.Method+"; its log tells more")
		}
	}()
	return m.call(WithCall(c.ctx, call), req)
}

// respond sends a response: an error, or success with a body.
func (c *conn) respond(request *rpcpb.RpcRequestHeaderProto, failed *failure, body proto.Message) error {
	header := &rpcpb.RpcResponseHeaderProto{
		CallId:              proto.Uint32(uint32(request.GetCallId())),
		Status:              statusSuccess.Enum(),
		ServerIpcVersionNum: proto.Uint32(version),
		RetryCount:          proto.Int32(request.GetRetryCount()),
	}
	if id := request.GetClientId(); len(id) <= len(ClientID{}) {
		header.ClientId = id // a longer one is not a client's id
	}
	messages := []proto.Message{header, body}
	if failed != nil {
		header.Status = statusError.Enum()
		if failed.fatal {
			header.Status = statusFatal.Enum()
		}
		header.ExceptionClassName = proto.String(string(failed.Class))
		header.ErrorMsg = proto.String(failed.Message)
		header.ErrorDetail = failed.code.Enum()
		messages = messages[:1]
	}
	return c.send(messages)
}

// encodeError says that a response could not be put into a frame; nothing of
// it has been sent.
type encodeError struct{ err error }

func (e *encodeError) Error() string { return "encoding the response: " + e.err.Error() }
func (e *encodeError) Unwrap() error { return e.err }

// send appends a frame to what goes out. The first caller writes, also what others
// append meanwhile.
func (c *conn) send(messages []proto.Message) error {
	out := &c.out
	out.Lock()
	defer out.Unlock()
	for len(out.pending) > maxPending && out.failed == nil {
		out.ready.Wait()
	}
	if out.failed != nil {
		return out.failed
	}
	pending, err := appendFrame(out.pending, messages...)
	out.pending = pending
	if err != nil {
		return &encodeError{err}
	}
	if out.writing {
		return nil
	}
	out.writing = true
	for len(out.pending) > 0 && out.failed == nil {
		b := out.pending
		out.pending, out.spare = out.spare[:0], nil
		out.Unlock()
		err := c.nc.SetWriteDeadline(time.Now().Add(c.server.cfg.WriteTimeout))
		if err == nil {
			_, err = c.nc.Write(b)
		}
		out.Lock()
		out.failed = err
		if cap(b) <= keepBuffer {
			out.spare = b
		}
		out.ready.Broadcast()
	}
	out.writing = false
	out.ready.Broadcast()
	return out.failed
}
