package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
)

// ticket is the simplest of mechanisms: the client shows a ticket, and that is all. One
// that is used has to keep who listens from learning it. Kerberos would call a library of
// GSSAPI here, with the context that both ends build up.
type ticket string

func (t ticket) Respond(context.Context, []byte) ([]byte, error) { return []byte(t), nil }
func (t ticket) Finish([]byte) error                             { return nil }

// desk is its server's side.
type desk struct{ user string }

func (d *desk) Challenge() ([]byte, error) { return nil, nil } // the client speaks first
func (d *desk) User() string               { return d.user }

func (d *desk) Next(token []byte) (answer []byte, done bool, err error) {
	users := map[string]string{"ticket 17": "ada"}
	if d.user = users[string(token)]; d.user == "" {
		return nil, false, exception.New(exception.AccessControl, "that ticket is not good")
	}
	return nil, true, nil
}

// A mechanism of SASL that the package does not have, hooked in at both ends.
func ExampleLogin() {
	s := rpc.NewServer(rpc.Config{
		RefuseSimple: true,
		Mechanisms: []rpc.Mechanism{{
			Method: "KERBEROS", Name: "GSSAPI", Protocol: "greeter", ServerID: "host.example.org",
			Start: func() rpc.Exchange { return &desk{} },
		}},
	})
	defer s.Close()
	s.Register("org.example.Greeting", 1, rpc.Methods{"greet": rpc.Handle(greetUser)})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go s.ServeConn(conn)
		}
	}()

	c := rpc.NewClient(rpc.ClientConfig{Attempts: 1})
	defer c.Close()
	for _, shown := range []ticket{"ticket 17", "ticket 18"} {
		p := c.Proxy(rpc.Target{Address: ln.Addr().String(), Protocol: "org.example.Greeting", Login: &rpc.Login{
			Method: "KERBEROS", Name: "GSSAPI",
			Start: func(protocol, serverID string) (rpc.LoginExchange, error) { // a ticket for protocol/serverID
				return shown, nil
			},
		}})
		var answer wrapperspb.StringValue
		err := p.Call(context.Background(), "greet", wrapperspb.String(""), &answer)
		var refused *exception.Error
		if errors.As(err, &refused) {
			fmt.Println(refused.Message)
			continue
		}
		fmt.Println(answer.Value, err)
	}
	// Output:
	// Hello, ada! <nil>
	// that ticket is not good
}

func greetUser(ctx context.Context, _ *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	return wrapperspb.String("Hello, " + rpc.FromContext(ctx).User + "!"), nil
}
