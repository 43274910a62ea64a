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
	p := t.proxies[first%len(t.proxies)]
	question, answer := &blob{Value: make([]byte, t.plan.Size)}, &blob{}
	return t.callInTurn(amount, r, func() (int, error) {
		err := p.Call(ctx, echoMethod, question, answer)
		return len(answer.Value), err
	})
}

// dialEcho makes the clients, on the endpoints or on streams to address.
func (t *talk) dialEcho(ctx context.Context, token []byte, address string) error {
	for i := range t.plan.Connections {
		cfg := rpc.ClientConfig{MaxFrame: max(t.plan.Size+1<<10, 128<<20), Attempts: 1}
		if !t.plan.overStreams() {
			cfg.Endpoint = func(context.Context, string) (*verbena.Endpoint, error) {
				if e := t.endpoints[i]; e.Err() == nil {
					return e, nil
				}
				return nil, fmt.Errorf("perf: endpoint %d has ended: %w", i+1, t.endpoints[i].Err())
			}
		}
		c := rpc.NewClient(cfg)
		t.clients = append(t.clients, c)
		p := c.Proxy(rpc.Target{Address: address, Protocol: echoProtocol, User: hex.EncodeToString(token)})
		t.proxies = append(t.proxies, p)
		if err := p.Call(ctx, echoMethod, &blob{Value: make([]byte, t.plan.Size)}, &blob{}); err != nil {
			return fmt.Errorf("perf: client %d of %d: %w", i+1, t.plan.Connections, err)
		}
	}
	return nil
}

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
