package rdma

import (
	"context"
	"net"
)

// A Provider finds the devices of one kind.
type Provider interface {
	// Name is short and stable: "shm", "iwarp", "ibverbs". It stands in
	// configuration, in the hello and in metrics.
	Name() string
	// Devices lists what can be used now. When there is none, the error wraps
	// [ErrUnavailable] and says what is missing and what to do about it.
	Devices(ctx context.Context) ([]Device, error)
}

// A CountingProvider counts what no single request tells, over all its devices.
type CountingProvider interface {
	Provider
	// Counters are the values of this moment by name, in lower case with
	// underscores, as monitoring shows them: "lost_completions". The names are
	// the same at each call, and no value goes down.
	Counters() map[string]uint64
}

// A Device is an adapter, or what stands in for one. All methods may be called
// concurrently.
type Device interface {
	Attributes() Attributes
	// OpenDomain opens a protection domain.
	OpenDomain(DomainConfig) (Domain, error)
	// Listen accepts connection requests at a provider-specific address. An
	// empty address lets the provider choose one; [Listener.Address] tells it.
	Listen(ctx context.Context, address string) (Listener, error)
}

// A StreamDevice runs its queue pairs over byte streams that somebody else has
// set up, as iWARP does over TCP. Both ends may have exchanged other bytes
// before; from here on the stream belongs to the queue pair, which closes it.
type StreamDevice interface {
	Device
	// ConnectStream is [QueuePair.Connect] over stream.
	ConnectStream(ctx context.Context, qp QueuePair, stream net.Conn, private []byte) (reply []byte, err error)
	// RequestFromStream reads the connection request that the peer's
	// ConnectStream sends. The context bounds the reading alone.
	RequestFromStream(ctx context.Context, stream net.Conn) (ConnectRequest, error)
}

// A RoutedDevice has addresses in a network, and peers that it may or may not
// reach. Where a host has several devices, a runtime chooses by what these
// methods tell; a device that does not have them reaches every peer.
type RoutedDevice interface {
	Device
	// Addresses lists where peers reach the device now, an address for each of
	// its ports that is up: what stands before the port number in the address of
	// a [Listener], such as "10.9.0.1". It is empty while no port is up.
	Addresses() []string
	// Reaches tells whether a connection to address would leave through this
	// device: one of the Addresses of a peer's device, or the address of its
	// Listener. It asks the routes of this host, not the peer, and does not wait.
	// The error says why not.
	Reaches(address string) error
}

// Class tells how a device reports that the peer refused an access.
type Class uint8

const (
	// ClassInfiniBand completes the refused request itself with an error.
	// InfiniBand, RoCE and shared memory belong here.
	ClassInfiniBand Class = iota
	// ClassIWARP fails the queue pair later, with an asynchronous event.
	ClassIWARP
)

func (c Class) String() string {
	if c == ClassIWARP {
		return "iwarp"
	}
	return "infiniband"
}

// Capabilities is a set of optional features.
type Capabilities uint32

