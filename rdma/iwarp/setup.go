package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/internal/users"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

func (d *device) own(qp rdma.QueuePair) (*queuePair, error) {
	q, ok := qp.(*queuePair)
	if !ok || q.domain.device != d {
		return nil, fmt.Errorf("%w: the queue pair is not of this device", rdma.ErrInvalid)
	}
	return q, nil
}

// What a side offers and takes if the configuration does not say. Linux siw
// answers the offer of a Send with a Write.
var (
	defaultOffered = []engine.Ready{engine.ReadyWrite, engine.ReadyRead}
	defaultTaken   = []engine.Ready{engine.ReadyWrite, engine.ReadyRead, engine.ReadySend}
)

// local is what this side brings into the set-up of q; otherwise is what
// Config.readyToReceive is by default.
func (d *device) local(q *queuePair, otherwise []engine.Ready) engine.Local {
	c := &d.config
	l := engine.Local{Revision: uint8(c.Revision), IRD: q.config.MaxReads, ORD: q.config.MaxReads,
		Markers: c.Markers, NoCRC: c.NoCRC, Ready: c.readyToReceive, SpeakFirst: c.SpeakFirst}
	if l.Ready == nil {
		l.Ready = otherwise
	}
	return l
}

func (d *device) connect(ctx context.Context, q *queuePair, address string, private []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*d.config.setupTimeout) // dialling, then the Reply
	defer cancel()
	if s := q.engine.State(); s != rdma.StateInit {
		return nil, fmt.Errorf("iwarp: connect to %s: %w: the queue pair is %s", address, rdma.ErrState, s)
	}
	// Before dialling: Linux siw takes a connection that is closed before it has been
	// accepted for its listener's end.
	o, err := d.opening(q, private)
	if err != nil {
		return nil, fmt.Errorf("iwarp: connect to %s: %w", address, err)
	}
	dialer := net.Dialer{Timeout: d.config.setupTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		err = setupError("connect to", address, err)
		q.localEnd.Store(true)
		q.engine.Fail(err)
		q.engine.Flush()
		return nil, err
	}
	return d.connectStream(ctx, q, conn, address, o)
}

// ConnectStream implements [rdma.StreamDevice]. The stream is closed on an error.
func (d *device) ConnectStream(ctx context.Context, qp rdma.QueuePair, stream net.Conn, private []byte) ([]byte, error) {
	q, err := d.own(qp)
	var o opening
	if err == nil {
		o, err = d.opening(q, private)
	}
	if err != nil {
		_ = stream.Close()
		return nil, fmt.Errorf("iwarp: connect: %w", err)
	}
	return d.connectStream(ctx, q, stream, stream.RemoteAddr().String(), o)
}

func (d *device) connectStream(ctx context.Context, q *queuePair, conn net.Conn, peer string, o opening) ([]byte, error) {
	if err := q.begin(conn, peer); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("iwarp: connect to %s: %w", peer, err)
	}
	reply, params, err := d.initiate(ctx, conn, o)
	if err == nil {
		// Before it has accepted, no process has the other end.
		_, err = d.checkPeer(conn)
	}
	if err == nil {
		d.tune(conn, &params)
		err = q.run(conn, params)
	}
	if err == nil {
		return reply, nil
	}
	if errors.Is(err, engine.ErrRejected) {
		err = rejected(err, &rdma.RejectedError{Peer: peer, PrivateData: reply})
	} else {
		err = setupError("connect to", peer, err)
	}
	q.abandon(conn, err)
	return reply, err
}

// rejected adds to the application's error what the Reply tells of the reason.
func rejected(err error, rejection *rdma.RejectedError) error {
	if err == engine.ErrRejected {
		return rejection
	}
	return fmt.Errorf("iwarp: %w: %w", rejection, err)
}

// opening is a Request and what it was made of.
type opening struct {
	local   engine.Local
	request wire.Setup
	frame   []byte
}

func (d *device) opening(q *queuePair, private []byte) (o opening, err error) {
	o.local = d.local(q, defaultOffered)
	o.request = engine.Request(o.local, private)
	if o.frame, err = wire.AppendSetup(nil, &o.request); err != nil {
		err = fmt.Errorf("%w: %w", rdma.ErrInvalid, err)
	}
	return o, err
}

// initiate sends the Request and reads the Reply.
func (d *device) initiate(ctx context.Context, conn net.Conn, o opening) ([]byte, engine.Params, error) {
	var reply wire.Setup
	var params engine.Params
	err := d.bounded(ctx, conn, func() (err error) {
		if _, err := conn.Write(o.frame); err != nil {
			return fmt.Errorf("send the MPA Request: %w", err)
		}
		reply, err = readSetup(conn, true)
		if err != nil {
			return err
		}
		params, err = engine.Conclude(&o.request, &reply, o.local)
		var refused *engine.SetupError
		if errors.As(err, &refused) {
			_, _ = conn.Write(engine.TerminateFrame(refused.Cause, o.request.CRC || reply.CRC, reply.Markers))
		}
		return err
	})
	return reply.Private, params, err
}

