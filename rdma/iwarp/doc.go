// Package iwarp is a verbs provider for any TCP network: iWARP in user space,
// by RFC 5044 (MPA), RFC 5041 (DDP), RFC 5040 (RDMAP), RFC 6581 (enhanced set-up)
// and RFC 7306 (atomics, immediate data). It needs no adapter, no driver and no right.
//
// Payload of Writes and Read Responses is read from the socket straight into the
// registered memory it is meant for, and that of Sends into the posted receive;
// it is delivered once its CRC32C has passed. Many segments leave in one
// gathered write, long ones from where their bytes lie. What a peer reads is copied
// before, so that its CRC holds whatever the program does meanwhile, unless the region
// keeps still ([rdma.SteadyRegion]). A queue pair runs over a connection of its own
// ([rdma.QueuePair.Connect] and [rdma.Device.Listen]) or over a stream that two
// programs have talked on before ([rdma.StreamDevice]).
//
// A connection costs two goroutines, which sleep while nothing happens, and its
// queues: about 110 bytes for each request of SendDepth and 40 for each receive
// of RecvDepth, 24 more for each scatter-gather entry. The buffers for moving
// data (128 KiB to receive, about 40 KiB to send) come from a pool while bytes
// move and are shared by all connections; only a stream that is neither a
// *net.TCPConn nor a *net.UnixConn keeps one of 32 KiB. Nothing that a peer
// sends makes memory grow: what is not placed in registered memory is dropped.
//
// Who polls a completion queue in vain reads from the sockets of its queue pairs,
// so that a spinning program answers without waking another goroutine. Each such
// Poll looks at the connection that has posted last and at one more, in turn; where
// many on one queue are busy, arming and waiting is the better way. A connection that
// is polled all the time, and on which bytes come or go, leaves its socket to the
// polls: nothing that arrives wakes a thread. Of one queue's connections two may do so
// at a time; each Poll looks at them, and only every sixteenth at one more in turn.
// Arming a queue ends that at once. It ends within some milliseconds when polls cease,
// or when nothing comes or goes.
//
// A message that finds no receive waits for one ([rdma.CapReceiverWaits]): nothing
// more is read from the connection, of which up to 128 KiB has been read by then, or
// 32 KiB where receives are shared, and TCP's window holds the peer back. The
// PostRecv goes on where the stream stood, in its own goroutine. A connection that
// breaks is noticed meanwhile. One that the peer ends behind the message is over
// after a second without a receive.
//
// # What is agreed on
//
// Either side of a connection may be another implementation, such as Linux siw or
// an adapter. The set-up settles what the two have in common:
//
//	| what                   | how                                                         |
//	|------------------------|-------------------------------------------------------------|
//	| checksums              | on if either side asks: see [Config.NoCRC]                  |
//	| markers                | each direction has them if its receiver asks:               |
//	|                        | [Config.Markers]; they cost a copy, and 66 KiB a connection |
//	| Reads outstanding      | by revision 2, each direction the fewer of what the one     |
//	|                        | side asks for and the other serves; further Reads wait in   |
//	|                        | order. Revision 1 takes QueuePairConfig.MaxReads on trust   |
//	| who speaks first       | by revision 2 the initiator, with one of three messages of  |
//	|                        | no data: an empty Write if it may choose                    |
//	| RFC 7306               | queue pairs of this package tell each other; towards others |
//	|                        | it is not used                                              |
//	| private data, each way | 512 bytes by revision 1, 508 by revision 2; Linux siw takes |
//	|                        | 252 and resets a connection with more                       |
//
// # What is lacking
//
//	| what                             | how it shows                                       |
//	|----------------------------------|----------------------------------------------------|
//	| Send with immediate              | iWARP has none                                     |
//	| receiver not ready               | no CapReceiverNotReady: the receiving end waits,   |
//	|                                  | see below                                          |
//	| polling a flag that a Write sets | no CapPolledWrites: bytes land before their CRC    |
//	| authentication, encryption       | none: see [Config.AllowRemote]. On one host the    |
//	|                                  | kernel tells the peer's user: [Config.AllowUIDs]   |
package iwarp
