package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/verbena-data/verbena/cmd/verbena/internal/bytesize"
	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/signals"
	"github.com/verbena-data/verbena/internal/tmpfs"
)

// Default ports: HDFS's own, so that clients find them.
const (
	nameNodePort = 8020
	dataNodePort = 9866
)

func upCommand(o *options) *cobra.Command {
	var dir, secondDir, listen, addressFile, metricsAt, secret string
	var who access
	var local localFlags
	var hadoop hadoopFlags
	var dataNodes, replication, dataPort int
	var snapshotEntries uint64
	var memory memoryFlags
	var nodes *nodeFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a whole file system in this process",
		Long: `Run a NameNode and DataNodes in this process, on a data directory that outlives
it, and write a Hadoop configuration that points any HDFS client at them. Stop it
with Ctrl-C; it comes back with everything, also after kill -9.

The nodes know each other by a secret, which is made in the data directory
(cluster-secret, mode 0600). DataNodes of other hosts join with a copy of it, which
verbena datanode --help tells how to hand over.` + accessHelp + nodesHelp,
		Example: `  verbena up
  verbena up --dir /srv/verbena --listen 10.0.0.5 --datanodes 1
  HADOOP_CONF_DIR=~/.local/share/verbena/conf hdfs dfs -ls /`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			began := time.Now()
			if dir == "" {
				if dir, err = defaultDir(); err != nil {
					return err
				}
			}
			host, port, err := hostPort("--listen", listen, nameNodePort)
			if err != nil {
				return err
			}
			if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
				return fmt.Errorf("--listen %s: clients are sent to the address that the DataNodes listen at: name one of this host's addresses that they can reach", listen)
			}
			if err := checkReplication(cmd.Flags(), replication); err != nil {
				return err
			}
			properties, config, err := nodes.read(&hadoop, &who)
			if err != nil {
				return err
			}
			if port == 0 && !cmd.Flags().Changed("datanode-port") {
				dataPort = 0
			}
			rt, err := o.runtime()
			if err != nil {
				return err
			}
			defer closing(&err, rt)
			cluster, err := hdfs.StartCluster(cmd.Context(), hdfs.ClusterConfig{
				Runtime: rt, Logger: o.logger(), Dir: dir, ClusterSecret: secret, Access: config, Host: host, NameNodePort: port, DataNodePort: dataPort,
				DataNodes: dataNodes, Replication: replication, SecondDir: secondDir, Properties: properties, DomainSocket: local.path, NoLocalReads: local.off,
				SnapshotEntries: given(cmd.Flags(), "snapshot-entries", snapshotEntries), DeadAfter: given(cmd.Flags(), "dead-after", nodes.dead),
				SafeModeLimit: given(cmd.Flags(), "safe-mode", nodes.safe), ForgetAfter: nodes.forget,
				NativeMemory: int64(memory.native), WindowMemory: int64(memory.windows), SpareMemory: int64(memory.spare),
				LocalMemory: int64(memory.local), ChecksumMemory: int64(memory.checksums),
			})
			if err != nil {
				return explainListen(err, "--listen and --datanode-port")
			}
			defer closing(&err, cluster)
			m, err := serveMetrics(cmd.Context(), metricsAt, told{command: cmd.CommandPath(), runtime: rt, collectors: []prometheus.Collector{
				cluster.NameNode, hdfs.NewReadsCollector(cluster.DataNodes...), hdfs.NewWritesCollector(cluster.DataNodes...), hdfs.NewDisksCollector(cluster.DataNodes...),
			}})
			if err != nil {
				return err
			}
			defer closing(&err, m)
			tellUp(cmd.OutOrStdout(), cluster, m, dir, time.Since(began))
			if err := writeAddress(addressFile, cluster.NameNode.Addr()); err != nil {
				return err
			}
			return serve(cmd.Context(), cluster)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&dir, "dir", "", "data directory (default: verbena in the user's data home)")
	secretFlag(flags, &secret, "cluster-secret in the data directory; made if it is missing")
	who.add(flags)
	hadoop.add(flags)
	flags.IntVar(&dataNodes, "datanodes", 3, "DataNodes to run")
	flags.IntVar(&replication, "replication", 0, "replicas of a block (default: 3, or as many as there are DataNodes)")
	snapshotFlag(flags, &snapshotEntries)
	secondFlag(flags, &secondDir)
	nodes = newNodeFlags(flags)
	flags.StringVar(&listen, "listen", "127.0.0.1", "`HOST[:PORT]` to listen at; the port is the NameNode's, 8020 unless given, 0 for any")
	flags.StringVar(&addressFile, "address-file", "", "write the NameNode's HOST:PORT there when ready")
	metricsFlag(flags, &metricsAt)
	local.add(flags)
	memory.add(flags)
	flags.IntVar(&dataPort, "datanode-port", dataNodePort, "port of the first DataNode; the others follow")
	return cmd
}