// bounded runs a step of the set-up with the deadlines of ctx and the device on
// conn.
func (d *device) bounded(ctx context.Context, conn net.Conn, step func() error) error {
	if err := conn.SetDeadline(time.Now().Add(d.config.setupTimeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err := step()
	if !stop() {
		// The deadline may be set any time now: the connection is of no use.
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			err = ctx.Err()
		}
		return err
	}
	if err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// readSetup reads one frame and not a byte more: what follows belongs to the
// queue pair.
func readSetup(conn net.Conn, reply bool) (wire.Setup, error) {
	name := "Request"
	if reply {
		name = "Reply"
	}
	frame := make([]byte, wire.SetupHeaderSize, wire.SetupHeaderSize+wire.MaxPrivateData)
	if _, err := io.ReadFull(conn, frame); err != nil {
		return wire.Setup{}, fmt.Errorf("read the MPA %s: %w", name, err)
	}
	n, err := wire.SetupPrivateLength(frame, reply)
	if err != nil {
		return wire.Setup{}, fmt.Errorf("read the MPA %s: %w", name, err)
	}
	frame = frame[:len(frame)+n]
	if _, err := io.ReadFull(conn, frame[wire.SetupHeaderSize:]); err != nil {
		return wire.Setup{}, fmt.Errorf("read the MPA %s: %w", name, err)
	}
	setup, err := wire.ParseSetup(frame, reply)
	if err != nil {
		return wire.Setup{}, fmt.Errorf("read the MPA %s: %w", name, err)
	}
	return setup, nil
}

// setupError words why a connection did not come about.
func setupError(what, peer string, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %w", rdma.ErrTimeout, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("%w: the peer closed the connection, perhaps it does not speak MPA: %w", rdma.ErrDisconnected, err)
	}
	return fmt.Errorf("iwarp: %s %s: %w", what, peer, err)
}

// connectRequest implements [rdma.ConnectRequest].
type connectRequest struct {
	device   *device
	conn     net.Conn
	setup    wire.Setup
	answered atomic.Bool
}

// RequestFromStream implements [rdma.StreamDevice]. The stream is closed on an
// error.
func (d *device) RequestFromStream(ctx context.Context, stream net.Conn) (rdma.ConnectRequest, error) {
	_, refused, err := d.admit(stream)
	if refused != nil {
		return nil, d.hearOut(ctx, stream, refused)
	}
	var r *connectRequest
	if err == nil {
		r, err = d.readRequest(ctx, stream)
	}
	if err != nil {
		_ = stream.Close()
		return nil, err
	}
	return r, nil
}

// admit tells where a stream comes from. If its peer is not let in, refused says why,
// and the peer is to be told; err is about peers that are not spoken to.
func (d *device) admit(stream net.Conn) (from origin, refused, err error) {
	from, refused = d.checkPeer(stream)
	if refused != nil || from.here {
		return from, refused, nil
	}
	if !d.config.AllowRemote {
		return from, nil, fmt.Errorf("iwarp: request from %s: %w: it is of another host and there is no authentication; "+
			"set Config.AllowRemote if the network is trusted", stream.RemoteAddr(), rdma.ErrInvalid)
	}
	d.warnRemote.Do(func() {
		d.config.Logger.Warn("iwarp serves peers of other hosts, without authentication", "first", stream.RemoteAddr().String())
	})
	return from, nil, nil
}

// readRequest reads what the peer asks for. The caller closes the stream on an error.
func (d *device) readRequest(ctx context.Context, stream net.Conn) (*connectRequest, error) {
	r := &connectRequest{device: d, conn: stream}
	err := d.bounded(ctx, stream, func() (err error) {
		r.setup, err = readSetup(stream, false)
		return err
	})
	if err != nil {
		return nil, setupError("request from", stream.RemoteAddr().String(), err)
	}
	return r, nil
}

// hearOut tells a peer that it is not let in, once it has sent its Request, and closes
// the stream. One that is slow learns nothing. It returns the reason.
func (d *device) hearOut(ctx context.Context, stream net.Conn, refused error) error {
	ctx, cancel := context.WithTimeout(ctx, d.config.lingerTimeout)
	defer cancel()
	if r, err := d.readRequest(ctx, stream); err == nil {
		_ = r.refuse([]byte(refusal))
	} else {
		_ = stream.Close()
	}
	return fmt.Errorf("iwarp: request from %s: %w", stream.RemoteAddr(), refused)
}

// refusal is what a refused peer is told. It names no user.
const refusal = "iwarp serves the processes of one user on a host: name the other side's user in AllowUIDs on both sides"

// An origin is where connections come from: a user of this host, an address of
// another, or a network of IPv6, of which whoever has one address has all.
type origin struct {
	here    bool
	user    uint32
	network netip.Prefix
}

// checkPeer tells where the peer is, and refuses it if it is on this host and
// its user is neither this process's nor in Config.AllowUIDs, or is not known.
func (d *device) checkPeer(stream net.Conn) (origin, error) {
	uid, err := peerUser(stream)
	if errors.Is(err, errNoSocket) && (!sameHost(stream) || d.config.AllowRemote && !loopback(stream)) {
		// Also the kernel's own iWARP, which connects an address to itself and whose
		// socket no process of this network namespace has.
		return origin{network: network(stream)}, nil
	}
	from := origin{here: true, user: uid}
	if err != nil {
		return from, fmt.Errorf("%w: it is of this host, and its user cannot be told: %w", rdma.ErrInvalid, err)
	}
	if served := users.Served(d.config.AllowUIDs); !served.Admits(uid) {
		return from, fmt.Errorf("%w: it is a process of user %d, %s: name that user in Config.AllowUIDs", rdma.ErrInvalid, uid, served.Why(uid))
	}
	return from, nil
}

func network(stream net.Conn) netip.Prefix {
	remote, ok := stream.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := remote.AddrPort().Addr().Unmap()
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits) // of an address that is none it is none
	return prefix
}

