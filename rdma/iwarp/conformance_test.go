package iwarp

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
	"github.com/verbena-data/verbena/rdma/rdmatest"
)

func TestMain(m *testing.M) {
	besideChild()
	open := func(config Config) rdmatest.Opener {
		return func() (rdma.Device, error) {
			devices, err := New(config).Devices(context.Background())
			if err != nil {
				return nil, err
			}
			return devices[0], nil
		}
	}
	openers := map[string]rdmatest.Opener{}
	for name, mode := range modes {
		openers["iwarp "+name] = open(mode.config)
	}
	rdmatest.RunChild(openers)
	testneed.AtOnce(8) // they wait for those who are silent
	goleak.VerifyTestMain(m)
}

// modes are the ways in which two devices can speak to each other, and so those
// in which the conformance suite runs.
var modes = map[string]struct {
	config Config
	stream bool // over streams, not listeners
	small  bool // messages of 64 MiB would take too long
}{
	"listener":      {},
	"stream":        {stream: true},
	"segment-sized": {config: Config{SegmentSized: true}, small: true},
	"markers":       {config: Config{Markers: true}, small: true},
	"no CRC":        {config: Config{NoCRC: true}, small: true},
	"revision 1":    {config: Config{Revision: wire.Revision1}, small: true},
	"ready by Read": {config: Config{readyToReceive: []engine.Ready{engine.ReadyRead}}, small: true},
	"ready by Send, without extensions": {
		config: Config{readyToReceive: []engine.Ready{engine.ReadySend}, extensions: engine.ExtensionsOff}, small: true,
	},
	"not peer to peer, extensions assumed": {
		config: Config{readyToReceive: []engine.Ready{}, extensions: engine.ExtensionsAssumed}, small: true,
	},
	"segments, markers, no CRC, revision 1": {
		config: Config{SegmentSized: true, Markers: true, NoCRC: true, Revision: wire.Revision1}, stream: true, small: true,
	},
}

func TestConformance(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			if race.Enabled && testing.Short() && mode.small && !mode.stream {
				t.Skip("its bytes alone differ from those of the others, and the race detector judges who touches them")
			}
			s := rdmatest.Suite{
				Open: func(t *testing.T) (rdma.Device, rdma.Device) {
					return testDevice(t, mode.config), testDevice(t, mode.config)
				},
				Peer: rdmatest.Process("iwarp " + name),
				Dial: func(ctx context.Context, address string) (net.Conn, error) {
					var d net.Dialer
					return d.DialContext(ctx, "tcp", address)
				},
				OverStream: mode.stream,
				Parallel:   true,
			}
			if mode.small {
				s.MaxMessage = 1 << 20
				mode.config.lingerTimeout = 200 * time.Millisecond
			}
			rdmatest.Run(t, s)
		})
	}
}
