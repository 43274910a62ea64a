package hdfs

import (
	"context"
	"fmt"
	"net"
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
}

// NewDialer returns a dialer over rt. Transport is what [verbena.DialConfig]
// takes; "auto" falls back to plain TCP towards servers that have never heard
// of Verbena.
func NewDialer(rt *verbena.Runtime, transport string) *Dialer {
	g, _ := group(rt) // there is none on a runtime that is closed; then dials fail
	return &Dialer{net: rdmanet.Dialer{Runtime: rt, Service: Service, Group: g, Transport: transport, Timeout: dialTimeout}}
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
	return d.net.DialContext(ctx, network, address)
}

// Close closes the endpoints that are kept. Connections that clients have left
// open (that of a checksum, and some after an error) are closed by the garbage
// collector, as sockets are, or by the runtime's Close.
func (d *Dialer) Close() error { return d.net.Close() }
