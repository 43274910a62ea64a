package testnet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/testneed"
)

// A Host is one end of the cable: a network namespace with one address.
type Host struct {
	// Address is the host's IPv4 address.
	Address string

	t    testing.TB
	name string // of the namespace
	mac  string
}

// A Cable joins two hosts.
type Cable struct{ A, B *Host }

var made atomic.Int32

// nobody is a link address that no host of a cable has.
const nobody = "02:00:00:00:ff:ff"

// New makes two hosts with a cable between them, and removes them when the test
// ends. Where that cannot be done it says what is missing.
func New(t testing.TB) *Cable {
	t.Helper()
	testneed.Tool(t, "ip", "apt-get install iproute2")
	n := made.Add(1)
	host := func(side string, number int) *Host {
		return &Host{
			Address: fmt.Sprintf("10.97.%d.%d", n%250, number), t: t,
			name: fmt.Sprintf("vt%d-%d%s", os.Getpid(), n, side),
			mac:  fmt.Sprintf("02:00:00:%02x:00:%02x", n%250, number),
		}
	}
	c := &Cable{A: host("a", 1), B: host("b", 2)}
	for _, h := range []*Host{c.A, c.B} {
		if out, err := exec.Command("ip", "netns", "add", h.name).CombinedOutput(); err != nil {
			testneed.Missing(t, fmt.Sprintf("a network namespace: %v: %s", err, bytes.TrimSpace(out)), "the superuser's rights to make some")
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", h.name).Run() }) // its links go with it
	}
	run(t, "ip", "-n", c.A.name, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", c.B.name)
	for _, h := range []*Host{c.A, c.B} {
		h.ip("link", "set", "lo", "up")
		h.ip("link", "set", "cable", "address", h.mac)
		h.ip("addr", "add", h.Address+"/24", "dev", "cable")
		h.ip("link", "set", "cable", "up")
	}
	c.Heal()
	return c
}

// Cut has every packet vanish, in both directions. Neither host is told.
func (c *Cable) Cut() {
	c.A.neighbour(c.B.Address, nobody)
	c.B.neighbour(c.A.Address, nobody)
}

// Heal undoes Cut.
func (c *Cable) Heal() {
	c.A.neighbour(c.B.Address, c.B.mac)
	c.B.neighbour(c.A.Address, c.A.mac)
}

func (h *Host) neighbour(address, mac string) {
	h.ip("neigh", "replace", address, "lladdr", mac, "nud", "permanent", "dev", "cable")
}

func (h *Host) ip(args ...string) {
	h.t.Helper()
	run(h.t, "ip", append([]string{"-n", h.name}, args...)...)
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
}

// Do runs f on a thread that is in the host's namespace. Sockets that f makes,
// by itself and not in other goroutines, stay in it, and so do the connections
// that a listener made there accepts.
func (h *Host) Do(f func()) {
	h.t.Helper()
	done := make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, since it is never unlocked.
		runtime.LockOSThread()
		ns, err := unix.Open("/run/netns/"+h.name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(ns, unix.CLONE_NEWNET)
			_ = unix.Close(ns)
		}
		if err == nil {
			defer close(done)
			f()
			return
		}
		done <- err
	}()
	if err := <-done; err != nil {
		h.t.Fatalf("entering the network namespace %s: %v", h.name, err)
	}
}
