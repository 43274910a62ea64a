//go:build !unix

package perf

import (
	"errors"
	"net"
)

func peek(net.Conn, []byte, func([]byte) bool) (int, error) {
	return 0, errors.New("perf: this system cannot look into a connection: serve on another")
}
