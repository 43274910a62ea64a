package testnet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
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
	hosts := newHosts(t, 2)
	c := &Cable{A: hosts[0], B: hosts[1]}
	addLink(t, c.A.name, device, "type", "veth", "peer", "name", device, "netns", c.B.name)
	for _, h := range hosts {
		h.start()
	}
	c.Heal()
	return c
}

// Cut has every packet vanish, in both directions. Neither host is told.
func (c *Cable) Cut() { cut(c.A, c.B) }

// Heal undoes Cut.
func (c *Cable) Heal() { heal(c.A, c.B) }

// A Network joins several hosts by a bridge.
type Network struct{ Hosts []*Host }

// NewNetwork makes so many hosts, each of which reaches all others, and removes them when
// the test ends. Where that cannot be done it says what is missing.
func NewNetwork(t testing.TB, count int) *Network {
	t.Helper()
	n := &Network{Hosts: newHosts(t, count)}
	// The bridge has a namespace of its own, or the host's packet filters would see its packets.
	bridge := newNamespace(t, fmt.Sprintf("vt%d-%dx", os.Getpid(), made.Add(1)))
	addLink(t, bridge, "bridge", "type", "bridge")
	run(t, "ip", "-n", bridge, "link", "set", "bridge", "up")
	for i, h := range n.Hosts {
		port := fmt.Sprint("port", i)
		addLink(t, h.name, device, "type", "veth", "peer", "name", port, "netns", bridge)
		run(t, "ip", "-n", bridge, "link", "set", port, "master", "bridge", "up")
		h.start()
		for _, other := range n.Hosts[:i] {
			heal(h, other)
		}
	}
	return n
}

// Cut has every packet between two hosts vanish. Neither is told.
func (n *Network) Cut(a, b *Host) { cut(a, b) }

// Heal undoes Cut.
func (n *Network) Heal(a, b *Host) { heal(a, b) }

// device is the link of each host.
const device = "cable"

func newHosts(t testing.TB, count int) (hosts []*Host) {
	t.Helper()
	testneed.Tool(t, "ip", "apt-get install iproute2")
	n := made.Add(1)
	for i := range count {
		hosts = append(hosts, &Host{
			Address: fmt.Sprintf("10.97.%d.%d", n%250, i+1), t: t,
			name: newNamespace(t, fmt.Sprintf("vt%d-%d%c", os.Getpid(), n, 'a'+i)),
			mac:  fmt.Sprintf("02:00:00:%02x:00:%02x", n%250, i+1),
		})
	}
	return hosts
}

// newNamespace makes a network namespace, and removes it, with all links in it, when the
// test ends.
func newNamespace(t testing.TB, name string) string {
	t.Helper()
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		testneed.Missing(t, fmt.Sprintf("a network namespace: %v: %s", err, bytes.TrimSpace(out)), "the superuser's rights to make some")
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	return name
}

// start has a host use its link.
func (h *Host) start() {
	h.t.Helper()
	h.ip("link", "set", "lo", "up")
	h.ip("link", "set", device, "address", h.mac)
	h.ip("addr", "add", h.Address+"/24", "dev", device)
	h.ip("link", "set", device, "up")
}

func cut(a, b *Host) {
	a.neighbour(b.Address, nobody)
	b.neighbour(a.Address, nobody)
}

func heal(a, b *Host) {
	a.neighbour(b.Address, b.mac)
	b.neighbour(a.Address, a.mac)
}

func (h *Host) neighbour(address, mac string) {
	h.ip("neigh", "replace", address, "lladdr", mac, "nud", "permanent", "dev", device)
}

func (h *Host) ip(args ...string) {
	h.t.Helper()
	run(h.t, "ip", append([]string{"-n", h.name}, args...)...)
}

// adding is held while a link is made: the first one of its kind has the kernel load a module, and
// one that is made before that has been loaded is of an unknown type.
var adding sync.Mutex

func addLink(t testing.TB, namespace string, args ...string) {
	t.Helper()
	adding.Lock()
	defer adding.Unlock()
	run(t, "ip", append([]string{"-n", namespace, "link", "add"}, args...)...)
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
