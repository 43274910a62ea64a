package main

import (
	"context"
	"fmt"
	"net"
	"net/rpc"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	hadoop "github.com/verbena-data/verbena/hadoop/rpc"
)

// All systems echo the same message, a field of bytes, each by its usual codec.
type message = wrapperspb.BytesValue

// The protocol and method are those of Hadoop's own benchmark (RPCCallBenchmark),
// so that its server takes our calls.
const (
	echoProtocol = "org.apache.hadoop.ipc.TestRpcBase$TestRpcService"
	echoMethod   = "echo"
)

// An echo is one system: serve serves a listener until it fails, dial returns
// how to make one call, which any number of callers use at once.
type echo struct {
	network string
	serve   func(net.Listener) error
	dial    func(address string) (caller, error)
}

// caller makes calls with a message of its own.
type caller interface {
	// call returns a function for one of the callers.
	call(payload []byte) func(context.Context) error
	Close() error
}

var systems = map[string]echo{
	oursTCP:     {"tcp", serveHadoop(true), dialHadoop},
	"oursqueue": {"tcp", serveHadoop(false), dialHadoop},
	grpcTCP:     {"tcp", serveGRPC, dialGRPC("passthrough:///")},
	grpcUnix:    {"unix", serveGRPC, dialGRPC("unix:")},
	netrpc:      {"tcp", serveNetRPC, dialNetRPC},
}

func serveHadoop(short bool) func(net.Listener) error {
	return func(l net.Listener) error {
		s := hadoop.NewServer(hadoop.Config{})
		defer s.Close()
		m := hadoop.Handle(func(_ context.Context, req *message) (*message, error) { return req, nil })
		if short {
			m = m.Short()
		}
		s.Register(echoProtocol, 1, hadoop.Methods{echoMethod: m})
		for {
			nc, err := l.Accept()
			if err != nil {
				return err
			}
			go s.ServeConn(nc)
		}
	}
}

type hadoopCaller struct {
	*hadoop.Client
	proxy *hadoop.Proxy
}

func dialHadoop(address string) (caller, error) {
	c := hadoop.NewClient(hadoop.ClientConfig{})
	return hadoopCaller{c, c.Proxy(hadoop.Target{Address: address, Protocol: echoProtocol, User: "bench"})}, nil
}

func (c hadoopCaller) call(payload []byte) func(context.Context) error {
	req, resp := &message{Value: payload}, &message{}
	return func(ctx context.Context) error {
		if err := c.proxy.Call(ctx, echoMethod, req, resp, hadoop.Idempotent); err != nil {
			return err
		}
		return same(len(resp.Value), payload)
	}
}

func same(got int, payload []byte) error {
	if got != len(payload) {
		return fmt.Errorf("%d bytes came back of %d", got, len(payload))
	}
	return nil
}

const grpcLimit = 16 << 20

var grpcEcho = grpc.ServiceDesc{
	ServiceName: "bench.Echo", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		m := new(message)
		return m, decode(m)
	}}},
}

func serveGRPC(l net.Listener) error {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(grpcLimit), grpc.MaxSendMsgSize(grpcLimit))
	s.RegisterService(&grpcEcho, nil)
	return s.Serve(l)
}

type grpcCaller struct{ *grpc.ClientConn }

func dialGRPC(scheme string) func(string) (caller, error) {
	return func(address string) (caller, error) {
		c, err := grpc.NewClient(scheme+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(grpcLimit), grpc.MaxCallSendMsgSize(grpcLimit)))
		return grpcCaller{c}, err
	}
}

func (c grpcCaller) call(payload []byte) func(context.Context) error {
	req, resp := &message{Value: payload}, &message{}
	return func(ctx context.Context) error {
		if err := c.Invoke(ctx, "/bench.Echo/Echo", req, resp); err != nil {
			return err
		}
		return same(len(resp.Value), payload)
	}
}

// NetRPC is what net/rpc serves, as it prescribes.
type NetRPC struct{}

// Payload is net/rpc's message.
type Payload struct{ Value []byte }

// Echo answers with what it got.
func (NetRPC) Echo(in *Payload, out *Payload) error {
	out.Value = in.Value
	return nil
}

func serveNetRPC(l net.Listener) error {
	s := rpc.NewServer()
	if err := s.Register(NetRPC{}); err != nil {
		return err
	}
	for {
		nc, err := l.Accept()
		if err != nil {
			return err
		}
		go s.ServeConn(nc)
	}
}

type netRPCCaller struct{ *rpc.Client }

func dialNetRPC(address string) (caller, error) {
	c, err := rpc.Dial("tcp", address)
	return netRPCCaller{c}, err
}

func (c netRPCCaller) call(payload []byte) func(context.Context) error {
	req := &Payload{payload}
	return func(context.Context) error {
		var resp Payload
		if err := c.Call("NetRPC.Echo", req, &resp); err != nil {
			return err
		}
		return same(len(resp.Value), payload)
	}
}

// payload is text, because Hadoop's echo takes a string.
func payload(n int) []byte { return []byte(strings.Repeat("x", n)) }
