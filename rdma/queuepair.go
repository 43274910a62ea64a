package rdma

import (
	"context"
	"time"
)

// QueuePairConfig configures a queue pair. The provider may give more than was
// asked for, never less.
type QueuePairConfig struct {
	SendCompletions CompletionQueue // of the same domain
	RecvCompletions CompletionQueue // may be the same queue
	// SharedReceive, if set, is where receives come from; PostRecv then fails.
	SharedReceive SharedReceiveQueue

	SendDepth int // requests outstanding on the send queue, signalled or not
	RecvDepth int // receives outstanding
	MaxSGE    int // entries of a request; 0 means 1
	MaxInline int // bytes of an inline request
	MaxReads  int // Reads and atomics outstanding in either direction; 0: the device's default

	// ReceiverNotReadyRetry bounds how long a Send waits for the peer to post a
	// receive: 0 not at all, negative for ever. After it the Send completes with
	// StatusReceiverNotReady. Only with CapReceiverNotReady.
	ReceiverNotReadyRetry time.Duration
}

// State is where a queue pair stands.
type State uint8

const (
	StateInit      State = iota // receives may be posted
	StateConnected              // everything may be posted
	StateError                  // what is outstanding is flushed; posts fail with ErrState
	StateClosed
)

var stateNames = [...]string{"init", "connected", "error", "closed"}

func (s State) String() string { return nameOf(stateNames[:], int(s)) }

// A QueuePair is one end of a reliable connection. All methods may be called
// concurrently; requests posted by different goroutines are ordered as their
// posts are.
//
// Requests on the send queue start in order. Their completions come in order,
// too, and a signalled completion says that all requests before it are done.
// Only a Read's or an atomic's data may arrive after later Sends and Writes were
// carried out: such a request waits if it carries [Fence].
//
// A request that fails moves the queue pair to StateError. It completes with
// its status, signalled or not; everything behind it, and all receives of its
// own, complete as StatusFlushed, with their IDs, in order. About those of a
// shared queue see [SharedReceiveQueue].
type QueuePair interface {
	// Number identifies the queue pair within its device; completions carry it.
	Number() uint32
	// PostSend appends requests to the send queue. It returns how many were
	// taken; the error, if there are fewer than given, is about the next one:
	// [ErrQueueFull] when the queue holds SendDepth requests not yet known to be
	// done, [ErrInvalid] for a request that this side can see is wrong,
	// [ErrUnsupported], [ErrState]. None of them harms the queue pair.
	//
	// Memory without [AccessLocalWrite] in a receive, Read or atomic may be found
	// while posting ([ErrInvalid]) or by the device ([StatusLocalProtection]).
	//
	// The requests and their entry lists may be reused on return. The memory
	// that they name belongs to the device until their completion (or, for
	// requests that are not signalled, a later one), unless they are Inline. It
	// does not allocate.
	PostSend(requests []SendRequest) (int, error)
	// PostRecv appends receives, as PostSend does requests.
	PostRecv(requests []RecvRequest) (int, error)
	// Connect connects to a listener's address and returns the private data
	// that came with the answer. It fails with a [*RejectedError], [ErrTimeout]
	// or what the path reported; the queue pair must then be closed.
	Connect(ctx context.Context, address string, private []byte) (reply []byte, err error)
	// Disconnect ends the connection at both ends. What is outstanding is
	// flushed. It does not wait for the peer.
	Disconnect() error
	State() State
	// Done is closed when the queue pair leaves StateConnected, or fails before
	// it; Err then tells why.
	Done() <-chan struct{}
	Err() error
	// Close destroys the queue pair. When it returns, the device touches none
	// of its memory, and no further completion of it is added; ones that are not
	// polled yet may be dropped, but for those of shared receives.
	Close() error
}

