package hdfs

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/datanode"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// DataNodeProperty is one of Hadoop's configuration properties that a DataNode heeds.
type DataNodeProperty struct {
	Name    string
	What    string // it sets, in a few words
	Default string

	apply func(p *conf.Properties, name string, c *datanode.Config) error
}

const (
	dataDirProperty    = "dfs.datanode.data.dir"
	failedDirsProperty = "dfs.datanode.failed.volumes.tolerated"
	// diskTimeoutProperty is how long Hadoop waits for the check of a directory. Here all
	// operations are watched.
	diskTimeoutProperty = "dfs.datanode.disk.check.timeout"
	choiceProperty      = "dfs.datanode.fsdataset.volume.choosing.policy"
	thresholdProperty   = bySpaceOptions + "balanced-space-threshold"
	preferenceProperty  = bySpaceOptions + "balanced-space-preference-fraction"
	// volumeChoosing begins the names of Hadoop's classes that choose a directory.
	volumeChoosing = "org.apache.hadoop.hdfs.server.datanode.fsdataset."
	inTurn         = volumeChoosing + "RoundRobinVolumeChoosingPolicy"
	bySpace        = volumeChoosing + "AvailableSpaceVolumeChoosingPolicy"
	bySpaceOptions = "dfs.datanode.available-space-volume-choosing-policy."
)

// adjustableOfDataNodes are those that may change while a DataNode runs.
var adjustableOfDataNodes = []string{diskTimeoutProperty, choiceProperty, thresholdProperty, preferenceProperty}

// DataNodeProperties returns the properties that [DataNodeConfig].Properties may have. Others
// are not heeded.
func DataNodeProperties() []DataNodeProperty {
	return []DataNodeProperty{
		{dataDirProperty, "directories of the blocks, each on a disk of its own: [SSD]file:///d1,/d2; the kinds of storage are DISK, which is also meant without one, SSD, ARCHIVE, RAM_DISK and NVDIMM", "verbena/datanode in the user's data home", func(p *conf.Properties, name string, c *datanode.Config) (err error) {
			if entries := p.List(name); len(entries) > 0 {
				if c.Dirs, err = dataDirectories(entries); err != nil {
					err = fmt.Errorf("%s (%s): %w", name, p.From(name), err)
				}
			}
			return err
		}},
		{failedDirsProperty, "directories that may fail before the DataNode ends; -1: all but one", "0", func(p *conf.Properties, name string, c *datanode.Config) error {
			n, ok, err := p.Number(name, -1)
			if ok {
				c.FailedDirs = int(min(n, math.MaxInt32))
			}
			return err
		}},
		{diskTimeoutProperty, "time after which an operation on a disk that has not returned takes the directory out of service", "10m", func(p *conf.Properties, name string, c *datanode.Config) error {
			d, ok, err := p.Time(name, time.Millisecond)
			if ok {
				c.DiskTimeout = d
			}
			if err == nil && ok && d <= 0 {
				err = fmt.Errorf("%s (%s): %v is no time to wait", name, p.From(name), d)
			}
			return err
		}},
		{choiceProperty, "how a directory is chosen for a new block: " + inTurn + ", or " + bySpace, "in turn", func(p *conf.Properties, name string, c *datanode.Config) error {
			class, ok := p.String(name)
			if ok && class != inTurn && class != bySpace {
				return fmt.Errorf("%s (%s): %s is not known: want %s or %s", name, p.From(name), class, inTurn, bySpace)
			}
			c.Choice.BySpace = class == bySpace
			return nil
		}},
		{thresholdProperty, "by space: bytes that a directory has more than the fullest one to be preferred", "10g", func(p *conf.Properties, name string, c *datanode.Config) error {
			n, ok, err := p.Bytes(name)
			c.Choice.Threshold = 10 << 30
			if ok {
				c.Choice.Threshold = n
			}
			return err
		}},
		{preferenceProperty, "by space: share of the blocks for those preferred, if they were as many as the others", "0.75", func(p *conf.Properties, name string, c *datanode.Config) error {
			x, ok, err := p.Fraction(name)
			c.Choice.Preference = 0.75
			if ok {
				c.Choice.Preference = x
			}
			if err == nil && ok && x > 1 {
				err = fmt.Errorf("%s (%s): %v is above 1", name, p.From(name), x)
			}
			return err
		}},
		{supergroupProperty, "group whose members may do what operators do", "supergroup", func(p *conf.Properties, name string, c *datanode.Config) error {
			if group, ok := p.String(name); ok {
				c.Supergroup = group
			}
			return nil
		}},
	}
}