// loopback tells whether the peer is at an address that no other host or network
// namespace can have.
func loopback(stream net.Conn) bool {
	remote, ok := stream.RemoteAddr().(*net.TCPAddr)
	return !ok || remote.IP.IsLoopback()
}

// sameHost tells whether both ends of a stream are on this host: loopback, one
// of its addresses connected to itself, or no internet protocol at all.
func sameHost(stream net.Conn) bool {
	remote, ok := stream.RemoteAddr().(*net.TCPAddr)
	if !ok || remote.IP.IsLoopback() {
		return true
	}
	local, ok := stream.LocalAddr().(*net.TCPAddr)
	return ok && local.IP.Equal(remote.IP)
}

func (r *connectRequest) PrivateData() []byte   { return r.setup.Private }
func (r *connectRequest) RemoteAddress() string { return r.conn.RemoteAddr().String() }

func (r *connectRequest) claim() error {
	if r.answered.Swap(true) {
		return fmt.Errorf("iwarp: request from %s: %w: it has been answered", r.RemoteAddress(), rdma.ErrState)
	}
	return nil
}

func (r *connectRequest) Accept(ctx context.Context, qp rdma.QueuePair, private []byte) error {
	if err := r.claim(); err != nil {
		return err
	}
	peer := r.RemoteAddress()
	q, err := r.device.own(qp)
	if err == nil {
		err = q.begin(r.conn, peer)
	}
	if err != nil {
		_ = r.refuse(nil)
		return fmt.Errorf("iwarp: accept %s: %w", peer, err)
	}
	reply, params, unfit := engine.Answer(&r.setup, r.device.local(q, defaultTaken), private)
	frame, err := wire.AppendSetup(nil, &reply)
	if err != nil {
		_ = r.refuse(nil)
		err = fmt.Errorf("iwarp: accept %s: %w: %w", peer, rdma.ErrInvalid, err)
		q.abandon(r.conn, err)
		return err
	}
	r.device.tune(r.conn, &params)
	err = r.device.bounded(ctx, r.conn, func() error {
		if _, err := r.conn.Write(frame); err != nil {
			return fmt.Errorf("send the MPA Reply: %w", err)
		}
		return unfit
	})
	if err == nil {
		err = q.run(r.conn, params)
	}
	if err != nil {
		err = setupError("accept", peer, err)
		q.abandon(r.conn, err)
		return err
	}
	return nil
}

func (r *connectRequest) Reject(private []byte) error {
	if err := r.claim(); err != nil {
		return err
	}
	if err := r.refuse(private); err != nil {
		return fmt.Errorf("iwarp: reject %s: %w", r.RemoteAddress(), err)
	}
	return nil
}

func (r *connectRequest) refuse(private []byte) error {
	defer func() { _ = r.conn.Close() }()
	reply := engine.Refuse(&r.setup, private)
	frame, err := wire.AppendSetup(nil, &reply)
	if err != nil {
		return fmt.Errorf("%w: %w", rdma.ErrInvalid, err)
	}
	if err := r.conn.SetWriteDeadline(time.Now().Add(r.device.config.lingerTimeout)); err != nil {
		return err
	}
	_, err = r.conn.Write(frame)
	return err
}
