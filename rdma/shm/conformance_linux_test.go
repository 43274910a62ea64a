package shm

import (
	"context"
	"testing"

	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest"
)

func openForSuite() (rdma.Device, error) {
	devices, err := New(Config{}).Devices(context.Background())
	if err != nil {
		return nil, err
	}
	return devices[0], nil
}

func TestConformance(t *testing.T) { conform(t) }

func TestConformanceWithAlarms(t *testing.T) {
	withAlarms(t, true)
	conform(t)
}

func conform(t *testing.T) {
	if _, err := openForSuite(); err != nil {
		testneed.Missing(t, err.Error(), "a Linux kernel and a seccomp profile with sealed memfds")
	}
	suite := rdmatest.Suite{
		Open: func(t *testing.T) (initiator, target rdma.Device) {
			device, err := openForSuite()
			if err != nil {
				t.Fatal(err)
			}
			return device, device
		},
	}
	if startsItself() {
		suite.Peer = rdmatest.Process("shm")
	} else {
		suite.MayLack = []rdmatest.Lack{{Provider: providerName, Device: deviceName, Feature: rdmatest.FeaturePeer, Reason: emulated}}
	}
	rdmatest.Run(t, suite)
}
