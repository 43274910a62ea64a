//go:build !unix

package stream

import "net"

type directWriter struct{}

func (*directWriter) init(net.Conn)             {}
func (*directWriter) ready() bool               { return false }
func (*directWriter) write([]byte) (int, error) { return 0, nil }
