//go:build !linux

package verbena

import "net"

// hungUp knows nothing here: a connection whose peer has gone waits for an
// Accept like any other.
func hungUp(net.Conn) (gone, half bool) { return false, false }
