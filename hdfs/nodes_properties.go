package hdfs

import (
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"time"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/namenode"
)

// NameNodeProperty is one of Hadoop's configuration properties that a NameNode heeds.
type NameNodeProperty struct {
	Name    string
	What    string // it sets, in a few words, with the unit of a bare number
	Default string

	apply func(p *conf.Properties, name string, c *namenode.Config) error
}

// combinedHosts is the class that reads one JSON file for both lists of hosts.
const combinedHosts = "org.apache.hadoop.hdfs.server.blockmanagement.CombinedHostFileManager"

// adjustableOfNameNodes are those that may change while a NameNode runs.
var adjustableOfNameNodes = []string{
	"dfs.heartbeat.interval", "dfs.namenode.heartbeat.recheck-interval", "dfs.namenode.stale.datanode.interval", "dfs.namenode.redundancy.interval.seconds",
	"dfs.namenode.replication.work.multiplier.per.iteration", "dfs.namenode.replication.max-streams", "dfs.namenode.reconstruction.pending.timeout-sec", "dfs.block.invalidate.limit",
}

// NameNodeProperties returns the properties that [NameNodeConfig].Properties may
// have. Others, of which Hadoop has hundreds, are not heeded.
func NameNodeProperties() []NameNodeProperty {
	return []NameNodeProperty{
		{"dfs.blocksize", "block size of clients that ask for none, bytes", "128m", size(func(c *namenode.Config) *uint64 { return &c.BlockSize })},
		{"dfs.namenode.fs-limits.min-block-size", "least block size of a file, bytes", "1m", size(func(c *namenode.Config) *uint64 { return &c.MinBlockSize })},
		{"dfs.namenode.fs-limits.max-component-length", "bytes of a name, 255 at most", "255", number(func(c *namenode.Config) *int { return &c.MaxComponentLength })},
		{"dfs.namenode.fs-limits.max-directory-items", "children of a directory, 6400000 at most", "1048576", number(func(c *namenode.Config) *int { return &c.MaxDirectoryItems })},
		{"dfs.namenode.fs-limits.max-blocks-per-file", "blocks of a file, 1048576 at most", "10000", number(func(c *namenode.Config) *int { return &c.MaxFileBlocks })},
		{"dfs.replication", "replicas of a block unless a client asks for another number", "3", func(p *conf.Properties, name string, c *namenode.Config) error {
			n, ok, err := p.Number(name, 1)
			if ok {
				c.Replication = uint32(min(n, math.MaxUint16))
			}
			return err
		}},
		{"dfs.ls.limit", "entries of a directory in one answer", "1000", number(func(c *namenode.Config) *int { return &c.ListLimit })},
		{"fs.trash.interval", "how long clients keep what they delete in the trash, and after how long it goes, min; 0: no trash", "0", atLeast0(time.Minute, func(c *namenode.Config) *time.Duration { return &c.TrashInterval })},
		{"fs.trash.checkpoint.interval", "how often what is in the trash is set apart, min; 0: as fs.trash.interval", "0", atLeast0(time.Minute, func(c *namenode.Config) *time.Duration { return &c.TrashCheckpoint })},
		{"dfs.heartbeat.interval", "pause between two heartbeats of a DataNode, s", "1s", span(time.Second, func(c *namenode.Config) *time.Duration { return &c.HeartbeatInterval })},
		{"dfs.namenode.heartbeat.recheck-interval", "a DataNode is dead after twice this and ten heartbeat intervals, ms", "5m", dead},
		{"dfs.namenode.stale.datanode.interval", "silence after which a DataNode is used only if there is no other, ms", "30s", span(time.Millisecond, func(c *namenode.Config) *time.Duration { return &c.StaleAfter })},
		{"dfs.namenode.safemode.extension", "longest wait of a start for the reports of DataNodes that are not known to be dead, ms", "30s", span(time.Millisecond, func(c *namenode.Config) *time.Duration { return &c.SafeModeTimeout })},
		{"dfs.namenode.safemode.threshold-pct", "share of the blocks that must have been reported for a start to end its wait; 0: it ends after the time above, whatever is missing; above 1: an operator ends it", "0", fraction(func(c *namenode.Config) *float64 { return &c.SafeModeShare })},
		{"dfs.namenode.safemode.replication.min", "replicas of a block that counts there", "1", number(func(c *namenode.Config) *int { return &c.SafeModeReplicas })},
		{"dfs.namenode.safemode.min.datanodes", "DataNodes that must live for a start to end its wait", "0", wholeNumber(func(c *namenode.Config) *int { return &c.SafeModeNodes })},
		{"dfs.namenode.lease-hard-limit-sec", "silence of a writer after which its file is closed, s", "20m", span(time.Second, func(c *namenode.Config) *time.Duration { return &c.LeaseHardLimit })},
		{"dfs.namenode.redundancy.interval.seconds", "pause between two rounds of copies, s", "3s", span(time.Second, func(c *namenode.Config) *time.Duration { return &c.RedundancyInterval })},
		{"dfs.namenode.replication.work.multiplier.per.iteration", "blocks copied in a round, for each DataNode; those below 1 MiB count a sixteenth", "2", number(func(c *namenode.Config) *int { return &c.ReplicationWork })},
		{"dfs.namenode.replication.max-streams", "copies at a time from one DataNode, twice as many of blocks with one replica left", "2", number(func(c *namenode.Config) *int { return &c.ReplicationStreams })},
		{"dfs.namenode.reconstruction.pending.timeout-sec", "time after which a copy is ordered anew, s", "2m", span(time.Second, func(c *namenode.Config) *time.Duration { return &c.CopyTimeout })},
		{"dfs.block.invalidate.limit", "deletions that a DataNode is told at a time", "1000", number(func(c *namenode.Config) *int { return &c.DeletesPerHeartbeat })},
		{"dfs.namenode.maintenance.replication.min", "replicas that a block has at least outside of DataNodes in maintenance", "1", number(func(c *namenode.Config) *int { return &c.MaintenanceReplication })},
		{"dfs.hosts", "file of the DataNodes that may register: names or addresses, with a port or without", "none: all may", text(func(c *namenode.Config) *string { return &c.Hosts })},
		{"dfs.hosts.exclude", "file of the DataNodes to decommission", "none", text(func(c *namenode.Config) *string { return &c.HostsExclude })},
		{"dfs.namenode.hosts.provider.classname", "with " + combinedHosts + " dfs.hosts is one JSON file that also has states and maintenances", "two files", func(p *conf.Properties, name string, c *namenode.Config) error {
			class, _ := p.String(name)
			c.HostsCombined = class == combinedHosts
			return nil
		}},
		{"dfs.namenode.acls.enabled", "access control lists may be seen and changed", "true", off(func(c *namenode.Config) *bool { return &c.NoACLs })},
		{"dfs.namenode.posix.acl.inheritance.enabled", "a directory's default list takes the place of clients' umasks", "true", off(func(c *namenode.Config) *bool { return &c.NoPosixACLInheritance })},
		{"dfs.storage.policy.enabled", "storage policies may be changed", "true", off(func(c *namenode.Config) *bool { return &c.NoStoragePolicies })},
		{"dfs.storage.policy.permissions.superuser-only", "superusers alone may change storage policies", "false", func(p *conf.Properties, name string, c *namenode.Config) (err error) {
			c.StoragePoliciesBySuperuser, _, err = p.Bool(name)
			return err
		}},
		{"dfs.quota.by.storage.type.enabled", "quotas on kinds of storage may be set", "true", off(func(c *namenode.Config) *bool { return &c.NoTypeQuotas })},
		{"dfs.permissions.allow.owner.set.quota", "who owns a directory may set quotas on those in it", "false", func(p *conf.Properties, name string, c *namenode.Config) (err error) {
			c.QuotasByOwner, _, err = p.Bool(name)
			return err
		}},
		{"dfs.namenode.xattrs.enabled", "extended attributes may be seen and changed", "true", off(func(c *namenode.Config) *bool { return &c.NoXAttrs })},
		{"dfs.namenode.fs-limits.max-xattrs-per-inode", "extended attributes of the user and the trusted namespace that a file has at most", "32", number(func(c *namenode.Config) *int { return &c.MaxXAttrs })},
		{"dfs.namenode.fs-limits.max-xattr-size", "bytes of an extended attribute's name and value, 32768 at most", "16384", number(func(c *namenode.Config) *int { return &c.MaxXAttrSize })},
		{"net.topology.table.file.name", "file of lines \"host /rack\"", "none: all on one rack", text(func(c *namenode.Config) *string { return &c.TopologyTable })},
		{"net.topology.script.file.name", "program that prints the rack of each address it is given", "none", text(func(c *namenode.Config) *string { return &c.TopologyScript })},
		{"net.topology.script.number.args", "addresses for one run of it", "100", number(func(c *namenode.Config) *int { return &c.TopologyScriptArgs })},
		{nameDirProperty, "directories of the names, one or two, on different disks: file:///d1,file:///d2; heeded by namenode without --dir", "verbena/namenode in the user's data home", func(p *conf.Properties, _ string, c *namenode.Config) error {
			dirs, err := NameDirectories(p)
			if len(dirs) > 0 {
				c.Dir = dirs[0]
			}
			if len(dirs) > 1 {
				c.SecondDir = dirs[1]
			}
			return err
		}},
		{"dfs.namenode.resource.du.reserved", "bytes that the NameNode's disk must have available for changes to be taken", "100m", size(func(c *namenode.Config) *uint64 { return &c.ReservedSpace })},
		{"dfs.namenode.checkpoint.txns", "changes after which a snapshot of the names is written", "262144", size(func(c *namenode.Config) *uint64 { return &c.SnapshotEntries })},
	}
}

