package rdmatest

import (
	"context"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"go.uber.org/goleak"
)

// Suite tells [Run] what to test.
type Suite struct {
	// Open returns the devices of the two sides; they may be one device. It is
	// called once for each Run. Either may be a [RemoteDevice], so that the two
	// sides run in different processes, on different hosts or over different
	// providers.
	Open func(t *testing.T) (initiator, target rdma.Device)
	// Address is what the target listens at, and InitiatorAddress the initiator,
	// in the few cases where it does. Empty lets the provider choose.
	Address, InitiatorAddress string
	// OverStream connects queue pairs over TCP connections of the loopback
	// interface, by [rdma.StreamDevice], instead of by Listen and Connect.
	OverStream bool
	// Peer makes the target of the cases that kill or stop the peer's process.
	// [Process] makes one that is a process. Without it these cases are skipped
	// as [FeaturePeer], which the table must then allow.
	Peer func(t *testing.T) *Peer
	// Dial opens the transport under the provider's connections to a listener's
	// address and says nothing there, for the cases of silent and garbled peers.
	// Without it they are left out.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// MayLack adds to the table of what providers and devices may lack.
	MayLack []Lack
	// Lossy says that the network loses packets, the answer to a refused request
	// among them: the initiator may then see no more than that the peer is gone.
	Lossy bool
	// Parallel runs cases at the same time, as many as go test's -parallel says: for
	// networks on which a case mostly waits. What measures the process runs alone.
	Parallel bool
	// MaxMessage bounds the sizes, in bytes; 0 means 64 MiB, or 1 MiB if
	// testing.Short. The device's own Attributes.MaxMessage bounds it, too.
	MaxMessage int
	// Watchdog bounds a case; 0 means 60 s. A case that takes longer fails with
	// the stacks of all goroutines.
	Watchdog time.Duration
	// Bound is how soon a side must notice that its peer died, and how long a
	// case waits for anything that must come; 0 means 20 s.
	Bound time.Duration
	// Seed seeds the random operations; 0 means a fixed one.
	Seed uint64

	initiator, target rdma.Device
}

// A Peer is a target that can be killed and stopped.
type Peer struct {
	Device rdma.Device
	// Kill ends it at once, as SIGKILL does.
	Kill func()
	// Stop suspends it, as SIGSTOP does, and Continue lets it go on.
	Stop, Continue func()
}

// A testCase is a script for both sides.
type testCase struct {
	name string
	// needs are the features without which the case has no meaning.
	needs []Feature
	run   func(e *env)
}

// Run runs every case as a subtest of t. A case that needs what the devices
// lack is skipped, and fails unless the table of what they may lack has it.
func Run(t *testing.T, s Suite) {
	t.Helper()
	if s.Open == nil {
		t.Fatal("rdmatest: Suite.Open is not set")
	}
	if s.MaxMessage == 0 {
		s.MaxMessage = 64 << 20
		if testing.Short() {
			s.MaxMessage = 1 << 20
		}
	}
	if s.Watchdog == 0 {
		s.Watchdog = 60 * time.Second
	}
	if s.Bound == 0 {
		s.Bound = 20 * time.Second
	}
	if s.Seed == 0 {
		s.Seed = 20100215
	}
	s.initiator, s.target = s.Open(t)
	if s.OverStream {
		var err error
		if s.initiator, err = overTCP(s.initiator); err != nil {
			t.Fatalf("rdmatest: initiator: %v", err)
		}
		if s.target, err = overTCP(s.target); err != nil {
			t.Fatalf("rdmatest: target: %v", err)
		}
	}
	if s.Parallel {
		before := goleak.IgnoreCurrent()
		t.Cleanup(func() { checkLeft(t, before) })
	}
	for _, group := range [][]testCase{
		deviceCases, connectionCases, operationCases, invalidateCases, orderCases, completionCases, doorbellCases, promptCases, viewCases, noticeCases, receiveCases, waitCases,
		accessCases, postCases, failureCases, peerCases, historyCases,
	} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				if s.Parallel && !measuresProcess[c.name] {
					t.Parallel()
				}
				s.runCase(t, c)
			})
		}
	}
}

