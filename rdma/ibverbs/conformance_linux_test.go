//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest"
)

// The lab tells the tests what it has. Without a device there is nothing to run
// them on.
const (
	// labDevice and labPeer are the devices of the two sides. Both are on this
	// host, on the two ends of a veth pair.
	labDevice = "VERBENA_LAB_DEVICE"
	labPeer   = "VERBENA_LAB_PEER_DEVICE"
	// labLossy says that the network loses packets: the test is patient then.
	labLossy = "VERBENA_LAB_LOSSY"
)

func open(name string) rdmatest.Opener {
	return func() (rdma.Device, error) {
		config := Config{Device: name}
		if lossy() {
			config.AckTimeout, config.RetryCount = 30*time.Millisecond, 7
		}
		devices, err := New(config).Devices(context.Background())
		if err != nil {
			return nil, err
		}
		if len(devices) != 1 {
			return nil, fmt.Errorf("%d devices with the name %s", len(devices), name)
		}
		return devices[0], nil
	}
}

func lossy() bool {
	yes, _ := strconv.ParseBool(os.Getenv(labLossy))
	return yes
}

func TestMain(m *testing.M) {
	rdmatest.RunChild(map[string]rdmatest.Opener{"peer": open(os.Getenv(labPeer))})
	goleak.VerifyTestMain(m)
}

// lab skips a test that is not run in the lab.
func lab(t *testing.T) (device, peer string) {
	t.Helper()
	device, peer = os.Getenv(labDevice), os.Getenv(labPeer)
	if device == "" || peer == "" {
		t.Skipf("%s and %s name no devices: the lab runs this test (go run ./lab)", labDevice, labPeer)
	}
	return device, peer
}

func openDevice(t *testing.T, name string) rdma.Device {
	t.Helper()
	d, err := open(name)()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	device, peer := lab(t)
	s := rdmatest.Suite{
		Open: func(t *testing.T) (initiator, target rdma.Device) {
			return openDevice(t, device), openDevice(t, peer)
		},
		Peer:  rdmatest.Process("peer"),
		Lossy: lossy(),
		// What is lost is waited for.
		Parallel: lossy(),
	}
	// The lab's processors are emulated, and perhaps busy.
	s.Bound, s.Watchdog = time.Minute, 5*time.Minute
	rdmatest.Run(t, s)
}