// tellUp says where a file system is, and what to try with it.
func tellUp(out io.Writer, cluster *hdfs.Cluster, m *metricsServer, dir string, took time.Duration) {
	fmt.Fprintf(out, "A file system is up after %d ms, its data in %s\n\n", took.Milliseconds(), dir)
	fmt.Fprintf(out, "  NameNode   %s\n", cluster.NameNode.Addr())
	for _, dn := range cluster.DataNodes {
		fmt.Fprintf(out, "  DataNode   %s\n", dn.Addr())
	}
	m.tell(out)
	fmt.Fprintf(out, "\nTry, in another terminal:\n\n")
	at := ""
	if cluster.NameNode.Addr() != defaultNameNode {
		at = "--namenode " + cluster.NameNode.Addr() + " "
	}
	run := "go run ./cmd/verbena"
	if self, err := os.Executable(); err == nil && !strings.Contains(self, "go-build") {
		run = "verbena"
	}
	fmt.Fprintf(out, "  %s fs put %sREADME.md /\n", run, at)
	fmt.Fprintf(out, "  %s fs ls %s-l /\n", run, at)
	fmt.Fprintf(out, "  %s info %s\n", run, cluster.NameNode.Addr())
	fmt.Fprintf(out, "  HADOOP_CONF_DIR=%s hdfs dfs -ls /      # any HDFS client\n", cluster.ConfDir)
	fmt.Fprintf(out, "\nCtrl-C stops it.\n")
}

