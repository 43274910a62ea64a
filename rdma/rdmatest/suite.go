package rdmatest

import (
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Suite tells [Run] what to test.
type Suite struct {
	// Open returns the devices of the two sides; they may be one device. It is
	// called once for each Run. Either may be a [RemoteDevice], so that the two
	// sides run in different processes, on different hosts or over different
	// providers.
	Open func(t *testing.T) (initiator, target rdma.Device)
	// Address is what the target listens at. Empty lets the provider choose.
	Address string
	// OverStream connects queue pairs over TCP connections of the loopback
	// interface, by [rdma.StreamDevice], instead of by Listen and Connect.
	OverStream bool
	// Peer makes the target of the cases that kill or stop the peer's process.
	// [Process] makes one that is a process. Without it these cases are skipped
	// as [FeaturePeer], which the table must then allow.
	Peer func(t *testing.T) *Peer
	// MayLack adds to the table of what providers and devices may lack.
	MayLack []Lack
	// MaxMessage bounds the sizes, in bytes; 0 means 64 MiB, or 1 MiB if
	// testing.Short. The device's own Attributes.MaxMessage bounds it, too.
	MaxMessage int64
	// Watchdog bounds a case; 0 means 60 s. A case that takes longer fails with
	// the stacks of all goroutines.
	Watchdog time.Duration
	// Bound is how soon a side must notice that its peer died, and how long a
	// case waits for anything that must come; 0 means 20 s.
	Bound time.Duration
}

// A Peer is a target that can be killed and stopped.
type Peer struct {
	Device rdma.Device
	// Kill ends it at once, as SIGKILL does.
	Kill func()
	// Stop suspends it, as SIGSTOP does, and Continue lets it go on.
	Stop, Continue func()
}

// Run runs every case as a subtest of t. A case that needs what the devices
// lack is skipped, and fails unless the table of what they may lack has it.
func Run(t *testing.T, s Suite) {
	t.Helper()
	if s.Open == nil {
		t.Fatal("rdmatest: Suite.Open is not set")
	}
}
