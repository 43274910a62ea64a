//go:build !unix

package verbena

import "syscall"

// A directWriter writes to a socket what it takes at once; not here.
type directWriter struct{}

func (*directWriter) init(syscall.RawConn) {}

func (*directWriter) ready() bool { return false }

func (*directWriter) write(a, b, c []byte) (int, error) { return 0, nil }