const (
	// CapSendImmediate carries 32 bits beside a Send.
	CapSendImmediate Capabilities = 1 << iota
	// CapWriteImmediate carries 32 bits beside a Write and consumes a receive.
	CapWriteImmediate
	// CapAtomics has Compare-and-swap and Fetch-and-add of 8 aligned bytes.
	CapAtomics
	// CapSharedReceive has shared receive queues.
	CapSharedReceive
	// CapPolledWrites makes a Write visible to a reader that polls the target
	// memory, the last bytes of it last.
	CapPolledWrites
	// CapReceiverNotReady makes a Send that finds no receive wait and try
	// again, as [QueuePairConfig.ReceiverNotReadyRetry] says. Without it, and without
	// CapReceiverWaits at the receiver, such a Send fails the connection: the peers
	// keep count themselves.
	CapReceiverNotReady
	// CapStreams says that the device is a [StreamDevice].
	CapStreams
	// CapSendInvalidate has [OpSendInvalidate] and [AccessRemoteInvalidate].
	CapSendInvalidate
	// CapReceiverWaits lets a message that finds no receive, its own or a shared one,
	// wait at this end until one is posted, however long. The sender is not told: his
	// Send completes, and his later ones wait in the network once that is full.
	// Whatever comes behind the message on the same connection waits with it, in
	// order: Writes, the peer's Reads and the data of this side's own. A receive
	// posted to a shared queue goes to the connections that wait, in turn. If the peer
	// ends the connection meanwhile, what waits may be lost; if there is more than the
	// network holds, the end is seen only behind it.
	CapReceiverWaits
	// CapLendsReceives lends shared receives to queue pairs ahead of need, and asks for
	// more: see [SharedReceiveConfig.OnScarce]. Shared receive queues are
	// [RecallingReceiveQueue]s then.
	CapLendsReceives
	// CapChecksums has a checksum of 32 bits, at least, for all that comes over a connection. The
	// receiving device compares it before it completes anything.
	CapChecksums
)

var capabilityNames = [...]string{
	"send-immediate", "write-immediate", "atomics", "shared-receive",
	"polled-writes", "receiver-not-ready", "streams", "send-invalidate", "receiver-waits", "lends-receives", "checksums",
}

// Has tells whether every capability of want is there.
func (c Capabilities) Has(want Capabilities) bool { return c&want == want }

// Names lists the set's members, as the command line shows them.
func (c Capabilities) Names() []string {
	var names []string
	for i, name := range capabilityNames {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Attributes says what a device is and can do. Sizes are in bytes; a limit of
// zero means that there is none of the thing.
type Attributes struct {
	Provider string // [Provider.Name]
	Name     string // the device's own name, such as "mlx5_0"
	Class    Class
	Capabilities

	MaxInline       int   // payload that Inline may carry
	MaxSendSGE      int   // scatter-gather entries of a Send or Write
	MaxReadSGE      int   // local entries of a Read; 1 on iWARP
	MaxRecvSGE      int   // entries of a receive
	MaxQueueDepth   int   // requests outstanding on a send or receive queue
	MaxCompletions  int   // depth of a completion queue
	MaxReads        int   // Reads and atomics outstanding on a queue pair
	MaxMessage      int64 // length of one message
	MaxRegion       int64 // length of one region
	MaxPrivateData  int   // bytes that travel with Connect and Accept
	CrossesHosts    bool  // a peer on another host can be reached
	OneNetwork      bool  // a peer must be in the same network namespace, too
	KernelBypass    bool  // post and poll make no system call while both ends run
	MemoryAlignment int   // alignment of what Allocate returns
}

// A Listener accepts connection requests.
type Listener interface {
	// Accept waits for the next request. It returns an error wrapping
	// [ErrClosed] after Close.
	Accept(ctx context.Context) (ConnectRequest, error)
	// Address is what a peer's [QueuePair.Connect] takes.
	Address() string
	// Close refuses what has not been accepted yet, ends waiting Accepts and
	// leaves established connections alone.
	Close() error
}

// A ConnectRequest is a peer that waits for an answer. Exactly one of Accept
// and Reject is called, once.
type ConnectRequest interface {
	// PrivateData is what the peer gave to Connect. It belongs to the request.
	PrivateData() []byte
	// RemoteAddress names the peer in messages and logs.
	RemoteAddress() string
	// Accept connects qp, whose first receives have been posted, and returns
	// when it can be used. On an error qp must be closed. If the peer has given
	// up meanwhile, either Accept fails or qp does, soon after.
	Accept(ctx context.Context, qp QueuePair, private []byte) error
	// Reject refuses. The peer's Connect returns a [*RejectedError].
	Reject(private []byte) error
}

// A CredentialedRequest knows whose process waits, because the kernel of this host
// vouches for it, before the request is answered.
type CredentialedRequest interface {
	ConnectRequest
	// PeerCredentials reports false where they are not known.
	PeerCredentials() (Credentials, bool)
}
