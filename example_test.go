package verbena_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

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

// Requests that share endpoints. A rule keeps the bulky ones off shared memory.
func ExamplePool() {
	ctx := context.Background()
	bulk, err := verbena.ParseRule("bulk: size=1M.. only=tcp")
	if err != nil {
		panic(err)
	}
	rt, err := verbena.New(verbena.Config{Providers: providers.Default(), Rules: verbena.Rules{bulk}})
	if err != nil {
		panic(err)
	}
	defer rt.Close()
	ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{"greeting/1"}})
	if err != nil {
		panic(err)
	}
	go func() {
		for greet(ctx, ln) == nil {
		}
	}()
	pool, err := rt.NewPool(verbena.PoolConfig{Service: "greeting/1"})
	if err != nil {
		panic(err)
	}

	ask := func(name string, intent verbena.Intent) (string, error) {
		ep, err := pool.Get(ctx, ln.Addr().String(), intent)
		if err != nil {
			return "", err
		}
		defer pool.Put(ep)
		if err = ep.Send(ctx, 1, []byte(name)); err == nil {
			var m *verbena.Message
			if m, err = ep.Receive(ctx); err == nil {
				defer m.Release()
				return string(m.Bytes()), nil
			}
		}
		ep.Close() // in the middle of a request: not for the next one
		return "", err
	}
	for _, name := range []string{"Ada", "Grace"} {
		fmt.Println(ask(name, verbena.Intent{Operation: "greet", Size: 100}))
	}
	fmt.Println(pool.Explain(ln.Addr().String(), verbena.Intent{Operation: "greet", Size: 4 << 20}))
	if err := pool.Drain(ctx); err != nil {
		panic(err)
	}
	// Output:
	// Hello, Ada! <nil>
	// Hello, Grace! <nil>
	// bulk: size=1M.. only=tcp [tcp]
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

