package rpc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/stream"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
	"github.com/verbena-data/verbena/internal/patience"
)

// Target is a protocol of a server, and who calls it.
type Target struct {
	Address  string // host:port
	Protocol string // Java class name
	Version  uint64 // of the protocol; 0 means 1
	User     string // effective user
	RealUser string // who authenticates, if that is another
	// Token authenticates the user by SASL. A server that does not ask for it
	// is refused. nil means to say only who the user is.
	Token *Token
	// Login authenticates the user by another mechanism of SASL, likewise. Targets
	// with the same one share connections. At most one of Token and Login is set.
	Login *Login
}

// Conn makes calls on one connection, any number at once. It neither reconnects
// nor repeats; [Client] does.
type Conn struct {
	nc     net.Conn
	r      *stream.Reader
	w      *stream.Writer
	caller *caller
	next   atomic.Uint32 // call id, unless a Client counts
	timer  *time.Timer
	shared *stream.SharedReader // by r, from the start of the session on
	ended  chan struct{}        // closed when the reader has ended

	watching sync.Mutex // of the one caller who polls
	spin     patience.Spinner
	crowd    *patience.Crowd
}

// NewConn starts a session on nc, which then belongs to the connection. ctx
// bounds the start alone.
func NewConn(ctx context.Context, nc net.Conn, target Target, cfg ClientConfig) (*Conn, error) {
	var id ClientID
	_, _ = rand.Read(id[:]) // never fails
	return startConn(ctx, nc, target, cfg.withDefaults(), id)
}

func startConn(ctx context.Context, nc net.Conn, target Target, cfg ClientConfig, id ClientID) (*Conn, error) {
	if target.Version == 0 {
		target.Version = 1
	}
	c := &Conn{
		nc: nc, ended: make(chan struct{}), crowd: patience.Processors,
		r: stream.NewReader(nc, cfg.MaxFrame),
		w: stream.NewWriter(nc, cfg.CallTimeout, silence, nil),
	}
	c.caller = newCaller(c.w, id, &target, cfg.CallTimeout)
	c.shared = stream.Share(c.r, c.caller.received, c.caller.deliver)
	if c.spin = patience.NewCostlySpinner(cfg.Spin); cfg.Spin > 0 && c.shared.Looks() {
		c.caller.watch = c.watch
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		c.w.Abort(context.Cause(ctx))
	})
	err := c.introduce(ctx, &target)
	if !stop() {
		<-interrupted
		err = context.Cause(ctx)
	}
	if err != nil {
		c.w.Stop()
		return nil, fmt.Errorf("rpc: connect to %s: %w", nc.RemoteAddr(), err)
	}
	go func() {
		defer close(c.ended)
		c.caller.fail(c.why(c.shared.Run()))
	}()
	every := min(cfg.PingInterval/2, cfg.IdleTimeout/2)
	if cfg.CallTimeout > 0 {
		every = min(every, cfg.CallTimeout/8)
	}
	const never = 1 << 62
	c.timer = time.AfterFunc(never, func() {
		c.caller.upkeep(cfg.PingInterval, cfg.IdleTimeout)
		select {
		case <-c.ended:
		default:
			c.timer.Reset(every)
		}
	})
	c.timer.Reset(every) // not sooner: the function uses c.timer
	return c, nil
}

// introduce says who the client is, and proves it if it has a token or another login.
func (c *Conn) introduce(ctx context.Context, target *Target) error {
	hello := [preambleSize]byte{magic[0], magic[1], magic[2], magic[3], wire.Version, 0, authNone}
	login := target.login()
	if login != nil {
		hello[6] = authSASL
	}
	if _, err := c.nc.Write(hello[:]); err != nil {
		return err
	}
	if login != nil {
		if err := login.authenticate(ctx, c.sasl); err != nil {
			return err
		}
	}
	return c.caller.control(ctx, wire.CallIDContext, target.context())
}

