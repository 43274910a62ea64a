package verbena_test

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// A server that answers every message, and a client that asks it.
func Example() {
	ctx := context.Background()
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		panic(err)
	}
	defer rt.Close()

	ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{"greeting/1"}})
	if err != nil {
		panic(err)
	}
	served := make(chan error, 1)
	go func() { served <- greet(ctx, ln) }()

	ep, err := rt.Dial(ctx, ln.Addr().String(), "greeting/1", verbena.DialConfig{})
	if err != nil {
		panic(err)
	}
	if err := ep.Send(ctx, 7, []byte("world")); err != nil {
		panic(err)
	}
	m, err := ep.Receive(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%d: %s\n", m.Tag, m.Bytes())
	m.Release() // gives the memory, and the credit to send more, back

	if err := ep.Close(); err != nil { // hands over what was sent before
		panic(err)
	}
	if err := <-served; err != nil {
		panic(err)
	}
	// Output: 7: Hello, world!
}

func greet(ctx context.Context, ln *verbena.Listener) error {
	ep, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	defer ep.Close()
	for {
		m, err := ep.Receive(ctx)
		if errors.Is(err, io.EOF) {
			return nil // the client has closed
		}
		if err != nil {
			return err
		}
		err = ep.Send(ctx, m.Tag, fmt.Appendf(nil, "Hello, %s!", m.Bytes()))
		m.Release()
		if err != nil {
			return err
		}
	}
}

// Dialling a server that may be of another kind.
func ExampleRuntime_Dial() {
	ctx := context.Background()
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		panic(err)
	}
	defer rt.Close()

	ep, err := rt.Dial(ctx, "127.0.0.1:1", "greeting/1", verbena.DialConfig{Transport: verbena.TransportAuto})
	var legacy *verbena.LegacyPeerError
	switch {
	case errors.As(err, &legacy):
		fmt.Println("speak the old protocol over TCP")
	case err != nil:
		fmt.Println("nobody is there")
	default:
		fmt.Print(ep.Selection()) // which transport, and why
		ep.Close()
	}
	// Output: nobody is there
}
