package rdma

// Status is the outcome of a request. The names and meanings are verbs'.
type Status uint8

const (
	StatusSuccess Status = iota
	// StatusLocalLength: an incoming message was longer than the receive.
	StatusLocalLength
	// StatusLocalProtection: memory of this side may not be used so.
	StatusLocalProtection
	// StatusLocalOperation: the queue pair failed inside this side.
	StatusLocalOperation
	// StatusFlushed: the queue pair had failed or was closed before.
	StatusFlushed
	// StatusRemoteInvalid: the peer could not take the request, such as a Send
	// longer than its receive.
	StatusRemoteInvalid
	// StatusRemoteAccess: the peer refused: key, bounds, rights or domain.
	StatusRemoteAccess
	// StatusRemoteOperation: the peer failed while carrying it out.
	StatusRemoteOperation
	// StatusRetryExceeded: the peer no longer answers.
	StatusRetryExceeded
	// StatusReceiverNotReady: the peer posted no receive in time.
	StatusReceiverNotReady
)

var statusNames = [...]string{
	"success", "local length error", "local protection error",
	"local queue pair operation error", "flushed", "remote invalid request error",
	"remote access error", "remote operation error", "transport retry counter exceeded",
	"receiver not ready",
}

func (s Status) String() string { return nameOf(statusNames[:], int(s)) }

// Completion reports the end of a request. If Status is not StatusSuccess,
// only ID, Status and QueuePair are meaningful.
type Completion struct {
	ID           uint64
	QueuePair    uint32 // [QueuePair.Number]
	Length       uint32 // bytes received, written with immediate, or read
	Immediate    uint32 // the 32 bits, if HasImmediate; the key, if Invalidated
	Op           Opcode
	Status       Status
	HasImmediate bool
	// Invalidated says that the peer's Send has revoked a key of this side.
	Invalidated bool
}

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}
