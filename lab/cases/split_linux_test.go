package cases

import (
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/lab/internal/world"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest"
)

// serveDevice starts a process in the peer's namespace that serves the
// conformance suite's other side on user-space iWARP.
func serveDevice(t *testing.T) *rdmatest.Peer {
	t.Helper()
	ctx := bounded(t)
	socket := filepath.Join(t.TempDir(), "control")
	server := play(t, world.Namespace, role{Kind: "device server", Provider: "iwarp", Address: socket})
	server.says(ctx, listening)
	control, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatalf("reach the device server: %v", err)
	}
	device, err := rdmatest.RemoteDevice(control)
	if err != nil {
		t.Fatalf("remote device: %v", err)
	}
	var once sync.Once
	end := func() {
		once.Do(func() {
			server.kill()
			control.Close()
		})
	}
	t.Cleanup(end)
	return &rdmatest.Peer{
		Device: device, Kill: end,
		Stop: func() {
			_ = server.cmd.Process.Signal(syscall.SIGSTOP) // it may have ended
			// The signal has been sent; wait until it has stopped all threads.
			var status unix.WaitStatus
			for {
				if _, err := unix.Wait4(server.cmd.Process.Pid, &status, unix.WUNTRACED, nil); err != unix.EINTR {
					return
				}
			}
		},
		Continue: func() { _ = server.cmd.Process.Signal(syscall.SIGCONT) },
	}
}

// The conformance suite with its two sides on the two implementations: user-space
// iWARP in a namespace of its own, and the kernel's siw by ibverbs.
func TestSplitConformance(t *testing.T) {
	siwPeer(t)
	siw := func(t *testing.T) rdma.Device {
		t.Helper()
		device, err := openDevice(bounded(t), role{Provider: "ibverbs", Device: world.LinkName("siw", world.KernelIface)})
		if err != nil {
			t.Fatal(err)
		}
		return device
	}
	kernel, user := net.JoinHostPort(world.AddressKernel, "0"), net.JoinHostPort(world.AddressPeer, "0")
	// An emulated machine on a busy host is slow.
	const watchdog, patience = 4 * time.Minute, time.Minute
	lacks := []rdmatest.Lack{
		{Provider: "ibverbs", Device: "siw*", Feature: rdmatest.FeaturePeer, Reason: "this process drives the suite; the kernel's side is killed in that of ibverbs alone"},
		{Provider: "iwarp", Device: "*", Feature: rdmatest.FeatureRandomKeys, Reason: "the other side's driver chooses its keys"},
	}
	t.Run("siw accepts", func(t *testing.T) {
		rdmatest.Run(t, rdmatest.Suite{
			Open:    func(t *testing.T) (initiator, target rdma.Device) { return serveDevice(t).Device, siw(t) },
			Address: kernel, InitiatorAddress: user, MayLack: lacks, Watchdog: watchdog, Bound: patience,
		})
	})
	t.Run("siw connects", func(t *testing.T) {
		rdmatest.Run(t, rdmatest.Suite{
			Open:    func(t *testing.T) (initiator, target rdma.Device) { return siw(t), serveDevice(t).Device },
			Address: user, InitiatorAddress: kernel, Peer: serveDevice, Watchdog: watchdog, Bound: patience,
			MayLack: append(lacks, rdmatest.Lack{
				Provider: "iwarp", Device: "*", Feature: rdmatest.FeatureTargetFirst,
				Reason: "siw asks for no peer-to-peer mode, so that the side that accepted waits for its first message (RFC 5044)",
			}),
		})
	})
	kernelIsSane(t)
}
