package cases

import (
	"testing"

	"github.com/verbena-data/verbena/lab/internal/world"
)

// The lab by itself: programs that others wrote talk to each other over each
// driver.
func TestSmoke(t *testing.T) {
	driver := driver(t)
	t.Run("rping", func(t *testing.T) {
		ctx := bounded(t)
		server := start(t, "", "rping", "-s", "-a", world.Address1, "-C", "3")
		listensRDMA(ctx, t, server, "7174")
		client := start(t, "", "rping", "-c", "-I", world.Address0, "-a", world.Address1, "-C", "3", "-v")
		client.succeeds(ctx)
		server.rpingServed(ctx)
		client.says(ctx, "ping data: rdma-ping-2")
	})
	for _, tool := range []string{"ib_send_lat", "ib_write_lat"} {
		t.Run(tool, func(t *testing.T) {
			ctx := bounded(t)
			server := start(t, "", tool, "-R", "-d", world.LinkName(driver, world.Interface1), "-n", "20", "-F")
			listensRDMA(ctx, t, server, "18515")
			client := start(t, "", tool, "-R", "-d", world.LinkName(driver, world.Interface0), "-n", "20", "-F", "--source_ip", world.Address0, world.Address1)
			client.succeeds(ctx)
			server.succeeds(ctx)
			client.says(ctx, "t_typical")
		})
	}
	kernelIsSane(t)
}
