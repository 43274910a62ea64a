// Package datanode is the HDFS DataNode: it keeps replicas of blocks on disk
// (internal/store), moves their bytes by the DataTransferProtocol
// (hdfs/internal/transfer) and obeys its NameNode (hdfs/internal/cluster).
//
// A DataNode listens to nobody by itself: its owner hands it connections, of
// TCP or of anything else that is a net.Conn. On one port it tells data
// transfer (which begins with 00 1C) from Hadoop RPC (which begins with "hrpc").
//
//	dn, err := datanode.Open(ctx, datanode.Config{Dirs: []datanode.Directory{{Path: dir}}, Host: "127.0.0.1", Port: 9866, NameNode: client})
//	go dn.ServeConn(conn) // each connection that its owner accepts
//	...
//	dn.Close()
//
// # The write path
//
// A packet is read into one buffer, sent on to the next DataNode from there, and
// written to the block's two files from there; nothing is copied. Packets that have
// come together are sent on, written and acknowledged together. The last DataNode of a
// pipeline compares them with their checksums first. A DataNode with another one behind
// it has a second goroutine, the responder, that waits for the acknowledgements from
// behind, makes the bytes visible to readers and acknowledges upstream; the last one
// does that itself.
//
// # Differences from Apache's DataNode
//
// A copy between DataNodes (the transfer stages of WRITE_BLOCK) is answered
// like a client's pipeline, before the first packet and again after the last,
// so that a refusal is known before data moves. A replica that waits for
// recovery may be read as far as its checksums prove it. Replicas without
// checksums are not kept: a writer that asks for none gets CRC32C on disk.
package datanode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/user"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/semaphore"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/groups"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/pressure"
)

// Directory is a directory of replicas; see the store's documentation.
type Directory = store.Directory

// Choice is how a directory is chosen for a new replica. The zero value has them take turns.
type Choice = store.Choice

