// Package namenode is HDFS's NameNode: it serves ClientProtocol to any HDFS
// client, and Verbena's own protocol to DataNodes.
//
// The namespace is a state machine in memory (internal/namespace) behind a log on
// disk (package journal); a change is acknowledged once it is synced. Where
// replicas are is soft state that DataNodes report. From the two come placement,
// repair and deletion of replicas, and the recovery of files whose writers
// have gone.
//
// After a start the NameNode serves at once, but neither copies nor deletes
// replicas, nor recovers leases, until every DataNode it knows has reported all
// its blocks or a timeout has passed; setSafeMode(GET) tells. Until a block has
// been reported its locations are empty.
//
// Access times are kept but reading a file does not change them.
//
// A call of a client arrives in rpc.go and is answered in the file of its theme:
// status, tree, attributes, acl, xattr, storagepolicy, quota, open, write, pipeline, locations, lease, safemode,
// admin. What DataNodes send arrives in datanodes, reports and recovery. Both
// stand on change (one operation made durable), state (the namespace behind the
// log), blocks (where replicas are), placement, repair and convert (protobuf).
//
// It imports hadoop/rpc for its client side and nothing of the DataNode.
package namenode

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/topology"
	"github.com/verbena-data/verbena/internal/journal"
)

// NameNode is an open NameNode. Its methods may be called concurrently.
type NameNode struct {
	cfg     Config
	log     *slog.Logger
	journal *journal.Journal
	state   *state
	blocks  *blockMap
	// topology tells racks.
	topology *topology.Map
	leases   leases
	stamps   stamps
	time     logClock
	tokens   *blocktoken.Issuer // nil: none are needed
	calls    callsUnderWay
	answers  rpc.Answers // of finished
	// resources is the room for the log.
	resources resources
	// proxyUsers may act for others.
	proxyUsers atomic.Pointer[map[string]ProxyUser]
	metaSaving sync.Mutex
	// nameLimits and blockLimits are what entries say of the configured limits.
	nameLimits, blockLimits *nspb.Limits

	recoveries map[uint64]recovery // by block; the monitor's own
	trashDue   time.Time           // the next checkpoint of trash; the monitor's own
	kick       chan struct{}
	cancel     context.CancelFunc
	wg         sync.WaitGroup
}

// Open opens the file system in cfg.Dir, or makes a new one there, and returns
// once it has everything that was ever acknowledged and can serve.
func Open(ctx context.Context, cfg Config) (*NameNode, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, fmt.Errorf("namenode: open: %w", err)
	}
	nn := &NameNode{
		cfg:        cfg,
		log:        cfg.Logger,
		recoveries: make(map[uint64]recovery),
		kick:       make(chan struct{}, 1),
	}
	nn.setLimits()
	nn.leases.renewed = make(map[string]renewal)
	nn.proxyUsers.Store(&nn.cfg.ProxyUsers)
	nn.calls.waiting = make(map[callID]chan struct{})
	nn.resources.stuck = make(chan struct{})
	nn.blocks = newBlockMap(&nn.cfg)
	nn.blocks.wakeMonitor = nn.wakeMonitor
	var err error
	if nn.topology, err = topology.New(topology.Config{Table: cfg.TopologyTable, Script: cfg.TopologyScript, ScriptArgs: cfg.TopologyScriptArgs, Logger: cfg.Logger}); err != nil {
		return nil, fmt.Errorf("namenode: open: %w", err)
	}
	nn.state = &state{ns: namespace.New(), blocks: nn.blocks, deleted: nn.wakeMonitor}
	nn.journal, err = journal.Open(ctx, journal.Config{
		Dir: cfg.Dir, Second: cfg.SecondDir, FS: cfg.FS, Logger: cfg.Logger, SnapshotEntries: cfg.SnapshotEntries, Finished: nn.finished,
	}, nn.state)
	if err != nil {
		return nil, fmt.Errorf("namenode: %w", err)
	}
	if err := nn.prepare(ctx); err != nil {
		nn.journal.Close()
		return nil, fmt.Errorf("namenode: open %s: %w", cfg.Dir, err)
	}
	if nn.tokens, err = nn.newIssuer(); err != nil {
		nn.journal.Close()
		return nil, fmt.Errorf("namenode: %w", err)
	}
	if err := nn.readHosts(ctx); err != nil {
		nn.journal.Close()
		return nil, fmt.Errorf("namenode: open %s: %w", cfg.Dir, err)
	}
	nn.checkResources()
	run, cancel := context.WithCancel(context.Background())
	nn.cancel = cancel
	if !cfg.manual {
		nn.wg.Go(func() { nn.monitor(run) })
		nn.wg.Go(func() { nn.watchResources(run) })
	}
	return nn, nil
}

func (nn *NameNode) prepare(ctx context.Context) error {
	if err := nn.state.failure(); err != nil {
		return err
	}
	var clusterID string
	nn.read(func(ns *namespace.Namespace) { clusterID = ns.ClusterID() })
	if clusterID == "" {
		id := rand.Text()
		_, err := nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_Format{Format: &nspb.Format{
			ClusterId:   proto.String("CID-" + id),
			BlockPoolId: proto.String(fmt.Sprintf("BP-%s-%d", rand.Text()[:16], nn.cfg.now().UnixMilli())),
			Superuser:   proto.String(nn.cfg.Superuser),
			Supergroup:  proto.String(nn.cfg.Supergroup),
		}}})
		if err != nil {
			return fmt.Errorf("format: %w", err)
		}
	}
	nn.read(func(ns *namespace.Namespace) {
		nn.stamps.next, nn.stamps.limit = ns.Stamps(), ns.Stamps()
		nn.blocks.start(ns.Datanodes(), ns.BlockPoolID())
		files, dirs, blocks := ns.Counts()
		nn.log.Info("namenode: open", "dir", nn.cfg.Dir, "cluster", ns.ClusterID(), "files", files, "directories", dirs, "blocks", blocks)
	})
	return nil
}

// Close stops serving and waits for the goroutines. What was acknowledged is on disk
// already.
func (nn *NameNode) Close() error {
	nn.cancel()
	nn.wg.Wait()
	if err := nn.journal.Close(); err != nil {
		return fmt.Errorf("namenode: %w", err)
	}
	return nil
}

// ClusterID identifies the file system for ever.
func (nn *NameNode) ClusterID() (id string) {
	nn.read(func(ns *namespace.Namespace) { id = ns.ClusterID() })
	return id
}

// BlockPoolID is part of every block's name.
func (nn *NameNode) BlockPoolID() (id string) {
	nn.read(func(ns *namespace.Namespace) { id = ns.BlockPoolID() })
	return id
}

// read runs f while the namespace does not change. f must be short.
func (nn *NameNode) read(f func(*namespace.Namespace)) {
	nn.state.mu.RLock()
	defer nn.state.mu.RUnlock()
	f(nn.state.ns)
}

// rights tells a user's groups, and whether the user may do anything.
func (nn *NameNode) rights(user string) (groups []string, superuser bool) {
	groups = nn.cfg.Groups(user)
	return groups, user == nn.cfg.Superuser || slices.Contains(groups, nn.cfg.Supergroup)
}
