package hdfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/datanode"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/internal/port"
)

// DataNodeConfig configures a DataNode's server.
type DataNodeConfig struct {
	Runtime *verbena.Runtime
	Logger  *slog.Logger // default: slog.Default()
	// Dir holds the blocks, unless DataDirs do, and the cluster's secret. It is made if it is
	// missing.
	Dir string
	// DataDirs hold the blocks, each a directory on a disk of its own; the missing ones are
	// made. An entry is as in Hadoop's dfs.datanode.data.dir: a path or a file URI, with the
	// kind of the storage before it if it is not a disk, [SSD]/ssd1 for example. Directories may
	// be added and left out from one start to the next.
	DataDirs []string
	// FailedDirs is how many of DataDirs may fail before the DataNode ends, -1 all but one. 0 is
	// what Properties say, or none.
	FailedDirs int
	// DiskTimeout is how long an operation on a directory's disk may take: then the directory is
	// out of service. Negative: there is no limit; 0 is what Properties say, or 10 min.
	DiskTimeout time.Duration
	// Properties are Hadoop's, see [DataNodeProperties]. The fields above come before them.
	Properties *conf.Properties
	// ClusterSecret is the file of the cluster's secret, the same as the NameNode's.
	// Default: cluster-secret in Dir.
	ClusterSecret string
	// Listen is the published port, host:port; port 0 takes any.
	Listen string
	// Advertise is the host that clients are told; empty means the one of Listen.
	Advertise string
	// NameNode is the NameNode's host:port. It need not be up yet.
	NameNode string
	// Superuser may do what operators do, and so may the members of the group Supergroup.
	// Defaults: the user of this process, and "supergroup".
	Superuser, Supergroup string
	// DomainSocket is a path at which HDFS's clients on this host find a socket for
	// short-circuit reads, as dfs.domain.socket.path names it: _PORT in it stands for the
	// port. The directories above may be written to by root and this process's user alone.
	// Empty: there is none.
	DomainSocket string
	// NoLocalReads has Verbena's clients on this host, too, read over connections. They
	// find the DataNode without a path.
	NoLocalReads bool

	// NativeMemory bounds the windows of blocks that are being written over the native data
	// path, or copied to other DataNodes, in bytes, all together. Who finds no room waits a
	// little, and then takes the legacy protocol. Default 512 MiB.
	NativeMemory int64
	// WindowMemory bounds the memory that clients read one-sidedly, in bytes: copies of
	// ranges of blocks, and rings of long reads. Default 256 MiB; negative: there is none.
	WindowMemory int64
	// SpareMemory bounds the files of removed blocks that each data directory in memory (tmpfs)
	// keeps for new ones to write over, in bytes, and so does a sixteenth of its file system. Default
	// 1 GiB, negative: none are kept.
	SpareMemory int64
	// LocalMemory bounds the checksums that are handed, in memory, to other clients of this host
	// than this release's, such as Java's short-circuit reads, in bytes. Who finds no room reads
	// over connections. Default 256 MiB.
	LocalMemory int64
	// ChecksumMemory bounds the checksums that are kept for short reads over endpoints, in bytes:
	// 8 MiB for each GiB of data. Others are read from files. Default 32 MiB; negative: none is kept.
	ChecksumMemory int64

	shared bool   // the process is not the DataNode's alone: operators may not end it
	disk   vfs.FS // of tests; nil: the operating system's
}

// ErrShutdown is why a DataNode has ended that an operator has told to
// (hdfs dfsadmin -shutdownDatanode).
var ErrShutdown = errors.New("an operator has ended the DataNode")

// DataNode is a DataNode that serves its port.
type DataNode struct {
	port    *port.Port
	state   *datanode.DataNode
	dialer  *Dialer           // of blocks
	calls   *verbena.CallPool // to the NameNode and to other DataNodes
	answers *verbena.Mux      // of the cluster protocol
	blocks  *verbena.Mux      // of reads
	local   *localSockets
}

