package hdfs

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	client "github.com/colinmarc/hdfs/v2"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdmanet"
)

// dialTimeout bounds one dial of the client's, which gives no deadline itself.
const dialTimeout = 20 * time.Second

// Dialer makes HDFS clients whose bytes travel over endpoints. The endpoints
// that one client no longer needs serve the next dial of any of them. It may be
// used concurrently and must be closed after its clients.
type Dialer struct {
	net rdmanet.Dialer

	mu   sync.Mutex
	open map[*clientConn]struct{}
}

// clientConn is a connection of a client's. The client forgets to close some
// (that of a checksum, and some after an error); sockets are then closed by the
// garbage collector, endpoints by [Dialer.Close].
type clientConn struct {
	net.Conn
	dialer *Dialer
}

func (c *clientConn) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.open, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}

// NewDialer returns a dialer over rt. Transport is what [verbena.DialConfig]
// takes; "auto" falls back to plain TCP towards servers that have never heard
// of Verbena.
func NewDialer(rt *verbena.Runtime, transport string) *Dialer {
	return &Dialer{
		net:  rdmanet.Dialer{Runtime: rt, Service: Service, Transport: transport, Timeout: dialTimeout},
		open: map[*clientConn]struct{}{},
	}
}

// Connect returns a client of the NameNode at address (host:port) that acts as
// user. It finds out whether the NameNode can be reached.
func (d *Dialer) Connect(ctx context.Context, address, user string) (*client.Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := client.NewClient(client.ClientOptions{
		Addresses:        []string{address},
		User:             user,
		NamenodeDialFunc: d.DialContext,
		DatanodeDialFunc: d.DialContext,
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the NameNode at %s: %w (is it running? `verbena up` starts one)", address, err)
	}
	return c, nil
}

// DialContext dials a NameNode or a DataNode. It is what a client takes as its
// dial function whose other options the caller wants to set.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.net.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &clientConn{conn, d}
	d.mu.Lock()
	d.open[c] = struct{}{}
	d.mu.Unlock()
	return c, nil
}

// Close closes the connections that clients have left open, and the endpoints
// that are kept.
func (d *Dialer) Close() error {
	d.mu.Lock()
	left := slices.Collect(maps.Keys(d.open))
	d.mu.Unlock()
	for _, c := range left {
		c.Close()
	}
	return d.net.Close()
}