func span(unit time.Duration, field func(*namenode.Config) *time.Duration) func(*conf.Properties, string, *namenode.Config) error {
	return func(p *conf.Properties, name string, c *namenode.Config) error {
		d, ok, err := p.Time(name, unit)
		if ok && d == 0 {
			return fmt.Errorf("%s (%s): a time of 0 is not possible", name, p.From(name))
		}
		if ok {
			*field(c) = d
		}
		return err
	}
}

// atLeast0 is span for a time that may be 0.
func atLeast0(unit time.Duration, field func(*namenode.Config) *time.Duration) func(*conf.Properties, string, *namenode.Config) error {
	return func(p *conf.Properties, name string, c *namenode.Config) error {
		d, ok, err := p.Time(name, unit)
		if ok {
			*field(c) = d
		}
		return err
	}
}

func number(field func(*namenode.Config) *int) func(*conf.Properties, string, *namenode.Config) error {
	return func(p *conf.Properties, name string, c *namenode.Config) error {
		n, ok, err := p.Number(name, 1)
		if ok {
			*field(c) = int(min(n, math.MaxInt32))
		}
		return err
	}
}

// wholeNumber is number for one that may be 0.
func wholeNumber(field func(*namenode.Config) *int) func(*conf.Properties, string, *namenode.Config) error {
	return func(p *conf.Properties, name string, c *namenode.Config) error {
		n, ok, err := p.Number(name, 0)
		if ok {
			*field(c) = int(min(n, math.MaxInt32))
		}
		return err
	}
}

