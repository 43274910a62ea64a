package hdfs

import (
	"context"
	"log/slog"
	"net"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/internal/port"
	"github.com/verbena-data/verbena/rdmanet"
)

// Service is the name under which endpoints carry the byte streams of Hadoop
// RPC and of the data transfer protocol.
const Service = "hdfs/1"

// publish opens the one port of a server, for clients' byte streams and for the
// messages of the cluster protocol.
func publish(ctx context.Context, rt *verbena.Runtime, address string, log *slog.Logger) (*port.Port, error) {
	return port.Listen(ctx, rt, address, port.Config{
		Logger:   log,
		Messages: []string{cluster.Service},
		Streams: &port.Streams{
			Service: Service,
			Listen: func(l *verbena.Listener) net.Listener {
				return rdmanet.NewListener(l, rdmanet.Config{Service: Service, Logger: log})
			},
		},
	})
}

// onEndpoints serves the cluster protocol on endpoints.
func onEndpoints(serve func(context.Context, cluster.Conn) error) map[string]func(context.Context, *verbena.Endpoint) error {
	return map[string]func(context.Context, *verbena.Endpoint) error{
		cluster.Service: func(ctx context.Context, ep *verbena.Endpoint) error { return serve(ctx, endpointConn{ep}) },
	}
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
