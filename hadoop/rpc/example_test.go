package rpc_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/providers"
)

func greet(_ context.Context, name *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	return wrapperspb.String("Hello, " + name.Value + "!"), nil
}

// A server for clients of Hadoop RPC over TCP, and one of them.
func Example() {
	ctx := context.Background()
	s := rpc.NewServer(rpc.Config{})
	s.Register("org.example.Greeting", 1, rpc.Methods{"greet": rpc.Handle(greet)})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer s.Close()
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

	c := rpc.NewClient(rpc.ClientConfig{})
	defer c.Close()
	p := c.Proxy(rpc.Target{Address: ln.Addr().String(), Protocol: "org.example.Greeting", User: "ada"})
	var answer wrapperspb.StringValue
	if err := p.Call(ctx, "greet", wrapperspb.String("world"), &answer, rpc.Idempotent); err != nil {
		panic(err)
	}
	fmt.Println(answer.Value)
	fmt.Println(p.Call(ctx, "leave", wrapperspb.String("world"), &answer) != nil) // there is no such method
	// Output:
	// Hello, world!
	// true
}

// The same over endpoints: the messages travel as calls of the runtime, over whatever
// transport both ends have.
func ExampleServer_ServeEndpoint() {
	ctx := context.Background()
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		panic(err)
	}
	defer rt.Close()
	ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{rpc.Service}})
	if err != nil {
		panic(err)
	}
	s := rpc.NewServer(rpc.Config{})
	defer s.Close()
	s.Register("org.example.Greeting", 1, rpc.Methods{"greet": rpc.Handle(greet).Short()})
	go func() {
		for {
			e, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			go func() { _ = s.ServeEndpoint(ctx, e) }()
		}
	}()

	pool, err := rpc.NewPool(rt, verbena.CallPoolConfig{})
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	c := rpc.NewClient(rpc.ClientConfig{Pool: pool})
	defer c.Close()
	p := c.Proxy(rpc.Target{Address: ln.Addr().String(), Protocol: "org.example.Greeting", User: "ada"})
	var answer wrapperspb.StringValue
	if err := p.Call(ctx, "greet", wrapperspb.String("world"), &answer, rpc.Idempotent); err != nil {
		panic(err)
	}
	fmt.Println(answer.Value)
	// Output: Hello, world!
}
