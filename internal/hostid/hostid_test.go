package hostid

import (
	"crypto/sha256"
	"os"
	"strings"
	"testing"
)

func TestID(t *testing.T) {
	if first, second := ID(), ID(); first != second || first == [Size]byte{} {
		t.Errorf("identity %x, then %x", first, second)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Skipf("this system has no boot identifier: %v", err)
	}
	// As docs/hello.md defines it.
	want := sha256.Sum256([]byte("verbena host identity\x00" + strings.TrimSpace(string(boot))))
	if got := ID(); string(got[:]) != string(want[:Size]) {
		t.Errorf("identity %x, want %x", got, want[:Size])
	}
}

func TestNetwork(t *testing.T) {
	network := Network()
	if network == nil {
		t.Skip("this system does not tell network namespaces apart")
	}
	host := ID()
	if len(network) != Size || string(network) == string(host[:]) || string(network) != string(Network()) {
		t.Errorf("network %x on host %x, then %x", network, host, Network())
	}
}
