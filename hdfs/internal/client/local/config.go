package local

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Config configures a path. Zero values stand for defaults.
type Config struct {
	// Socket is the path of DataNodes' sockets, in which _PORT stands for the port of data
	// transfer. If it is empty, DataNodes are asked.
	Socket string
	// Ask asks a DataNode where its socket is, and who is behind it; an empty name means
	// that it has none. It must be set if Socket is not.
	Ask func(ctx context.Context, node *hdfspb.DatanodeInfoProto) (socket string, user int, err error)
	// Client is the client's name, for the DataNode's people.
	Client string
	// SkipChecksum reads without comparing.
	SkipChecksum bool
	// Replicas is how many replicas are kept open, with two descriptors each; those in use
	// may be more. Default 256.
	Replicas int
	// Expiry is after how long without a read one is closed. Default 5 min.
	Expiry time.Duration
	// RetryTime is for how long a DataNode is left alone that has no socket or can't be
	// talked to; RefusalTime is the same for one whose process is away, and for a block
	// that is not handed over, such as one that is being written. Defaults 10 min and 2 s.
	RetryTime, RefusalTime time.Duration
	// Timeout bounds a request to the DataNode. Default 5 s.
	Timeout time.Duration
	Logger  *slog.Logger
}

func (c *Config) complete() {
	if c.Replicas == 0 {
		c.Replicas = 256
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.Expiry, 5 * time.Minute}, {&c.RetryTime, 10 * time.Minute}, {&c.RefusalTime, 2 * time.Second}, {&c.Timeout, 5 * time.Second}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// onThisHost tells whether an address is one of this host's, as far as its network
// namespace goes.
func onThisHost(address string) bool {
	ip := net.ParseIP(address)
	if ip == nil || ip.IsLoopback() {
		return ip != nil
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
			return true
		}
	}
	return false
}
