//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// sysFiles writes files below a directory that stands for /sys/class.
func sysFiles(t *testing.T, files map[string]string) {
	t.Helper()
	directory := t.TempDir()
	for name, text := range files {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := sysClass
	sysClass = directory
	t.Cleanup(func() { sysClass = before })
}

func TestAddressesOfPorts(t *testing.T) {
	const port = "infiniband/fake7/ports/1/"
	files := map[string]string{
		port + "state":                        "4: ACTIVE\n",
		"net/eth7/device/infiniband/fake7/x":  "",
		"net/eth7/dev_port":                   "0\n",
		"net/eth7/upper_bond0/x":              "",
		"net/bond0/upper_vlan5/x":             "",
		"net/vlan5/x":                         "",
		"net/eth8/device/infiniband/fake7/x":  "",
		"net/eth8/dev_port":                   "1\n", // the device's second port
		"net/eth9/device/infiniband/other7/x": "",
	}
	addressesOf = func(name string) (list []netip.Addr) {
		for _, a := range map[string][]string{
			"eth7": {"2001:db8:7::1", "192.0.2.7"}, "bond0": {"192.0.2.7"}, "vlan5": {"10.9.0.1"}, "eth8": {"192.0.2.8"}, "eth9": {"192.0.2.9"},
		}[name] {
			list = append(list, netip.MustParseAddr(a))
		}
		return list
	}
	t.Cleanup(func() { addressesOf = interfaceAddresses })
	d := &Device{attributes: rdma.Attributes{Name: "fake7"}, ports: []Port{{Number: 1}}, links: []verbs.LinkLayer{verbs.LinkEthernet}}
	sysFiles(t, files)
	want := []string{"192.0.2.7", "10.9.0.1", "2001:db8:7::1"}
	if got := d.Addresses(); !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
	if from, err := d.source(netip.MustParseAddr("192.0.2.7")); err != nil || from.Addr().String() != "192.0.2.7" {
		t.Errorf("towards itself from %v, %v", from, err)
	}
	if err := d.Reaches("2001:db8::1"); err == nil {
		t.Error("reaches an address that no route leads to")
	}
	for _, nonsense := range []string{"", "x", "10.9.0.1:x", "10.9.0.256"} {
		if err := d.Reaches(nonsense); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("Reaches(%q): %v, want ErrInvalid", nonsense, err)
		}
	}
	files[port+"state"] = "1: DOWN\n"
	sysFiles(t, files)
	if got := d.Addresses(); len(got) != 0 {
		t.Errorf("addresses of a port that is down: %v", got)
	}
	if err := d.Reaches("10.9.0.1"); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("Reaches with the port down: %v", err)
	}
}

func TestAttributesOfDevices(t *testing.T) {
	limits := verbs.DeviceAttributes{
		MaxMRSize: 1<<64 - 1, MaxQPWR: 1 << 14, MaxSGE: 30, MaxSGERead: 30, MaxCQE: 1 << 20, MaxQPReadAtomic: 128, MaxQPInitiator: 16,
		Atomic: verbs.AtomicDevice, MaxSRQ: 10, MaxSRQWR: 100, MaxSRQSGE: 10,
	}
	ib := attributes(verbs.Device{Name: "a", Transport: verbs.TransportInfiniBand}, limits, 1<<30)
	if ib.Class != rdma.ClassInfiniBand || !ib.Has(rdma.CapAtomics|rdma.CapSendImmediate|rdma.CapReceiverNotReady|rdma.CapSharedReceive) ||
		ib.MaxReads != 16 || ib.MaxReadSGE != 30 || ib.MaxMessage != 1<<30 || ib.MaxRegion != maxRegion {
		t.Errorf("InfiniBand: %+v", ib)
	}
	limits.MaxSGERead = 8
	limits.MaxSRQ = 0
	limits.Atomic = verbs.AtomicNone
	if a := attributes(verbs.Device{Transport: verbs.TransportInfiniBand}, limits, 0); a.MaxReadSGE != 8 || a.Has(rdma.CapAtomics) || a.Has(rdma.CapSharedReceive) || a.MaxMessage != maxMessage {
		t.Errorf("InfiniBand with less: %+v", a)
	}
	if a := attributes(verbs.Device{Transport: verbs.TransportIWARP}, limits, 1<<32-1); a.Class != rdma.ClassIWARP || a.MaxReadSGE != 1 || a.Capabilities != 0 || a.MaxMessage != maxMessage {
		t.Errorf("iWARP: %+v", a)
	}
}

func TestResolve(t *testing.T) {
	for address, want := range map[string]string{"10.9.0.1:7": "10.9.0.1:7", "[::ffff:10.9.0.1]:7": "10.9.0.1:7", "[2001:db8::1]:7": "[2001:db8::1]:7", "localhost:7": ""} {
		got, err := resolve(t.Context(), address)
		if err != nil || want != "" && got.String() != want {
			t.Errorf("%s: %v, %v; want %s", address, got, err, want)
		}
	}
	for _, address := range []string{"", "10.9.0.1", "10.9.0.1:0", "10.9.0.1:70000", "not an address \x00 at all"} {
		if got, err := resolve(t.Context(), address); err == nil {
			t.Errorf("%q is taken for %v", address, got)
		}
	}
}
