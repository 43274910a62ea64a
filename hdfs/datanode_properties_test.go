package hdfs

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/datanode"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// The packets of blocks need some memory: without, every write would take the legacy protocol.
func TestNativeMemoryIsNotNegative(t *testing.T) {
	if _, err := dataNodeConfig(&DataNodeConfig{Dir: "/d", NativeMemory: -1}); err == nil || !strings.Contains(err.Error(), "--native-memory") {
		t.Error(err)
	}
	if _, err := dataNodeConfig(&DataNodeConfig{Dir: "/d", LocalMemory: -1}); err == nil || !strings.Contains(err.Error(), "--local-memory") {
		t.Error(err)
	}
	if _, err := dataNodeConfig(&DataNodeConfig{Dir: "/d", WindowMemory: -1}); err != nil {
		t.Errorf("no windows: %v", err)
	}
}

// The DataNodes of a cluster have the memory that it is told: here none for the window of a block,
// which goes by the legacy protocol then.
func TestMemoryOfAClustersDataNodes(t *testing.T) {
	s := systemIn(t, 1, 1, "127.0.0.1", func(cfg *ClusterConfig) { cfg.NativeMemory = 64 << 10 })
	c := s.own(verbena.TransportAuto)
	store(t, c, "/file", randomBytes(1000), CreateOptions{})
	if native, legacy := s.DataNodes[0].Writes(); native.Blocks != 0 || legacy.Blocks != 1 {
		t.Errorf("%d blocks by hdfs-data/1, %d by the legacy protocol", native.Blocks, legacy.Blocks)
	}
}

// Every property has an effect, refuses what makes no sense, and is in the manual.
func TestDataNodeProperties(t *testing.T) {
	manual, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	none, err := dataNodeConfig(&DataNodeConfig{Dir: "/d"})
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][2]string{
		dataDirProperty:    {"/a,/b", "[FLOPPY]/a"},
		failedDirsProperty: {"-1", "-2"},
		supergroupProperty: {"staff", ""}, // any name may be a group's
		"dfs.datanode.fsdataset.volume.choosing.policy": {bySpace, "org.example.Random"},
	}
	for _, each := range DataNodeProperties() {
		v, ok := values[each.Name]
		if !ok {
			v = [2]string{"0.5", "-7"}
			if strings.HasSuffix(each.Name, "timeout") {
				v[0] = "3m"
			}
			if strings.HasSuffix(each.Name, "threshold") {
				v[0] = "1g"
			}
		}
		p := &conf.Properties{}
		p.Set(each.Name, v[0], "test")
		if got, err := dataNodeConfig(&DataNodeConfig{Dir: "/d", Properties: p}); err != nil || reflect.DeepEqual(got, none) {
			t.Errorf("%s has no effect: %v", each.Name, err)
		}
		if v[1] != "" {
			p.Set(each.Name, v[1], "test")
			if _, err := dataNodeConfig(&DataNodeConfig{Dir: "/d", Properties: p}); err == nil || !strings.Contains(err.Error(), each.Name) {
				t.Errorf("%s of %s: %v", each.Name, v[1], err)
			}
		}
		if !strings.Contains(string(manual), "| `"+each.Name+"` | "+each.What+" | "+each.Default+" |") {
			t.Errorf("docs/configuration.md has no row for %s, or another one", each.Name)
		}
	}
}

// A field of the configuration comes before the property.
func TestSupergroupOfDataNode(t *testing.T) {
	p := &conf.Properties{}
	p.Set(supergroupProperty, "staff", "test")
	for field, want := range map[string]string{"": "staff", "ops": "ops"} {
		c, err := dataNodeConfig(&DataNodeConfig{Dir: "/d", Supergroup: field, Properties: p})
		if err != nil || c.Supergroup != want {
			t.Errorf("%q: %q, %v", field, c.Supergroup, err)
		}
	}
}

func TestDataDirectories(t *testing.T) {
	disk, ssd := hdfspb.StorageTypeProto_DISK, hdfspb.StorageTypeProto_SSD
	for _, c := range []struct {
		entries []string
		want    []datanode.Directory // nil: refused
	}{
		{[]string{"/a", " [SSD]/b ", "file:///c/", "[ssd]file:/d", "[]/e", "f"}, []datanode.Directory{{Path: "/a", Type: disk}, {Path: "/b", Type: ssd}, {Path: "/c", Type: disk}, {Path: "/d", Type: ssd}, {Path: "/e", Type: disk}, {Path: "f", Type: disk}}},
		{[]string{"[ARCHIVE]/a", "[RAM_DISK]/b", "[NVDIMM]/c"}, []datanode.Directory{{Path: "/a", Type: 3}, {Path: "/b", Type: 4}, {Path: "/c", Type: 6}}},
		{entries: []string{"/a", "[SSD]file:///a/"}},
		{entries: []string{"[PROVIDED]/a"}},
		{entries: []string{"[TAPE]/a"}},
		{entries: []string{"[SSD]"}},
		{entries: []string{""}},
		{entries: []string{"hdfs://nn/a"}},
		{entries: []string{"file://host/a"}},
	} {
		got, err := dataDirectories(c.entries)
		if (err != nil) != (c.want == nil) || err == nil && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, %v", c.entries, got, err)
		}
	}
	p := &conf.Properties{}
	p.Set(dataDirProperty, "/p1,/p2", "test")
	p.Set(failedDirsProperty, "1", "test")
	for _, c := range []struct {
		cfg     DataNodeConfig
		first   string
		failed  int
		refused bool
	}{
		{cfg: DataNodeConfig{Dir: "/d"}, first: "/d"},
		{cfg: DataNodeConfig{Dir: "/d", Properties: p}, first: "/p1", failed: 1},
		{cfg: DataNodeConfig{Properties: p, FailedDirs: -1}, first: "/p1", failed: -1},
		{cfg: DataNodeConfig{Properties: p, DataDirs: []string{"/x", "/y", "/z"}}, first: "/x", failed: 1},
		{cfg: DataNodeConfig{Properties: p, DataDirs: []string{"/x"}}, refused: true}, // no directory would be left
		{cfg: DataNodeConfig{Dir: "/d", FailedDirs: 1}, refused: true},
		{cfg: DataNodeConfig{Dir: "/d", FailedDirs: -2}, refused: true},
	} {
		got, err := dataNodeConfig(&c.cfg)
		if (err != nil) != c.refused || err == nil && (got.Dirs[0].Path != c.first || got.FailedDirs != c.failed) {
			t.Errorf("%+v: %+v, %v", c.cfg, got, err)
		}
	}
}