// A DoorbellQueuePair lets a program post under a lock and ring the doorbell behind it.
//
// Where no adapter does the work, the doorbell is a system call of some microseconds, by
// which the kernel wakes those who wait for completions. Others want the lock meanwhile,
// those who have just been woken among them.
type DoorbellQueuePair interface {
	QueuePair
	// PostSendHeld is PostSend without the doorbell. What it has appended is carried out,
	// and who waits for completions in [CompletionQueue.Wait] is woken, when Ring is
	// called at the latest. ring tells whether that is needed: then it must be soon.
	PostSendHeld(requests []SendRequest) (n int, ring bool, err error)
	// Ring rings for everything that has been posted so far. It may be called
	// concurrently with everything, by any goroutine, and after Close. It does not
	// allocate.
	Ring()
}

// A PromptQueuePair carries out some requests within a call, since the processor does it
// and no adapter. Nothing is posted, and no completion comes on this side.
//
// ReadNow reads the whole of into, WriteNow writes data, and SendNow sends one message,
// header and then payload, to the peer's next receive. No memory need lie in a region, and
// all of it is the caller's again when the call returns. If they report true it is done:
// later requests of the queue pair find it so, and messages arrive in the order in which
// they were sent by either way. If not, nothing has been done: requests are under way, or
// it would have to wait or fail, which PostSend tells. They may be called concurrently
// with everything, also after Close, and do not allocate.
type PromptQueuePair interface {
	QueuePair
	ReadNow(into []byte, from Remote) bool
	WriteNow(to Remote, data []byte) bool
	SendNow(header, payload []byte) bool
}

// A NoticingQueuePair knows of its peer whether it sleeps.
type NoticingQueuePair interface {
	QueuePair
	// PeerSleeps tells whether a message that is sent now would have to wake who waits in
	// [CompletionQueue.Wait] at the peer, or be found by who has just armed the queue. It is
	// a hint: the peer may wake, or go to sleep, at any time, or lie. It may be called
	// concurrently with everything, also after Close, takes the time of a load from memory
	// that the peer writes to, and does not allocate.
	PeerSleeps() bool
}

// A ViewingQueuePair shows memory of the peer where it lies, since the processor reaches
// it, in place of a Read.
type ViewingQueuePair interface {
	QueuePair
	// View returns the length bytes of the peer's memory at from, which must be in a
	// region with [AccessRemoteRead], and a pin, which is released once when they are
	// not used any more. Until then they stay readable, whatever becomes of the queue
	// pair, the region, the peer and the domain. The peer may write to them at any time:
	// what is to be checked is copied first. Nobody here may write to them.
	//
	// If ok is false nothing was done: a Read does what was wanted, or tells why not.
	View(from Remote, length int) (memory []byte, pin Pin, ok bool)
	// ViewsHold tells whether the peer has not begun to take the connection down. As
	// long as it has not, what it lets this side view is as it has promised; what was read
	// before ViewsHold reported true was so, too. Afterwards it may use the memory again.
	//
	// Both may be called concurrently with everything, also after Close, and do not
	// allocate.
	ViewsHold() bool
}

// A PassingQueuePair lets other peers of this side read what View has shown, from where it
// lies in the peer's memory.
type PassingQueuePair interface {
	ViewingQueuePair
	// PassOn returns a region of this side's domain that is the peer's region around what
	// pin keeps, and a use of it, which is released once. It has [AccessRemoteRead] and no
	// other right; peers of this side read there by the region's key, and no request of
	// this side may name it. Bytes is the peer's memory: the address of what View has shown
	// is the region's, and as many bytes more as it lies behind the beginning of Bytes.
	// The region belongs to the provider: nobody else closes it. It stays until its uses
	// are released, whatever becomes of this queue pair, and the pin stays as long as it
	// is needed.
	//
	// A Read from there succeeds only if the peer whose memory it is has kept it for this
	// queue pair until the bytes were read, as [ViewingQueuePair] has it for views. If that
	// peer has begun to take its connection down before, the Read fails, and with it the
	// queue pair that it was posted to.
	//
	// If ok is false the region cannot be had, or not yet: the peer is asked for it
	// then, and a later call may succeed. PassOn does not wait for the peer.
	PassOn(pin Pin) (region Region, use Pin, ok bool)
	// ReadsPassed tells whether the peer can Read from regions of PassOn of other queue
	// pairs of this domain. It is known once the queue pair is connected.
	ReadsPassed() bool
}

