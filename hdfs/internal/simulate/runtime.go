package simulate

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/datanode"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/internal/port"
	"github.com/verbena-data/verbena/rdmanet"
)

// The runtimes of a simulation have no device: their endpoints are carried by connections of
// the network in memory, as TCP carries them in production. Who waits there waits in
// channels and timers, for which a bubble's time passes.

const (
	runtimeMemory = 64 << 20
	// streamService is that of byte streams over endpoints, which nobody dials here.
	streamService = "hdfs/1"
)

// newRuntime makes the runtime of a process on host, which dials while alive says so.
func (s *system) newRuntime(host string, alive *atomic.Bool) (*verbena.Runtime, native.TableConfig, error) {
	log := s.logger("runtime " + host)
	rt, err := verbena.New(verbena.Config{
		Logger: log, IgnorePressure: true, ReceiveMemory: runtimeMemory, SendMemory: runtimeMemory, Workers: 1,
		Connect: func(ctx context.Context, _, address string) (net.Conn, error) {
			if !alive.Load() {
				return nil, syscall.ENETUNREACH
			}
			return s.net.dial(ctx, host, address)
		},
	})
	if err != nil {
		return nil, native.TableConfig{}, err
	}
	g, err := rt.NewGroup(verbena.GroupConfig{Name: "hdfs", Relay: true})
	if err != nil {
		return nil, native.TableConfig{}, errors.Join(err, rt.Close())
	}
	return rt, native.TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g}, Logger: log}, nil
}

// A server is what a DataNode with the native path has beside its state.
type server struct {
	rt     *verbena.Runtime
	table  native.TableConfig
	gate   *gate
	port   *port.Port
	blocks *verbena.Mux
}

func (s *system) newServer(m *machine, p *process) (*server, error) {
	rt, table, err := s.newRuntime(m.host, &p.alive)
	if err != nil {
		return nil, err
	}
	srv := &server{rt: rt, table: table, gate: newGate(m.address()), blocks: verbena.NewMux(verbena.MuxConfig{})}
	log := s.logger("port " + m.host)
	srv.port, err = port.Listen(context.Background(), rt, "", port.Config{
		Logger: log, Group: table.Dial.Group, Listener: srv.gate, Messages: []string{native.Service, native.CallService},
		Streams: &port.Streams{Service: streamService, Listen: func(l *verbena.Listener) net.Listener {
			return rdmanet.NewListener(l, rdmanet.Config{Service: streamService, Logger: log, CloseWait: -1})
		}},
	})
	if err != nil {
		return nil, errors.Join(err, rt.Close())
	}
	return srv, nil
}

// serve begins to serve a DataNode.
func (srv *server) serve(dn *datanode.DataNode) {
	dn.NativeCalls(srv.blocks)
	srv.port.Serve(port.Handlers{Connections: dn.ServeConn, Messages: map[string]func(context.Context, *verbena.Endpoint) error{
		native.Service: dn.ServeNative,
		native.CallService: func(ctx context.Context, ep *verbena.Endpoint) error {
			defer context.AfterFunc(ctx, func() { ep.Close() })()
			return srv.blocks.Serve(ep)
		},
	}})
}

func (srv *server) close() error {
	err := srv.port.Close()
	srv.blocks.Close()
	return errors.Join(err, srv.rt.Close())
}

// A gate is a net.Listener whose connections come from the network.
type gate struct {
	address string
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

var _ net.Listener = (*gate)(nil)

func newGate(address string) *gate {
	return &gate{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// take hands a connection to whoever accepts.
func (g *gate) take(c net.Conn) {
	select {
	case g.conns <- c:
	case <-g.closed:
		c.Close()
	}
}

func (g *gate) Accept() (net.Conn, error) {
	select {
	case c := <-g.conns:
		return c, nil
	case <-g.closed:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: g.Addr(), Err: net.ErrClosed}
	}
}

func (g *gate) Close() error {
	g.once.Do(func() { close(g.closed) })
	return nil
}

func (g *gate) Addr() net.Addr { return addressOf(g.address) }
