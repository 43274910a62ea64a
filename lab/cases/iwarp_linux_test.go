package cases

import (
	"net"
	"strconv"
	"testing"

	"github.com/verbena-data/verbena/lab/internal/foreign"
	"github.com/verbena-data/verbena/lab/internal/world"
)

// user-space iWARP in a network namespace of its own against programs over the
// kernel's siw.
func siwPeer(t *testing.T) {
	t.Helper()
	ctx := bounded(t)
	setUp(t, world.Namespaced(ctx))
	setUp(t, world.AddLink(ctx, "siw", world.KernelIface))
}

func TestIWARPWithRping(t *testing.T) {
	siwPeer(t)
	for _, size := range []int{64, 5000, 65535} {
		for _, sized := range []bool{false, true} {
			name := strconv.Itoa(size)
			if sized {
				name += ",segment-sized"
			}
			t.Run("serves/"+name, func(t *testing.T) {
				ctx := bounded(t)
				server := play(t, world.Namespace, role{
					Kind: "rping server", Provider: "iwarp", SegmentSized: sized,
					Address: net.JoinHostPort(world.AddressPeer, foreign.RpingPort), Rounds: 10,
				})
				server.says(ctx, listening)
				client := start(t, "", "rping", "-c", "-a", world.AddressPeer, "-C", "10", "-S", strconv.Itoa(size), "-v", "-V")
				client.succeeds(ctx)
				server.succeeds(ctx)
			})
			t.Run("connects/"+name, func(t *testing.T) {
				ctx := bounded(t)
				server := start(t, "", "rping", "-s", "-a", world.AddressKernel, "-C", "10", "-S", strconv.Itoa(size))
				listensRDMA(ctx, t, server, foreign.RpingPort)
				client := play(t, world.Namespace, role{
					Kind: "rping client", Provider: "iwarp", SegmentSized: sized,
					Address: net.JoinHostPort(world.AddressKernel, foreign.RpingPort), Rounds: 10, Size: size,
				})
				client.succeeds(ctx)
				server.rpingServed(ctx)
			})
		}
	}
	kernelIsSane(t)
}

func TestIWARPWithPerftest(t *testing.T) {
	siwPeer(t)
	perftest(t, perftestPair{
		server: role{Provider: "iwarp", SpeakFirst: true}, namespace: world.Namespace, address: world.AddressPeer,
		client: []string{"-d", world.LinkName("siw", world.KernelIface)},
	})
	kernelIsSane(t)
}

// A perftestPair is a server of ours and a client of perftest's.
type perftestPair struct {
	server             role
	namespace, address string
	client             []string // how it takes its device and source address
}

// perftest runs perftest's clients against a server of ours.
func perftest(t *testing.T, p perftestPair) {
	t.Helper()
	const rounds = 20
	for _, tool := range []string{"ib_send_lat", "ib_write_lat"} {
		for _, size := range []int{8, 4096, 65536} {
			t.Run(tool+"/"+strconv.Itoa(size), func(t *testing.T) {
				ctx := bounded(t)
				r := p.server
				r.Kind, r.Rounds, r.Size, r.Write = "perftest server", rounds, size, tool == "ib_write_lat"
				r.Address = net.JoinHostPort(p.address, foreign.PerftestPort)
				server := play(t, p.namespace, r)
				server.says(ctx, listening)
				args := append([]string{"-R", "-F", "-n", strconv.Itoa(rounds), "-s", strconv.Itoa(size)}, p.client...)
				client := start(t, "", tool, append(args, p.address)...)
				client.succeeds(ctx)
				client.says(ctx, "t_typical")
				server.succeeds(ctx)
			})
		}
	}
}
