package engine

import (
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// TerminateError is the end of a connection by a Terminate message.
type TerminateError struct {
	// Layer, Type and Code are the cause as RFC 5040 section 4.8 numbers them.
	Layer, Type, Code uint8
	// Sent tells that this side found the error and told the peer; otherwise
	// the peer did.
	Sent bool
	// Reason says more; empty if nothing is known beyond the cause.
	Reason string
}

func (e *TerminateError) cause() wire.Cause {
	return wire.Cause{Layer: e.Layer, Type: e.Type, Code: e.Code}
}

func (e *TerminateError) Error() string {
	s := "the peer terminated the stream: "
	if e.Sent {
		s = "this side terminated the stream: "
	}
	s += e.cause().String()
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// Unwrap makes refused accesses [rdma.ErrRemoteAccess] at the side that tried,
// and everything else [rdma.ErrDisconnected].
func (e *TerminateError) Unwrap() error {
	if !e.Sent && e.cause().Access() {
		return rdma.ErrRemoteAccess
	}
	return rdma.ErrDisconnected
}

// ErrCutOff is the end of the stream within a segment.
var ErrCutOff = errors.New("the stream ended in the middle of a segment")

// fault is an error that this side found in what the peer sent.
type fault struct {
	cause  wire.Cause
	reason string
	// status is what becomes of the request whose memory was being filled: the
	// receive of a Send, the Read of a Read Response.
	status rdma.Status
}

func faultf(cause wire.Cause, format string, args ...any) *fault {
	return &fault{cause: cause, reason: fmt.Sprintf(format, args...), status: rdma.StatusFlushed}
}

func (f *fault) error() error {
	return &TerminateError{
		Layer: f.cause.Layer, Type: f.cause.Type, Code: f.cause.Code, Sent: true, Reason: f.reason,
	}
}
