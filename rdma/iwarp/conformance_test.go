package iwarp

import (
	"context"
	"net"
	"testing"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/rdma"
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
	rdmatest.RunChild(map[string]rdmatest.Opener{
		"iwarp": open(Config{}), "iwarp with extensions": open(Config{Extensions: true}),
	})
	goleak.VerifyTestMain(m)
}

func suite(config Config) rdmatest.Suite {
	return rdmatest.Suite{
		Open: func(t *testing.T) (rdma.Device, rdma.Device) {
			return testDevice(t, config), testDevice(t, config)
		},
		Peer: rdmatest.Process("iwarp"),
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		},
	}
}

func TestConformance(t *testing.T) {
	t.Run("listener", func(t *testing.T) { rdmatest.Run(t, suite(Config{})) })
	t.Run("stream", func(t *testing.T) {
		s := suite(Config{})
		s.OverStream = true
		rdmatest.Run(t, s)
	})
	t.Run("extensions", func(t *testing.T) {
		s := suite(Config{Extensions: true})
		s.Peer = rdmatest.Process("iwarp with extensions")
		rdmatest.Run(t, s)
	})
	t.Run("segment-sized", func(t *testing.T) {
		s := suite(Config{SegmentSized: true})
		s.MaxMessage = 1 << 20
		rdmatest.Run(t, s)
	})
}
