package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

// DialFramed returns a connection to the server at address for a client that frames
// Hadoop RPC itself, for a library that makes no use of endpoints. The requests that the
// library writes travel as calls on the endpoints of the client's pool, which
// connections of one user share; what it reads are their responses. repeat tells of
// each method what may happen to a call whose endpoint ends before the answer comes.
//
// A call is made when its response is read, on the goroutine that reads; or else when the
// next request is written. Calls are tried again as those of a [Proxy]. One that
// fails for want of an answer gets java.io.IOException as its response, and the
// connection goes on. A deadline or Close in the middle of a call ends the connection.
//
// The server is looked for when the connection context is written. If it takes no
// endpoints, or if the library wants to prove who it is, the connection is a plain
// stream from there on, by ClientConfig's Dial. DialFramed itself does not fail: it may
// be used as a dial function, and ctx bounds nothing.
func (c *Client) DialFramed(_ context.Context, address string, repeat func(method string) Repeat) (net.Conn, error) {
	f := &framed{client: c, address: address, repeat: repeat, wake: make(chan struct{}, 1)}
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	f.reading.parent, f.writing.parent = f.ctx, f.ctx
	return f, nil
}

// framed is what DialFramed returns.
type framed struct {
	client           *Client
	address          string
	repeat           func(method string) Repeat
	ctx              context.Context // ends with Close
	cancel           context.CancelCauseFunc
	reading, writing deadline

	write sync.Mutex // one Write at a time
	in    []byte     // written, and not taken yet
	begun bool       // the preamble and the connection context have been taken

	read sync.Mutex // one Read at a time
	rest response   // of it, what has not been read

	mu      sync.Mutex
	stream  net.Conn // instead of all else; nil: there is none
	proxy   *Proxy   // of who has introduced himself
	asked   []byte   // a request that nobody has taken; its memory is used again
	answers []response
	broken  error
	wake    chan struct{} // a token when a reader should look again
}

// A response waits to be read, behind its length.
type response struct {
	length  [4]byte
	prefix  []byte // what of length is left
	body    []byte // what of it is left
	message *verbena.Message
}

func (r *response) release() {
	if r.message != nil {
		r.message.Release()
	}
	*r = response{}
}

// Write takes requests. It waits for the server only when it says who calls, and for calls
// whose responses nobody reads.
func (f *framed) Write(p []byte) (int, error) {
	f.write.Lock()
	defer f.write.Unlock()
	stream, err := f.state()
	switch {
	case stream != nil:
		return stream.Write(p)
	case err != nil:
		return 0, f.failure("write", err)
	}
	f.in = append(f.in, p...)
	if err := f.take(f.writing.context()); err != nil {
		return 0, f.failure("write", f.fail(err))
	}
	return len(p), nil
}

func (f *framed) state() (stream net.Conn, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err = f.broken; f.ctx.Err() != nil {
		err = net.ErrClosed
	}
	return f.stream, err
}

// take takes what was written whole. write is held.
func (f *framed) take(ctx context.Context) error {
	if !f.begun {
		if took, err := f.begin(ctx); !took || err != nil {
			return err
		}
	}
	taken := 0
	for {
		frame, err := f.frame(f.in[taken:])
		if frame == nil || err != nil {
			f.in = append(f.in[:0], f.in[taken:]...)
			return err
		}
		taken += 4 + len(frame)
		if err := f.request(ctx, frame); err != nil {
			return err
		}
	}
}

// frame returns the frame at the beginning of b, or nil if it is not whole.
func (f *framed) frame(b []byte) ([]byte, error) {
	if len(b) < 4 {
		return nil, nil
	}
	n := int64(binary.BigEndian.Uint32(b))
	if most := f.client.cfg.MaxFrame; n > int64(most) {
		return nil, fmt.Errorf("a request of %d bytes, at most %d are taken", n, most)
	}
	if int64(len(b)-4) < n {
		return nil, nil
	}
	return b[4 : 4+n : 4+n], nil
}

// begin takes the preamble and the connection context, as soon as they are there, and
// decides between calls and a stream. write is held.
func (f *framed) begin(ctx context.Context) (took bool, err error) {
	if len(f.in) < preambleSize {
		return false, nil
	}
	if [4]byte(f.in) != magic || f.in[4] != wire.Version || f.in[6] != authNone {
		return true, f.bypass(ctx)
	}
	frame, err := f.frame(f.in[preambleSize:])
	if frame == nil || err != nil {
		return false, err
	}
	target, err := parseTarget(frame)
	if err != nil {
		return false, err
	}
	target.Address = f.address
	p := f.client.Proxy(target)
	err = errNoEndpoints
	if p.link.session != nil {
		ctx, cancel := context.WithTimeout(ctx, f.client.cfg.ConnectTimeout)
		err = p.link.onEndpoint(ctx, "", func(c *endpointCaller) error { return nil })
		cancel()
	}
	if errors.Is(err, errNoEndpoints) {
		return true, f.bypass(ctx)
	}
	if err != nil {
		return false, plain(err)
	}
	f.begun = true
	f.in = append(f.in[:0], f.in[preambleSize+4+len(frame):]...)
	f.mu.Lock()
	f.proxy = p
	f.mu.Unlock()
	return true, nil
}

