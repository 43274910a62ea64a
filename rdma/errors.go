package rdma

import (
	"errors"
	"syscall"
)

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

// RejectBusy is the private data of a refusal for want of room: too many requests
// wait already. The same request may be accepted a moment later.
const RejectBusy = "busy"

// Busy tells whether the peer had no room, see [RejectBusy].
func (e *RejectedError) Busy() bool { return string(e.PrivateData) == RejectBusy }

func (e *RejectedError) Error() string {
	return "rdma: " + e.Peer + " rejected the connection"
}

// passing are what the system says when something has run out that others give
// back: descriptors, memory, places in a table or a queue.
var passing = [...]error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ENOSPC, syscall.EAGAIN,
}

// Temporary tells whether a call failed only because this process or its host had
// run out of something at that moment: descriptors, memory, or places in a table.
// The same call may succeed later, so a device whose [Device.OpenDomain] failed so
// is to be tried again, after a pause. Every other failure lasts until somebody
// mends its reason. An error may be both temporary and [ErrUnavailable].
//
// It finds the system's error numbers in the chain of err; providers wrap them.
func Temporary(err error) bool {
	for _, reason := range passing {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}
