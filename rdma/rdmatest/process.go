package rdmatest

import (
	"net"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// An Opener opens the device that a child process uses.
type Opener func() (rdma.Device, error)

// RunChild serves as the other side, and ends the process, if this process is
// one that [Process] started. Otherwise it returns. It must be the first thing
// in TestMain of a package that uses Process.
func RunChild(openers map[string]Opener) {
}

// Process returns a maker of peers that are child processes: the test binary
// itself, whose TestMain calls [RunChild] with an opener of that name.
func Process(opener string) func(t *testing.T) *Peer {
	return func(t *testing.T) *Peer { return nil }
}

// RemoteDevice is the device that the other end of control offers with
// [ServeDevice]. All calls go over control, which is no part of what is tested.
// The memory of its regions is elsewhere: Bytes returns nil.
func RemoteDevice(control net.Conn) (rdma.Device, error) { return nil, nil }

// ServeDevice offers device at control until the other end closes it.
func ServeDevice(control net.Conn, device rdma.Device) error { return nil }