// context is the connection context that tells a server of the target.
func (t *Target) context() *rpcpb.IpcConnectionContextProto {
	who := &rpcpb.IpcConnectionContextProto{Protocol: &t.Protocol}
	if t.Token == nil && (t.Login == nil || t.User != "") {
		who.UserInfo = &rpcpb.UserInformationProto{EffectiveUser: &t.User}
		if t.RealUser != "" {
			who.UserInfo.RealUser = &t.RealUser
		}
	}
	return who
}

// saslTurn sends a message of the negotiation and returns the answer.
type saslTurn func(context.Context, *rpcpb.RpcSaslProto) (*rpcpb.RpcSaslProto, error)

// sasl sends a message of the negotiation and reads the answer.
func (c *Conn) sasl(ctx context.Context, m *rpcpb.RpcSaslProto) (*rpcpb.RpcSaslProto, error) {
	if err := c.caller.control(ctx, wire.CallIDSASL, m); err != nil {
		return nil, err
	}
	answer, err := c.r.Next()
	if err != nil {
		return nil, err
	}
	defer answer.Release()
	return parseSASL(answer.Bytes)
}

func parseSASL(b []byte) (*rpcpb.RpcSaslProto, error) {
	h, rest, err := wire.ParseResponse(b)
	if err != nil {
		return nil, err
	}
	if h.Status != wire.StatusSuccess {
		return nil, &exception.Error{Class: exception.Class(h.Exception), Message: h.Message}
	}
	body, _, err := wire.Next(rest)
	if err != nil {
		return nil, err
	}
	if h.CallID != wire.CallIDSASL {
		return nil, fmt.Errorf("an answer to call %d during the negotiation", h.CallID)
	}
	out := &rpcpb.RpcSaslProto{}
	return out, proto.Unmarshal(body, out)
}

// Call calls a method and decodes its answer into resp, which must not be used
// until then. The server's refusal is an [*exception.Error]. If the connection
// ends meanwhile the error is [ErrOutcomeUnknown], as it may be after the end
// of ctx.
func (c *Conn) Call(ctx context.Context, method string, req, resp proto.Message) error {
	id := int32(c.next.Add(1)-1) & 0x7fffffff
	if err := c.caller.call(ctx, id, 0, method, req, resp); err != nil {
		return named(method, c.nc.RemoteAddr().String(), plain(err))
	}
	return nil
}

// reason tells why no further call may begin, or is nil.
func (c *Conn) reason() error { return c.caller.reason() }

// watch polls for the answer to the only call under way, as long as that is worth it: who
// sleeps has to be woken, which takes longer than many a server does to answer.
func (c *Conn) watch(answered func() bool) {
	if !c.watching.TryLock() {
		return
	}
	defer c.watching.Unlock()
	budget := c.spin.Next()
	if budget <= 0 || c.crowd.Dense() {
		return
	}
	start := c.crowd.Now()
	last, yielded := start, start
	for {
		if _, err := c.shared.Look(); err != nil {
			c.caller.fail(c.why(err)) // ends Run, too
			return
		}
		now := c.crowd.Now()
		switch {
		case answered():
			c.spin.Helped(now - start)
			return
		case now-last > patience.Preempted:
			c.crowd.Pushed(now)
			return
		case now-start > budget || c.crowd.Pressed(now):
			c.spin.Vain(now - start)
			return
		}
		if last = now; now-yielded > patience.YieldEvery {
			yielded = now
			runtime.Gosched()
		}
	}
}

// why prefers the reason of the writer, which closes the connection under the
// reader.
func (c *Conn) why(err error) error {
	if sending := c.w.Err(); sending != nil {
		return sending
	}
	if errors.Is(err, io.EOF) {
		return errServerClosed
	}
	return err
}

var errServerClosed = fmt.Errorf("the server closed the connection: %w", io.EOF)

// Close ends the calls under way; their error wraps [ErrClosed].
func (c *Conn) Close() error {
	c.caller.fail(ErrClosed)
	<-c.ended
	c.timer.Stop()
	c.w.Stop()
	return nil
}
