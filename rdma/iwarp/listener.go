package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// listener implements [rdma.Listener]. One goroutine accepts connections, one
// for each pending connection reads its Request and waits for Accept.
type listener struct {
	device   *device
	net      net.Listener
	requests chan rdma.ConnectRequest
	pending  *pending
	refusals refusals
	warnings warnings
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	group    sync.WaitGroup
}

// Listen implements [rdma.Device]. The address is host:port; without a host it
// is the loopback interface, without a port (or with 0) a free one is chosen.
func (d *device) Listen(ctx context.Context, address string) (rdma.Listener, error) {
	if err := available(); err != nil {
		return nil, fmt.Errorf("iwarp: listen: %w: %w", rdma.ErrUnavailable, err)
	}
	if address == "" {
		address = "127.0.0.1:0"
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("iwarp: listen at %q: %w: want host:port: %w", address, rdma.ErrInvalid, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	addresses, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("iwarp: listen at %q: %w", address, err)
	}
	ip := addresses[0]
	if !ip.IP.IsLoopback() {
		if !d.config.AllowRemote {
			return nil, fmt.Errorf("iwarp: listen at %q: %w: other hosts can reach it and there is no authentication; "+
				"set Config.AllowRemote if the network is trusted", address, rdma.ErrInvalid)
		}
	}
	var config net.ListenConfig
	n, err := config.Listen(ctx, "tcp", net.JoinHostPort(ip.String(), port))
	if err != nil {
		return nil, fmt.Errorf("iwarp: listen at %q: %w", address, err)
	}
	if !ip.IP.IsLoopback() {
		d.config.Logger.Warn("iwarp listens where other hosts can reach it, without authentication", "address", n.Addr().String())
	}
	l := &listener{device: d, net: n, requests: make(chan rdma.ConnectRequest), pending: newPending()}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.group.Go(l.serve)
	return l, nil
}

func (l *listener) Address() string { return l.net.Addr().String() }

func (l *listener) serve() {
	pause := time.Millisecond
	for {
		conn, err := l.net.Accept()
		if err != nil {
			if l.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Most likely out of descriptors, which others may give back.
			l.device.config.Logger.Warn("iwarp cannot accept a connection", "address", l.Address(), "err", err)
			select {
			case <-time.After(pause):
			case <-l.ctx.Done():
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		l.take(conn)
	}
}

// take looks who has connected, and finds a place for him.
func (l *listener) take(conn net.Conn) {
	from, refused, err := l.device.admit(conn)
	if err != nil {
		_ = conn.Close()
		l.warn(err)
		return
	}
	if refused != nil {
		l.refusals.add(conn)
		l.group.Go(func() {
			defer l.refusals.remove(conn)
			l.warn(l.device.hearOut(l.ctx, conn, refused))
		})
		return
	}
	a := newArrival(conn, from)
	if conn.SetDeadline(time.Now().Add(l.device.config.setupTimeout)) != nil || !l.pending.admit(l.ctx, a) {
		_ = conn.Close()
		return
	}
	l.group.Go(func() {
		defer l.pending.leave()
		l.offer(a)
	})
}

var errGaveWay = errors.New("it had sent no MPA Request, and gave way to others")

// offer reads a connection's Request and waits until it is accepted.
func (l *listener) offer(a *arrival) {
	request, err := l.read(a)
	if err != nil {
		_ = a.conn.Close()
		l.warn(setupError("request from", a.conn.RemoteAddr().String(), err))
		return
	}
	select {
	case l.requests <- request:
	case <-l.ctx.Done():
		_ = request.Reject(nil)
	}
}

// read reads a connection's Request. The deadline for that has been set.
func (l *listener) read(a *arrival) (*connectRequest, error) {
	r := &connectRequest{device: l.device, conn: a.conn}
	stop := context.AfterFunc(l.ctx, func() { _ = a.conn.SetDeadline(time.Unix(1, 0)) })
	var err error
	r.setup, err = readSetup(a.conn, false)
	gaveWay := l.pending.heard(a) // though the Request may have come just then
	switch {
	case !stop():
		return nil, l.ctx.Err()
	case err != nil && gaveWay:
		return nil, errGaveWay
	case err != nil:
		return nil, err
	}
	return r, a.conn.SetDeadline(time.Time{})
}

// warn logs why a connection was refused. Peers cause that, so it is not logged each time.
func (l *listener) warn(err error) {
	if l.ctx.Err() != nil {
		return
	}
	omitted, ok := l.warnings.allow(time.Now())
	if !ok {
		return
	}
	fields := []any{"err", err}
	if omitted > 0 {
		fields = append(fields, "omitted", omitted)
	}
	l.device.config.Logger.Warn("iwarp refused a connection", fields...)
}

func (l *listener) Accept(ctx context.Context) (rdma.ConnectRequest, error) {
	if l.ctx.Err() != nil {
		return nil, fmt.Errorf("iwarp: accept at %s: %w", l.Address(), rdma.ErrClosed)
	}
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.ctx.Done():
		return nil, fmt.Errorf("iwarp: accept at %s: %w", l.Address(), rdma.ErrClosed)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) Close() error {
	l.cancel()
	err := l.net.Close()
	l.group.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("iwarp: close the listener at %s: %w", l.Address(), err)
	}
	return nil
}
