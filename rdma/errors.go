package rdma

import "errors"

// Errors that callers tell apart. Providers wrap them with what happened, the
// object and the peer.
var (
	// ErrUnavailable: this host has no such device; the text says what is missing.
	ErrUnavailable = errors.New("rdma: not available")
	// ErrUnsupported: the device lacks the capability.
	ErrUnsupported = errors.New("rdma: not supported by the device")
	// ErrQueueFull: poll completions, then post again.
	ErrQueueFull = errors.New("rdma: queue full")
	// ErrInvalid: the request is wrong by itself: an entry outside its region, a
	// region of another domain, too many entries, too much inline data.
	ErrInvalid = errors.New("rdma: invalid request")
	// ErrState: the queue pair is not in a state for this.
	ErrState = errors.New("rdma: queue pair is in the wrong state")
	// ErrOverrun: a completion queue was too small for what was outstanding.
	ErrOverrun = errors.New("rdma: completion queue overrun")
	// ErrInUse: something still depends on the object.
	ErrInUse = errors.New("rdma: in use")
	// ErrClosed: the object has been closed.
	ErrClosed = errors.New("rdma: closed")
	// ErrTimeout: the peer did not answer in time.
	ErrTimeout = errors.New("rdma: timed out")
	// ErrDisconnected: the peer ended the connection or died.
	ErrDisconnected = errors.New("rdma: disconnected")
	// ErrRemoteAccess: the peer refused an access (iWARP: the queue pair's Err).
	ErrRemoteAccess = errors.New("rdma: remote access refused")
)

// A RejectedError is what Connect returns when the peer said no.
type RejectedError struct {
	Peer        string
	PrivateData []byte // what came with the refusal
}

func (e *RejectedError) Error() string {
	return "rdma: " + e.Peer + " rejected the connection"
}
