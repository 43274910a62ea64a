package rdma

import "context"

// DomainConfig configures a protection domain.
type DomainConfig struct {
	// OnEvent is called for asynchronous events, one at a time, from a
	// goroutine of the provider. It must return soon and must not close what the
	// event names before it has returned. Nil drops events.
	OnEvent func(Event)
	// Unpolled tells whether nobody in the process polls for completions, so that who
	// waits arms a queue and sleeps. Providers may ask it, from any goroutine, before a
	// waiter sleeps, and choose by it how; all works, if not as well, when it is wrong.
	// Nil: somebody may poll.
	Unpolled func() bool
}

// A Domain is a protection domain: regions and queue pairs of different
// domains have nothing to do with each other. All methods may be called
// concurrently.
type Domain interface {
	Device() Device
	// Allocate maps size bytes of zeroed memory that the device can reach and
	// registers them. Its key is random and opens the memory to queue pairs of
	// this domain only, with the rights in access.
	Allocate(size int, access Access) (Region, error)
	// NewCompletionQueue makes a completion queue of at least depth entries.
	NewCompletionQueue(depth int) (CompletionQueue, error)
	// NewSharedReceiveQueue makes a queue of receives for many queue pairs.
	NewSharedReceiveQueue(SharedReceiveConfig) (SharedReceiveQueue, error)
	// NewQueuePair makes a queue pair. It takes receives at once and sends once
	// it is connected. A configuration beyond the device's limits, or with queues
	// of another domain, fails with [ErrInvalid] or [ErrUnsupported].
	NewQueuePair(QueuePairConfig) (QueuePair, error)
	// Close destroys all that the domain made, queue pairs first. Memory is
	// unmapped: no slice of a region may be used afterwards. Whoever still posts,
	// polls or waits gets [ErrClosed] (a post may get [ErrState]).
	Close() error
}

// Access is a set of rights to a region.
type Access uint8

const (
	// AccessLocalWrite lets this side's receives, Reads and atomics put data there.
	AccessLocalWrite Access = 1 << iota
	AccessRemoteRead
	AccessRemoteWrite
	AccessRemoteAtomic
	// AccessRemoteInvalidate lets a peer revoke the key by a Send with invalidate.
	// It needs [CapSendInvalidate].
	AccessRemoteInvalidate
)

// A Region is registered memory.
type Region interface {
	// Bytes is the memory itself, until Close.
	Bytes() []byte
	// Key is what a peer needs to reach it.
	Key() uint32
	// Address is the remote address of the first byte; a peer adds offsets to it.
	Address() uint64
	Access() Access
	// Close revokes the key and unmaps the memory. When it returns, no access of
	// a peer or of the device is under way and none will begin; a peer that
	// tries is refused. Requests of this side that still name the region fail
	// their queue pairs, so close regions when nothing is outstanding on them.
	Close() error
}

// A WithdrawableRegion can end all access to its memory and leave it to this
// process.
type WithdrawableRegion interface {
	Region
	// Withdraw revokes the key. When it returns, no access of a peer or of the device
	// is under way and none will begin; neither a peer nor a request of this side may
	// name the region any more. Its memory stays mapped until Close.
	Withdraw() error
}

// A SteadyRegion can be promised to keep still. Who sends checksums with bytes in
// software has to copy what a peer reads first, since the program may write there at any
// time. Regions of other devices do not implement it.
type SteadyRegion interface {
	Region
	// Steady promises that no byte changes while a peer with the key reads it. A peer
	// that reads bytes which change nevertheless may end the queue pair, because their
	// checksum is wrong. It is called before a peer gets the key.
	Steady()
}

// UserMemory is memory that the program has mapped itself, outside the Go heap.
type UserMemory struct {
	Bytes  []byte
	Access Access
	// File tells that Bytes lie in a shared mapping of a memfd whose size is sealed.
	File *MemoryFile
}

// A MemoryFile is the memfd behind memory of a process.
type MemoryFile struct {
	FD     int   // it stays the caller's
	Size   int64 // bytes of the whole file
	Offset int64 // of the memory in the file
}

// A RegisteringDomain registers memory that the program has mapped itself.
type RegisteringDomain interface {
	Domain
	// Register registers memory, which stays the caller's and must stay mapped until
	// the region's Close has returned. Close and Withdraw end all access to it and
	// leave it as it is. It fails with [ErrUnsupported] if peers are to reach memory
	// that the device cannot show them. A region without remote rights cannot be
	// received into.
	Register(UserMemory) (Region, error)
	// Pins tells that the device holds on to the pages themselves: a mapping whose
	// file is truncated does no harm then.
	Pins() bool
}

