package verbena

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// rejection returns what a peer's device has said with its refusal, if that is
// what err is.
func rejection(err error) string {
	var rejected *rdma.RejectedError
	if errors.As(err, &rejected) {
		return string(rejected.PrivateData)
	}
	return ""
}

// worthRepeating tells whether the same candidate is likely to connect a moment
// later.
func worthRepeating(err error) bool {
	switch rejection(err) {
	case rdma.RejectBusy, rejectToken:
		return true
	}
	return false
}

// passing tells whether a failure is one of this moment and no property of the
// two ends: something has run out, or had no time.
func passing(err error) bool {
	switch rejection(err) {
	case rdma.RejectBusy, rejectNoResources, rejectClosing, rejectToken:
		return true
	}
	return rdma.Temporary(err) || errors.Is(err, slab.ErrExhausted) || errors.Is(err, rdma.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
}

// rejectionFor is what a peer is told for whom no endpoint could be made.
func rejectionFor(err error) string {
	switch {
	case errors.Is(err, ErrClosed):
		return rejectClosing
	case passing(err):
		return rejectNoResources // it tries again
	}
	return rejectNotPossible
}

// exhausted tells whether an end had no room for an endpoint at that moment.
func exhausted(err error) bool {
	told := rejection(err)
	return told == rejectNoResources || told == rdma.RejectBusy || errors.Is(err, slab.ErrExhausted)
}

// publicReason says why a transport failed, in words that are fit for the peer:
// what err itself says of users, processes and sockets is none of its business.
func publicReason(err error) string {
	for _, known := range []struct {
		is   error
		text string
	}{
		{context.DeadlineExceeded, "timed out"},
		{os.ErrDeadlineExceeded, "timed out"},
		{rdma.ErrTimeout, "timed out"},
		{rdma.ErrUnavailable, "no device for it"},
		{rdma.ErrUnsupported, "not supported"},
		{fs.ErrPermission, "no permission"},
		{fs.ErrNotExist, "its address does not exist here"},
		{syscall.ECONNREFUSED, "nobody listens at its address, as seen from here"},
		{ErrProtocol, "protocol error"},
		{rdma.ErrDisconnected, "the connection broke"},
		{rdma.ErrInvalid, "not possible between these two ends"},
	} {
		if errors.Is(err, known.is) {
			return known.text
		}
	}
	switch {
	case rejection(err) != "":
		return "rejected: " + rejection(err) // the peer's own words
	case rdma.Temporary(err), errors.Is(err, slab.ErrExhausted):
		return "out of memory or descriptors"
	}
	return "failed"
}