// Config configures a DataNode. Dirs, NameNode, Host and Port are required; zero
// values of the others stand for the defaults told.
type Config struct {
	// Dirs are where everything is kept, each of them on a disk of its own.
	Dirs []Directory
	// FailedDirs is how many of them may fail before the DataNode ends, negative: all but one.
	FailedDirs int
	// DiskTimeout is how long an operation on a directory's disk may take: then the directory has
	// failed. After DiskPatience nothing new is put there, until the disk goes on. Defaults 10 min,
	// negative: neither, and 30 s, but at most half of DiskTimeout. Close waits for operations under
	// way, whatever the limits.
	DiskTimeout, DiskPatience time.Duration
	// Choice is how one of them is chosen for a new replica.
	Choice Choice
	// Ended, if set, is called once when the DataNode can't go on because more of Dirs have
	// failed than may. It must not wait for Close.
	Ended func(err error)

	// Properties are Hadoop's, and Adjustable the names of those that may change while the DataNode
	// runs: when an operator asks for it their files are read again, and Again tells what they say.
	Properties *conf.Properties
	Adjustable []string
	Again      func(p *conf.Properties) (Adjustment, error)

	FS     vfs.FS // default vfs.Default
	Logger *slog.Logger
	// BootID tells one boot of the machine from the next. Default: the kernel's.
	BootID string

	// NameNode is what the DataNode asks. It finds the way to the NameNode, and
	// back to it, by itself; calls fail while there is none.
	NameNode cluster.NameNode
	// Secret is the cluster's. Without one no operation on a block needs a token.
	Secret *cluster.Secret
	// Dial connects to another DataNode's data transfer. Default: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Native is how to connect to other DataNodes for pipelines over registered memory. Without
	// it there are none.
	Native *native.TableConfig
	// Holder returns another DataNode for block recovery. Without it this
	// DataNode leads recoveries only of blocks that it alone holds.
	Holder func(addr string) cluster.DataNode

	Host     string // an IP address under which clients and DataNodes reach this one
	Port     uint16
	Hostname string // default Host
	Version  string // told to the NameNode

	// Superuser, and the members of Supergroup, may do what operators do; Groups tells a user's
	// groups. Defaults: the user of this process, "supergroup", and what the operating system
	// says, remembered for five minutes.
	Superuser, Supergroup string
	Groups                func(user string) []string
	// Shutdown, if set, ends this DataNode when an operator asks for it. It must not wait
	// for Close.
	Shutdown func()

	// LocalSocket is the Unix socket whose connections the owner hands to ServeConn, too:
	// processes of this host are told of it when they ask, and get blocks' descriptors
	// there. A name that begins with @ is in no file system. Empty: there is none.
	LocalSocket string
	// MaxLocalClients bounds the processes that have descriptors, LocalMemory the bytes of
	// the checksums that those of other releases than this one's need; default 4096 and
	// 256 MiB.
	MaxLocalClients int
	LocalMemory     int64

	// MaxOpenReplicas bounds the finalized replicas that stay open between reads over
	// endpoints, two descriptors each; default 256.
	MaxOpenReplicas int
	// ChecksumMemory bounds what is kept of their checksums, in bytes: 8 MiB for each GiB of data.
	// Default 32 MiB, negative: none is kept.
	ChecksumMemory int64

	// WindowMemory bounds what clients read one-sidedly, in bytes: copies of ranges, and rings
	// of long reads. Default 256 MiB, negative: there are none.
	WindowMemory int64

	// SpareMemory bounds the files of removed replicas that each directory in memory (tmpfs) keeps
	// for new ones to write over, in bytes; a sixteenth of its file system does, too. They go after
	// ten minutes, and when memory or room gets short. Default 1 GiB, negative: none are kept.
	SpareMemory int64

	MaxTransfers int // operations at one time; default 4096
	MaxConns     int // connections at one time, idle ones included; default 16,384
	// PacketMemory bounds packets above 256 KiB, in bytes, all together: those of writers, and
	// the long ones to readers of more than 2 MiB, which have half of it at most. Readers for
	// whom there is none get short packets. Default 256 MiB.
	PacketMemory int64
	NativeMemory int64 // bytes for the windows of native pipelines and copies, all together; default 512 MiB
	MaxCopies    int   // copies that the NameNode ordered at one time; default 4

	HandshakeTimeout time.Duration // until a connection's first request; default 10 s
	KeepAlive        time.Duration // until a connection's next request; default 30 s
	ReadTimeout      time.Duration // for a peer in the middle of something; default 60 s
	WriteTimeout     time.Duration // for a peer that does not read; default 60 s
	DialTimeout      time.Duration // default 10 s
	// ReadyTimeout is how long after the start an operation on a block waits for the
	// NameNode to tell by what tokens are known. Default 20 s.
	ReadyTimeout time.Duration
	// ReportTimeout bounds how long the acknowledgement of a block's end waits
	// for the NameNode to know of the block, so that the client can complete
	// the file at once. Default 1 s.
	ReportTimeout time.Duration

	ReportInterval time.Duration // between full block reports; default 1 h
	SyncAfter      time.Duration // until a replica closed without hsync is fsynced anyway; default 1 min
	ScanRate       int64         // bytes per second that the scanner reads of each directory; default 1 MiB, negative: no scanner
	ScanInterval   time.Duration // between two looks at everything; default 21 days
	ScanDelay      time.Duration // until the first look; default 10 min
}

// Adjustment are the settings that may change while a DataNode runs. Zero values stand for the
// defaults.
type Adjustment struct {
	DiskTimeout time.Duration
	Choice      Choice
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Dirs) == 0 || c.NameNode == nil || c.Host == "" || c.Port == 0 {
		return c, errors.New("datanode: Config needs Dirs, NameNode, Host and Port")
	}
	for name, n := range map[string]int64{
		"MaxLocalClients": int64(c.MaxLocalClients), "LocalMemory": c.LocalMemory, "MaxOpenReplicas": int64(c.MaxOpenReplicas), "MaxTransfers": int64(c.MaxTransfers),
		"MaxConns": int64(c.MaxConns), "PacketMemory": c.PacketMemory, "NativeMemory": c.NativeMemory, "MaxCopies": int64(c.MaxCopies),
	} {
		if n < 0 {
			return c, fmt.Errorf("datanode: %s is %d: want more than 0, or 0 for the default", name, n)
		}
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	}
	if c.Hostname == "" {
		c.Hostname = c.Host
	}
	if c.Superuser == "" {
		u, err := user.Current()
		if err != nil {
			return c, fmt.Errorf("datanode: find out who runs this process, who would be the superuser; name one instead: %w", err)
		}
		c.Superuser = u.Username
	}
	setDefault(&c.Supergroup, "supergroup")
	if c.Groups == nil {
		c.Groups = groups.New().Lookup
	}
	setDefault(&c.MaxLocalClients, 4096)
	setDefault(&c.LocalMemory, 256<<20)
	setDefault(&c.MaxOpenReplicas, 256)
	setDefault(&c.ChecksumMemory, 32<<20)
	setDefault(&c.WindowMemory, 256<<20)
	setDefault(&c.SpareMemory, store.SpareMemory)
	setDefault(&c.MaxTransfers, 4096)
	setDefault(&c.MaxConns, 16<<10)
	setDefault(&c.PacketMemory, 256<<20)
	setDefault(&c.NativeMemory, 512<<20)
	setDefault(&c.MaxCopies, 4)
	setDefault(&c.DiskTimeout, defaultDiskTimeout)
	setDefault(&c.DiskPatience, 30*time.Second)
	setDefault(&c.HandshakeTimeout, 10*time.Second)
	setDefault(&c.KeepAlive, 30*time.Second)
	setDefault(&c.ReadTimeout, time.Minute)
	setDefault(&c.WriteTimeout, time.Minute)
	setDefault(&c.DialTimeout, 10*time.Second)
	setDefault(&c.ReadyTimeout, 20*time.Second)
	setDefault(&c.ReportTimeout, time.Second)
	setDefault(&c.ReportInterval, time.Hour)
	setDefault(&c.SyncAfter, time.Minute)
	setDefault(&c.ScanRate, 1<<20)
	setDefault(&c.ScanInterval, 21*24*time.Hour)
	setDefault(&c.ScanDelay, 10*time.Minute)
	return c, nil
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// ErrClosed is returned by a DataNode that was closed.
var ErrClosed = errors.New("datanode: closed")

