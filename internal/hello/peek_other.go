//go:build !unix

package hello

import "net"

func peek(net.Conn, []byte) (int, error) { return 0, nil }
