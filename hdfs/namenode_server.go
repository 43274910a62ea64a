package hdfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/namenode"
	"github.com/verbena-data/verbena/internal/port"
)

// NameNodeConfig configures a NameNode's server.
type NameNodeConfig struct {
	Runtime *verbena.Runtime
	Logger  *slog.Logger // default: slog.Default()
	// Dir holds the namespace's log and snapshots. It is made if it is missing.
	Dir string
	// SecondDir, if set, is a directory on another disk that is kept equal to Dir.
	// A start takes the state from it when Dir is gone, damaged or older.
	SecondDir string
	// ClusterSecret is the file of the secret by which this cluster's nodes know each
	// other. It is made, for this user alone, if there is none. Default:
	// cluster-secret in Dir.
	ClusterSecret string
	// Access says who may do what.
	Access AccessConfig
	// Listen is the published port, host:port; port 0 takes any.
	Listen string
	// Replication is what clients get that do not ask for a number; 0 means 3.
	Replication int
	// LeaseLimit is how long a file stays open whose writer has gone silent;
	// 0 means HDFS's 20 minutes.
	LeaseLimit time.Duration
	// SnapshotEntries is after how many changes a snapshot of the namespace is
	// written; 0 means 262,144. A start replays as many at most, and twice as many
	// if the newest snapshot is damaged.
	SnapshotEntries uint64
	// DeadAfter is how long a DataNode may be silent before its blocks are copied from
	// others; 0 means HDFS's 10 min 30 s.
	DeadAfter time.Duration
	// SafeModeLimit is how long a start waits for the DataNodes that were not dead
	// before; 0 means 30 s.
	SafeModeLimit time.Duration
	// ForgetAfter is how long a DataNode may be dead before it is forgotten; 0 means a
	// week.
	ForgetAfter time.Duration
	// Properties are Hadoop's, see [NameNodeProperties]. The fields above come before
	// them.
	Properties *conf.Properties
}

// NameNode is a NameNode that serves its port.
type NameNode struct {
	port    *port.Port
	state   *namenode.NameNode
	calls   *rpc.Server  // of clients
	answers *verbena.Mux // to DataNodes
}

// StartNameNode opens the namespace, publishes the port and serves.
func StartNameNode(ctx context.Context, cfg NameNodeConfig) (*NameNode, error) {
	// The port first: a second server on it must not touch the data.
	p, err := publish(ctx, cfg.Runtime, cfg.Listen, cfg.Logger, rpc.Service)
	if err != nil {
		return nil, fmt.Errorf("NameNode: %w", err)
	}
	secret, err := cluster.LoadSecret(secretFile(cfg.ClusterSecret, cfg.Dir), true)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("NameNode: %w", err), p.Close())
	}
	nc, err := nameNodeConfig(cfg.Properties)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("NameNode: %w", err), p.Close())
	}
	nc.Secret, nc.NoBlockTokens, nc.BlockKeyInterval, nc.BlockTokenLifetime = secret, cfg.Access.NoBlockTokens, cfg.Access.BlockKeyInterval, cfg.Access.BlockTokenLifetime
	nc.Superuser, nc.Supergroup, nc.ProxyUsers = cfg.Access.Superuser, cfg.Access.Supergroup, cfg.Access.ProxyUsers
	nc.ReadProxyUsers = func() (map[string]ProxyUser, error) {
		p, err := cfg.Properties.Again()
		if err != nil {
			return nil, err
		}
		var access AccessConfig
		err = access.Take(p)
		return access.ProxyUsers, err
	}
	nc.Dir, nc.SecondDir, nc.Logger = cfg.Dir, cfg.SecondDir, cfg.Logger
	nc.Replication = cmp.Or(uint32(max(cfg.Replication, 0)), nc.Replication)
	nc.LeaseHardLimit = cmp.Or(cfg.LeaseLimit, nc.LeaseHardLimit)
	nc.SnapshotEntries = cmp.Or(cfg.SnapshotEntries, nc.SnapshotEntries)
	nc.DeadAfter = cmp.Or(cfg.DeadAfter, nc.DeadAfter)
	nc.Properties, nc.Adjustable = cfg.Properties, adjustableOfNameNodes
	nc.Again = func(p *conf.Properties) (namenode.Adjustment, error) {
		now, err := nameNodeConfig(p)
		now.DeadAfter = cmp.Or(cfg.DeadAfter, now.DeadAfter)
		return now.Adjustment(), err
	}
	nc.SafeModeTimeout = cmp.Or(cfg.SafeModeLimit, nc.SafeModeTimeout)
	nc.ForgetAfter = cfg.ForgetAfter
	principals, err := cfg.Access.principals()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("NameNode: rules of principals: %w", err), p.Close())
	}
	state, err := namenode.Open(ctx, nc)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("NameNode: %w", err), p.Close())
	}
	nn := &NameNode{port: p, state: state, calls: rpc.NewServer(rpc.Config{Logger: cfg.Logger, Impersonate: state.Impersonate, ShortName: principals.Short}), answers: verbena.NewMux(verbena.MuxConfig{})}
	cluster.ServeNameNode(nn.answers, state, secret)
	state.RegisterRPC(nn.calls)
	messages := onEndpoints(nn.answers)
	messages[rpc.Service] = nn.calls.ServeEndpoint
	p.Serve(port.Handlers{Connections: nn.calls.ServeConn, Messages: messages})
	return nn, nil
}

// NameNodeState is what [CheckNameNode] found.
type NameNodeState = namenode.Report

// CheckNameNode reads all that a NameNode keeps in dir, and in the directory second
// unless it is empty, while none runs on them.
// With mend it sets aside what is damaged, so that a NameNode can start with the
// newest state that can be had; changes behind a damaged entry of the log are
// lost. An error says that there is no such state.
func CheckNameNode(dir, second string, logger *slog.Logger, mend bool) (*NameNodeState, error) {
	return namenode.Check(dir, second, nil, logger, mend)
}

// Addr is where the port is, host:port.
func (n *NameNode) Addr() string { return n.port.Addr() }

// Done is closed when the server has ended, and Err then tells why; it is nil
// after Close.
func (n *NameNode) Done() <-chan struct{} { return n.port.Done() }

// Err tells why the server has ended.
func (n *NameNode) Err() error { return n.port.Err() }

// Close stops serving and closes the namespace. What was acknowledged is on
// disk already.
func (n *NameNode) Close() error {
	err := errors.Join(n.calls.Close(), n.port.Close())
	n.answers.Close()
	return errors.Join(err, n.state.Close())
}

// Describe implements [prometheus.Collector].
func (n *NameNode) Describe(ch chan<- *prometheus.Desc) { n.calls.Describe(ch) }

// Collect implements [prometheus.Collector]: the numbers of the calls served.
func (n *NameNode) Collect(ch chan<- prometheus.Metric) { n.calls.Collect(ch) }
