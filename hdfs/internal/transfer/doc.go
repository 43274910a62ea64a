// Package transfer is the wire codec of HDFS's DataTransferProtocol: operation
// requests, their responses, packets and acknowledgements. It is shared by the
// DataNode as a server and by the DataNode as the client of the next one in a
// pipeline. It knows messages and buffers, not blocks: it imports the generated
// messages and nothing else of the module.
//
// A connection carries operations one after the other. Each begins with
//
//	u16 version (28) | u8 operation | varint length | protobuf message
//
// and what follows depends on the operation: a response (varint length,
// BlockOpResponseProto), then packets in one direction and acknowledgements in
// the other. A packet is
//
//	u32 length | u16 header length | PacketHeaderProto | checksums | data
//
// where length counts itself, the checksums and the data, but neither the
// header nor its length. All integers are big-endian.
package transfer