func nameNodeCommand(o *options) *cobra.Command {
	var dir, secondDir, listen, addressFile, metricsAt, secret string
	var who access
	var hadoop hadoopFlags
	var replication int
	var snapshotEntries uint64
	var leaseLimit time.Duration
	var nodes *nodeFlags
	cmd := &cobra.Command{
		Use:   "namenode",
		Short: "Run a NameNode: the names, and where the blocks are",
		Long: `Run a NameNode: the names, and where the blocks are.

DataNodes and NameNode know each other by a secret. The NameNode makes it, in
cluster-secret of its data directory with the mode 0600; each DataNode needs a copy:

  scp nn1:.local/share/verbena/namenode/cluster-secret /srv/verbena/datanode/
  verbena datanode --dir /srv/verbena/datanode --namenode nn1:8020

Whoever has it can be any of the nodes: hand it over by ways that nobody reads.` + accessHelp + nodesHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := checkReplication(cmd.Flags(), replication); err != nil {
				return err
			}
			if leaseLimit <= 0 {
				return fmt.Errorf("--lease-limit %s: want more than 0", leaseLimit)
			}
			if listen, err = fullAddress("--listen", listen, nameNodePort); err != nil {
				return err
			}
			properties, config, err := nodes.read(&hadoop, &who)
			if err != nil {
				return err
			}
			if err := nameDirs(properties, &dir, &secondDir); err != nil {
				return err
			}
			rt, err := o.runtime()
			if err != nil {
				return err
			}
			defer closing(&err, rt)
			ballast := make([]byte, leastHeap)
			defer runtime.KeepAlive(ballast)
			nn, err := hdfs.StartNameNode(cmd.Context(), hdfs.NameNodeConfig{
				Runtime: rt, Logger: o.logger(), Dir: dir, ClusterSecret: secret, Access: config, Listen: listen, SecondDir: secondDir, Properties: properties,
				Replication: given(cmd.Flags(), "replication", replication), LeaseLimit: given(cmd.Flags(), "lease-limit", leaseLimit),
				SnapshotEntries: given(cmd.Flags(), "snapshot-entries", snapshotEntries), DeadAfter: given(cmd.Flags(), "dead-after", nodes.dead),
				SafeModeLimit: given(cmd.Flags(), "safe-mode", nodes.safe), ForgetAfter: nodes.forget,
			})
			if err != nil {
				return explainListen(err, "--listen")
			}
			defer closing(&err, nn)
			defer followHeap()()
			m, err := serveMetrics(cmd.Context(), metricsAt, told{command: cmd.CommandPath(), runtime: rt, collectors: []prometheus.Collector{nn}})
			if err != nil {
				return err
			}
			defer closing(&err, m)
			fmt.Fprintf(cmd.OutOrStdout(), "NameNode at %s, its data in %s\n", nn.Addr(), dir)
			m.tell(cmd.OutOrStdout())
			if err := writeAddress(addressFile, nn.Addr()); err != nil {
				return err
			}
			return serve(cmd.Context(), nn)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&dir, "dir", "", "data directory (default: as dfs.namenode.name.dir says, else verbena/namenode in the user's data home)")
	secretFlag(flags, &secret, "cluster-secret in the data directory; made if it is missing")
	who.add(flags)
	hadoop.add(flags)
	flags.StringVar(&listen, "listen", defaultNameNode, "`HOST[:PORT]` to listen at; port 0 for any")
	flags.IntVar(&replication, "replication", 3, "replicas of a block unless a client asks for another number")
	metricsFlag(flags, &metricsAt)
	snapshotFlag(flags, &snapshotEntries)
	secondFlag(flags, &secondDir)
	nodes = newNodeFlags(flags)
	flags.DurationVar(&leaseLimit, "lease-limit", 20*time.Minute, "how long a file stays open whose writer has gone silent")
	flags.StringVar(&addressFile, "address-file", "", "write HOST:PORT there when ready")
	cmd.AddCommand(nameNodeDiskCommand(o, false), nameNodeDiskCommand(o, true))
	return cmd
}

// nameDirs fills in where a NameNode keeps its names: as the flags say, else as Hadoop's property
// does, else in the user's data home.
func nameDirs(properties *conf.Properties, dir, second *string) error {
	if *dir != "" {
		return nil
	}
	dirs, err := hdfs.NameDirectories(properties)
	if err != nil {
		return err
	}
	if len(dirs) == 0 {
		own, err := dirOf("namenode")
		if err != nil {
			return err
		}
		dirs = []string{own}
	}
	*dir = dirs[0]
	if len(dirs) > 1 && *second == "" {
		*second = dirs[1]
	}
	return nil
}

func secretFlag(flags *pflag.FlagSet, file *string, otherwise string) {
	flags.StringVar(file, "cluster-secret", "", "`FILE` with the secret by which the nodes of this cluster know each other, the same for all (default: "+otherwise+")")
}

// theirSecret is the file of a DataNode's secret: the one named, the one in its
// directory, or that of the NameNode that this user has on this host.
func theirSecret(named, dir string) string {
	if named != "" {
		return named
	}
	own := filepath.Join(dir, hdfs.SecretFile)
	if _, err := os.Stat(own); err == nil {
		return own
	}
	if base, err := defaultDir(); err == nil {
		if file := filepath.Join(base, "namenode", hdfs.SecretFile); file != own {
			if _, err := os.Stat(file); err == nil {
				return file
			}
		}
	}
	return own
}

