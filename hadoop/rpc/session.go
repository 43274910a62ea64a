package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/calls"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

// session is the server's side of what one client says, whatever carries it.
// One goroutine at a time hands messages over.
type session struct {
	server *Server
	line   carrier.Line
	out    carrier.Answerer // for what answers no request; nil where each answer has one
	peer   net.Addr
	host   string // of peer
	ctx    context.Context
	cancel context.CancelFunc
	ending atomic.Bool // the last answer is out; whatever still comes is dropped

	// What the client said of itself; set before its first call.
	user, realUser string
	known          bool
	auth           authentication

	calls    sync.WaitGroup // under way, without those that outlive the session
	underWay atomic.Int64   // queued and running, of an endpoint
	waits    sync.WaitGroup // of an endpoint: goroutines that wait in place of the worker
	fresh    []call         // allocated and not used yet
	recent   *served        // the method called last
	latest   time.Time      // when a call began that was run where it was read; who reads takes it

	// Bounds of a stream. On an endpoint the runtime bounds what is under way.
	slots chan struct{}       // one token for each call under way
	bytes *semaphore.Weighted // of the requests of calls under way
	full  time.Time           // since when there was no room in the queue; zero if there was
}

func newSession(s *Server, line carrier.Line, peer net.Addr) *session {
	c := &session{server: s, line: line, peer: peer, host: hostOf(peer)}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	return c
}

// hostOf is the IP address in an address, or empty.
func hostOf(peer net.Addr) string {
	if peer == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(peer.String())
	if err != nil {
		return ""
	}
	return host
}

// newStreamSession returns a session whose messages follow each other.
func newStreamSession(s *Server, out carrier.Sender, peer net.Addr) *session {
	c := newSession(s, out, peer)
	c.out = out
	c.slots = make(chan struct{}, s.cfg.MaxInFlight)
	c.bytes = semaphore.NewWeighted(int64(s.cfg.MaxFrame))
	return c
}

// unasked is where an answer goes that no request is known for.
func (s *session) unasked(callID int32) replyTo {
	return replyTo{out: s.out, callID: callID, retryCount: -1}
}

// errEnded says that the client was told why its session ends; the carrier has
// to let it read that.
type errEnded struct{ reason error }

func (e *errEnded) Error() string { return e.reason.Error() }
func (e *errEnded) Unwrap() error { return e.reason }

// tell answers with the error that ends the session, and returns it.
func (s *session) tell(to replyTo, failed *failure) error {
	if err := s.send(&to, failed, nil, carrier.Now); err != nil {
		return errors.Join(failed, err)
	}
	s.ending.Store(true)
	return &errEnded{failed}
}

// receive takes a message, which it owns if the message has an owner, and answers it
// to out. Answers to short methods wait for the carrier's Flush. The error ends the
// session.
func (s *session) receive(out carrier.Answerer, m carrier.Message) error {
	defer func() { m.Release() }() // unless a call has taken it
	h, rest, err := wire.ParseRequest(m.Bytes)
	if err != nil {
		return s.tell(replyTo{out: out, callID: wire.CallIDInvalid, retryCount: -1}, fatal(codeFatalHeader, exception.RPCServer, "request header: "+err.Error()))
	}
	to := toReply(out, &h)
	switch {
	case h.Op != wire.OpFinal:
		return s.tell(to, fatal(codeFatalHeader, exception.RPCServer, "the operation in the request header is not RPC_FINAL_PACKET"))
	case h.Kind < 0:
		return s.tell(to, fatal(codeFatalHeader, exception.RPCServer, "the request header has no kind of RPC"))
	case h.Kind != wire.KindProtobuf:
		return s.tell(to, fatal(codeFatalSerializing, exception.RPCServer, fmt.Sprintf("only RPC_PROTOCOL_BUFFER is spoken here, not kind %d", h.Kind)))
	case h.CallID < 0:
		return s.control(to, rest)
	}
	return s.call(to, &h, rest, &m)
}

// control takes the messages that are not calls.
func (s *session) control(to replyTo, rest []byte) error {
	switch to.callID {
	case wire.CallIDPing:
		return nil
	case wire.CallIDSASL:
		return s.sasl(to, rest)
	case wire.CallIDContext:
		return s.introduce(to, rest)
	}
	return s.tell(to, fatal(codeFatalHeader, exception.RPCServer, fmt.Sprintf("Unknown out of band call #%d", to.callID)))
}

// mostName is the longest name of a user in bytes: a host's name of 255 and the
// rest of a Kerberos principal fit. Counters and caches keep names.
const mostName = 512

