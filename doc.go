// Package verbena is a communication runtime: messages between processes that
// travel by RDMA wherever both ends can, and by TCP where they cannot.
//
// A program makes one [Runtime] with the providers that it wants:
//
//	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
//
// A server publishes one TCP port. The first bytes of a connection tell whether
// a Verbena peer or somebody else is calling, so the port may be one that a
// service has always had:
//
//	ln, err := rt.Listen(ctx, "0.0.0.0:8020", verbena.ListenConfig{Services: []string{"echo/1"}})
//	go legacy.Serve(ln.Legacy())  // everybody else, bytes untouched
//	ep, err := ln.Accept(ctx)     // Verbena peers
//
// A port may carry several services, each with an accept queue of its own, its
// group and its tuning, that come and go while the port stays:
//
//	tables, err := ln.Service("tables/1", verbena.ServiceConfig{Group: group})
//	ep, err := tables.Accept(ctx)
//
// A client asks for a service at an address and gets an [Endpoint], which
// carries whole messages in order, in both directions:
//
//	ep, err := rt.Dial(ctx, "db1:8020", "echo/1", verbena.DialConfig{})
//	err = ep.Send(ctx, tag, payload)
//	m, err := ep.Receive(ctx)
//	use(m.Bytes())
//	m.Release()
//
// An endpoint can also be one for calls, with handlers of methods at either end:
//
//	mux.Short(method, func(q verbena.Request) { q.Reply(answer) })
//	go mux.Serve(ep)               // there
//	c, err := verbena.NewCaller(ep, nil)
//	m, err := c.Call(ctx, method, payload)
//
// Memory can be exposed to the peer, which then reads and writes it by itself:
//
//	x, err := ep.Expose(ctx, verbena.ExposeConfig{Size: 1 << 20, Rights: verbena.MayRead})
//	err = ep.Send(ctx, tag, x.Token().Append(nil))
//	err = ep.Get(ctx, token, 0, into) // there, with what ParseToken made of the message
//
// Which transport carries an endpoint is chosen when it is set up: the first of
// the providers, in order, that both ends have and that in fact connects; TCP
// itself is the last resort. [Endpoint.Selection] tells what was considered and
// why it was taken or left.
//
// The package imports the verbs model alone; docs/hello.md,
// docs/endpoints.md, docs/calls.md and docs/onesided.md define what it says on
// the wire.
package verbena