func snapshotFlag(flags *pflag.FlagSet, entries *uint64) {
	flags.Uint64Var(entries, "snapshot-entries", 1<<18, "after how many changes, of which it looks for every 10 to 20 s, the NameNode writes a snapshot of the names; the two newest are kept, and the log between")
}

func secondFlag(flags *pflag.FlagSet, dir *string) {
	flags.StringVar(dir, "second-dir", "", "a `directory` on another disk that is kept equal to the NameNode's: each change is on both before it is acknowledged, one goes on alone when the other fails, and a start takes the newer one and repairs the other (dfs.namenode.name.dir with two entries)")
}

// nameNodeDiskCommand looks at, or with mend repairs, what a NameNode that does
// not run has on disk.
func nameNodeDiskCommand(o *options, mend bool) *cobra.Command {
	var dir, second string
	var hadoop hadoopFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the snapshots and the log of a NameNode that is stopped",
		Args:  cobra.NoArgs,
	}
	if mend {
		cmd.Use = "recover"
		cmd.Short = "Set aside what is damaged of a stopped NameNode's snapshots and log"
		cmd.Long = `Set aside damaged snapshots, and cut the log before its first damaged entry, so
that the NameNode starts with the newest state that can be had. Changes behind a
damaged entry are lost: copy the directory first, and see what check says.`
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		properties, err := hadoop.read(isNameNodeProperty)
		if err != nil {
			return err
		}
		if err := nameDirs(properties, &dir, &second); err != nil {
			return err
		}
		rep, err := hdfs.CheckNameNode(dir, second, o.logger(), mend)
		out := cmd.OutOrStdout()
		tellOther(out, rep)
		if rep != nil {
			if rep.Other != nil {
				fmt.Fprintf(out, "%s, which counts:\n", rep.Dir)
			}
			for _, s := range rep.Snapshots {
				if s.Err != nil {
					fmt.Fprintf(out, "snapshot %s: damaged: %v\n", s.ID, s.Err)
				} else {
					fmt.Fprintf(out, "snapshot %s: good, up to entry %d, %d bytes\n", s.ID, s.Index, s.Size)
				}
			}
			if rep.First > 0 {
				fmt.Fprintf(out, "log: entries %d to %d\n", rep.First, rep.Last)
			}
		}
		if err != nil {
			return err
		}
		if rep.LogErr != nil {
			fmt.Fprintf(out, "log: damaged behind entry %d, %d entries lost: %v\n", rep.Good, max(rep.Last, rep.Good)-rep.Good, rep.LogErr)
		}
		fmt.Fprintf(out, "cluster %s: %d files, %d directories, %d blocks, from the snapshot at entry %d and the log up to entry %d\n",
			rep.ClusterID, rep.Files, rep.Directories, rep.Blocks, rep.Base, rep.Good)
		switch {
		case rep.LogErr != nil && !mend:
			return errors.New("the log is damaged: the NameNode does not start before verbena namenode recover")
		case rep.Damaged() && !mend:
			fmt.Fprintln(out, "A start goes on without the damaged snapshot.")
		case mend:
			fmt.Fprintln(out, "The NameNode can start.")
		}
		return nil
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the NameNode's data directory (default: as dfs.namenode.name.dir says, else verbena/namenode in the user's data home)")
	hadoop.add(cmd.Flags())
	cmd.Flags().StringVar(&second, "second-dir", "", "the NameNode's second `directory`, if it has one; a recovery takes the better state of the two")
	return cmd
}

