package hdfs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/client/lease"
	"github.com/verbena-data/verbena/hdfs/internal/client/legacy"
	"github.com/verbena-data/verbena/hdfs/internal/client/local"
	"github.com/verbena-data/verbena/hdfs/internal/client/names"
	nativepath "github.com/verbena-data/verbena/hdfs/internal/client/native"
	"github.com/verbena-data/verbena/hdfs/internal/client/reader"
	"github.com/verbena-data/verbena/hdfs/internal/client/writer"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// Client is a client of an HDFS file system: of Verbena's, over any transport, and of
// Apache's over TCP. Names of files are absolute, or relative to the user's home
// (/user/NAME). It may be used concurrently.
//
// Errors are [*fs.PathError]. What a server refused is in them as a [*ServerError], which
// has the Java class and matches [fs.ErrNotExist] and its like.
//
// Calls of the NameNode that fail because it can't be reached, stands by or is starting
// are made again, at other NameNodes if there are any, for [ClientConfig].Patience.
// Those that must not be carried out twice are known to the NameNode by their number.
type Client struct {
	cfg    ClientConfig
	rpc    *rpc.Client
	names  *names.NameNodes
	legacy *legacy.Path
	native *nativepath.Path // nil: there is none
	local  *local.Path      // nil if there is none
	path   data.Path
	holder string
	lease  *lease.Renewer
	read   reader.Config
	// sockets is legacy over plain TCP, for native. Nil without one.
	sockets *legacy.Path

	mu       sync.Mutex
	defaults *ServerDefaults
	write    *writer.Config // nil until the first file is written
	open     map[*FileWriter]struct{}
	closed   bool
}

// ErrNoNameNode says that no NameNode has answered a call: none could be reached, none is
// active, the connection was lost, or the context ended before.
var ErrNoNameNode = names.ErrUnanswered

// ErrClientClosed is what calls on a closed client return.
var ErrClientClosed = errors.New("the client is closed")

// NewClient returns a client. It connects with its first call.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, open: map[*FileWriter]struct{}{}}
	dial := (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}}).DialContext
	calls := rpc.ClientConfig{ConnectTimeout: cfg.ConnectTimeout, CallTimeout: cfg.CallTimeout, Backoff: callBackoff, MaxBackoff: maxCallBackoff}
	if d := cfg.Dialer; d != nil {
		d.once.Do(d.start)
		if d.err != nil {
			return nil, d.err
		}
		dial, calls.Pool = d.DialContext, d.pool
	}
	calls.Dial = func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }
	c.rpc = rpc.NewClient(calls)
	c.names = names.New(c.rpc, cfg.NameNodes, cfg.User, cfg.RealUser, rpc.FailoverConfig{
		Patience: cfg.Patience, Timeouts: cfg.Timeouts, Backoff: cfg.RetryPause, MaxBackoff: cfg.MaxRetryPause,
	})
	c.names.Slow = cfg.SlowCall
	c.holder = fmt.Sprintf("DFSClient_verbena_%s_%d", rand.Text()[:12], os.Getpid())
	transfers := legacy.Config{
		Dial: dial, Calls: c.rpc, User: cfg.User, UseHostname: cfg.UseHostname,
		SocketTimeout: cfg.SocketTimeout, WriteTimeout: cfg.WriteTimeout, Idle: cfg.IdleConnections, IdleTime: cfg.IdleTime,
	}
	c.legacy = legacy.New(transfers)
	c.path = c.legacy
	if cfg.Dialer != nil && !cfg.LegacyTransfers {
		table, reads, err := cfg.Dialer.native()
		if err != nil {
			return nil, err
		}
		transfers.Dial, transfers.ConnectTimeout = cfg.Dialer.net.Runtime.Connect, dialTimeout
		c.sockets = legacy.New(transfers)
		c.native = nativepath.New(nativepath.Config{
			Table: table, Calls: reads, Legacy: c.legacy, Sockets: c.sockets, UseHostname: cfg.UseHostname, SocketTimeout: cfg.SocketTimeout, NoWindows: cfg.NoWindows, Logger: cfg.Logger,
		})
		c.path = c.native
	}
	if !cfg.NoLocalReads && (cfg.Dialer == nil || cfg.Dialer.transport == verbena.TransportAuto) {
		c.local = local.New(local.Config{
			Socket: cfg.DomainSocket, Ask: c.askForSocket, Client: c.holder, SkipChecksum: cfg.LocalUnverified,
			Replicas: cfg.LocalReplicas, Expiry: cfg.LocalExpiry, Logger: cfg.Logger,
		}, c.path)
		c.path = c.local
	}
	c.lease = lease.New(func(ctx context.Context) error {
		return c.names.Call(ctx, "renewLease", &hdfspb.RenewLeaseRequestProto{ClientName: &c.holder}, &hdfspb.RenewLeaseResponseProto{})
	}, cfg.LeaseInterval, leaseLost)
	c.read = reader.Config{
		Names: c.names, Path: c.path, Client: c.holder, Prefetch: cfg.Prefetch, Failures: cfg.ReadFailures, Window: cfg.ReadPause,
		Hedge: cfg.HedgeAfter, Unverified: cfg.Unverified, ReadAhead: cfg.ReadAhead, Logger: cfg.Logger,
	}
	if cfg.HedgeAfter > 0 {
		c.read.Hedges = reader.NewHedges(cfg.Hedges)
	}
	return c, nil
}

// leaseLost is after how long without a renewal the NameNode gives a file to others,
// as dfs.namenode.lease-hard-limit-sec.
const leaseLost = 20 * time.Minute