// A CompletionQueue collects completions. Poll may be called concurrently
// with everything; Arm and Wait belong to one goroutine at a time.
type CompletionQueue interface {
	// Poll takes up to len(into) completions and returns how many. It never
	// blocks and does not allocate. [ErrOverrun] says that completions were
	// lost because the queue was full; the queue pairs using it have failed.
	Poll(into []Completion) (int, error)
	// Arm asks for one event at the next completion, or at the next that is
	// solicited or an error. Completions that are there already raise no event:
	// arm, poll again, then wait.
	Arm(solicitedOnly bool) error
	// Wait blocks until the event that Arm asked for. It returns nil at once if
	// it has happened since, the context's error, or [ErrClosed].
	Wait(ctx context.Context) error
	// Close fails with [ErrInUse] while a queue pair uses the queue.
	Close() error
}

// An EventQueue can tell of an event by a function instead of ending a Wait. Who is in a
// Wait has to be woken, by the system or by Go's scheduler, which costs as much as some
// messages do.
type EventQueue interface {
	CompletionQueue
	// OnEvent has f called, where the provider can, when what Arm asked for has happened.
	// A goroutine of the provider calls it, which holds no lock, and which moves the bytes
	// of a queue pair again only when f has returned. f may call Arm, while others are in
	// Wait, too. It may do all with queue pairs but close them. If f returns false, or
	// where the provider cannot call it, the event ends a Wait. If somebody has polled all that
	// there is before f is called, there is no event, and the queue stays armed.
	//
	// OnEvent comes before the queue is armed for the first time.
	OnEvent(f func() (done bool))
	// Hold puts off events that would end a Wait, until all who hold the queue have called Release,
	// which must follow soon. It is for who posts what may complete at once, and polls before
	// Release. Hold, Held and Release may be called concurrently, and with all others.
	Hold()
	// Held tells whether an event is put off, and something is left to poll.
	Held() bool
	// Release raises the event that was put off, if completions are left or the queue has failed. If
	// somebody has polled all of them, the queue stays armed, as if none had come.
	Release()
}

// SharedReceiveConfig configures a shared receive queue.
type SharedReceiveConfig struct {
	Depth  int // receives it can hold
	MaxSGE int // entries of each, at most Attributes.MaxRecvSGE
	// LimitEvent raises EventReceiveLimit once when fewer are left; 0 never does.
	LimitEvent int
	// OnScarce, if it is set and the device has [CapLendsReceives], is called when it
	// would lend n more than there are. It may post receives,
	// and returns how many it has posted. Whoever polls calls it, or the device itself,
	// with no lock held; calls may be concurrent.
	OnScarce func(n int) (posted int)
}

// A SharedReceiveQueue holds receives that any of its queue pairs may take.
//
// None is lost with a queue pair that ends. What it has not taken stays for the
// others. What it has taken, to put a message there that has not come as a whole,
// either goes back to the queue or completes as [StatusFlushed] in the queue
// pair's completion queue, at the latest when its Close returns, and can be polled
// after that. The message may have been written in part.
type SharedReceiveQueue interface {
	// PostRecv is [QueuePair.PostRecv] for all of them.
	PostRecv(requests []RecvRequest) (int, error)
	// Close fails with [ErrInUse] while a queue pair uses the queue.
	Close() error
}

// A RecallingReceiveQueue can give receives back that have been posted.
type RecallingReceiveQueue interface {
	SharedReceiveQueue
	// Recall takes at most len(ids) receives out of the queue, leaves keep there, and
	// returns how many it took, with their IDs in ids. They never complete, and their
	// memory is the caller's again.
	//
	// A device that lends receives first takes back what was lent to queue pairs that
	// have used none of it since the last call. Then it takes out what is not lent.
	// Another device takes as many as were left in the queue at all times since the
	// last call.
	Recall(ids []uint64, keep int) int
}

// EventKind tells what an [Event] is about.
type EventKind uint8

const (
	// EventQueuePairError says that a queue pair has failed; Err tells why.
	EventQueuePairError EventKind = iota
	// EventDisconnected says that the peer has ended the connection or died.
	EventDisconnected
	// EventCompletionOverrun says that a completion queue lost completions.
	EventCompletionOverrun
	// EventReceiveLimit says that a shared receive queue runs low.
	EventReceiveLimit
	// EventDeviceError says that the device is gone: nothing of the domain works
	// any more, and all its queue pairs fail.
	EventDeviceError
	// EventPortDown says that a port has lost its link. Queue pairs wait for it to
	// come back and fail by themselves when their retries are used up.
	EventPortDown
	// EventPortUp says that a port has its link again.
	EventPortUp
)

var eventNames = [...]string{
	"queue pair error", "disconnected", "completion queue overrun",
	"shared receive queue limit", "device error", "port down", "port up",
}

func (k EventKind) String() string { return nameOf(eventNames[:], int(k)) }

// An Event is something that no single request caused. The fields that do not
// apply are nil.
type Event struct {
	Kind          EventKind
	QueuePair     QueuePair
	Completions   CompletionQueue
	SharedReceive SharedReceiveQueue
	Err           error
}
