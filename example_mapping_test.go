package verbena_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// A program exposes memory that it has mapped itself. The peer reads it by itself.
func ExampleMapping() {
	ctx := context.Background()
	client, server, done := twoEnds(ctx)
	defer done()

	m, err := verbena.NewMapping(1 << 20)
	if err != nil {
		panic(err)
	}
	copy(m.Bytes(), "written by the server")
	x, err := server.Expose(ctx, verbena.ExposeConfig{Memory: m.Bytes()[:4096], Rights: verbena.MayRead})
	if err != nil {
		panic(err)
	}

	into := make([]byte, 21)
	if err := client.Get(ctx, x.Token(), 0, into); err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", into)

	fmt.Println(m.Close()) // it is exposed
	if err := x.Close(); err != nil {
		panic(err)
	}
	fmt.Println(m.Close())
	// Output:
	// written by the server
	// verbena: the memory is in use
	// <nil>
}

// A server exposes a file. The peer reads it as it reads memory: on one host through the
// file's descriptor, from elsewhere with the help of the server's runtime.
func ExampleEndpoint_ExposeFile() {
	ctx := context.Background()
	client, server, done := twoEnds(ctx)
	defer done()

	f, err := os.CreateTemp("", "block")
	if err != nil {
		panic(err)
	}
	defer os.Remove(f.Name())
	if _, err := f.WriteString("the bytes of a block"); err != nil {
		panic(err)
	}
	x, err := server.ExposeFile(ctx, verbena.FileConfig{File: f})
	if err != nil {
		panic(err)
	}
	defer x.Close()

	into := make([]byte, 5)
	if err := client.Get(ctx, x.Token(), 4, into); err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", into)
	if err := x.Revoke(); err != nil {
		panic(err)
	}
	fmt.Println(errors.Is(client.Get(ctx, x.Token(), 4, into), verbena.ErrRevoked))
	// Output:
	// bytes
	// true
}

// twoEnds returns both ends of an endpoint, which two processes would have.
func twoEnds(ctx context.Context) (client, server *verbena.Endpoint, done func()) {
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		panic(err)
	}
	ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{})
	if err != nil {
		panic(err)
	}
	if client, err = rt.Dial(ctx, ln.Addr().String(), "example/1", verbena.DialConfig{}); err != nil {
		panic(err)
	}
	if server, err = ln.Accept(ctx); err != nil {
		panic(err)
	}
	return client, server, func() { _ = rt.Close() }
}
