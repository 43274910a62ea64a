//go:build unix

package datanode

import (
	"errors"
	"syscall"
)

func connectionBroken(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