// parseTarget reads a connection context.
func parseTarget(frame []byte) (Target, error) {
	h, rest, err := wire.ParseRequest(frame)
	if err == nil && h.CallID != wire.CallIDContext {
		err = fmt.Errorf("call %d before the connection context", h.CallID)
	}
	var body []byte
	if err == nil {
		body, _, err = wire.Next(rest)
	}
	hello := &rpcpb.IpcConnectionContextProto{}
	if err == nil {
		err = proto.Unmarshal(body, hello)
	}
	who := hello.GetUserInfo()
	return Target{Protocol: hello.GetProtocol(), User: who.GetEffectiveUser(), RealUser: who.GetRealUser()}, err
}

// bypass has a plain stream take all that was written and will be. write is held.
func (f *framed) bypass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.client.cfg.ConnectTimeout)
	defer cancel()
	nc, err := f.client.cfg.Dial(ctx, f.address)
	if err != nil {
		return err
	}
	f.mu.Lock()
	if f.ctx.Err() != nil {
		f.mu.Unlock()
		nc.Close()
		return net.ErrClosed
	}
	f.stream = nc
	_ = nc.SetReadDeadline(f.reading.when()) // it tells when it is used
	_ = nc.SetWriteDeadline(f.writing.when())
	f.mu.Unlock()
	f.look()
	f.begun = true
	rest := f.in
	f.in = nil
	_, err = nc.Write(rest)
	return err
}

// request takes a request, and makes the call of the one before if nobody has read its
// response.
func (f *framed) request(ctx context.Context, frame []byte) error {
	if h, _, err := wire.ParseRequest(frame); err != nil {
		return fmt.Errorf("request header: %w", err)
	} else if h.CallID == wire.CallIDPing {
		return nil
	}
	f.mu.Lock()
	before := f.asked
	f.asked = nil
	f.mu.Unlock()
	if len(before) > 0 {
		r, err := f.call(ctx, before)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.answers = append(f.answers, r)
		f.mu.Unlock()
	}
	f.mu.Lock()
	f.asked = append(before[:0], frame...)
	f.mu.Unlock()
	f.look()
	return nil
}

// look has a reader look again.
func (f *framed) look() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// call makes the call of a request. The error ends the connection.
func (f *framed) call(ctx context.Context, request []byte) (response, error) {
	h, rest, err := wire.ParseRequest(request)
	if err != nil {
		return response{}, fmt.Errorf("request header: %w", err)
	}
	var method string
	if i, _, err := wire.ParseInvocation(rest); err == nil { // else the server says what it thinks of it
		method = string(i.Method)
	}
	var answer *verbena.Message
	p := f.proxy
	err = p.repeat(ctx, method, f.repeat(method) > 0, func(int) error {
		return p.link.onEndpoint(ctx, method, func(c *endpointCaller) (err error) {
			if answer, err = c.raw(ctx, request); err != nil {
				return err
			}
			if err = retriable(answer.Bytes()); err != nil {
				answer.Release()
			}
			return err
		})
	})
	if ctx.Err() != nil {
		if err == nil {
			answer.Release()
		}
		return response{}, context.Cause(ctx)
	}
	if err != nil {
		return newResponse(nil, refusalTo(&h, err)), nil
	}
	return newResponse(answer, answer.Bytes()), nil
}

func newResponse(m *verbena.Message, body []byte) response {
	r := response{message: m, body: body}
	binary.BigEndian.PutUint32(r.length[:], uint32(len(body)))
	return r
}

// retriable returns the error of a response that asks the client to come back.
func retriable(b []byte) error {
	h, _, err := wire.ParseResponse(b)
	if err == nil && h.Status == wire.StatusError && exception.Class(h.Exception) == exception.Retriable {
		return &exception.Error{Class: exception.Retriable, Message: h.Message}
	}
	return nil
}

// refusalTo is the response that tells of an error.
func refusalTo(request *wire.Request, err error) []byte {
	h := wire.Response{
		CallID: request.CallID, ClientID: request.ClientID, RetryCount: request.RetryCount, Status: wire.StatusError,
		Exception: string(exception.IO), Message: err.Error(), Detail: int32(codeApplication),
	}
	var told *exception.Error
	if errors.As(err, &told) {
		h.Exception, h.Message = string(told.Class), told.Message
	}
	return h.Append(nil)
}

// Read returns bytes of responses.
func (f *framed) Read(p []byte) (int, error) {
	f.read.Lock()
	defer f.read.Unlock()
	for {
		r := &f.rest
		if n := copy(p, r.prefix); n > 0 {
			r.prefix = r.prefix[n:]
			return n, nil
		}
		if n := copy(p, r.body); n > 0 {
			if r.body = r.body[n:]; len(r.body) == 0 {
				r.release()
			}
			return n, nil
		}
		if len(p) == 0 {
			return 0, nil
		}
		stream, err := f.next(f.reading.context())
		switch {
		case stream != nil:
			return stream.Read(p)
		case err != nil:
			return 0, f.failure("read", err)
		}
		r.prefix = r.length[:]
	}
}