// tellOther tells of the one of two directories that does not count.
func tellOther(out io.Writer, rep *hdfs.NameNodeState) {
	if rep == nil || rep.Other == nil {
		return
	}
	other := rep.Other
	fmt.Fprintf(out, "%s: state up to entry %d", other.Dir, other.Good)
	for _, s := range other.Snapshots {
		if s.Err != nil {
			fmt.Fprintf(out, "; snapshot %s is damaged", s.ID)
		}
	}
	if other.LogErr != nil {
		fmt.Fprintf(out, "; the log is damaged behind entry %d: %v", other.Good, other.LogErr)
	}
	if rep.OtherErr != nil {
		fmt.Fprintf(out, "; not of use: %v", rep.OtherErr)
	}
	fmt.Fprintln(out)
}

// localFlags are the flags of reads without the DataNode.
type localFlags struct {
	path string
	off  bool
}

func (l *localFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&l.path, "domain-socket", "", "`PATH` of a socket for short-circuit reads of HDFS's clients on this host (their dfs.domain.socket.path); _PORT in it stands for the DataNode's port")
	flags.BoolVar(&l.off, "no-local-reads", false, "have Verbena's own clients on this host read over connections, too")
}

// memoryFlags are what a DataNode's data paths may take.
type memoryFlags struct{ native, windows, spare, local, checksums bytesize.Limit }

func (m *memoryFlags) add(flags *pflag.FlagSet) {
	flags.Var(&m.native, "native-memory", "for the packets of blocks that are on their way by hdfs-data/1, all together, at each DataNode; who finds no room takes the older protocol (default: 512 MiB)")
	flags.Var(&m.windows, "window-memory", "for what clients read one-sidedly, which is copies of hot ranges and the rings of long reads, at each DataNode (default: 256 MiB; negative: none)")
	flags.Var(&m.spare, "spare-memory", "for the files of removed blocks that each data directory in memory (tmpfs) keeps for ten minutes, so that new blocks find their pages there (default: 1 GiB, and at most a sixteenth of the file system; negative: none)")
	flags.Var(&m.local, "local-memory", "for the checksums of blocks that HDFS's own clients on this host read by themselves, at each DataNode; who finds no room reads over a connection (default: 256 MiB)")
	flags.Var(&m.checksums, "checksum-memory", "for the checksums that are kept for short reads, 8 MiB for each GiB of data, at each DataNode; others are read from files (default: 32 MiB; negative: none)")
}

// dataNodeHelp teaches verbena datanode.
const dataNodeHelp = `Run a DataNode: the blocks themselves.

It shows the NameNode, and other DataNodes, that it belongs to them by the cluster's
secret, and believes nobody who does not know it. Copy the NameNode's to this host:

  scp nn1:.local/share/verbena/namenode/cluster-secret /srv/verbena/datanode/
  verbena datanode --dir /srv/verbena/datanode --namenode nn1:8020

The file may be read by its owner and group alone (chmod 600). Whoever has it can be
any of the nodes: hand it over by ways that nobody reads.

SIGTERM stops it to be started again: who writes on this host, or to this DataNode alone,
is told so and waits for it, 30 s unless configured otherwise. SIGINT (Ctrl-C), and
hdfs dfsadmin -shutdownDatanode without "upgrade", stop it for good.

Several --data-dir, on a disk each, hold the blocks in turn:

  verbena datanode --data-dir /d1,/d2,[SSD]/d3 --failed-dirs 1 --cluster-secret /etc/verbena-secret --namenode nn1:8020

On two processors it lets three goroutines run at once, so that Go takes no processor
away from a long write. Set GOMAXPROCS in the environment to choose the number yourself.

--hadoop-conf takes the properties that docs/configuration.md lists for DataNodes from
Hadoop's own files, --property takes one.`

// dataNodeFlags are those of verbena datanode.
type dataNodeFlags struct {
	cfg                            hdfs.DataNodeConfig // what flags set of it
	secret, metricsAt, addressFile string
	local                          localFlags
	memory                         memoryFlags
	hadoop                         hadoopFlags
}