// introduce takes the connection context: who the client is.
func (s *session) introduce(to replyTo, rest []byte) error {
	if s.known {
		return s.tell(to, fatal(codeFatalHeader, exception.RPCServer, "Connection context already processed"))
	}
	if s.auth.negotiating {
		return s.tell(to, fatal(codeFatalHeader, exception.RPCServer, "Connection header sent during SASL negotiation"))
	}
	hello := &rpcpb.IpcConnectionContextProto{}
	body, _, err := wire.Next(rest)
	if err == nil {
		err = proto.Unmarshal(body, hello)
	}
	if err != nil {
		return s.tell(to, fatal(codeFatalRequest, exception.RPCServer, "connection context: "+err.Error()))
	}
	// The protocol named here only matters to a server that authorizes by
	// it: each call names its own, and an unknown one is that call's error.
	s.user, s.realUser = hello.GetUserInfo().GetEffectiveUser(), hello.GetUserInfo().GetRealUser()
	if n := max(len(s.user), len(s.realUser)); n > mostName {
		s.user, s.realUser = "", ""
		return s.tell(to, unauthorized(fmt.Sprintf("the name of a user has %d bytes, at most %d are allowed", n, mostName)))
	}
	for _, name := range []*string{&s.user, &s.realUser} {
		if failed := s.server.shorten(name); failed != nil {
			s.user, s.realUser = "", ""
			return s.tell(to, failed)
		}
	}
	if failed := s.auth.check(s); failed != nil {
		return s.tell(to, failed)
	}
	s.known = true
	return nil
}

// shorten makes a client's name a short one.
func (s *Server) shorten(name *string) *failure {
	if *name == "" || s.cfg.ShortName == nil {
		return nil
	}
	short, err := s.cfg.ShortName(*name)
	if err == nil && len(short) > mostName {
		err = fmt.Errorf("the short name of a user has %d bytes, at most %d are allowed", len(short), mostName)
	}
	var e *exception.Error
	switch {
	case err == nil:
		*name = short
		return nil
	case errors.As(err, &e):
		return &failure{refusal: e, fatal: true, code: codeFatalUnauthorized}
	}
	return unauthorized(err.Error())
}

// call starts a call. What is wrong with the call alone is answered; the
// session goes on.
func (s *session) call(to replyTo, h *wire.Request, rest []byte, m *carrier.Message) error {
	if !s.known {
		return s.tell(to, fatal(codeFatalHeader, exception.RPCServer, "Connection context not established"))
	}
	invocation, rest, err := wire.ParseInvocation(rest)
	if err != nil {
		return s.tell(to, fatal(codeFatalRequest, exception.RPCServer, "request: "+err.Error()))
	}
	method := s.recent
	if method == nil || !method.is(&invocation) {
		var failed *failure
		if method, failed = s.server.find(&invocation); failed != nil {
			s.replyError(&to, failed, carrier.Later)
			return nil
		}
		s.recent = method
	}
	body, rest, err := wire.Next(rest)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes follow them", len(rest))
	}
	if err != nil {
		s.replyError(&to, badArguments(method.name, err), carrier.Later)
		return nil
	}
	if len(s.fresh) == 0 {
		s.fresh = make([]call, callsAtOnce)
	}
	c := &s.fresh[0]
	s.fresh = s.fresh[1:]
	c.Context, c.session, c.method = s.ctx, s, method
	c.Call = Call{
		User: s.user, RealUser: s.realUser, CallID: h.CallID, RetryCount: h.RetryCount,
		Protocol: method.class, Method: method.name, Peer: s.peer, Host: s.host,
	}
	if len(h.ClientID) == len(c.ClientID) {
		c.ClientID = ClientID(h.ClientID)
	}
	c.to = to
	endpoint := false
	if a, ok := to.out.(*calls.Answer); ok {
		c.via, endpoint = *a, true // the session's is used for the next one
		c.to.out = &c.via
	}
	c.size = int64(len(body))
	if method.short && !method.once && m.Owner == nil && !(endpoint && c.via.Long(len(body))) {
		if c.req, c.lent, err = method.decode(body, lentField); err != nil {
			c.answer(nil, badArguments(method.name, err), carrier.Later)
			return nil
		}
		if c.short(endpoint) {
			return nil
		}
	}
	c.to.clientID = append(c.id[:0], to.clientID...) // the message's memory goes
	if endpoint {
		return s.enqueueCall(c, body)
	}
	size := int64(len(body))
	if m.Owner != nil {
		size = int64(len(m.Bytes)) // the call keeps all of the message
		c.body = carrier.Message{Bytes: body, Owner: m.Owner}
		*m = carrier.Message{}
	} else if c.req, _, err = method.decode(body, 0); err != nil {
		c.answer(nil, badArguments(method.name, err), carrier.Later)
		return nil
	}
	return s.enqueue(c, size)
}