func fraction(field func(*namenode.Config) *float64) func(*conf.Properties, string, *namenode.Config) error {
	return func(p *conf.Properties, name string, c *namenode.Config) error {
		x, ok, err := p.Fraction(name)
		if ok {
			*field(c) = x
		}
		return err
	}
}

const nameDirProperty = "dfs.namenode.name.dir"

// NameDirectories are the directories that dfs.namenode.name.dir names, none if it is not set. As in
// HDFS an entry is a path or a file URI.
func NameDirectories(p *conf.Properties) ([]string, error) {
	dirs := p.List(nameDirProperty)
	if len(dirs) > 2 {
		return nil, fmt.Errorf("%s (%s): %d directories: the names are kept in two at most", nameDirProperty, p.From(nameDirProperty), len(dirs))
	}
	for i, dir := range dirs {
		var err error
		if dirs[i], err = localDirectory(dir); err != nil {
			return nil, fmt.Errorf("%s (%s): %w", nameDirProperty, p.From(nameDirProperty), err)
		}
	}
	if len(dirs) == 2 && dirs[0] == dirs[1] {
		return nil, fmt.Errorf("%s (%s): %s is there twice", nameDirProperty, p.From(nameDirProperty), dirs[0])
	}
	return dirs, nil
}

// localDirectory is the path that an entry is, or that its file URI has.
func localDirectory(entry string) (string, error) {
	u, err := url.Parse(entry)
	if err != nil || u.Scheme != "" && u.Scheme != "file" || u.Host != "" || u.Scheme != "" && !filepath.IsAbs(u.Path) {
		return "", fmt.Errorf("%s is neither a path nor a URI such as file:///srv/names", entry)
	}
	if u.Scheme != "" {
		entry = u.Path
	}
	return filepath.Clean(entry), nil
}

func size(field func(*namenode.Config) *uint64) func(*conf.Properties, string, *namenode.Config) error {
	return func(p *conf.Properties, name string, c *namenode.Config) error {
		n, ok, err := p.Bytes(name)
		if ok && n == 0 {
			return fmt.Errorf("%s (%s): 0 is not possible", name, p.From(name))
		}
		if ok {
			*field(c) = n
		}
		return err
	}
}

// off sets a field if the property is false.
func off(field func(*namenode.Config) *bool) func(*conf.Properties, string, *namenode.Config) error {
	return func(p *conf.Properties, name string, c *namenode.Config) error {
		on, ok, err := p.Bool(name)
		if ok {
			*field(c) = !on
		}
		return err
	}
}

func text(field func(*namenode.Config) *string) func(*conf.Properties, string, *namenode.Config) error {
	return func(p *conf.Properties, name string, c *namenode.Config) error {
		*field(c), _ = p.String(name)
		return nil
	}
}

// dead computes, as HDFS does, after what silence a DataNode is dead. The heartbeats' interval
// comes before it in the list.
func dead(p *conf.Properties, name string, c *namenode.Config) error {
	recheck, ok, err := p.Time(name, time.Millisecond)
	if err != nil || !ok && c.HeartbeatInterval == 0 {
		return err
	}
	if !ok {
		recheck = 5 * time.Minute
	}
	beat := c.HeartbeatInterval
	if beat == 0 {
		beat = time.Second
	}
	if recheck > math.MaxInt64/4 || beat > math.MaxInt64/40 {
		return fmt.Errorf("%s (%s): %v is too long", name, p.From(name), recheck)
	}
	c.DeadAfter = 2*recheck + 10*beat
	return nil
}

// nameNodeConfig is what the properties say.
func nameNodeConfig(p *conf.Properties) (c namenode.Config, err error) {
	for _, each := range NameNodeProperties() {
		if err := each.apply(p, each.Name, &c); err != nil {
			return c, err
		}
	}
	return c, nil
}
