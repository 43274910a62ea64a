package perf

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/internal/port"
)

// What is called at level rpc: an echo of bytes.
const (
	echoProtocol = "verbena.perf.Echo"
	echoMethod   = "echo"
)

type blob = wrapperspb.BytesValue

// overStreams tells whether the messages go as foreign clients send them: as frames on
// a TCP connection.
func (p *Plan) overStreams() bool {
	return p.Level == LevelRPC && p.Transport == verbena.TransportTCP
}

// newEcho makes the server of an endpoint or of all streams. Who calls shows the
// session's token as user.
func (t *talk) newEcho(token []byte) *rpc.Server {
	s := rpc.NewServer(rpc.Config{MaxFrame: max(t.plan.Size+1<<10, 64<<20), Logger: t.log})
	user := hex.EncodeToString(token)
	s.Register(echoProtocol, 1, rpc.Methods{echoMethod: rpc.Handle(func(ctx context.Context, m *blob) (*blob, error) {
		if rpc.FromContext(ctx).User != user {
			return nil, errors.New("perf: it does not show the session's token")
		}
		if len(m.Value) != t.plan.Size {
			err := fmt.Errorf("perf: CORRUPT: %d bytes arrived, %d were sent", len(m.Value), t.plan.Size)
			t.fail(err)
			return nil, err
		}
		t.messages.Add(1)
		return m, nil
	}).Short()})
	return s
}

// echo calls on a client of its own, or one that posters share.
func (t *talk) echo(ctx context.Context, first, _ int, _ []int64, amount Amount, r *recorder) error {
	call := t.echoes[first%len(t.echoes)]
	question, answer := &blob{Value: make([]byte, t.plan.Size)}, &blob{}
	kept := &rpc.Kept{Message: answer}
	return t.callInTurn(amount, r, func() (int, error) {
		err := call(ctx, question, kept)
		n := len(answer.Value)
		kept.Release() // the next call's answer goes there
		return n, err
	})
}

// dialEcho makes the clients, on the endpoints or on streams to address.
func (t *talk) dialEcho(ctx context.Context, token []byte, address string) error {
	cfg := rpc.ClientConfig{MaxFrame: max(t.plan.Size+1<<10, 128<<20), Attempts: 1}
	target := rpc.Target{Address: address, Protocol: echoProtocol, User: hex.EncodeToString(token)}
	for i := range t.plan.Connections {
		call, err := t.newCall(ctx, i, target, cfg)
		if err == nil {
			answer := &rpc.Kept{Message: &blob{}}
			err = call(ctx, &blob{Value: make([]byte, t.plan.Size)}, answer)
			answer.Release()
		}
		if err != nil {
			return fmt.Errorf("perf: client %d of %d: %w", i+1, t.plan.Connections, err)
		}
		t.echoes = append(t.echoes, call)
	}
	return nil
}

// newCall makes a client on an endpoint, or one with a stream to the target.
func (t *talk) newCall(ctx context.Context, i int, target rpc.Target, cfg rpc.ClientConfig) (echoCall, error) {
	if t.plan.overStreams() {
		c := rpc.NewClient(cfg)
		t.clients = append(t.clients, c)
		p := c.Proxy(target)
		return func(ctx context.Context, req *blob, resp *rpc.Kept) error { return p.Call(ctx, echoMethod, req, resp) }, nil
	}
	c, err := rpc.NewEndpointConn(ctx, t.endpoints[i], target, cfg)
	if err != nil {
		return nil, err
	}
	t.clients = append(t.clients, c)
	return func(ctx context.Context, req *blob, resp *rpc.Kept) error { return c.Call(ctx, echoMethod, req, resp) }, nil
}

// echoCall makes a call of the echo.
type echoCall func(ctx context.Context, req *blob, resp *rpc.Kept) error

// serveEcho is the server's part for an endpoint.
func (t *talk) serveEcho(ctx context.Context, i int) error {
	s := t.newEcho(t.token)
	err := s.ServeEndpoint(ctx, t.endpoints[i])
	return errors.Join(err, s.Close())
}

// listenEcho serves streams at another port of the host that the client has dialled,
// until ctx ends.
func (t *talk) listenEcho(ctx context.Context, host string) (address string, stop func() error, err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", nil, fmt.Errorf("perf: listen for Hadoop RPC: %w", err)
	}
	s := t.newEcho(t.token)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = port.Accept(ctx, l, t.log, func(c net.Conn) { go s.ServeConn(c) }) // ends with l
	}()
	return l.Addr().String(), func() error {
		err := l.Close()
		<-ended
		return errors.Join(err, s.Close())
	}, nil
}