// DataNode is one DataNode. Its methods may be called concurrently.
type DataNode struct {
	cfg    Config
	log    *slog.Logger
	store  *store.Store
	rpc    *rpc.Server
	budget *budget

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // background goroutines and connections

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	// writers are those of conns that are writing a block.
	writers map[net.Conn]struct{}
	// receivers are the pipelines over them, with DataNodes behind or not.
	receivers  map[*receiver]struct{}
	restarting bool          // their writers have been told, or are being told
	idle       chan struct{} // of who waits for receivers to become empty

	started   time.Time
	ending    atomic.Bool // an operator has asked for the end
	transfers atomic.Int64
	names     session
	keys      *blocktoken.Keys
	reported  chan struct{} // closed with the first full report
	deletions queue
	copies    queue
	recovers  queue
	settling  []settling // by directory
	suspects  suspects
	// diskTimeout is that of cfg, or what it was adjusted to.
	diskTimeout atomic.Int64
	local       *local
	reads       reads
	writes      [transferPaths]writes
	copied      [transferPaths]copied
	fellBack    [otherWays]atomic.Uint64
	native      natives
	kept        *kept
	windows     windows
	rings       rings
	unwatch     func() // ends the watch over the machine's memory
}

// Open opens the replicas in cfg.Dirs and starts to look for the NameNode; it
// does not wait for it. ctx bounds the opening alone.
func Open(ctx context.Context, cfg Config) (*DataNode, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	local := newLocal(&cfg)
	keys := blocktoken.NewKeys()
	kept := newKept(cfg.MaxOpenReplicas, max(0, cfg.ChecksumMemory), keys)
	dn := &DataNode{}
	changing := func(id uint64) {
		local.changing(id)
		kept.changing(id)
		dn.windows.changing(id)
	}
	s, err := store.Open(store.Config{FS: cfg.FS, Dirs: cfg.Dirs, Tolerated: cfg.FailedDirs, Choice: cfg.Choice, Logger: cfg.Logger, BootID: cfg.BootID, Changing: changing, Spare: cfg.SpareMemory})
	if err != nil {
		return nil, fmt.Errorf("datanode: %w", err)
	}
	*dn = DataNode{
		cfg: cfg, log: cfg.Logger, store: s,
		budget:    newBudget(cfg.PacketMemory),
		conns:     map[net.Conn]struct{}{},
		writers:   map[net.Conn]struct{}{},
		receivers: map[*receiver]struct{}{},
		started:   time.Now(),
		reported:  make(chan struct{}),
		keys:      keys,
		local:     local,
		kept:      kept,
	}
	if cfg.Secret == nil {
		dn.keys.Set(time.Now(), nil)
	}
	dn.ctx, dn.cancel = context.WithCancel(context.Background())
	dn.budget.ctx, dn.budget.wait = dn.ctx, cfg.ReadTimeout
	dn.diskTimeout.Store(int64(cfg.DiskTimeout))
	dn.rpc = dn.newRPC()
	dn.names.init()
	dn.deletions.init(dn, 2)
	dn.copies.init(dn, cfg.MaxCopies)
	dn.recovers.init(dn, 4)
	dn.settling = newSettling(len(cfg.Dirs))
	dn.suspects.init(len(cfg.Dirs))
	dn.initNatives()
	dn.initWindows()
	for _, i := range s.Replicas() {
		if i.State == store.Finalized && !i.Synced {
			dn.settling[i.Storage].add(i.ID, time.Now())
		}
	}
	dn.goBackground(dn.followNameNode)
	for i := range cfg.Dirs { // or one that hangs would keep the others waiting
		dn.goBackground(func() { dn.settle(i) })
		if cfg.ScanRate > 0 {
			dn.goBackground(func() { dn.scan(i) })
		}
	}
	dn.goBackground(dn.watchDisks)
	dn.unwatch = func() {}
	if s.KeepsSpares() {
		dn.unwatch = pressure.Process().Subscribe(func(r pressure.Reading) { s.PauseSpares(r.Level != pressure.Calm) }, nil)
	}
	return dn, nil
}

