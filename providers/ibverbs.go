//go:build !noibverbs

package providers

import (
	"errors"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs"
)

var ibverbsEntry = provider("ibverbs", []field[ibverbs.Config]{
	{"device", "the only adapter to use, such as mlx5_0", "all",
		func(c *ibverbs.Config, v string) error { return text(&c.Device, v) }},
	{"ack-timeout", "how long to wait for an acknowledgement before sending again", "270ms",
		func(c *ibverbs.Config, v string) error { return duration(&c.AckTimeout, v) }},
	{"retry-count", "how often to send again before a peer is given up, 1 to 7", "6",
		func(c *ibverbs.Config, v string) error {
			if err := number(&c.RetryCount, v); err != nil {
				return err
			}
			if c.RetryCount < 1 || c.RetryCount > 7 {
				return errors.New("want 1 to 7")
			}
			return nil
		}},
	{"setup-timeout", "how long setting up a connection may take, beside the limit of who dials", "20s",
		func(c *ibverbs.Config, v string) error { return duration(&c.SetupTimeout, v) }},
	{"close-timeout", "how long closing waits for a driver that does not tell that it is done", "15s",
		func(c *ibverbs.Config, v string) error { return duration(&c.CloseTimeout, v) }},
	{"keep-alive", "after how long an idle connection of InfiniBand or RoCE asks the peer's adapter for a sign of life, or never", "10s",
		func(c *ibverbs.Config, v string) error {
			if v == "never" {
				c.KeepAlive = -1
				return nil
			}
			return duration(&c.KeepAlive, v)
		}},
	{"huge-pages", "take large memory from the host's reserved huge pages (vm.nr_hugepages), while there are any", "false",
		func(c *ibverbs.Config, v string) error { return truth(&c.HugePages, v) }},
}, func(ibverbs.Config) error { return nil }, func(c ibverbs.Config, cfg Config) rdma.Provider {
	c.Logger = cfg.Logger
	return ibverbs.New(c)
})
