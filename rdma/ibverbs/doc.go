// Package ibverbs is a verbs provider for adapters: InfiniBand, RoCE and iWARP
// devices, and the kernel's software devices rxe and siw. rdma-core's libibverbs
// and librdmacm are loaded when a program first asks for devices, without cgo, so
// that the same binary finds out on each host what there is, and says what is
// missing where there is nothing to use.
//
// A domain is an open device of its own. Connections are made by rdma_cm, to IP
// addresses; the queue pair's source is the device's own address. Posts and polls
// go straight to the driver, without allocating. What is outstanding is written
// down on this side, too, because drivers forget completions, complete requests
// out of order (iWARP) or report less than rdma promises; each failed queue pair
// ends with every request told of, in order.
//
// The package's goroutines: one for the connection manager's events of each
// device while anything of it is open, two for each domain (asynchronous events,
// and telling the application of them; over InfiniBand another one, which probes idle
// queue pairs; on rxe with a RetryCount of 7 one more, which looks for queue pairs
// that have failed), and one for each queue pair that is
// ending or destroyed. Domain.Close and Listener.Close end them.
//
// # What differs between devices
//
// What the package has to do differently for a driver, and why, is one table in
// internal/quirks. What a program sees of it is this:
//
//	| what                         | InfiniBand, RoCE, rxe      | iWARP, siw                     |
//	|------------------------------|----------------------------|--------------------------------|
//	| class                        | rdma.ClassInfiniBand       | rdma.ClassIWARP                |
//	| immediate data, atomics      | as the device says         | none                           |
//	| entries of a Read            | as the device says         | one                            |
//	| receiver not ready           | retried: see below         | the connection fails           |
//	| peer refused an access       | StatusRemoteAccess         | the connection ends; siw does  |
//	|                              |                            | not tell why                   |
//	| armed for solicited alone    | others wake nobody         | siw: all completions wake      |
//	| Read of memory without the   | refused                    | siw (Linux 6.1) does it        |
//	| right of remote read         |                            |                                |
//	| Read of no bytes             | asks the peer              | siw: a Write of no bytes       |
//	| Read of up to 32 bytes that  | one                        | siw: two, see below            |
//	| cross a page at the peer     |                            |                                |
//	| fenced requests, or Reads    | go on                      | siw: both ends wait for ever   |
//	| beyond MaxReads, at both     |                            |                                |
//	| ends at once                 |                            |                                |
//	| peer is silent               | AckTimeout and RetryCount  | the kernel's TCP               |
//	| and nothing is sent          | asked after KeepAlive      | the adapter's TCP, if it asks  |
//	| peer is killed under Writes  | disconnected, or           | disconnected                   |
//	| or Reads of its memory       | StatusRemoteAccess before  |                                |
//	| network loses an atomic's    | rxe (Linux 6.1) carries it | none                           |
//	| answer and the next packet   | out twice                  |                                |
//	| a fenced request with Reads  | rxe (Linux 6.1): both ends | TCP repeats it; there is no    |
//	| behind it is repeated: it is | wait for ever              | receiver-not-ready             |
//	| lost, or behind a Send that  |                            |                                |
//	| finds no receive             |                            |                                |
//
// siw (Linux 6.1) sends other bytes than it was asked for when it answers a Read of
// up to 32 bytes that cross a page of 4 KiB; so it does with a Send or Write of one
// such entry that had to wait. Requests of this package over siw are cut in two at
// the page and are right. A Read that some other initiator asks a siw for is not.
//
// A siw that accepts may overlook what the initiator sends at once, until more
// comes. As the target this package looks into the kernel's list of TCP sockets and,
// where data stay, has the initiator send a little more by a Read of nothing, which
// needs a peer that takes Reads (perftest's clients of Sends and Writes take none).
// As the initiator it sends two Writes of nothing, 50 ms and 1 s after each connect.
//
// Keys are the adapter's own and not random. Send with invalidate is not there.
//
// The time that a Send waits for a receive is the product of a count at the
// sender and a timer that the receiver tells it, so
// [rdma.QueuePairConfig.ReceiverNotReadyRetry] is kept, up to about three
// seconds, where both ends ask for about the same; a longer bound counts as none.
// rxe takes the waiting for silence, too: there a Send is given up after about
// AckTimeout times RetryCount without a receive, whatever the bound.
//
// # Removal
//
// When a device is removed (rdma link del, or an adapter unplugged) the kernel
// waits for the programs that use it. A domain hears of it, raises
// [rdma.EventDeviceError], fails its queue pairs and frees all that it has in the
// driver; its objects fail from then on with [rdma.ErrUnavailable] and still have
// to be closed. librdmacm keeps a device that has been used open until the process
// ends, and hears of no removal once nothing of the device is open here. Such an
// idle process holds up the removal of rxe and siw, whose drivers cannot take a
// device from a process; adapters' drivers can. Only an identifier of the
// connection manager, with its descriptor and a goroutine, would hear of the
// removal: an idle process is not to have them for software devices' sake.
package ibverbs