// StartDataNode opens the store, publishes the port and serves.
func StartDataNode(ctx context.Context, cfg DataNodeConfig) (*DataNode, error) {
	state, err := dataNodeConfig(&cfg)
	if err != nil {
		return nil, fmt.Errorf("DataNode: %w", err)
	}
	if cfg.Dir == "" {
		cfg.Dir = state.Dirs[0].Path
	}
	p, err := publish(ctx, cfg.Runtime, cfg.Listen, cfg.Logger, native.Service, native.CallService)
	if err != nil {
		return nil, fmt.Errorf("DataNode: %w", err)
	}
	file := secretFile(cfg.ClusterSecret, cfg.Dir)
	secret, err := cluster.LoadSecret(file, false)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: copy the NameNode's to %s, by scp for example, or name it", err, file)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("DataNode: %w", err), p.Close())
	}
	host, number, err := advertised(p.Addr(), cfg.Advertise)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("DataNode: %w", err), p.Close())
	}
	local, socket, err := listenLocally(&cfg, number)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("DataNode: %w", err), p.Close())
	}
	calls, err := newCalls(cfg.Runtime, "hdfs-datanode "+p.Addr())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("DataNode: %w", err), local.Close(), p.Close())
	}
	dn := &DataNode{port: p, local: local, dialer: NewDialer(cfg.Runtime, verbena.TransportAuto), calls: calls, answers: verbena.NewMux(verbena.MuxConfig{}), blocks: verbena.NewMux(verbena.MuxConfig{})}
	dn.dialer.net.PlainTCP = true // Java's clients keep to the byte stream
	table, err := nativeTable(cfg.Runtime, verbena.TransportAuto, cfg.Logger)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("DataNode: %w", err), calls.Close(), local.Close(), p.Close())
	}
	shutdown := func() { p.End(ErrShutdown) }
	if cfg.shared {
		shutdown = nil
	}
	dn.state, err = datanode.Open(ctx, datanode.Config{
		Properties: cfg.Properties, Adjustable: adjustableOfDataNodes, Again: func(p *conf.Properties) (datanode.Adjustment, error) {
			again := cfg
			again.Properties = p
			now, err := dataNodeConfig(&again)
			return datanode.Adjustment{DiskTimeout: now.DiskTimeout, Choice: now.Choice}, err
		},
		Dirs: state.Dirs, FailedDirs: state.FailedDirs, DiskTimeout: state.DiskTimeout, Choice: state.Choice, Ended: p.End,
		Superuser: cfg.Superuser, Supergroup: state.Supergroup, Shutdown: shutdown, LocalSocket: socket, Native: &table, NativeMemory: cfg.NativeMemory, WindowMemory: cfg.WindowMemory, SpareMemory: cfg.SpareMemory, LocalMemory: cfg.LocalMemory, ChecksumMemory: cfg.ChecksumMemory,
		FS: cfg.disk, Logger: cfg.Logger, Host: host, Port: number, Secret: secret,
		NameNode: cluster.NewNameNodeClient(calls, cfg.NameNode, secret),
		Holder:   func(address string) cluster.DataNode { return cluster.NewDataNodeClient(calls, address, secret) },
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return dn.dialer.net.DialContext(ctx, "tcp", address)
		},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("DataNode: %w", err), calls.Close(), dn.dialer.Close(), local.Close(), p.Close())
	}
	local.serve(dn.state.ServeConn)
	cluster.ServeDataNode(dn.answers, dn.state.Recoveries(), secret)
	dn.state.NativeCalls(dn.blocks)
	messages := onEndpoints(dn.answers)
	messages[native.Service], messages[native.CallService] = dn.state.ServeNative, serveCalls(dn.blocks)
	p.Serve(port.Handlers{Connections: dn.state.ServeConn, Messages: messages})
	return dn, nil
}

// advertised is what clients are told: an address that others can dial.
func advertised(listening, override string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(listening)
	if err != nil {
		return "", 0, err
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, err
	}
	port = uint16(number)
	if override != "" {
		return override, port, nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return "", 0, fmt.Errorf("listening at all addresses (%s), which clients can't dial: say with --advertise which one they reach", listening)
	}
	return host, port, nil
}

// Addr is where the port is, host:port.
func (d *DataNode) Addr() string { return d.port.Addr() }

// WaitReported waits until the NameNode knows all that the DataNode has, and
// clients are sent to it.
func (d *DataNode) WaitReported(ctx context.Context) error {
	select {
	case <-d.state.Reported():
		return nil
	case <-d.Done():
		return errors.Join(errors.New("the DataNode ended before it had reported to the NameNode"), d.Err())
	case <-ctx.Done():
		return fmt.Errorf("the DataNode at %s has not reported to the NameNode: %w", d.Addr(), context.Cause(ctx))
	}
}

// Done is closed when the server has ended, and Err then tells why; it is nil
// after Close.
func (d *DataNode) Done() <-chan struct{} { return d.port.Done() }

// Err tells why the server has ended.
func (d *DataNode) Err() error { return d.port.Err() }

// AnnounceRestart tells all who write blocks here that this DataNode restarts, before Close,
// and takes no more: who writes on this host, or to this DataNode alone, waits for it to come back, 30 s by
// default (dfs.client.datanode-restart.timeout), and others go on without it. It returns when
// they have left, after a second at most.
func (d *DataNode) AnnounceRestart() { d.state.AnnounceRestart() }

// Close stops serving and closes the store. Who writes is not told: to him the DataNode has
// failed.
func (d *DataNode) Close() error {
	err := errors.Join(d.local.Close(), d.state.Close(), d.calls.Close(), d.port.Close())
	d.local.wait()
	d.answers.Close()
	d.blocks.Close()
	return errors.Join(err, d.dialer.Close())
}
