package namenode

import (
	"cmp"
	"fmt"
	"log/slog"
	"os/user"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/groups"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/xattr"
)

// directoryItemsLimit is the most children of a directory that can be configured, as in HDFS.
const directoryItemsLimit = 64 * 100 * 1000

// The defaults of what may change while a NameNode runs.
const (
	defaultHeartbeat          = time.Second
	defaultDeadAfter          = 10*time.Minute + 30*time.Second
	defaultStaleAfter         = 30 * time.Second
	defaultRedundancyInterval = 3 * time.Second
	defaultCopyTimeout        = 2 * time.Minute
	defaultReplicationWork    = 2
	defaultReplicationStreams = 2
	defaultDeletes            = 1000
)

// Config says how a NameNode works. Only Dir is needed.
type Config struct {
	// Dir holds the log and the snapshots. It is made if missing, and locked
	// against other processes.
	Dir string
	// SecondDir, if set, is a directory, best on another disk, that is kept equal to
	// Dir: see [journal.Config].
	SecondDir string
	FS        vfs.FS       // default vfs.Default
	Logger    *slog.Logger // default: slog.Default()

	// Superuser may do anything and owns the root of a new file system;
	// so may the members of Supergroup. Defaults: the user of this process, and "supergroup".
	Superuser  string
	Supergroup string
	// Groups tells a user's groups. The default asks the operating system and
	// remembers the answer for five minutes; users it does not know have no group.
	Groups func(user string) []string

	// NoACLs refuses what changes or shows access control lists; those that there are
	// still count. NoPosixACLInheritance applies clients' umasks also where a directory
	// has a default list, as Hadoop 2 did.
	NoACLs, NoPosixACLInheritance bool

	// NoStoragePolicies refuses what changes storage policies; those that there are still count.
	// StoragePoliciesBySuperuser lets superusers alone change them.
	NoStoragePolicies, StoragePoliciesBySuperuser bool

	// QuotasByOwner lets who owns a directory set quotas on those in it. NoTypeQuotas refuses
	// to set quotas on kinds of storage; those that there are still count.
	QuotasByOwner, NoTypeQuotas bool

	// NoXAttrs refuses what changes or shows extended attributes. MaxXAttrs is how many of the
	// user and the trusted namespace an inode has at most, MaxXAttrSize how many bytes
	// a name and its value may have. Defaults: 32 and 16,384.
	NoXAttrs                bool
	MaxXAttrs, MaxXAttrSize int

	// Secret is the cluster's. Without one no operation on a block needs a token.
	Secret *cluster.Secret
	// ProxyUsers may act for others; users that are not named may not.
	ProxyUsers map[string]ProxyUser
	// ReadProxyUsers, if set, reads them again when an operator asks for it.
	ReadProxyUsers func() (map[string]ProxyUser, error)
	// NoBlockTokens has DataNodes let everybody at blocks who knows their ids.
	NoBlockTokens bool
	// BlockKeyInterval is how long a key signs tokens for blocks, BlockTokenLifetime
	// how long a token is good. Defaults: 10 h each.
	BlockKeyInterval, BlockTokenLifetime time.Duration

	// LogDir is where metaSave writes. Default: logs in Dir.
	LogDir string

	// What getServerDefaults tells clients. Defaults: 128 MiB, 3, 64 KiB packets.
	BlockSize       uint64
	Replication     uint32
	WritePacketSize uint32
	// TrashInterval is how long clients are to keep what they delete in the trash, and
	// after how long the NameNode deletes it. 0: there is no trash.
	TrashInterval time.Duration
	// TrashCheckpoint is how often what is in the trash is set apart, to be deleted after
	// TrashInterval. 0, or more than that: TrashInterval.
	TrashCheckpoint time.Duration
	// MinBlockSize is the least block size a file may have. Default 1 MiB.
	MinBlockSize uint64
	// MaxComponentLength is how many bytes a name may have, MaxDirectoryItems how many children
	// a directory, MaxFileBlocks how many blocks a file. What is there already stays.
	// Defaults, as in HDFS: 255, which is the most, 1,048,576 and 10,000.
	MaxComponentLength, MaxDirectoryItems, MaxFileBlocks int

	// HeartbeatInterval is asked of DataNodes. Default 1 s.
	HeartbeatInterval time.Duration
	// DeadAfter is how long a DataNode may be silent before its replicas are
	// counted as lost. Default 10 min 30 s, as in HDFS. After a start nothing is copied
	// for so long that a DataNode may still bring.
	DeadAfter time.Duration
	// StaleAfter is how long a DataNode may be silent before it is used for reads and
	// writes only if there is no other. Default 30 s.
	StaleAfter time.Duration
	// SafeModeTimeout is how long after its start the NameNode waits for the
	// full reports of all DataNodes it knows before it repairs or deletes
	// anything. It does not wait for those that were dead. Default 30 s.
	SafeModeTimeout time.Duration
	// SafeModeShare is the share of the blocks that must have SafeModeReplicas final
	// replicas before that wait ends without an operator; 0 asks for none, and above 1 it
	// never ends. SafeModeNodes is how many DataNodes must live. Defaults: 0, 1, 0. The
	// wait goes on for all blocks' reports until SafeModeTimeout anyway.
	SafeModeShare                   float64
	SafeModeReplicas, SafeModeNodes int
	// ForgetAfter is how long a DataNode may be dead before it is forgotten, as if it
	// had never registered. Default 7 days.
	ForgetAfter time.Duration
	// Copies of blocks that lack replicas are ordered at each RedundancyInterval: as
	// many blocks as there are DataNodes, times ReplicationWork (those below 1 MiB count a
	// sixteenth), and from each DataNode ReplicationStreams at a time, twice as many of blocks
	// with one replica left. Defaults, as in HDFS: 3 s, 2, 2.
	RedundancyInterval time.Duration
	ReplicationWork    int
	ReplicationStreams int
	// DeletesPerHeartbeat is how many deletions a DataNode is told at a time. Default 1,000.
	DeletesPerHeartbeat int
	// Hosts and HostsExclude name the files that admit DataNodes and take them out
	// of service; with HostsCombined Hosts is one JSON file. See [hosts.Config].
	Hosts, HostsExclude string
	HostsCombined       bool
	// MaintenanceReplication is how many replicas a block has at least outside of
	// DataNodes in maintenance. Default 1.
	MaintenanceReplication int
	// RepairDelay is how long after its file was closed a block may lack
	// replicas before they are made: the last reports take a moment. Default 5 s.
	RepairDelay time.Duration
	// CopyTimeout, DeleteRetry and RecoveryTimeout are how long a DataNode has
	// for a command before it, or another, is told again. Defaults: 2 min, 10 s, 15 s.
	CopyTimeout     time.Duration
	DeleteRetry     time.Duration
	RecoveryTimeout time.Duration
	// CompleteWait is how long complete waits for the report of the last
	// block, and addBlock for that of the one before it, before the client is
	// told to ask again. Default 5 s.
	CompleteWait time.Duration

	// LeaseSoftLimit is how long after its last renewal a writer's file is safe
	// from other writers, LeaseHardLimit when the NameNode closes it by itself.
	// Defaults: 60 s and 20 min.
	LeaseSoftLimit time.Duration
	LeaseHardLimit time.Duration

	// CheckInterval is how often leases, DataNodes and replication are looked
	// at. Default 1 s.
	CheckInterval time.Duration

	// TopologyTable and TopologyScript tell racks as Hadoop's do; see
	// [topology.Config]. TopologyScriptArgs defaults to 100.
	TopologyTable      string
	TopologyScript     string
	TopologyScriptArgs int

	// ReservedSpace is how many bytes the disk of Dir must have available for
	// changes to be taken. Default 100 MiB. Of two directories one must have it.
	ReservedSpace uint64
	// RoomWait is how long a change that is on its way to a disk that has become
	// full waits for room before its caller gets an error. Default 5 s.
	RoomWait time.Duration

	// SnapshotEntries is after how many log entries a snapshot is taken.
	// Default 262,144.
	SnapshotEntries uint64

	// Properties are Hadoop's, and Adjustable the names of those that may change while the NameNode
	// runs: when an operator asks for it their files are read again, and Again tells what they say.
	Properties *conf.Properties
	Adjustable []string
	Again      func(p *conf.Properties) (Adjustment, error)

	// openFiles is how many entries one listOpenFiles returns at most.
	openFiles int
	// forgetGroups has Groups ask again.
	forgetGroups func()

	// ListLimit is how many entries one getListing returns at most. Default 1,000.
	ListLimit int

	// Clock tells the time of day, which may leap: a simulation makes it. Default time.Now. How
	// long something takes is measured without it.
	Clock func() time.Time

	now func() time.Time
	// manual leaves the periodic checks to a test.
	manual bool
}