// A relay keeps what it receives in a file and sends it on. Neither needs a copy in
// this process: the bytes are written and sent from where they arrived.
func ExampleEndpoint_SendBuffer() {
	ctx := context.Background()
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		panic(err)
	}
	defer rt.Close()
	// Servers of one cluster trust each other: then long messages, too, are sent
	// on from where they lie.
	cluster, err := rt.NewGroup(verbena.GroupConfig{Name: "cluster", Relay: true})
	if err != nil {
		panic(err)
	}
	connect := func(trusted bool) (near, far *verbena.Endpoint, ln *verbena.Listener) {
		ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Group: cluster, Trusted: trusted})
		if err != nil {
			panic(err)
		}
		near, err = rt.Dial(ctx, ln.Addr().String(), "blocks/1", verbena.DialConfig{Group: cluster, Trusted: trusted})
		if err != nil {
			panic(err)
		}
		if far, err = ln.Accept(ctx); err != nil {
			panic(err)
		}
		return near, far, ln
	}
	client, in, first := connect(false)
	out, next, second := connect(true)
	defer first.Close()
	defer second.Close()

	// The client fills registered memory, which is sent behind a header.
	b, err := client.Buffer(ctx, 1<<20)
	if err != nil {
		panic(err)
	}
	copy(b.Bytes(), "the bytes of a block")
	if err := client.SendBuffer(ctx, 1, []byte("block 7: "), b); err != nil { // takes b over
		b.Release()
		panic(err)
	}

	m, err := in.Receive(ctx)
	if err != nil {
		panic(err)
	}
	m.Retain() // one reference for the file, one to be sent on
	if err := out.SendBuffer(ctx, m.Tag, nil, &m.Buffer); err != nil {
		m.Release()
		panic(err)
	}
	file, err := os.CreateTemp("", "block")
	if err != nil {
		panic(err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	n, err := file.Write(m.Bytes())
	m.Release()
	if err != nil {
		panic(err)
	}

	got, err := next.Receive(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%d bytes kept, %d received: %s\n", n, len(got.Bytes()), got.Bytes()[:29])
	got.Release()
	// Output: 1048585 bytes kept, 1048585 received: block 7: the bytes of a block
}

// One buffer is filled and sent again and again.
func ExampleEndpoint_Settled() {
	ctx := context.Background()
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		panic(err)
	}
	defer rt.Close()
	ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{})
	if err != nil {
		panic(err)
	}
	ep, err := rt.Dial(ctx, ln.Addr().String(), "numbers/1", verbena.DialConfig{})
	if err != nil {
		panic(err)
	}
	peer, err := ln.Accept(ctx)
	if err != nil {
		panic(err)
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		for range 3 {
			m, err := peer.Receive(ctx)
			if err != nil {
				panic(err)
			}
			fmt.Println(m.Bytes()[0], len(m.Bytes()))
			m.Release()
		}
	}()

	b, err := ep.Buffer(ctx, 100_000)
	if err != nil {
		panic(err)
	}
	defer b.Release()
	for i := range 3 {
		if err := ep.Settled(ctx, b); err != nil { // the message before has gone
			panic(err)
		}
		b.Bytes()[0] = byte(i)
		b.Retain() // this reference is the send's
		if err := ep.SendBuffer(ctx, 0, nil, b); err != nil {
			b.Release()
			panic(err)
		}
	}
	<-received
	// Output:
	// 0 100000
	// 1 100000
	// 2 100000
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

// A server with one handler, and a client that calls it.
func ExampleCaller() {
	ctx := context.Background()
	rt, err := verbena.New(verbena.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rt.Close()
	ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{"kv/1"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	const methodGet, codeMissing = 1, verbena.CodeApplication
	mux := verbena.NewMux(verbena.MuxConfig{})
	mux.Short(methodGet, func(q verbena.Request) {
		if string(q.Payload()) != "answer" {
			_ = q.Fail(codeMissing, "no such key")
			return
		}
		_ = q.Reply([]byte("42"))
	})
	go func() {
		e, err := ln.Accept(ctx)
		if err == nil {
			_ = mux.Serve(e)
		}
	}()

	e, err := rt.Dial(ctx, ln.Addr().String(), "kv/1", verbena.DialConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := verbena.NewCaller(e, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	m, err := c.Call(ctx, methodGet, []byte("answer"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", m.Bytes())
	m.Release()
	_, err = c.Call(ctx, methodGet, []byte("question"))
	fmt.Println(err)
	// Output:
	// 42
	// verbena: the peer answered with error 256: no such key
}

// A payload goes to the handler as a stream while another one comes back.
func ExampleCaller_Stream() {
	ctx := context.Background()
	rt, err := verbena.New(verbena.Config{})
	if err != nil {
		panic(err)
	}
	defer rt.Close()
	ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{"text/1"}})
	if err != nil {
		panic(err)
	}
	const methodUpper, codeBroken = 1, verbena.CodeApplication
	mux := verbena.NewMux(verbena.MuxConfig{})
	mux.Stream(methodUpper, func(q verbena.Request, s *verbena.Stream) {
		total := 0
		for {
			b, err := s.Recv(q.Context())
			if err == io.EOF {
				break
			}
			if err == nil {
				total += len(b.Bytes())
				err = s.Send(q.Context(), bytes.ToUpper(b.Bytes()))
				b.Release() // the caller may send more
			}
			if err != nil {
				_ = q.Fail(codeBroken, err.Error())
				return
			}
		}
		_ = q.Reply(fmt.Append(nil, total, " bytes"))
	})
	go func() {
		if e, err := ln.Accept(ctx); err == nil {
			_ = mux.Serve(e)
		}
	}()

	e, err := rt.Dial(ctx, ln.Addr().String(), "text/1", verbena.DialConfig{})
	if err != nil {
		panic(err)
	}
	c, err := verbena.NewCaller(e, nil)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	s, err := c.Stream(ctx, methodUpper, nil)
	if err != nil {
		panic(err)
	}
	defer s.Close()
	go func() {
		_, _ = io.WriteString(s, "both ways ")
		_, _ = io.WriteString(s, "at once")
		_ = s.CloseSend()
	}()
	upper, err := io.ReadAll(s)
	if err != nil {
		panic(err)
	}
	m, err := s.Answer(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s, %s\n", upper, m.Bytes())
	m.Release()
	// Output: BOTH WAYS AT ONCE, 17 bytes
}

// One end exposes memory, the other writes there and tells it.
func ExampleEndpoint_PutNotify() {
	ctx := context.Background()
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		panic(err)
	}
	defer rt.Close()
	ln, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{"board/1"}})
	if err != nil {
		panic(err)
	}
	go write(ctx, ln)

	ep, err := rt.Dial(ctx, ln.Addr().String(), "board/1", verbena.DialConfig{})
	if err != nil {
		panic(err)
	}
	defer ep.Close()
	board, err := ep.Expose(ctx, verbena.ExposeConfig{Size: 4096, Rights: verbena.MayWrite})
	if err != nil {
		panic(err)
	}
	defer board.Close()
	if err := ep.Send(ctx, 1, board.Token().Append(nil)); err != nil {
		panic(err)
	}
	m, err := ep.Receive(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%d: %s\n", m.Tag, board.Bytes()[100:105])
	m.Release()
	// Output: 2: hello
}

func write(ctx context.Context, ln *verbena.Listener) {
	ep, err := ln.Accept(ctx)
	if err != nil {
		panic(err)
	}
	defer ep.Close()
	m, err := ep.Receive(ctx)
	if err != nil {
		panic(err)
	}
	token, err := verbena.ParseToken(m.Bytes())
	m.Release()
	if err != nil {
		panic(err)
	}
	if err := ep.PutNotify(ctx, token, 100, []byte("hello"), 2, nil); err != nil {
		panic(err)
	}
	_, _ = ep.Receive(ctx) // until the other end closes
}