// next waits for the next response, or for the stream. read is held.
func (f *framed) next(ctx context.Context) (net.Conn, error) {
	for {
		if stream, err := f.state(); stream != nil || err != nil {
			return stream, err
		}
		f.mu.Lock()
		asked := f.asked
		switch {
		case len(f.answers) > 0:
			f.rest.release()
			f.rest = f.answers[0]
			f.answers = append(f.answers[:0], f.answers[1:]...)
			f.mu.Unlock()
			return nil, nil
		case len(asked) > 0:
			f.asked = nil
		}
		f.mu.Unlock()
		if len(asked) > 0 {
			r, err := f.call(ctx, asked)
			if err != nil {
				return nil, f.fail(err)
			}
			f.rest.release()
			f.rest = r
			f.mu.Lock()
			if f.asked == nil {
				f.asked = asked[:0]
			}
			f.mu.Unlock()
			return nil, nil
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// fail ends the connection.
func (f *framed) fail(err error) error {
	f.mu.Lock()
	if f.broken == nil {
		f.broken = err
	}
	err = f.broken
	f.mu.Unlock()
	f.look()
	return err
}

// failure is an error as connections have them.
func (f *framed) failure(op string, err error) error {
	if err == io.EOF {
		return err
	}
	var stream *net.OpError
	if errors.As(err, &stream) {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Addr: f.RemoteAddr(), Err: err}
}

// Close ends a call that is under way.
func (f *framed) Close() error {
	f.mu.Lock()
	again := f.ctx.Err() != nil
	f.cancel(net.ErrClosed)
	stream := f.stream
	f.mu.Unlock()
	switch {
	case again:
		return f.failure("close", net.ErrClosed)
	case stream != nil:
		return stream.Close()
	}
	f.write.Lock() // both are being told
	defer f.write.Unlock()
	f.read.Lock()
	defer f.read.Unlock()
	f.rest.release()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.answers {
		f.answers[i].release()
	}
	f.answers = nil
	return nil
}

// LocalAddr tells nothing: connections have no address of their own.
func (f *framed) LocalAddr() net.Addr {
	if stream, _ := f.state(); stream != nil {
		return stream.LocalAddr()
	}
	return framedAddr("")
}

// RemoteAddr is what was dialled.
func (f *framed) RemoteAddr() net.Addr {
	if stream, _ := f.state(); stream != nil {
		return stream.RemoteAddr()
	}
	return framedAddr(f.address)
}

// framedAddr is an address that was dialled.
type framedAddr string

// Network is that of the port at which the server is found.
func (framedAddr) Network() string { return "tcp" }

func (a framedAddr) String() string { return string(a) }

// SetDeadline sets both deadlines.
func (f *framed) SetDeadline(t time.Time) error {
	return errors.Join(f.SetReadDeadline(t), f.SetWriteDeadline(t))
}

// SetReadDeadline bounds Read, and the call that it makes.
func (f *framed) SetReadDeadline(t time.Time) error {
	return f.setDeadline(&f.reading, t, net.Conn.SetReadDeadline)
}

// SetWriteDeadline bounds Write, the looking for the server included.
func (f *framed) SetWriteDeadline(t time.Time) error {
	return f.setDeadline(&f.writing, t, net.Conn.SetWriteDeadline)
}

func (f *framed) setDeadline(d *deadline, t time.Time, stream func(net.Conn, time.Time) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return &net.OpError{Op: "set", Net: "tcp", Addr: framedAddr(f.address), Err: net.ErrClosed}
	}
	d.set(t)
	if f.stream != nil {
		return stream(f.stream, t)
	}
	return nil
}

// A deadline makes contexts of the deadlines of a connection.
type deadline struct {
	parent context.Context

	mu     sync.Mutex
	at     time.Time // zero: none
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// context is for what begins now. It ends at the deadline that holds then.
func (d *deadline) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.make()
}

// make needs mu.
func (d *deadline) make() context.Context {
	if d.ctx == nil {
		d.ctx, d.cancel = context.WithCancelCause(d.parent)
	}
	return d.ctx
}

func (d *deadline) when() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

// set changes the deadline, also for what is under way.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.ctx != nil && d.ctx.Err() != nil {
		d.ctx = nil
	}
	d.at = t
	ctx, cancel := d.make(), d.cancel
	switch left := time.Until(t); {
	case t.IsZero() || ctx.Err() != nil:
	case left <= 0:
		cancel(os.ErrDeadlineExceeded)
	default:
		var timer *time.Timer
		timer = time.AfterFunc(left, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.timer == timer { // else another deadline has come
				cancel(os.ErrDeadlineExceeded)
			}
		})
		d.timer = timer
	}
}
