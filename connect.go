package verbena

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/rdma"
)

// A linker connects a queue pair, whose private data it gets, and returns what the
// peer answered.
type linker func(ctx context.Context, qp rdma.QueuePair, private []byte) (reply []byte, err error)

// connectStream connects e over conn, which belongs to it from here on.
func (g *Group) connectStream(ctx context.Context, d *device, e *Endpoint, conn net.Conn) error {
	return g.connect(ctx, d, e, func(ctx context.Context, qp rdma.QueuePair, private []byte) ([]byte, error) {
		return d.dev.(rdma.StreamDevice).ConnectStream(ctx, qp, conn, private)
	})
}

// connectAddress connects e to the port of a device, with the token that the
// answer gave.
func (g *Group) connectAddress(ctx context.Context, d *device, e *Endpoint, address string, token []byte) error {
	return g.connect(ctx, d, e, func(ctx context.Context, qp rdma.QueuePair, private []byte) ([]byte, error) {
		shown := append(make([]byte, 0, hello.TokenSize+wire.ParametersSize), token...)
		return qp.Connect(ctx, address, append(shown, private...))
	})
}

// acceptStream is the other side of connectStream.
func (g *Group) acceptStream(ctx context.Context, d *device, e *Endpoint, conn net.Conn) error {
	request, err := d.dev.(rdma.StreamDevice).RequestFromStream(ctx, conn)
	if err != nil {
		return err
	}
	return g.accept(ctx, d, e, request, request.PrivateData())
}

// connect makes e's queue pair on a device and connects it.
func (g *Group) connect(ctx context.Context, d *device, e *Endpoint, establish linker) error {
	ctx, end := g.within(ctx)
	defer end()
	e.count = &d.count
	s, err := g.newShell(d, e)
	if err == nil {
		var reply []byte
		if reply, err = establish(ctx, s.qp, s.parameters()); err != nil {
			if rejected := (*rdma.RejectedError)(nil); errors.As(err, &rejected) && len(rejected.PrivateData) > 0 {
				err = fmt.Errorf("%w: %q", err, rejected.PrivateData)
			}
		} else {
			err = s.startWith(reply)
		}
	}
	return d.settle(e, s, err)
}

// accept is the other side of connect.
func (g *Group) accept(ctx context.Context, d *device, e *Endpoint, request rdma.ConnectRequest, private []byte) error {
	ctx, end := g.within(ctx)
	defer end()
	e.count = &d.count
	if known, ok := request.(rdma.CredentialedRequest); ok {
		if who, ok := known.PeerCredentials(); ok {
			e.origin = processOf(who)
		}
	}
	peer, err := wire.ParseParameters(private)
	if err != nil {
		return errors.Join(err, request.Reject([]byte("endpoint parameters not understood")))
	}
	s, err := g.newShell(d, e)
	if err != nil {
		_ = request.Reject([]byte(rejectionFor(err))) // the error tells more
	} else if err = request.Accept(ctx, s.qp, s.parameters()); err == nil {
		err = s.start(peer)
	}
	return d.settle(e, s, err)
}

func (g *Group) newShell(d *device, e *Endpoint) (*shell, error) {
	domain, err := g.on(d)
	if err != nil {
		return nil, err
	}
	return newShell(e, domain)
}

// settle counts an endpoint that got connected, and frees one that did not.
func (d *device) settle(e *Endpoint, s *shell, err error) error {
	if err == nil {
		d.count.opened.Add(1)
		return nil
	}
	d.count.failed.Add(1)
	if s != nil {
		s.free()
		e.carrier, e.selection.Device = nil, ""
	}
	return err
}

// publish opens a device's own port, for requests that show a ticket.
func (r *Runtime) publish(d *device) (address string, err error) {
	return d.listen(r.ctx, func(request rdma.ConnectRequest) { r.redeem(d, request) })
}

// redeem connects a request with the hello whose token it shows.
func (r *Runtime) redeem(d *device, request rdma.ConnectRequest) {
	private := request.PrivateData()
	if len(private) < hello.TokenSize {
		_ = request.Reject([]byte("no token")) // not one of ours
		return
	}
	t := r.tickets.take(private[:hello.TokenSize])
	if t == nil || t.endpoint.selection.Transport != d.transport {
		r.cfg.Logger.Warn("connection request with an unknown token", "device", d.attributes.Name, "peer", request.RemoteAddress())
		err := request.Reject([]byte(rejectToken))
		if t != nil {
			t.finish(errors.Join(fmt.Errorf("%w: its token was shown to %s", ErrProtocol, d.transport), err))
		}
		return
	}
	t.finish(t.group.accept(t.ctx, d, t.endpoint, request, private[hello.TokenSize:]))
}

// originOf names the peer for which memory is counted: the process if the kernel
// vouches for it, the address that was dialled, or else that of the host.
func originOf(conn net.Conn, dialled bool) string {
	if who, ok := socketCredentials(conn); ok {
		return processOf(who)
	}
	if dialled {
		return conn.RemoteAddr().String()
	}
	return sourceOf(conn)
}
