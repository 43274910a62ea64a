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

// maxPending bounds the connections that have not been accepted: those whose
// Request is awaited and those that wait for Accept.
const maxPending = 256

// listener implements [rdma.Listener]. One goroutine accepts connections, one
// for each pending connection reads its Request and waits for Accept.
type listener struct {
	device   *device
	net      net.Listener
	requests chan rdma.ConnectRequest
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
	l := &listener{device: d, net: n, requests: make(chan rdma.ConnectRequest)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.group.Go(l.serve)
	return l, nil
}

func (l *listener) Address() string { return l.net.Addr().String() }

func (l *listener) serve() {
	pending := make(chan struct{}, maxPending)
	pause := time.Millisecond
	for {
		select {
		case pending <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
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
			<-pending
			continue
		}
		pause = time.Millisecond
		l.group.Go(func() {
			defer func() { <-pending }()
			l.offer(conn)
		})
	}
}

// offer reads a connection's Request and waits until it is accepted.
func (l *listener) offer(conn net.Conn) {
	request, err := l.device.RequestFromStream(l.ctx, conn)
	if err != nil {
		if l.ctx.Err() == nil {
			l.device.config.Logger.Warn("iwarp refused a connection", "err", err)
		}
		return
	}
	select {
	case l.requests <- request:
	case <-l.ctx.Done():
		_ = request.Reject(nil)
	}
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