// A Pin keeps what [ViewingQueuePair] has shown. Release is called once, by any goroutine.
type Pin interface{ Release() }

// Credentials tell whose process is at the other end, in the words of this
// process's namespaces.
type Credentials struct {
	UID, GID uint32
	PID      int // 0 if the process is in a process namespace that this one cannot see
}

// A CredentialedQueuePair knows whose process its peer is, because the kernel of
// this host vouches for it. The peer itself cannot say otherwise.
type CredentialedQueuePair interface {
	QueuePair
	// PeerCredentials reports false before the queue pair is connected, and where
	// they are not known.
	PeerCredentials() (Credentials, bool)
}

// Opcode is what a send request does.
type Opcode uint8

const (
	// OpSend delivers to the peer's next receive.
	OpSend Opcode = iota
	// OpSendImmediate is a Send with 32 bits beside the data.
	OpSendImmediate
	// OpWrite puts data into the peer's memory; the peer is not told.
	OpWrite
	// OpWriteImmediate is a Write that then consumes a receive, which carries no
	// data of its own, and delivers 32 bits with it.
	OpWriteImmediate
	// OpRead gets data from the peer's memory.
	OpRead
	// OpCompareSwap compares the 8 aligned bytes, in the target's byte order, at
	// Remote with CompareAdd and replaces them by Swap if they are equal. What
	// was there lands in the request's one entry of 8 bytes.
	OpCompareSwap
	// OpFetchAdd adds CompareAdd; otherwise as OpCompareSwap.
	OpFetchAdd
	// OpSendInvalidate is a Send that also revokes the peer's key Remote.Key, whose
	// region must have [AccessRemoteInvalidate]: once the peer's receive has
	// completed, the key opens nothing any more. An access by another queue pair
	// that has begun by then may still end. The region remains the peer's own.
	// Reads of this side from the region must be done: see [Fence].
	OpSendInvalidate
	// OpRecv is the operation of a receive's completion.
	OpRecv
	// OpRecvWriteImmediate is that of a receive which a Write with immediate took.
	OpRecvWriteImmediate
)

var opcodeNames = [...]string{
	"send", "send-immediate", "write", "write-immediate", "read",
	"compare-swap", "fetch-add", "send-invalidate", "recv", "recv-write-immediate",
}

func (o Opcode) String() string { return nameOf(opcodeNames[:], int(o)) }

// Flags modify a send request.
type Flags uint8

const (
	// Signaled asks for a completion. A request without it occupies its place in
	// the send queue until a later one completes: signal at least one in each
	// SendDepth.
	Signaled Flags = 1 << iota
	// Solicited makes the completion at the peer wake one who armed its queue
	// for solicited events.
	Solicited
	// Inline copies the payload while posting; its memory may be reused at once.
	Inline
	// Fence waits until the Reads and atomics before it are done.
	Fence
)

// SGE is a scatter-gather entry: Length bytes of a region from Offset on.
type SGE struct {
	Region Region
	Offset int
	Length int
}

// Remote is memory of the peer: an address within a region (its
// [Region.Address] plus an offset) and the region's key. Peers tell each other
// such pairs in messages.
type Remote struct {
	Address uint64
	Key     uint32
}

// SendRequest is a work request for the send queue. Its length is the sum of
// its entries' lengths, and may be zero.
type SendRequest struct {
	ID         uint64 // comes back in the completion
	Op         Opcode
	Flags      Flags
	Immediate  uint32
	Remote     Remote // of Write, Read and the atomics; of a Send with invalidate the key
	CompareAdd uint64 // what Compare-and-swap compares with, or Fetch-and-add adds
	Swap       uint64
	SGEs       []SGE
}

// RecvRequest is a work request for a receive queue. An incoming message fills
// its entries in order; one that does not fit fails the connection.
type RecvRequest struct {
	ID   uint64
	SGEs []SGE
}
