package hdfs

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/rdmanet"
)

// Service is the name under which endpoints carry the byte streams of Hadoop
// RPC and of the data transfer protocol.
const Service = "hdfs/1"

// port is the one published port of a server. It takes connections from the
// moment it is listening, and hands them on when it serves.
type port struct {
	listener *rdmanet.Listener
	log      *slog.Logger
	ctx      context.Context // of the cluster protocol's connections
	stop     context.CancelFunc
	cluster  chan *verbena.Endpoint
	wg       sync.WaitGroup

	endOnce sync.Once
	done    chan struct{}
	err     error // set before done is closed
}

func listen(ctx context.Context, rt *verbena.Runtime, address string, log *slog.Logger) (*port, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &port{log: log, cluster: make(chan *verbena.Endpoint), done: make(chan struct{})}
	p.ctx, p.stop = context.WithCancel(context.Background())
	l, err := rdmanet.Listen(ctx, rt, address, rdmanet.Config{
		Service: Service,
		Logger:  log,
		Handlers: map[string]func(*verbena.Endpoint){cluster.Service: func(ep *verbena.Endpoint) {
			select {
			case p.cluster <- ep:
			case <-p.ctx.Done():
				ep.Close()
			}
		}},
	})
	if err != nil {
		p.stop()
		return nil, err
	}
	p.listener = l
	return p, nil
}

// serve hands byte streams, legacy and over endpoints, to streams, which
// returns when the listener is closed, and each connection of the cluster
// protocol to one call of messages.
func (p *port) serve(streams func(net.Listener) error, messages func(context.Context, cluster.Conn) error) {
	p.wg.Go(func() {
		if err := streams(p.listener); err != nil && !errors.Is(err, net.ErrClosed) {
			p.end(err)
		}
	})
	p.wg.Go(func() {
		for {
			select {
			case <-p.ctx.Done():
				return
			case ep := <-p.cluster:
				p.wg.Go(func() {
					conn := endpointConn{ep}
					defer conn.Close()
					if err := messages(p.ctx, conn); err != nil && p.ctx.Err() == nil {
						p.log.Info("cluster connection ended", "peer", ep.RemoteAddr(), "error", err)
					}
				})
			}
		}
	})
}

// end tells Done that the server has failed.
func (p *port) end(err error) {
	p.endOnce.Do(func() {
		p.err = err
		close(p.done)
	})
}

func (p *port) addr() string { return p.listener.Addr().String() }

// close ends the port and what it serves, and waits.
func (p *port) close() error {
	p.stop()
	err := p.listener.Close()
	p.wg.Wait()
	p.end(nil)
	return err
}

// endpointConn carries the cluster protocol's messages on an endpoint.
type endpointConn struct{ endpoint *verbena.Endpoint }

func (c endpointConn) Send(ctx context.Context, msg []byte) error {
	return c.endpoint.Send(ctx, 0, msg)
}

func (c endpointConn) Receive(ctx context.Context, buf []byte) ([]byte, error) {
	m, err := c.endpoint.Receive(ctx)
	if err != nil {
		return nil, err
	}
	defer m.Release()
	return append(buf[:0], m.Bytes()...), nil
}

func (c endpointConn) Close() error { return c.endpoint.Close() }

// dialCluster opens a connection of the cluster protocol.
func dialCluster(ctx context.Context, rt *verbena.Runtime, address string) (cluster.Conn, error) {
	ep, err := rt.Dial(ctx, address, cluster.Service, verbena.DialConfig{})
	if err != nil {
		return nil, err
	}
	return endpointConn{ep}, nil
}
