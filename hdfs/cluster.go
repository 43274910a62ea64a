package hdfs

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/conf"
)

// ClusterConfig configures a whole file system in one process.
type ClusterConfig struct {
	Runtime *verbena.Runtime
	Logger  *slog.Logger
	Dir     string // namenode, datanode-N and conf are below it
	// ClusterSecret is the file of the secret by which the nodes know each other. It
	// is made if there is none. Default: cluster-secret in Dir.
	ClusterSecret string
	Access        AccessConfig
	Host          string // to listen at
	// SecondDir is for the NameNode's state; see [NameNodeConfig].
	SecondDir string
	// NameNodePort and DataNodePort are the NameNode's port and the first
	// DataNode's, the others following; 0 takes any.
	NameNodePort, DataNodePort int
	DataNodes                  int
	Replication                int // 0: 3, or as many as there are DataNodes
	// DomainSocket and NoLocalReads are those of the DataNodes; see [DataNodeConfig].
	// DomainSocket needs _PORT in it if there are several.
	DomainSocket string
	NoLocalReads bool
	// NativeMemory and the others are those of each DataNode; see [DataNodeConfig].
	NativeMemory, WindowMemory, SpareMemory, LocalMemory, ChecksumMemory int64
	// The others are the NameNode's; see [NameNodeConfig].
	SnapshotEntries                       uint64
	DeadAfter, SafeModeLimit, ForgetAfter time.Duration
	Properties                            *conf.Properties
}

// Cluster is a whole file system in one process.
type Cluster struct {
	NameNode  *NameNode
	DataNodes []*DataNode
	ConfDir   string // HADOOP_CONF_DIR for its clients

	endOnce  sync.Once
	done     chan struct{}
	err      error
	watching context.Context // ends with Close
	unwatch  context.CancelFunc
	watch    sync.WaitGroup
}

// StartCluster starts a NameNode and DataNodes, waits until all of them have
// registered and writes the configuration for clients.
func StartCluster(ctx context.Context, cfg ClusterConfig) (_ *Cluster, err error) {
	if cfg.DataNodes < 1 {
		return nil, fmt.Errorf("a file system needs at least one DataNode, not %d", cfg.DataNodes)
	}
	if cfg.DomainSocket != "" && cfg.DataNodes > 1 && !strings.Contains(cfg.DomainSocket, "_PORT") {
		return nil, fmt.Errorf("domain socket %s: %d DataNodes need one each: have _PORT in the path stand for their ports", cfg.DomainSocket, cfg.DataNodes)
	}
	if cfg.Replication == 0 {
		cfg.Replication = min(3, cfg.DataNodes)
		if n, ok, err := cfg.Properties.Number("dfs.replication", 1); err != nil {
			return nil, err
		} else if ok {
			cfg.Replication = int(n)
		}
	}
	if cfg.Replication < 1 || cfg.Replication > cfg.DataNodes {
		return nil, fmt.Errorf("%d replicas of each block do not fit on %d DataNodes", cfg.Replication, cfg.DataNodes)
	}
	c := &Cluster{done: make(chan struct{}), ConfDir: filepath.Join(cfg.Dir, "conf")}
	c.watching, c.unwatch = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	// The servers close their own directories to others; conf is for everybody.
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, err
	}
	secret := secretFile(cfg.ClusterSecret, cfg.Dir)
	c.NameNode, err = StartNameNode(ctx, NameNodeConfig{
		ClusterSecret: secret, Access: cfg.Access,
		Runtime: cfg.Runtime, Logger: cfg.Logger, Dir: filepath.Join(cfg.Dir, "namenode"), SecondDir: cfg.SecondDir,
		Listen: net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.NameNodePort)), Replication: cfg.Replication,
		SnapshotEntries: cfg.SnapshotEntries, DeadAfter: cfg.DeadAfter, SafeModeLimit: cfg.SafeModeLimit, ForgetAfter: cfg.ForgetAfter,
		Properties: cfg.Properties,
	})
	if err != nil {
		return nil, err
	}
	for i := range cfg.DataNodes {
		port := cfg.DataNodePort
		if port != 0 {
			port += i
		}
		dn, err := StartDataNode(ctx, DataNodeConfig{
			ClusterSecret: secret, Superuser: cfg.Access.Superuser, Supergroup: cfg.Access.Supergroup, shared: true,
			Runtime: cfg.Runtime, Logger: cfg.Logger, Dir: filepath.Join(cfg.Dir, fmt.Sprintf("datanode-%d", i)), DomainSocket: cfg.DomainSocket, NoLocalReads: cfg.NoLocalReads,
			Listen: net.JoinHostPort(cfg.Host, strconv.Itoa(port)), NameNode: c.NameNode.Addr(),
			NativeMemory: cfg.NativeMemory, WindowMemory: cfg.WindowMemory, SpareMemory: cfg.SpareMemory, LocalMemory: cfg.LocalMemory, ChecksumMemory: cfg.ChecksumMemory,
		})
		if err != nil {
			return nil, err
		}
		c.DataNodes = append(c.DataNodes, dn)
	}
	for _, dn := range c.DataNodes {
		if err := dn.WaitReported(ctx); err != nil {
			return nil, err
		}
	}
	if err := writeConf(c.ConfDir, c.NameNode.Addr(), cfg.Replication, cfg.DomainSocket); err != nil {
		return nil, err
	}
	c.watchServer(c.NameNode.Done(), c.NameNode.Err)
	for _, dn := range c.DataNodes {
		c.watchServer(dn.Done(), dn.Err)
	}
	return c, nil
}

// watchServer ends the cluster when a server fails.
func (c *Cluster) watchServer(done <-chan struct{}, reason func() error) {
	c.watch.Go(func() {
		select {
		case <-done:
			c.end(reason())
		case <-c.watching.Done():
		}
	})
}

func (c *Cluster) end(err error) {
	c.endOnce.Do(func() {
		c.err = err
		close(c.done)
	})
}

// Done is closed when the cluster, or a server of it, has ended.
func (c *Cluster) Done() <-chan struct{} { return c.done }

// Err tells why; it is nil after Close.
func (c *Cluster) Err() error { return c.err }

// Close stops the DataNodes, then the NameNode. It may be called again.
func (c *Cluster) Close() error {
	var errs []error
	c.end(nil)
	c.unwatch()
	for _, dn := range c.DataNodes {
		errs = append(errs, dn.Close())
	}
	if c.NameNode != nil {
		errs = append(errs, c.NameNode.Close())
	}
	c.watch.Wait()
	return errors.Join(errs...)
}

type property struct {
	Name  string `xml:"name"`
	Value string `xml:"value"`
}

type configuration struct {
	XMLName    xml.Name   `xml:"configuration"`
	Properties []property `xml:"property"`
}

// writeConf writes what an HDFS client needs to find the file system.
func writeConf(dir, nameNode string, replication int, domainSocket string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	site := []property{
		{"dfs.namenode.rpc-address", nameNode},
		{"dfs.replication", strconv.Itoa(replication)},
		{"dfs.client.use.datanode.hostname", "false"},
	}
	if domainSocket != "" {
		site = append(site, property{"dfs.client.read.shortcircuit", "true"}, property{"dfs.domain.socket.path", domainSocket})
	}
	for name, properties := range map[string][]property{
		"core-site.xml": {{"fs.defaultFS", "hdfs://" + nameNode}},
		"hdfs-site.xml": site,
	} {
		text, err := xml.MarshalIndent(configuration{Properties: properties}, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), append([]byte(xml.Header), append(text, '\n')...), 0o644); err != nil {
			return err
		}
	}
	return nil
}