func dataNodeCommand(o *options) *cobra.Command {
	var f dataNodeFlags
	cmd := &cobra.Command{
		Use:   "datanode",
		Short: "Run a DataNode: the blocks themselves",
		Long:  dataNodeHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDataNode(cmd.Context(), cmd.OutOrStdout(), o, &f)
		},
	}
	f.add(cmd.Flags())
	return cmd
}

func (f *dataNodeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.cfg.Dir, "dir", "", "data directory (default: verbena/datanode in the user's data home)")
	flags.StringSliceVar(&f.cfg.DataDirs, "data-dir", nil, "`[KIND]DIR` of blocks, several with commas or by repeating it, as dfs.datanode.data.dir has them (default: that property's, else --dir)")
	flags.IntVar(&f.cfg.FailedDirs, "failed-dirs", 0, "how many of them may fail before the DataNode ends; -1: all but one (dfs.datanode.failed.volumes.tolerated)")
	flags.DurationVar(&f.cfg.DiskTimeout, "disk-timeout", 0, "how long an operation on a disk may take before its directory is out of service (dfs.datanode.disk.check.timeout; default: 10m; negative: for ever)")
	f.hadoop.add(flags)
	secretFlag(flags, &f.secret, "cluster-secret in the data directory, or that of this user's NameNode on this host")
	flags.StringVar(&f.cfg.Listen, "listen", net.JoinHostPort("127.0.0.1", strconv.Itoa(dataNodePort)), "`HOST[:PORT]` to listen at; port 0 for any")
	flags.StringVar(&f.cfg.NameNode, "namenode", defaultNameNode, "`HOST[:PORT]` of the NameNode")
	metricsFlag(flags, &f.metricsAt)
	flags.StringVar(&f.cfg.Superuser, "superuser", "", "`user` who may do what operators do (default: the one of this process)")
	flags.StringVar(&f.cfg.Supergroup, "supergroup", "", "`group` whose members may, too (default: that of dfs.permissions.superusergroup, else supergroup)")
	f.local.add(flags)
	f.memory.add(flags)
	flags.StringVar(&f.cfg.Advertise, "advertise", "", "`HOST` that clients reach this DataNode at (default: the one it listens at)")
	flags.StringVar(&f.addressFile, "address-file", "", "write HOST:PORT there when ready: when the NameNode knows it")
}

// config is what flags, Hadoop's properties and defaults come to.
func (f *dataNodeFlags) config() (cfg hdfs.DataNodeConfig, err error) {
	cfg = f.cfg
	if cfg.Properties, err = f.hadoop.read(isDataNodeProperty); err != nil {
		return cfg, err
	}
	if cfg.Dir == "" {
		if cfg.Dir, err = dirOf("datanode"); err != nil {
			return cfg, err
		}
	}
	if cfg.Listen, err = fullAddress("--listen", cfg.Listen, dataNodePort); err != nil {
		return cfg, err
	}
	if cfg.NameNode, err = fullAddress("--namenode", cfg.NameNode, nameNodePort); err != nil {
		return cfg, err
	}
	cfg.ClusterSecret = theirSecret(f.secret, cfg.Dir)
	cfg.DomainSocket, cfg.NoLocalReads = f.local.path, f.local.off
	cfg.NativeMemory, cfg.WindowMemory, cfg.SpareMemory = int64(f.memory.native), int64(f.memory.windows), int64(f.memory.spare)
	cfg.LocalMemory, cfg.ChecksumMemory = int64(f.memory.local), int64(f.memory.checksums)
	return cfg, nil
}

