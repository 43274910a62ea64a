//go:build !linux

package membarrier

// A Scope is a set of processes that take part. Here none can.
type Scope struct{}

// Private is this process alone, and Global all processes of the host.
var Private, Global = &Scope{}, &Scope{}

// Registered is false.
func (*Scope) Registered() bool { return false }

// Fence does nothing.
func (*Scope) Fence() {}