// dataNodeConfig is what the configuration says of the directories, and of who may do what.
func dataNodeConfig(cfg *DataNodeConfig) (c datanode.Config, err error) {
	if cfg.NativeMemory < 0 {
		return c, fmt.Errorf("NativeMemory (--native-memory) is %d bytes: want more than 0, or 0 for the default", cfg.NativeMemory)
	}
	if cfg.LocalMemory < 0 {
		return c, fmt.Errorf("LocalMemory (--local-memory) is %d bytes: want more than 0, or 0 for the default", cfg.LocalMemory)
	}
	for _, each := range DataNodeProperties() {
		if err := each.apply(cfg.Properties, each.Name, &c); err != nil {
			return c, err
		}
	}
	if len(cfg.DataDirs) > 0 {
		if c.Dirs, err = dataDirectories(cfg.DataDirs); err != nil {
			return c, fmt.Errorf("data directories: %w", err)
		}
	}
	if len(c.Dirs) == 0 {
		c.Dirs = []datanode.Directory{{Path: cfg.Dir}}
	}
	if cfg.Supergroup != "" {
		c.Supergroup = cfg.Supergroup
	}
	if cfg.FailedDirs != 0 {
		c.FailedDirs = cfg.FailedDirs
	}
	if cfg.DiskTimeout != 0 {
		c.DiskTimeout = cfg.DiskTimeout
	}
	if c.FailedDirs < -1 || c.FailedDirs >= len(c.Dirs) {
		return c, fmt.Errorf("%d of %d data directories may fail (%s): it must be fewer, or -1 for all but one", c.FailedDirs, len(c.Dirs), failedDirsProperty)
	}
	return c, nil
}

// storageEntry is an entry of dfs.datanode.data.dir: [KIND]PLACE, the kind in any case.
var storageEntry = regexp.MustCompile(`^(?:\[(\w*)\])?(.+)$`)

// dataDirectories are the directories that entries name.
func dataDirectories(entries []string) ([]datanode.Directory, error) {
	var out []datanode.Directory
	seen := map[string]bool{}
	for _, entry := range entries {
		m := storageEntry.FindStringSubmatch(strings.TrimSpace(entry))
		if m == nil || strings.HasPrefix(m[2], "[") {
			return nil, fmt.Errorf("%q names no directory", entry)
		}
		d := datanode.Directory{Type: hdfspb.StorageTypeProto_DISK}
		if m[1] != "" {
			d.Type = hdfspb.StorageTypeProto(hdfspb.StorageTypeProto_value[strings.ToUpper(m[1])])
		}
		if d.Type == 0 || d.Type == hdfspb.StorageTypeProto_PROVIDED {
			return nil, fmt.Errorf("%s: storage of kind %s: want DISK, SSD, ARCHIVE, RAM_DISK or NVDIMM", entry, m[1])
		}
		var err error
		if d.Path, err = localDirectory(strings.TrimSpace(m[2])); err != nil {
			return nil, err
		}
		if seen[d.Path] {
			return nil, fmt.Errorf("%s is there twice", d.Path)
		}
		seen[d.Path] = true
		out = append(out, d)
	}
	return out, nil
}