// measuresProcess are the cases that count what the whole process allocates or
// has open.
var measuresProcess = map[string]bool{"AllocationFree": true, "Leaks": true}

// runCase runs one case in a goroutine of its own and watches it.
func (s *Suite) runCase(t *testing.T, c testCase) {
	for _, f := range c.needs {
		if who := s.lacking(f); who != nil {
			reason, ok := s.allowed(*who, f)
			if !ok {
				t.Fatalf("%s %s lacks %s, and the table does not allow that", who.Provider, who.Name, f)
			}
			t.Skipf("%s %s lacks %s: %s", who.Provider, who.Name, f, reason)
		}
	}
	var before goleak.Option
	if !s.Parallel {
		before = goleak.IgnoreCurrent()
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Watchdog)
	defer cancel()
	e := &env{t: t, suite: s, ctx: ctx}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer e.cleanUp()
		c.run(e)
	}()
	watchdog := time.NewTimer(s.Watchdog + s.Watchdog/4)
	defer watchdog.Stop()
	select {
	case <-over:
	case <-watchdog.C:
		e.abandon()
		t.Fatalf("hangs: not over after %v; goroutines:\n%s", s.Watchdog+s.Watchdog/4, stacks())
	}
	if s.Parallel {
		return // until all are over, others' goroutines can't be told from what is left
	}
	checkLeft(t, before)
}

// leftPatience is how long goroutines may take to end behind what ended them, where
// many others want the processors.
const leftPatience = 10 * time.Second

func checkLeft(t *testing.T, before goleak.Option) {
	for deadline := time.Now().Add(leftPatience); !t.Failed(); {
		err := goleak.Find(before) // looks for half a second
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("goroutines are left behind: %v", err)
		}
	}
}

func stacks() string {
	buffer := make([]byte, 1<<20)
	return string(buffer[:runtime.Stack(buffer, true)])
}

// lacking returns the device that lacks f, or nil.
func (s *Suite) lacking(f Feature) *rdma.Attributes {
	for _, d := range []rdma.Device{s.initiator, s.target} {
		if !s.deviceHas(d, f) {
			a := d.Attributes()
			return &a
		}
	}
	return nil
}

// deviceHas tells whether one side's device has f.
func (s *Suite) deviceHas(d rdma.Device, f Feature) bool {
	a := d.Attributes()
	switch f {
	case FeatureSendImmediate:
		return a.Has(rdma.CapSendImmediate)
	case FeatureWriteImmediate:
		return a.Has(rdma.CapWriteImmediate)
	case FeatureAtomics:
		return a.Has(rdma.CapAtomics)
	case FeatureSharedReceive:
		return a.Has(rdma.CapSharedReceive)
	case FeaturePolledWrites:
		return a.Has(rdma.CapPolledWrites)
	case FeatureReceiverNotReady:
		return a.Has(rdma.CapReceiverNotReady)
	case FeatureReceiverWaits:
		return a.Has(rdma.CapReceiverWaits)
	case FeatureSendInvalidate:
		return a.Has(rdma.CapSendInvalidate)
	case FeatureInline:
		return a.MaxInline > 0
	case FeatureReadScatter:
		return a.MaxReadSGE > 1
	case FeaturePrivateData:
		return a.MaxPrivateData > 0
	case FeaturePeer:
		return s.Peer != nil
	case FeatureMemory:
		return !isRemote(d)
	}
	// What no attribute tells is there unless the table says otherwise.
	_, lacks := s.allowed(a, f)
	return !lacks
}

// has is for what a case does only where it can, beside what it needs.
func (s *Suite) has(f Feature) bool { return s.lacking(f) == nil }

// unfenced tells that requests with Reads or atomics behind them must have no
// fence.
func (s *Suite) unfenced() bool { return !s.has(FeatureFenceRepeated) }

// atomicsTwice tells that atomics in the middle of other requests may be carried
// out twice.
func (s *Suite) atomicsTwice() bool { return s.Lossy && !s.has(FeatureAtomicsOnce) }
