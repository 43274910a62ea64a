package rdma_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

func TestTemporary(t *testing.T) {
	wrapped := fmt.Errorf("open a domain: %w", os.NewSyscallError("memfd_create", syscall.EMFILE))
	for _, err := range []error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ENOSPC, syscall.EAGAIN, wrapped,
		fmt.Errorf("%w: %w", rdma.ErrUnavailable, syscall.ENFILE),
		errors.Join(errors.New("first"), &net.OpError{Op: "listen", Err: wrapped}),
	} {
		if !rdma.Temporary(err) {
			t.Errorf("%v lasts", err)
		}
	}
	for _, err := range []error{
		nil, rdma.ErrUnavailable, rdma.ErrUnsupported, rdma.ErrTimeout, rdma.ErrQueueFull, context.DeadlineExceeded,
		syscall.EACCES, syscall.ENODEV, syscall.EINVAL, syscall.ECONNREFUSED, fmt.Errorf("%w: %w", rdma.ErrUnavailable, syscall.ENOSYS),
	} {
		if rdma.Temporary(err) {
			t.Errorf("%v is temporary", err)
		}
	}
}
