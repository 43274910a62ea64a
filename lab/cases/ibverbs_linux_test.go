package cases

import (
	"net"
	"strconv"
	"testing"

	"github.com/verbena-data/verbena/lab/internal/foreign"
	"github.com/verbena-data/verbena/lab/internal/world"
)

func TestIbverbsWithRping(t *testing.T) {
	driver := driver(t)
	at := net.JoinHostPort(world.Address1, foreign.RpingPort)
	for _, size := range []int{64, 65535} {
		t.Run("serves/"+strconv.Itoa(size), func(t *testing.T) {
			ctx := bounded(t)
			server := play(t, "", role{Kind: "rping server", Provider: "ibverbs", Device: world.LinkName(driver, world.Interface1), Address: at, Rounds: 10})
			server.says(ctx, listening)
			client := start(t, "", "rping", "-c", "-I", world.Address0, "-a", world.Address1, "-C", "10", "-S", strconv.Itoa(size), "-v", "-V")
			client.succeeds(ctx)
			server.succeeds(ctx)
		})
		t.Run("connects/"+strconv.Itoa(size), func(t *testing.T) {
			ctx := bounded(t)
			server := start(t, "", "rping", "-s", "-a", world.Address1, "-C", "10", "-S", strconv.Itoa(size))
			listensRDMA(ctx, t, server, foreign.RpingPort)
			client := play(t, "", role{Kind: "rping client", Provider: "ibverbs", Device: world.LinkName(driver, world.Interface0), Address: at, Rounds: 10, Size: size})
			client.succeeds(ctx)
			server.rpingServed(ctx)
		})
	}
	kernelIsSane(t)
}

func TestIbverbsWithPerftest(t *testing.T) {
	driver := driver(t)
	perftest(t, perftestPair{
		server: role{Provider: "ibverbs", Device: world.LinkName(driver, world.Interface1)}, address: world.Address1,
		client: []string{"-d", world.LinkName(driver, world.Interface0), "--source_ip", world.Address0},
	})
	kernelIsSane(t)
}