// short runs a call where its connection is read, and reports false if it is not short.
func (c *call) short(endpoint bool) bool {
	c.Short = true
	resp, err := c.invoke()
	if err == ErrLong && !c.deferred {
		c.Short, c.req = false, nil
		return false
	}
	c.session.latest = c.began
	if endpoint && err == nil {
		c.to.size = sizeOf(resp)
	}
	switch {
	case err == ErrDeferred:
	case c.to.size > 0 && c.via.Long(c.to.size):
		// The answer may refer to the request, whose memory is there until it has been answered.
		c.session.waits.Go(func() { c.answer(resp, nil, carrier.Now) })
	default:
		c.answer(resp, err, carrier.Later)
	}
	return true
}

// is tells whether an invocation is of the method.
func (m *served) is(i *wire.Invocation) bool {
	return string(i.Method) == m.name && string(i.Class) == m.class && i.Version == m.version
}

// find finds a method.
func (s *Server) find(i *wire.Invocation) (*served, *failure) {
	p, ok := s.protocols[string(i.Class)]
	if !ok {
		return nil, refuse(codeNoSuchProtocol, exception.NoSuchProtocol, "Unknown protocol: "+quoted(i.Class))
	}
	if i.Version != p.version {
		return nil, refuse(codeProtocolVersion, exception.VersionMismatch, fmt.Sprintf(
			"Protocol %s version mismatch. (client = %d, server = %d)", p.class, i.Version, p.version))
	}
	m, ok := p.methods[string(i.Method)]
	if !ok {
		return nil, refuse(codeNoSuchMethod, exception.NoSuchMethod, "Unknown method "+quoted(i.Method)+" called on "+p.class+" protocol.")
	}
	return m, nil
}

// quoted is what a client sent as it may stand in a message to it or in a log:
// at most 128 bytes of it, and nothing but printable characters.
func quoted(b []byte) string {
	const most = 128
	if len(b) <= most {
		return strconv.Quote(string(b))
	}
	return strconv.Quote(string(b[:most])) + "... (" + strconv.Itoa(len(b)) + " bytes)"
}

// enqueue gives a call to the handlers. While the session's calls under way are
// too many or too large, nothing more is read from the client.
func (s *session) enqueue(c *call, size int64) error {
	if len(s.slots) == cap(s.slots) || !s.bytes.TryAcquire(size) {
		s.line.Flush()
		if s.bytes.Acquire(s.ctx, size) != nil {
			c.done()
			return net.ErrClosed
		}
	}
	select {
	case s.slots <- struct{}{}:
	default:
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			s.bytes.Release(size)
			c.done()
			return net.ErrClosed
		}
	}
	c.size = size
	if !s.begin(c) {
		return nil
	}
	if in, level := s.server.queue.Push(c, c.User, c.method.urgent, c.size); in {
		if !s.full.IsZero() {
			s.full = time.Time{}
		}
	} else if !s.waitInLine(c, level) {
		c.refuseBusy(carrier.Later)
	}
	return nil
}

// begin counts a call as under way. It reports false if the retry cache sees to its
// answer.
func (s *session) begin(c *call) (run bool) {
	c.slot = true
	if !c.method.once || c.ClientID == (ClientID{}) {
		s.calls.Add(1)
		return true
	}
	c.outlives = true // a repetition may come by another connection
	c.Context = s.server.ctx
	run, body := s.server.retries.begin(c)
	if body == nil {
		return run
	}
	s.server.metrics.repeated.Inc()
	again := func() {
		s.replyBytes(&c.to, body, carrier.Later)
		c.done()
	}
	if c.via.Valid() && c.via.Long(len(body)) {
		s.waits.Go(again)
	} else {
		again()
	}
	return false
}

// waitInLine waits for room in the queue, QueueWait for all of a row of calls
// that find none: those behind the first one that is refused are refused at
// once, for as long again.
func (s *session) waitInLine(c *call, level int) bool {
	most := s.server.cfg.QueueWait
	now := time.Now()
	if s.full.IsZero() || now.Sub(s.full) >= 2*most {
		s.full = now
	}
	left := most - now.Sub(s.full)
	if left <= 0 {
		return false
	}
	s.line.Flush()
	if !s.server.queue.PushWait(s.ctx, c, level, c.size, left) {
		return false
	}
	s.full = time.Time{}
	return true
}

// refuseBusy answers as Hadoop's server does when its queue is full.
func (c *call) refuseBusy(urgency carrier.Urgency) {
	c.session.server.metrics.busy.Inc()
	c.answer(nil, refuse(codeServer, exception.Retriable, "Server too busy"), urgency)
}

// release gives back what a call has taken of the session's bounds.
func (s *session) release(c *call) {
	if s.slots != nil {
		s.bytes.Release(c.size)
		<-s.slots
	} else {
		s.underWay.Add(-1)
	}
	if !c.outlives {
		s.calls.Done()
	}
}

// busy tells whether calls are under way.
func (s *session) busy() bool { return len(s.slots) > 0 }

// urgency of an answer: if other calls are under way, theirs may go out with it.
func (s *session) urgency() carrier.Urgency {
	if len(s.slots) > 1 {
		return carrier.Soon
	}
	return carrier.Now
}