// User is who the client acts as.
func (c *Client) User() string { return c.cfg.User }

// NameNode is the address of the NameNode that is asked first.
func (c *Client) NameNode() string { return c.names.Active() }

// Close ends all calls and connections. Files that are still being written are aborted. It
// waits for what lost a hedged read: that may be reading from a slow disk of this host.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	var open []*FileWriter
	for w := range c.open {
		open = append(open, w)
	}
	c.mu.Unlock()
	for _, w := range open {
		w.Abort()
	}
	c.lease.Close()
	if c.local != nil {
		c.local.Close()
	}
	if c.native != nil {
		c.native.Close()
	}
	err := c.rpc.Close()
	c.legacy.Close()
	if c.sockets != nil {
		c.sockets.Close()
	}
	if c.read.Hedges != nil {
		c.read.Hedges.Close()
	}
	return err
}

// Abs makes a name absolute, as HDFS does: relative to the user's home.
func (c *Client) Abs(name string) string {
	if !strings.HasPrefix(name, "/") {
		name = c.Home() + "/" + name
	}
	return path.Clean(name)
}

// Home is the user's home directory.
func (c *Client) Home() string { return "/user/" + c.cfg.User }

// call makes a call about a path.
func (c *Client) call(ctx context.Context, op, name, method string, req, resp proto.Message) error {
	return c.fail(op, name, c.names.Call(ctx, method, req, resp))
}

// ServerDefaults are what the NameNode suggests for new files.
type ServerDefaults struct {
	BlockSize        int64 // bytes
	Replication      int
	BytesPerChecksum int
	Checksum         ChecksumType
	PacketSize       int           // bytes
	TrashInterval    time.Duration // 0: there is no trash
	encrypted        bool
}

// ServerDefaults returns what the NameNode suggests. It is asked once.
func (c *Client) ServerDefaults(ctx context.Context) (*ServerDefaults, error) {
	c.mu.Lock()
	d := c.defaults
	c.mu.Unlock()
	if d != nil {
		return d, nil
	}
	var resp hdfspb.GetServerDefaultsResponseProto
	if err := c.names.Call(ctx, "getServerDefaults", &hdfspb.GetServerDefaultsRequestProto{}, &resp); err != nil {
		return nil, c.fail("defaults", "/", err)
	}
	s := resp.GetServerDefaults()
	d = &ServerDefaults{
		BlockSize: int64(s.GetBlockSize()), Replication: int(s.GetReplication()), BytesPerChecksum: int(s.GetBytesPerChecksum()),
		Checksum: checksumType(s.GetChecksumType()), PacketSize: int(s.GetWritePacketSize()),
		TrashInterval: time.Duration(s.GetTrashInterval()) * time.Minute, encrypted: s.GetEncryptDataTransfer(),
	}
	c.mu.Lock()
	c.defaults = d
	c.mu.Unlock()
	return d, nil
}

// writing returns the configuration of writers, which depends on what the NameNode
// suggests.
func (c *Client) writing(ctx context.Context) (*writer.Config, *ServerDefaults, error) {
	d, err := c.ServerDefaults(ctx)
	if err != nil {
		return nil, nil, err
	}
	if d.encrypted {
		return nil, nil, errors.New("the cluster wants data transfers encrypted (dfs.encrypt.data.transfer), which this client does not do yet")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClientClosed
	}
	if c.write != nil {
		return c.write, d, nil
	}
	kind, bytes := c.cfg.Checksum, c.cfg.BytesPerChecksum
	if kind == ChecksumDefault {
		kind = d.Checksum
	}
	if bytes == 0 {
		bytes = d.BytesPerChecksum
	}
	sum, err := transfer.NewChecksum(kind.proto(), uint32(max(0, bytes)))
	if err != nil {
		return nil, nil, err
	}
	packets := data.NewPool(cmp.Or(c.cfg.PacketSize, defaultPacket), sum)
	// No more than a set-up can announce, or a DataNode would take it for a breach.
	window := min(max(c.cfg.Window, 2*packets.Memory()), native.MaxWindow)
	if c.cfg.PacketSize == 0 {
		packets.Suit(window / 2)
	}
	c.write = &writer.Config{
		Names: c.names, Path: c.path, Client: c.holder, Packets: packets, Window: window,
		Replace: c.cfg.Replace.policy(), BestEffort: c.cfg.ReplaceBestEffort, MinReplication: c.cfg.ReplaceMinReplication,
		BlockRetries: c.cfg.BlockRetries, LocateRetries: c.cfg.LocateRetries, LocatePause: c.cfg.LocatePause,
		RestartTimeout: c.cfg.RestartTimeout, Heartbeat: c.cfg.SocketTimeout / 2, ExcludeFor: c.cfg.ExcludeFor, Logger: c.cfg.Logger,
	}
	return c.write, d, nil
}

// ExplainTransfers tells by what protocol the blocks of a DataNode, host:port, would be
// written and read now, and over which transport.
func (c *Client) ExplainTransfers(dataNode string) string {
	switch {
	case c.native != nil:
		return c.native.Explain(dataNode)
	case c.cfg.Dialer == nil:
		return "legacy: the client has no Dialer"
	}
	return "legacy: ClientConfig.LegacyTransfers says so"
}

// currentUser is HADOOP_USER_NAME, or who runs the process.
func currentUser() (string, error) {
	if name := os.Getenv("HADOOP_USER_NAME"); name != "" {
		return name, nil
	}
	u, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("who are you? %w: say it with HADOOP_USER_NAME", err)
	}
	return u.Username, nil
}
