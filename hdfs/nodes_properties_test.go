package hdfs

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/namenode"
)

// Every property has an effect, refuses what makes no sense, and is in the manual.
func TestNameNodeProperties(t *testing.T) {
	manual, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range NameNodeProperties() {
		p := &conf.Properties{}
		value := "7"
		switch {
		case each.Name == "dfs.namenode.hosts.provider.classname":
			value = combinedHosts
		case each.Default == "true":
			value = "false"
		case each.Default == "false":
			value = "true"
		}
		p.Set(each.Name, value, "test")
		got, err := nameNodeConfig(p)
		if err != nil || reflect.DeepEqual(got, namenode.Config{}) {
			t.Errorf("%s has no effect: %v", each.Name, err)
		}
		if !strings.Contains(string(manual), "| `"+each.Name+"` |") {
			t.Errorf("docs/configuration.md has no row for %s", each.Name)
		}
		if !strings.Contains(each.Name, "hosts") && !strings.Contains(each.Name, "file.name") && each.Name != nameDirProperty {
			p.Set(each.Name, "-7", "test")
			if _, err := nameNodeConfig(p); err == nil || !strings.Contains(err.Error(), each.Name) {
				t.Errorf("%s of -7: %v", each.Name, err)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "hdfs-site.xml")
	text := `<configuration><property><name>dfs.heartbeat.interval</name><value>3</value></property>
		<property><name>dfs.namenode.heartbeat.recheck-interval</name><value>300000</value></property>
		<property><name>dfs.blocksize</name><value>256m</value></property>
		<property><name>dfs.journalnode.rpc-address</name><value>0.0.0.0:8485</value></property></configuration>`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := conf.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := nameNodeConfig(p)
	if err != nil || got.DeadAfter != 10*time.Minute+30*time.Second || got.HeartbeatInterval != 3*time.Second || got.BlockSize != 256<<20 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestNameDirectories(t *testing.T) {
	for _, c := range []struct {
		text, first, second string
		refused             bool
	}{
		{text: ""},
		{text: "/srv/a", first: "/srv/a"},
		{text: "file:///srv/a/, file:/srv/b", first: "/srv/a", second: "/srv/b"},
		{text: "names,/srv/b", first: "names", second: "/srv/b"},
		{text: "/a,/b,/c", refused: true},
		{text: "/a,file:///a/", refused: true},
		{text: "hdfs://nn/a", refused: true},
		{text: "file://host/a", refused: true},
		{text: "file:a", refused: true},
	} {
		p := &conf.Properties{}
		p.Set(nameDirProperty, c.text, "test")
		got, err := nameNodeConfig(p)
		if (err != nil) != c.refused || err == nil && (got.Dir != c.first || got.SecondDir != c.second) {
			t.Errorf("%q: %q and %q, %v", c.text, got.Dir, got.SecondDir, err)
		}
	}
}
