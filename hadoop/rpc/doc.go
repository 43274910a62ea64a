// Package rpc is Hadoop RPC version 9, as HDFS and its relatives speak it: a
// [Server] for unmodified Java, C++ and Go clients, and a small [Client].
// Authentication is "simple": the client says who it is.
//
// A connection starts with seven bytes (`hrpc`, the version 9, a service class,
// the kind of authentication), then both ends send frames: a big-endian 32-bit
// length and, in it, protobuf messages that each follow their length as a
// varint. The messages of the headers are those of Hadoop's RpcHeader.proto,
// IpcConnectionContext.proto and ProtobufRpcEngine.proto.
//
// A server knows protocols by the Java class names that clients use for them:
//
//	s := rpc.NewServer(rpc.Config{})
//	s.Register("org.apache.hadoop.hdfs.protocol.ClientProtocol", 1, rpc.Methods{
//		"mkdirs": rpc.Handle(nn.mkdirs), // func(context.Context, *MkdirsRequest) (*MkdirsResponse, error)
//	})
//	go s.ServeConn(conn) // each connection that its owner accepts
//
// The package knows no service; of the project it imports hadoop/exception alone.
package rpc
