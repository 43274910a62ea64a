// Package rpc is Hadoop RPC version 9, as HDFS and its relatives speak it: a
// [Server] for unmodified Java, C++ and Go clients, and a [Client] for their
// servers.
//
// A connection starts with seven bytes (`hrpc`, the version 9, a service class,
// the kind of authentication), then both ends send frames: a big-endian 32-bit
// length and, in it, protobuf messages that each follow their length as a
// varint. The messages of the headers are those of Hadoop's RpcHeader.proto,
// IpcConnectionContext.proto and ProtobufRpcEngine.proto. Clients say who they
// are, or prove it by SASL: with a token ([Tokens], [Target].Token), or by a mechanism
// that is hooked in at both ends ([Mechanism], [Login]). SASL's protection of what
// follows is not supported, and refused.
//
// A server knows protocols by the Java class names that clients use for them:
//
//	s := rpc.NewServer(rpc.Config{})
//	s.Register("org.apache.hadoop.hdfs.protocol.ClientProtocol", 1, rpc.Methods{
//		"mkdirs": rpc.Handle(nn.mkdirs), // func(context.Context, *MkdirsRequest) (*MkdirsResponse, error)
//		"getServerDefaults": rpc.Handle(nn.getServerDefaults).Short(),
//	})
//	go s.ServeConn(conn) // each connection that its owner accepts
//
// Calls wait in one bounded queue with levels of priority for a handler; those
// of short methods are answered where they are read. At a full queue a connection
// waits; after a while its calls get RetriableException, at which clients come
// back later. [Method.Once] has the
// server answer a repeated call from its retry cache.
//
// A client shares one connection among all calls of a target:
//
//	c := rpc.NewClient(rpc.ClientConfig{})
//	nn := c.Proxy(rpc.Target{Address: "nn:8020", Protocol: "org.apache.hadoop.hdfs.protocol.ClientProtocol", User: "ada"})
//	err := nn.Call(ctx, "getFileInfo", req, resp, rpc.Idempotent)
//
// Between Verbena's own ends the same messages travel on endpoints of the runtime,
// each request as a call of it: [Server.ServeEndpoint] serves those that were
// dialled for [Service], and a client with [ClientConfig].Pool dials them, with the
// pool's bounds, pauses, rules and moves to better transports. A
// server that does not know the service gets streams. [Client.DialFramed] carries the
// requests of a library that frames them itself. Deadlines and cancels travel,
// short methods run on the runtime's worker, long messages are encoded straight into
// registered memory.
//
// Sessions, calls, queue and retry cache know nothing of what carries a
// message (internal/carrier); over TCP that is internal/stream, on endpoints
// internal/calls. The package knows no service; of the project it imports the
// runtime, hadoop/exception and small packages.
package rpc