func (c *Config) setDefaults() error {
	if c.Dir == "" {
		return fmt.Errorf("no directory is configured")
	}
	if c.Superuser == "" {
		u, err := user.Current()
		if err != nil {
			return fmt.Errorf("find out who runs this process, who would be the superuser; name one instead: %w", err)
		}
		c.Superuser = u.Username
	}
	if err := c.setTimes(); err != nil {
		return err
	}
	for _, d := range []struct {
		field *int
		value int
	}{
		{&c.ReplicationWork, defaultReplicationWork},
		{&c.ReplicationStreams, defaultReplicationStreams},
		{&c.DeletesPerHeartbeat, defaultDeletes},
		{&c.MaintenanceReplication, 1},
		{&c.SafeModeReplicas, 1},
		{&c.MaxXAttrs, xattr.MaxPerInode},
		{&c.MaxXAttrSize, xattr.MaxSize},
		{&c.MaxComponentLength, namespace.MaxComponentLength},
		{&c.MaxDirectoryItems, namespace.MaxDirectoryItems},
		{&c.MaxFileBlocks, 10_000},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
		if *d.field < 0 {
			return fmt.Errorf("a configured number is negative: %d", *d.field)
		}
	}
	if c.MaxXAttrSize > xattr.MaxSizeLimit {
		return fmt.Errorf("extended attributes of %d bytes are configured; the limit is %d", c.MaxXAttrSize, xattr.MaxSizeLimit)
	}
	for _, l := range []struct {
		what        string
		value, most int
	}{
		{"bytes of a name", c.MaxComponentLength, namespace.MaxComponentLength},
		{"children of a directory", c.MaxDirectoryItems, directoryItemsLimit},
		{"blocks of a file", c.MaxFileBlocks, namespace.MaxFileBlocks},
	} {
		if l.value > l.most {
			return fmt.Errorf("%d %s are configured; the limit is %d", l.value, l.what, l.most)
		}
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.Supergroup = cmp.Or(c.Supergroup, "supergroup")
	c.BlockSize = cmp.Or(c.BlockSize, 128<<20)
	c.MinBlockSize = cmp.Or(c.MinBlockSize, 1<<20)
	c.ReservedSpace = cmp.Or(c.ReservedSpace, 100<<20)
	c.Replication = cmp.Or(c.Replication, 3)
	c.WritePacketSize = cmp.Or(c.WritePacketSize, 64<<10)
	c.LogDir = cmp.Or(c.LogDir, filepath.Join(c.Dir, "logs"))
	c.openFiles = cmp.Or(c.openFiles, openFilesLimit)
	c.ListLimit = cmp.Or(c.ListLimit, listingLimit)
	if c.BlockSize%bytesPerChecksum != 0 || c.BlockSize < c.MinBlockSize {
		return fmt.Errorf("block size %d is not a multiple of %d, or less than the least allowed, %d", c.BlockSize, bytesPerChecksum, c.MinBlockSize)
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Groups == nil {
		system := groups.New()
		c.Groups, c.forgetGroups = system.Lookup, system.Forget
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.Clock == nil {
		c.Clock = c.now
	}
	return nil
}

// setTimes puts the defaults in the place of times that are 0.
func (c *Config) setTimes() error {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.BlockKeyInterval, 10 * time.Hour},
		{&c.BlockTokenLifetime, 10 * time.Hour},
		{&c.HeartbeatInterval, defaultHeartbeat},
		{&c.DeadAfter, defaultDeadAfter},
		{&c.SafeModeTimeout, 30 * time.Second},
		{&c.ForgetAfter, 7 * 24 * time.Hour},
		{&c.RedundancyInterval, defaultRedundancyInterval},
		{&c.StaleAfter, defaultStaleAfter},
		{&c.RepairDelay, 5 * time.Second},
		{&c.CopyTimeout, defaultCopyTimeout},
		{&c.DeleteRetry, 10 * time.Second},
		{&c.RecoveryTimeout, 15 * time.Second},
		{&c.CompleteWait, 5 * time.Second},
		{&c.LeaseSoftLimit, time.Minute},
		{&c.LeaseHardLimit, 20 * time.Minute},
		{&c.CheckInterval, time.Second},
		{&c.RoomWait, 5 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
		if *d.field < 0 {
			return fmt.Errorf("a configured time is negative: %v", *d.field)
		}
	}
	return nil
}
