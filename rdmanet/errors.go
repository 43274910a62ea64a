package rdmanet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/verbena-data/verbena"
)

// closedError is net.ErrClosed to callers who know sockets and
// io.ErrClosedPipe to those who know pipes.
type closedError struct{}

func (closedError) Error() string { return net.ErrClosed.Error() }
func (closedError) Is(target error) bool {
	return target == net.ErrClosed || target == io.ErrClosedPipe
}

var errClosed error = closedError{}

// errPeerStopped is what a write gets once the peer reads no more.
var errPeerStopped = fmt.Errorf("%w: the peer reads no more", syscall.EPIPE)

// errWriteClosed is what a write gets after CloseWrite.
var errWriteClosed = fmt.Errorf("%w: closed for writing", syscall.EPIPE)

// resetError is the failure of an endpoint under a connection: ECONNRESET to
// callers, with the endpoint's own reason, unless it was this side that closed
// the runtime.
func resetError(reason error) error {
	switch {
	case reason == nil:
		return syscall.ECONNRESET
	case reason == errClosed, errors.Is(reason, verbena.ErrClosed):
		return errClosed
	}
	return fmt.Errorf("%w: %w", syscall.ECONNRESET, reason)
}
