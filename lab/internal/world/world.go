// Package world sets up networks and RDMA links inside the lab's virtual
// machine: two hosts with an address each on the two ends of a veth pair, with
// Soft-RoCE or Soft-iWARP links on them, packet loss, and a link that can be
// taken down. It runs as root, calls ip, tc and rdma, and is meant for nothing
// but the virtual machine, whose network it owns.
package world

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The two hosts live in one network namespace, because rxe does not work across
// namespaces on Linux 6.1; policy routing makes what they say to each other
// cross the veth pair.
const (
	Address0   = "10.9.0.1"
	Address1   = "10.9.0.2"
	Interface0 = "v0"
	Interface1 = "v1"
)

// Addresses of the second pair: one end in a network namespace of its own, for
// programs that cannot bind their source address, and for user-space peers of
// the kernel's drivers.
const (
	Namespace     = "peer"
	AddressKernel = "10.8.0.1" // on KernelInterface, in the first namespace
	AddressPeer   = "10.8.0.2" // inside Namespace
	KernelIface   = "n0"
)

// Run runs a program and returns what it printed; a failure carries it.
func Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

func runAll(ctx context.Context, lines ...string) error {
	for _, l := range lines {
		f := strings.Fields(l)
		if _, err := Run(ctx, f[0], f[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// LoadModules loads kernel modules and what they need.
func LoadModules(ctx context.Context, names ...string) error {
	for _, n := range names {
		if _, err := Run(ctx, "modprobe", n); err != nil {
			return fmt.Errorf("load module %s: %w", n, err)
		}
	}
	return nil
}

// TwoHosts makes the veth pair of [Address0] and [Address1], if it is not there.
func TwoHosts(ctx context.Context) error {
	if _, err := os.Stat("/sys/class/net/" + Interface0); err == nil {
		return nil
	}
	if err := LoadModules(ctx, "veth"); err != nil {
		return err
	}
	if err := runAll(ctx,
		"ip link set lo up",
		"ip link add v0 mtu 1500 type veth peer name v1 mtu 1500",
		"ip addr add 10.9.0.1/24 dev v0", "ip addr add 10.9.0.2/24 dev v1",
		"ip link set v0 up", "ip link set v1 up"); err != nil {
		return err
	}
	for _, i := range []string{"all", Interface0, Interface1} {
		for name, value := range map[string]string{"rp_filter": "0", "accept_local": "1"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+i+"/"+name, []byte(value), 0o644); err != nil {
				return err
			}
		}
	}
	mac0, err := hardwareAddress(Interface0)
	if err != nil {
		return err
	}
	mac1, err := hardwareAddress(Interface1)
	if err != nil {
		return err
	}
	// What one address sends to the other goes out of its own interface; only
	// what has come in by one is local.
	return runAll(ctx,
		"ip rule add pref 100 lookup local",
		"ip rule add pref 5 iif v0 lookup local", "ip rule add pref 6 iif v1 lookup local",
		"ip route add 10.9.0.2 dev v0 src 10.9.0.1 table 101", "ip route add 10.9.0.1 dev v1 src 10.9.0.2 table 102",
		"ip rule add pref 10 from 10.9.0.1 to 10.9.0.2 lookup 101", "ip rule add pref 11 from 10.9.0.2 to 10.9.0.1 lookup 102",
		"ip rule del pref 0",
		"ip neigh replace 10.9.0.2 lladdr "+mac1+" dev v0", "ip neigh replace 10.9.0.1 lladdr "+mac0+" dev v1")
}

func hardwareAddress(iface string) (string, error) {
	b, err := os.ReadFile("/sys/class/net/" + iface + "/address")
	return strings.TrimSpace(string(b)), err
}

// Namespaced makes the veth pair of [AddressKernel] and [AddressPeer], the
// latter in the network namespace [Namespace], if it is not there.
func Namespaced(ctx context.Context) error {
	if _, err := os.Stat("/sys/class/net/" + KernelIface); err == nil {
		return nil
	}
	if err := LoadModules(ctx, "veth"); err != nil {
		return err
	}
	return runAll(ctx,
		"ip link set lo up",
		"ip netns add peer",
		"ip link add n0 mtu 1500 type veth peer name n1 mtu 1500 netns peer",
		"ip addr add 10.8.0.1/24 dev n0", "ip link set n0 up",
		"ip -n peer link set lo up", "ip -n peer addr add 10.8.0.2/24 dev n1", "ip -n peer link set n1 up")
}

// AddLink adds an RDMA link of a driver to an interface, if it is not there, and
// waits until it has its address. It is called after the driver and the
// interface, such as "rxev0": [LinkName].
func AddLink(ctx context.Context, driver, iface string) error {
	name := LinkName(driver, iface)
	class := "/sys/class/infiniband/" + name
	if _, err := os.Stat(class); err == nil {
		return nil
	}
	module := driver
	if driver == "rxe" {
		module = "rdma_rxe"
	}
	// What registers last hears of a device's removal first. Where ib_uverbs comes
	// after rdma_cm it waits for programs that rdma_cm has not told yet.
	if err := LoadModules(ctx, "ib_uverbs", module, "rdma_ucm"); err != nil {
		return err
	}
	if _, err := Run(ctx, "rdma", "link", "add", name, "type", driver, "netdev", iface); err != nil {
		return err
	}
	// The address' entry in the table comes by a work queue of the kernel, which
	// has no event to wait for.
	for {
		state, _ := os.ReadFile(class + "/ports/1/state") // absent for a moment
		gids, _ := filepath.Glob(class + "/ports/1/gids/*")
		for _, g := range gids {
			content, _ := os.ReadFile(g)
			if driver == "siw" || strings.Contains(string(content), "ffff:0a0") {
				if strings.Contains(string(state), "ACTIVE") {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("RDMA link %s has no address or is not active (%s): %w", name, strings.TrimSpace(string(state)), ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// LinkName is what [AddLink] calls a link: "rxe0" on v0, "siw1" on v1, "siwn0"
// on another.
func LinkName(driver, iface string) string {
	switch iface {
	case Interface0:
		return driver + "0"
	case Interface1:
		return driver + "1"
	}
	return driver + iface
}

// SetUp brings up the two hosts with the drivers of a comma-separated list.
func SetUp(ctx context.Context, drivers string) error {
	if drivers == "" {
		return nil
	}
	if err := TwoHosts(ctx); err != nil {
		return err
	}
	for _, d := range strings.Split(drivers, ",") {
		if d != "rxe" && d != "siw" {
			return fmt.Errorf("no RDMA driver %q: rxe and siw are there", d)
		}
		for _, i := range []string{Interface0, Interface1} {
			if err := AddLink(ctx, d, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// Loss drops a part of the packets that an interface sends, in percent; 0 ends it.
func Loss(ctx context.Context, iface string, percent int) error {
	if percent == 0 {
		_, err := Run(ctx, "tc", "qdisc", "del", "dev", iface, "root")
		return err
	}
	if err := LoadModules(ctx, "sch_netem"); err != nil {
		return err
	}
	_, err := Run(ctx, "tc", "qdisc", "replace", "dev", iface, "root", "netem", "loss", fmt.Sprintf("%d%%", percent))
	return err
}