// goBackground runs f in a goroutine that Close waits for; f ends with dn.ctx.
// It does nothing after Close.
func (dn *DataNode) goBackground(f func()) bool {
	dn.mu.Lock()
	defer dn.mu.Unlock()
	if dn.closed {
		return false
	}
	dn.wg.Add(1)
	go func() {
		defer dn.wg.Done()
		f()
	}()
	return true
}

// Reported is closed when the NameNode has had the first full report of this
// DataNode: from then on blocks are placed here and found here.
func (dn *DataNode) Reported() <-chan struct{} { return dn.reported }

// UUID is the DataNode's identity, kept on its disks.
func (dn *DataNode) UUID() string { return dn.store.Identity().DatanodeUUID }

// ServeConn serves one connection until it ends, and closes it.
func (dn *DataNode) ServeConn(nc net.Conn) {
	done := make(chan struct{})
	if !dn.goBackground(func() { defer close(done); dn.serveConn(nc) }) {
		nc.Close()
		return
	}
	<-done
}

// Recoveries is what this DataNode answers to others that lead a recovery.
func (dn *DataNode) Recoveries() cluster.DataNode { return holder{dn} }

// Close stops everything, waits for it and lets go of the directories. What was
// being written stays as after the death of the process.
func (dn *DataNode) Close() error {
	dn.mu.Lock()
	if dn.closed {
		dn.mu.Unlock()
		dn.wg.Wait()
		return nil
	}
	dn.closed = true
	dn.cancel()
	for nc := range dn.conns {
		nc.Close()
	}
	dn.mu.Unlock()
	dn.rpc.Close()
	dn.closeNatives()
	dn.wg.Wait()
	dn.rings.close()
	dn.windows.close()
	dn.kept.close()
	dn.unwatch()
	if err := dn.store.Close(); err != nil {
		return fmt.Errorf("datanode: close the store: %w", err)
	}
	return nil
}

// sleep returns false if the DataNode was closed meanwhile.
func (dn *DataNode) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-dn.ctx.Done():
		return false
	}
}

// self is this DataNode as others know it.
func (dn *DataNode) self() *clusterpb.Datanode {
	uuid, port := dn.UUID(), uint32(dn.cfg.Port)
	return &clusterpb.Datanode{Uuid: &uuid, Host: &dn.cfg.Host, Port: &port, Hostname: &dn.cfg.Hostname}
}

func address(host string, port uint32) string {
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// budget bounds the memory of large packets.
type budget struct {
	ctx  context.Context
	wait time.Duration
	sem  *semaphore.Weighted
	size int64
	// read is what readers may have of it: writers wait for theirs, and readers may be slow.
	read *semaphore.Weighted
}

func newBudget(size int64) *budget {
	return &budget{sem: semaphore.NewWeighted(size), size: size, read: semaphore.NewWeighted(size / 2)}
}

var _ transfer.Budget = (*budget)(nil)

func (b *budget) Acquire(n int64) error {
	if n > b.size {
		return fmt.Errorf("more than the %d bytes that PacketMemory allows", b.size)
	}
	ctx, cancel := context.WithTimeout(b.ctx, b.wait)
	defer cancel()
	if err := b.sem.Acquire(ctx, n); err != nil {
		return fmt.Errorf("other packets use the %d bytes that PacketMemory allows: %w", b.size, err)
	}
	return nil
}

func (b *budget) Release(n int64) { b.sem.Release(n) }

// takeLong takes memory for long packets to a reader, until giveLong, or reports that there is
// none now.
func (b *budget) takeLong() bool {
	if !b.read.TryAcquire(longBuffer) {
		return false
	}
	if !b.sem.TryAcquire(longBuffer) {
		b.read.Release(longBuffer)
		return false
	}
	return true
}

func (b *budget) giveLong() {
	b.sem.Release(longBuffer)
	b.read.Release(longBuffer)
}