func runDataNode(ctx context.Context, out io.Writer, o *options, f *dataNodeFlags) (err error) {
	cfg, err := f.config()
	if err != nil {
		return err
	}
	spareThread()
	rt, err := o.runtime()
	if err != nil {
		return err
	}
	defer closing(&err, rt)
	cfg.Runtime, cfg.Logger = rt, o.logger()
	dn, err := hdfs.StartDataNode(ctx, cfg)
	if err != nil {
		return explainListen(err, "--listen")
	}
	defer closing(&err, dn)
	m, err := serveMetrics(ctx, f.metricsAt, told{command: "verbena datanode", runtime: rt, collectors: []prometheus.Collector{
		hdfs.NewReadsCollector(dn), hdfs.NewWritesCollector(dn), hdfs.NewDisksCollector(dn),
	}})
	if err != nil {
		return err
	}
	defer closing(&err, m)
	fmt.Fprintf(out, "DataNode at %s, its data in %s, waiting for the NameNode at %s\n", dn.Addr(), cfg.Dir, cfg.NameNode)
	adviseLargePages(out, dn)
	m.tell(out)
	if err := dn.WaitReported(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // stopped by a signal, in order
		}
		return err
	}
	fmt.Fprintln(out, "The NameNode knows it.")
	if err := writeAddress(f.addressFile, dn.Addr()); err != nil {
		return err
	}
	err = serve(ctx, dn)
	if signals.Of(ctx) == syscall.SIGTERM { // it will be back
		dn.AnnounceRestart()
	}
	return err
}

// explainListen adds what to do to the error of a port that is taken, the one
// that a first start is likely to meet.
func explainListen(err error, flags string) error {
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%w: this host has no such address: name one of its own with --listen", err)
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return fmt.Errorf("%w: another server has that port (verbena, or Hadoop?): stop it, or choose other ports with %s", err, flags)
}

// writeAddress tells scripts that a server is ready, and where.
func writeAddress(file, address string) error {
	if file == "" {
		return nil
	}
	// Whoever waits for the file must never see half of it.
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, []byte(address+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}

// serve waits for a signal, or for a server to fail.
func serve(ctx context.Context, server interface {
	Done() <-chan struct{}
	Err() error
}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-server.Done():
		switch err := server.Err(); {
		case errors.Is(err, hdfs.ErrShutdown):
			return nil
		case err != nil:
			return err
		}
		return errors.New("the server ended by itself")
	}
}

// dirOf is where the data of a service lies in the user's data home.
func dirOf(service string) (string, error) {
	base, err := defaultDir()
	return filepath.Join(base, service), err
}

func defaultDir() (string, error) {
	if data := os.Getenv("XDG_DATA_HOME"); data != "" {
		return filepath.Join(data, "verbena"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place for the data: %w: use --dir", err)
	}
	return filepath.Join(home, ".local", "share", "verbena"), nil
}

// hostPort splits HOST or HOST:PORT, which a flag has.
func hostPort(flag, address string, port int) (string, int, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		if strings.Contains(err.Error(), "missing port") {
			return strings.Trim(address, "[]"), port, nil
		}
		return "", 0, fmt.Errorf("%s %s: %w: write HOST or HOST:PORT", flag, address, err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%s %s: the port must be a number from 0 to 65535", flag, address)
	}
	return host, int(n), nil
}

// fullAddress is an address with its port, which is the usual one if a flag has none.
func fullAddress(flag, address string, port int) (string, error) {
	host, port, err := hostPort(flag, address, port)
	return net.JoinHostPort(host, strconv.Itoa(port)), err
}

// checkReplication refuses replicas that no block can have, if the flag is given.
func checkReplication(flags *pflag.FlagSet, replication int) error {
	if flags.Changed("replication") && replication < 1 {
		return fmt.Errorf("--replication %d: want 1 or more", replication)
	}
	return nil
}

// adviseLargePages tells which mounts would give a DataNode's blocks large pages.
func adviseLargePages(out io.Writer, dn *hdfs.DataNode) {
	told := map[string]bool{}
	for _, disk := range dn.Disks() {
		if mount, small := tmpfs.SmallPages(disk.Dir); small && !told[mount] {
			told[mount] = true
			fmt.Fprintf(out, "Blocks lie in memory in pages of 4 KiB. In large ones they take less processor time: mount -o remount,huge=within_size %s\n", mount)
		}
	}
}
