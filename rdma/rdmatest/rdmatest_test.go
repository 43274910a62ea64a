package rdmatest_test

import (
	"context"
	"net"
	"os"
	"testing"

	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// In the child process the fake is alone: its network ends there.
	rdmatest.RunChild(map[string]rdmatest.Opener{
		"fake": func() (rdma.Device, error) { return fake.NewNetwork().NewDevice(fake.InfiniBand("child")), nil },
	})
	for _, variable := range []string{mutantVariable, historyMutantVariable} {
		if _, ok := os.LookupEnv(variable); ok {
			os.Exit(m.Run()) // mutants leave goroutines behind
		}
	}
	testneed.AtOnce(8) // the processes with mutants wait for what the bug has withheld
	goleak.VerifyTestMain(m)
}

// mayLack is what the fakes of the iWARP class lack.
var mayLack = []rdmatest.Lack{
	{Provider: "fake", Device: "iwarp-*", Feature: rdmatest.FeatureSendImmediate, Reason: "as iWARP"},
	{Provider: "fake", Device: "iwarp-*", Feature: rdmatest.FeatureWriteImmediate, Reason: "as iWARP"},
	{Provider: "fake", Device: "iwarp-*", Feature: rdmatest.FeatureAtomics, Reason: "as iWARP"},
	{Provider: "fake", Device: "iwarp-*", Feature: rdmatest.FeatureReceiverNotReady, Reason: "as iWARP"},
	{Provider: "fake", Device: "iwarp-*", Feature: rdmatest.FeatureReadScatter, Reason: "as iWARP"},
	{Provider: "fake", Device: "iwarp-*", Feature: rdmatest.FeaturePolledWrites, Reason: "as iWARP"},
	{Provider: "fake", Device: "iwarp-*", Feature: rdmatest.FeatureReceiverWaits, Reason: "not all do"},
	{Provider: "fake", Device: "ib-*", Feature: rdmatest.FeatureReceiverWaits, Reason: "the sender waits"},
}

// waiting is a fake of the iWARP class whose receivers wait.
func waiting(name string) fake.Config {
	c := fake.IWARP("iwarp-" + name)
	c.Capabilities |= rdma.CapReceiverWaits
	return c
}

var withoutPeer = rdmatest.Lack{Provider: "fake", Device: "*", Feature: rdmatest.FeaturePeer, Reason: "it cannot take its TCP connections with it"}

// suite is the suite for two fakes of one configuration; bugs are the target's
// and the initiator's.
func suite(config func(name string) fake.Config, class string, adjust func(*fake.Config)) rdmatest.Suite {
	network := fake.NewNetwork()
	device := func(name string) *fake.Device {
		c := config(class + "-" + name)
		if adjust != nil {
			adjust(&c)
		}
		return network.NewDevice(c)
	}
	return rdmatest.Suite{
		Open: func(t *testing.T) (initiator, target rdma.Device) {
			return device("initiator"), device("target")
		},
		Peer: func(t *testing.T) *rdmatest.Peer {
			d := device("peer")
			return &rdmatest.Peer{Device: d, Kill: d.Kill, Stop: d.Stop, Continue: d.Continue}
		},
		MayLack: mayLack,
	}
}

func TestInfiniBand(t *testing.T) { rdmatest.Run(t, suite(fake.InfiniBand, "ib", nil)) }

func TestIWARP(t *testing.T) { rdmatest.Run(t, suite(fake.IWARP, "iwarp", nil)) }

func TestReceiverWaits(t *testing.T) { rdmatest.Run(t, suite(waiting, "waiting", nil)) }

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", address)
}

func TestIWARPOverStream(t *testing.T) {
	s := suite(fake.IWARP, "iwarp", nil)
	s.OverStream = true
	s.Dial = dialTCP
	s.MaxMessage = 1 << 20
	s.Peer = nil // the fake's streams would outlive it
	s.MayLack = append(s.MayLack, withoutPeer)
	rdmatest.Run(t, s)
}

// TestPromptReads runs on memory that the race detector sees: it judges the
// suite's own use of it.
func TestPromptReads(t *testing.T) {
	s := suite(fake.InfiniBand, "ib", func(c *fake.Config) {
		c.PromptReads, c.HeapMemory = true, true
		c.Capabilities &^= rdma.CapPolledWrites
	})
	s.MayLack = append(s.MayLack, rdmatest.Lack{Provider: "fake", Device: "*", Feature: rdmatest.FeaturePolledWrites, Reason: "a race by definition"})
	s.MaxMessage = 1 << 20
	rdmatest.Run(t, s)
}

// served offers a device over a control connection within this process.
func served(t *testing.T, d rdma.Device) rdma.Device {
	t.Helper()
	here, there := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- rdmatest.ServeDevice(there, d) }()
	r, err := rdmatest.RemoteDevice(here)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		here.Close()
		if err := <-ended; err != nil {
			t.Errorf("ServeDevice: %v", err)
		}
	})
	return r
}

// TestRemote has the target's half behind a control connection, as a run over
// two hosts has, or both halves.
func TestRemote(t *testing.T) {
	for class, config := range map[string]func(string) fake.Config{"ib": fake.InfiniBand, "iwarp": fake.IWARP} {
		t.Run(class, func(t *testing.T) {
			s := suite(config, class, nil)
			open := s.Open
			s.Open = func(t *testing.T) (initiator, target rdma.Device) {
				initiator, target = open(t)
				if class == "ib" {
					initiator = served(t, initiator)
				}
				return initiator, served(t, target)
			}
			if s.OverStream = class == "iwarp"; s.OverStream {
				s.Peer = nil
				s.MayLack = append(s.MayLack, withoutPeer)
			}
			s.MaxMessage = 1 << 20
			rdmatest.Run(t, s)
		})
	}
}
