package verbena_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// Calls to servers by address. The pool sets endpoints up, shares them, makes calls again
// that were not sent, and says when nobody knows what became of one.
func ExampleCallPool() {
	ctx := context.Background()
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		panic(err)
	}
	defer rt.Close()
	ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{"kv/1"}})
	if err != nil {
		panic(err)
	}
	const methodGet = 1
	mux := verbena.NewMux(verbena.MuxConfig{})
	mux.Short(methodGet, func(q verbena.Request) { _ = q.Reply(append([]byte("value of "), q.Payload()...)) })
	go func() {
		for {
			e, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			go func() { _ = mux.Serve(e) }()
		}
	}()

	pool, err := rt.NewCallPool(verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{Service: "kv/1"}})
	if err != nil {
		panic(err)
	}
	m, err := pool.Call(ctx, ln.Addr().String(), verbena.Intent{Operation: "get"}, methodGet, []byte("x"), verbena.Idempotent)
	switch {
	case errors.Is(err, verbena.ErrNotSent):
		fmt.Println("no server has heard of it")
	case errors.Is(err, verbena.ErrOutcomeUnknown):
		fmt.Println("it may have been carried out")
	case err != nil:
		fmt.Println(err) // a *verbena.CallError is the handler's own
	default:
		fmt.Printf("%s\n", m.Bytes())
		m.Release()
	}
	if err := pool.Drain(ctx); err != nil {
		panic(err)
	}
	// Output: value of x
}

// Two services on one port whose clients do not trust each other: each has a group, with
// memory and keys of its own.
func ExampleRuntime_NewGroup() {
	ctx := context.Background()
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		panic(err)
	}
	defer rt.Close()
	ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{}})
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"accounts", "adverts"} {
		group, err := rt.NewGroup(verbena.GroupConfig{Name: name, ReceiveMemory: 64 << 20, SendMemory: 64 << 20})
		if err != nil {
			panic(err)
		}
		service, err := ln.Service(name+"/1", verbena.ServiceConfig{Group: group})
		if err != nil {
			panic(err)
		}
		go func() {
			e, err := service.Accept(ctx)
			if err == nil {
				_ = e.Send(ctx, 0, []byte("welcome to "+name))
			}
		}()
	}
	for _, name := range []string{"accounts/1", "adverts/1"} {
		e, err := rt.Dial(ctx, ln.Addr().String(), name, verbena.DialConfig{})
		if err != nil {
			panic(err)
		}
		m, err := e.Receive(ctx)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s\n", m.Bytes())
		m.Release()
	}
	// Output:
	// welcome to accounts
	// welcome to adverts
}
