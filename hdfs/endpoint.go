package hdfs

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/internal/port"
	"github.com/verbena-data/verbena/rdmanet"
)

// Service is the name under which endpoints carry the byte streams of Hadoop
// RPC and of the data transfer protocol.
const Service = "hdfs/1"

// GroupName is the name of the [verbena.Group] of HDFS on a runtime: servers and
// dialers of this package have their endpoints there, apart from what other services
// of the process keep. The first of them makes it, with the runtime's defaults, unless
// the program has made one of that name before. It ends with the runtime.
const GroupName = "hdfs"

// group returns the one of HDFS.
func group(rt *verbena.Runtime) (*verbena.Group, error) {
	if g := rt.Group(GroupName); g != nil {
		return g, nil
	}
	g, err := rt.NewGroup(verbena.GroupConfig{Name: GroupName, Relay: true})
	if other := rt.Group(GroupName); other != nil {
		return other, nil // of two that make it at the same time one fails
	}
	return g, err
}

// publish opens the one port of a server, for clients' byte streams, for the
// calls of the cluster protocol, and for more services.
func publish(ctx context.Context, rt *verbena.Runtime, address string, log *slog.Logger, more ...string) (*port.Port, error) {
	g, err := group(rt)
	if err != nil {
		return nil, err
	}
	return port.Listen(ctx, rt, address, port.Config{
		Logger:   log,
		Group:    g,
		Messages: append([]string{cluster.Service}, more...),
		Streams: &port.Streams{
			Service: Service,
			Listen: func(l *verbena.Listener) net.Listener {
				// A block is complete when its last packet has been acknowledged.
				return rdmanet.NewListener(l, rdmanet.Config{Service: Service, Logger: log, CloseWait: -1})
			},
		},
	})
}

// SecretFile is the name of the file with the cluster's secret, in the directory of
// a node that is not told another one.
const SecretFile = cluster.SecretFile

// secretFile is where the cluster's secret is.
func secretFile(named, dir string) string {
	if named != "" {
		return named
	}
	return filepath.Join(dir, SecretFile)
}

// nativeTable tells how to connect for native pipelines.
func nativeTable(rt *verbena.Runtime, transport string, log *slog.Logger) (native.TableConfig, error) {
	g, err := group(rt)
	return native.TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g, Transport: transport}, Logger: log}, err
}

// onEndpoints serves calls on the endpoints of the cluster protocol.
func onEndpoints(mux *verbena.Mux) map[string]func(context.Context, *verbena.Endpoint) error {
	return map[string]func(context.Context, *verbena.Endpoint) error{cluster.Service: serveCalls(mux)}
}

// serveCalls serves calls on endpoints, until their context ends.
func serveCalls(mux *verbena.Mux) func(context.Context, *verbena.Endpoint) error {
	return func(ctx context.Context, ep *verbena.Endpoint) error {
		defer context.AfterFunc(ctx, func() { ep.Close() })()
		return mux.Serve(ep)
	}
}

// newCalls makes the pool by which a server calls others: one endpoint to each. A
// thousand DataNodes that lose their NameNode together make 500 attempts a second at
// most, after the first seconds.
func newCalls(rt *verbena.Runtime, name string) (*verbena.CallPool, error) {
	g, err := group(rt)
	if err != nil {
		return nil, err
	}
	return rt.NewCallPool(verbena.CallPoolConfig{
		PoolConfig: verbena.PoolConfig{
			Service: cluster.Service, Name: name, Dial: verbena.DialConfig{Group: g},
			Endpoints: 1, Backoff: 200 * time.Millisecond, MaxBackoff: 2 * time.Second,
		},
		Attempts: 2,
	})
}
