package hdfs

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/hadoop/conf"
)

// properties are Hadoop's, as a file of them has them.
func properties(values map[string]string) *conf.Properties {
	p := &conf.Properties{}
	for name, text := range values {
		p.Set(name, text, "hdfs-site.xml")
	}
	return p
}

// trials has, for each property that clients heed, a value, the field that gets it, what
// the field is then, and values that are no good.
var trials = map[string]struct {
	text  string
	field func(c *ClientConfig) any
	want  any
	bad   []string
	with  map[string]string // what else must be set
}{
	"dfs.replication":           {"5", func(c *ClientConfig) any { return c.Replication }, 5, notNumbers, nil},
	"dfs.blocksize":             {"256m", func(c *ClientConfig) any { return c.BlockSize }, int64(256 << 20), []string{"-1", "many", "m", "1.5g", "9999999p"}, nil},
	"dfs.checksum.type":         {"CRC32", func(c *ClientConfig) any { return c.Checksum }, ChecksumCRC32, []string{"MD5", "CRC64"}, nil},
	"dfs.bytes-per-checksum":    {"1024", func(c *ClientConfig) any { return c.BytesPerChecksum }, 1024, notNumbers, nil},
	"dfs.checksum.combine.mode": {"COMPOSITE_CRC", func(c *ClientConfig) any { return c.ChecksumMode }, CompositeCRC, []string{"SHA1"}, nil},
	"fs.permissions.umask-mode": {"u=rwx,g=rx,o=", func(c *ClientConfig) any { return *c.Umask }, uint32(0o027), []string{"8", "1777", "-1", "rwx"}, nil},
	"fs.trash.interval":         {"90", func(c *ClientConfig) any { return c.TrashInterval }, 90 * time.Minute, notTimes, nil},
	"dfs.client-write-packet-size": {
		"131072", func(c *ClientConfig) any { return c.PacketSize }, 128 << 10, notNumbers, nil,
	},
	"dfs.client.write.max-packets-in-flight": {
		"10", func(c *ClientConfig) any { return c.Window }, 10 * defaultPacket, append(notNumbers, "0"), nil,
	},
	"dfs.client.write.exclude.nodes.cache.expiry.interval.millis": {
		"90000", func(c *ClientConfig) any { return c.ExcludeFor }, 90 * time.Second, notTimes, nil,
	},
	replaceProperty + "enable":          {"false", func(c *ClientConfig) any { return c.Replace }, ReplaceNever, notBools, nil},
	replaceProperty + "policy":          {"ALWAYS", func(c *ClientConfig) any { return c.Replace }, ReplaceAlways, []string{"SOMETIMES"}, nil},
	replaceProperty + "best-effort":     {"true", func(c *ClientConfig) any { return c.ReplaceBestEffort }, true, notBools, nil},
	replaceProperty + "min-replication": {"2", func(c *ClientConfig) any { return c.ReplaceMinReplication }, 2, notNumbers, nil},
	"dfs.client.block.write.retries":    {"0", func(c *ClientConfig) any { return c.BlockRetries }, -1, notNumbers, nil},
	"dfs.client.block.write.locateFollowingBlock.retries": {
		"9", func(c *ClientConfig) any { return c.LocateRetries }, 9, notNumbers, nil,
	},
	"dfs.client.block.write.locateFollowingBlock.initial.delay.ms": {
		"250", func(c *ClientConfig) any { return c.LocatePause }, 250 * time.Millisecond, notTimes, nil,
	},
	"dfs.client.datanode-restart.timeout":     {"20", func(c *ClientConfig) any { return c.RestartTimeout }, 20 * time.Second, notTimes, nil},
	"dfs.client.read.prefetch.size":           {"1g", func(c *ClientConfig) any { return c.Prefetch }, int64(1 << 30), []string{"-1", "all"}, nil},
	"dfs.client.max.block.acquire.failures":   {"4", func(c *ClientConfig) any { return c.ReadFailures }, 4, notNumbers, nil},
	"dfs.client.retry.window.base":            {"3000", func(c *ClientConfig) any { return c.ReadPause }, 3 * time.Second, notTimes, nil},
	"dfs.client.hedged.read.threadpool.size":  {"7", func(c *ClientConfig) any { return []any{c.Hedges, c.HedgeAfter} }, []any{7, 500 * time.Millisecond}, notNumbers, nil},
	"dfs.client.hedged.read.threshold.millis": {"20", func(c *ClientConfig) any { return c.HedgeAfter }, 20 * time.Millisecond, notTimes, map[string]string{"dfs.client.hedged.read.threadpool.size": "1"}},
	"dfs.client.read.shortcircuit":            {"false", func(c *ClientConfig) any { return c.NoLocalReads }, true, notBools, nil},
	"dfs.domain.socket.path": {
		"/run/dn._PORT", func(c *ClientConfig) any { return c.DomainSocket }, "/run/dn._PORT", nil, map[string]string{"dfs.client.read.shortcircuit": "true"},
	},
	"dfs.client.read.shortcircuit.skip.checksum":      {"true", func(c *ClientConfig) any { return c.LocalUnverified }, true, notBools, nil},
	"dfs.client.read.shortcircuit.streams.cache.size": {"12", func(c *ClientConfig) any { return c.LocalReplicas }, 12, notNumbers, nil},
	"dfs.client.read.shortcircuit.streams.cache.expiry.ms": {
		"1500", func(c *ClientConfig) any { return c.LocalExpiry }, 1500 * time.Millisecond, notTimes, nil,
	},
	"verbena.client.legacy-transfers":   {"true", func(c *ClientConfig) any { return c.LegacyTransfers }, true, notBools, nil},
	"verbena.client.no-windows":         {"true", func(c *ClientConfig) any { return c.NoWindows }, true, notBools, nil},
	failoverAttempts:                    {"5", retries, []any{15*time.Second + 1, 5, time.Duration(0), time.Duration(0)}, notNumbers, several},
	failoverPause:                       {"250", retries, []any{150500*time.Millisecond + 1, 15, 250 * time.Millisecond, 15 * time.Second}, notTimes, several},
	failoverMaxPause:                    {"1s", retries, []any{14*time.Second + 1, 15, 500 * time.Millisecond, time.Second}, notTimes, several},
	connectRetries:                      {"7", retries, []any{7*time.Second + 1, 9, time.Second, time.Second}, notNumbers, nil},
	connectPause:                        {"2000", retries, []any{20*time.Second + 1, 9, 2 * time.Second, 2 * time.Second}, notTimes, nil},
	connectTimeouts:                     {"0", retries, []any{time.Duration(0), -1, time.Duration(0), time.Duration(0)}, notNumbers, nil},
	"ipc.client.connect.timeout":        {"5000", func(c *ClientConfig) any { return c.ConnectTimeout }, 5 * time.Second, notTimes, nil},
	"ipc.client.rpc-timeout.ms":         {"30000", func(c *ClientConfig) any { return c.CallTimeout }, 30 * time.Second, notTimes, nil},
	"dfs.client.use.datanode.hostname":  {"true", func(c *ClientConfig) any { return c.UseHostname }, true, notBools, nil},
	"dfs.client.socket-timeout":         {"1m", func(c *ClientConfig) any { return c.SocketTimeout }, time.Minute, notTimes, nil},
	"dfs.datanode.socket.write.timeout": {"5000", func(c *ClientConfig) any { return c.WriteTimeout }, 5 * time.Second, notTimes, nil},
	"dfs.client.socketcache.capacity":   {"0", func(c *ClientConfig) any { return c.IdleConnections }, -1, notNumbers, nil},
	"dfs.client.socketcache.expiryMsec": {"4000", func(c *ClientConfig) any { return c.IdleTime }, 4 * time.Second, notTimes, nil},
}

// retries are the fields that tell for how long NameNodes are asked.
func retries(c *ClientConfig) any {
	return []any{c.Patience, c.Timeouts, c.RetryPause, c.MaxRetryPause}
}

// several are two NameNodes.
var several = map[string]string{
	"fs.defaultFS": "hdfs://both", "dfs.nameservices": "both", "dfs.ha.namenodes.both": "a,b",
	"dfs.namenode.rpc-address.both.a": "a:1", "dfs.namenode.rpc-address.both.b": "b:1",
}

var (
	notNumbers = []string{"-1", "three", "1.5", "99999999999999999999"}
	notTimes   = []string{"-1", "soon", "1.5", "99999999999999999999", "9223372036854775807d"}
	notBools   = []string{"yes", "1", "wahr"}
)

// Every property that clients heed is taken, and a bad value is refused by the property's
// name and the file that has it. What the program has set stays.
func TestClientProperties(t *testing.T) {
	for _, each := range ClientProperties() {
		trial, ok := trials[each.Name]
		if !ok {
			t.Errorf("%s is not tried", each.Name)
			continue
		}
		values := map[string]string{each.Name: trial.text}
		for name, text := range trial.with {
			values[name] = text
		}
		var c ClientConfig
		if err := c.Take(properties(values)); err != nil {
			t.Errorf("%s = %s: %v", each.Name, trial.text, err)
			continue
		}
		got := trial.field(&c)
		if g, ok := got.([]any); ok && !slices.Equal(g, trial.want.([]any)) || !ok && got != trial.want {
			t.Errorf("%s = %s: the field is %v, want %v", each.Name, trial.text, got, trial.want)
		}
		for _, bad := range trial.bad {
			values[each.Name] = bad
			var c ClientConfig
			err := c.Take(properties(values))
			if err == nil || !strings.Contains(err.Error(), each.Name) || !strings.Contains(err.Error(), "hdfs-site.xml") || !strings.Contains(err.Error(), bad) {
				t.Errorf("%s = %q: %v", each.Name, bad, err)
			}
		}
		if each.Means == "" {
			t.Errorf("%s has no meaning", each.Name)
		}
	}
	if len(trials) != len(clientProperties) {
		t.Errorf("%d properties are tried, there are %d", len(trials), len(clientProperties))
	}
}

func TestClientPropertiesDoNotOverrideTheProgram(t *testing.T) {
	umask := uint32(0)
	c := ClientConfig{
		NameNodes: []string{"here:1"}, Replication: 1, BlockSize: 1 << 20, Checksum: ChecksumCRC32C, Umask: &umask, Window: 1 << 20,
		Replace: ReplaceNever, SocketTimeout: time.Second, Prefetch: 1, HedgeAfter: time.Second,
	}
	err := c.Take(properties(map[string]string{
		"fs.defaultFS": "hdfs://there:2", "dfs.replication": "2", "dfs.blocksize": "2m", "dfs.checksum.type": "NULL", "fs.permissions.umask-mode": "077",
		"dfs.client.write.max-packets-in-flight": "1", replaceProperty + "policy": "ALWAYS", "dfs.client.socket-timeout": "2s", "dfs.client.read.prefetch.size": "2",
		"dfs.client.hedged.read.threadpool.size": "3",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if c.NameNodes[0] != "here:1" || c.Replication != 1 || c.BlockSize != 1<<20 || c.Checksum != ChecksumCRC32C || *c.Umask != 0 || c.Window != 1<<20 ||
		c.Replace != ReplaceNever || c.SocketTimeout != time.Second || c.Prefetch != 1 || c.HedgeAfter != time.Second {
		t.Errorf("%+v", c)
	}
	kept := ClientConfig{NameNodes: []string{"a:1", "b:1"}, Patience: time.Second}
	want := kept
	if err := kept.Take(properties(map[string]string{failoverAttempts: "20"})); err != nil || !reflect.DeepEqual(kept, want) {
		t.Errorf("%+v, %v", kept, err)
	}
	sole := ClientConfig{NameNodes: []string{"a:1"}, Patience: time.Second}
	want = sole
	if err := sole.Take(properties(map[string]string{connectTimeouts: "45", failoverAttempts: "20"})); err != nil || !reflect.DeepEqual(sole, want) {
		t.Errorf("%+v, %v", sole, err)
	}
	// Two properties may set one field, and one property two fields.
	retried := ClientConfig{Patience: 7*time.Second + 1, RetryPause: time.Second, MaxRetryPause: time.Second}
	limited, unlimited := retried, retried
	limited.Timeouts, unlimited.Timeouts = -1, 3
	for _, test := range []struct {
		set, want ClientConfig
		values    map[string]string
	}{
		{ClientConfig{Replace: ReplaceAlways}, ClientConfig{Replace: ReplaceAlways}, map[string]string{replaceProperty + "enable": "false"}},
		{ClientConfig{}, ClientConfig{Replace: ReplaceNever}, map[string]string{replaceProperty + "enable": "false", replaceProperty + "policy": "ALWAYS"}},
		{
			ClientConfig{HedgeAfter: 50 * time.Millisecond}, ClientConfig{HedgeAfter: 50 * time.Millisecond, Hedges: 3},
			map[string]string{"dfs.client.hedged.read.threadpool.size": "3", hedgeThreshold: "700"},
		},
		{ClientConfig{HedgeAfter: 50 * time.Millisecond}, ClientConfig{HedgeAfter: 50 * time.Millisecond}, map[string]string{hedgeThreshold: "700"}},
		{
			ClientConfig{}, limited, map[string]string{connectRetries: "7", connectPause: "1000", connectTimeouts: "0"},
		},
		{
			ClientConfig{Timeouts: 3}, unlimited, map[string]string{connectRetries: "7", connectTimeouts: "0"},
		},
		{
			ClientConfig{Hedges: 2}, ClientConfig{HedgeAfter: 700 * time.Millisecond, Hedges: 2},
			map[string]string{"dfs.client.hedged.read.threadpool.size": "3", hedgeThreshold: "700"},
		},
	} {
		c := test.set
		if err := c.Take(properties(test.values)); err != nil || !reflect.DeepEqual(c, test.want) {
			t.Errorf("%+v with %v: %+v, %v", test.set, test.values, c, err)
		}
	}
}

// A client refuses clusters that it can't talk to.
func TestClientRefusesWhatItCannotDo(t *testing.T) {
	for name, text := range map[string]string{"hadoop.security.authentication": "kerberos", "dfs.data.transfer.protection": "privacy"} {
		var c ClientConfig
		err := c.Take(properties(map[string]string{"fs.defaultFS": "hdfs://nn", name: text}))
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for what, c := range map[string]ClientConfig{
		"no NameNode": {}, "no port": {NameNodes: []string{"host"}}, "packets": {NameNodes: []string{"host:1"}, PacketSize: 9 << 20},
		"a window": {NameNodes: []string{"host:1"}, Window: -1},
	} {
		if client, err := NewClient(c); err == nil {
			client.Close()
			t.Errorf("a client with %s", what)
		}
	}
}

// A client refuses settings that no client can have, by their names.
func TestClientRefusesBadSettings(t *testing.T) {
	umask := uint32(0o1000)
	for field, bad := range map[string]func(c *ClientConfig){
		"Replication":           func(c *ClientConfig) { c.Replication = -2 },
		"BlockSize":             func(c *ClientConfig) { c.BlockSize = -1 },
		"Checksum":              func(c *ClientConfig) { c.Checksum = 9 },
		"BytesPerChecksum":      func(c *ClientConfig) { c.BytesPerChecksum = -1 },
		"Umask":                 func(c *ClientConfig) { c.Umask = &umask },
		"Patience":              func(c *ClientConfig) { c.Patience = -1 },
		"RetryPause":            func(c *ClientConfig) { c.RetryPause = 2 * time.Hour },
		"MaxRetryPause":         func(c *ClientConfig) { c.MaxRetryPause = -1 },
		"ConnectTimeout":        func(c *ClientConfig) { c.ConnectTimeout = -1 },
		"CallTimeout":           func(c *ClientConfig) { c.CallTimeout = -1 },
		"PacketSize":            func(c *ClientConfig) { c.PacketSize = -1 },
		"Window":                func(c *ClientConfig) { c.Window = -1 },
		"Replace":               func(c *ClientConfig) { c.Replace = -1 },
		"ReplaceMinReplication": func(c *ClientConfig) { c.ReplaceMinReplication = -1 },
		"BlockRetries":          func(c *ClientConfig) { c.BlockRetries = 1 << 40 },
		"ExcludeFor":            func(c *ClientConfig) { c.ExcludeFor = -1 },
		"LocateRetries":         func(c *ClientConfig) { c.LocateRetries = 1 << 40 },
		"LocatePause":           func(c *ClientConfig) { c.LocatePause = 1000 * time.Hour },
		"RestartTimeout":        func(c *ClientConfig) { c.RestartTimeout = -1 },
		"LeaseInterval":         func(c *ClientConfig) { c.LeaseInterval = -1 },
		"Prefetch":              func(c *ClientConfig) { c.Prefetch = -1 },
		"ReadFailures":          func(c *ClientConfig) { c.ReadFailures = 1 << 40 },
		"ReadPause":             func(c *ClientConfig) { c.ReadPause = -1 },
		"HedgeAfter":            func(c *ClientConfig) { c.HedgeAfter = -1 },
		"Hedges":                func(c *ClientConfig) { c.HedgeAfter, c.Hedges = time.Second, -1 },
		"LocalReplicas":         func(c *ClientConfig) { c.LocalReplicas = -1 },
		"LocalExpiry":           func(c *ClientConfig) { c.LocalExpiry = -1 },
		"SocketTimeout":         func(c *ClientConfig) { c.SocketTimeout = -1 },
		"WriteTimeout":          func(c *ClientConfig) { c.WriteTimeout = -1 },
		"IdleTime":              func(c *ClientConfig) { c.IdleTime = -1 },
		"TrashInterval":         func(c *ClientConfig) { c.TrashInterval = -1 },
		"ChecksumMode":          func(c *ClientConfig) { c.ChecksumMode = 7 },
	} {
		c := ClientConfig{NameNodes: []string{"host:1"}, User: "somebody"}
		bad(&c)
		client, err := NewClient(c)
		if err == nil {
			client.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "ClientConfig."+field+" is ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	client, err := NewClient(ClientConfig{
		NameNodes: []string{"host:1"}, User: "somebody", BlockRetries: -1, LocateRetries: -1, ReadFailures: -1, IdleConnections: -1, ReadAhead: -1,
	})
	if err != nil {
		t.Fatalf("numbers below 0 that stand for never: %v", err)
	}
	client.Close()
}

func TestNameNodesOf(t *testing.T) {
	ha := map[string]string{
		"fs.defaultFS": "hdfs://prod", "dfs.nameservices": "prod, test", "dfs.ha.namenodes.prod": "nn1,nn2",
		"dfs.namenode.rpc-address.prod.nn1": "a.example:8021", "dfs.namenode.rpc-address.prod.nn2": "b.example",
		"dfs.namenode.rpc-address.test": "c.example:9000",
	}
	for _, test := range []struct {
		values map[string]string
		uri    string
		want   string // with spaces between; empty: none; of errors what they say
		bad    bool
	}{
		{ha, "", "a.example:8021 b.example:8020", false},
		{ha, "hdfs://prod/some/dir", "a.example:8021 b.example:8020", false},
		{ha, "hdfs://test", "c.example:9000", false},
		{ha, "hdfs://other.example:1", "other.example:1", false},
		{ha, "file:///tmp", "hdfs://", true},
		{ha, "hdfs:///x", "hdfs://", true},
		{ha, "hdfs://%", "file system", true},
		{map[string]string{"fs.default.name": "hdfs://old.example"}, "", "old.example:8020", false},
		{map[string]string{"fs.defaultFS": "hdfs://[2001:db8::1]:9000"}, "", "[2001:db8::1]:9000", false},
		{map[string]string{"fs.defaultFS": "hdfs://[2001:db8::1]"}, "", "[2001:db8::1]:8020", false},
		{map[string]string{"dfs.namenode.rpc-address": "d.example:1"}, "", "d.example:1", false},
		{map[string]string{"dfs.nameservices": "one", "dfs.namenode.rpc-address.one": "e.example"}, "", "e.example:8020", false},
		{map[string]string{"dfs.nameservices": "one"}, "", "dfs.namenode.rpc-address.one", true},
		{map[string]string{"dfs.nameservices": "one", "dfs.ha.namenodes.one": "x"}, "", "dfs.namenode.rpc-address.one.x", true},
		{nil, "", "", false},
	} {
		got, err := NameNodesOf(properties(test.values), test.uri)
		if test.bad != (err != nil) || !test.bad && strings.Join(got, " ") != test.want || test.bad && err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v %q: %v %v", test.values, test.uri, got, err)
		}
	}
}

// core-site.xml comes before hdfs-site.xml, final properties stay, and the directory is
// HADOOP_CONF_DIR, or one of HADOOP_HOME.
func TestLoadHadoopConf(t *testing.T) {
	site := func(dir, file, body string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte("<configuration>"+body+"</configuration>"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	property := func(name, value string) string {
		return "<property><name>" + name + "</name><value>" + value + "</value></property>"
	}
	home := t.TempDir()
	t.Setenv("HADOOP_CONF_DIR", "")
	t.Setenv("HADOOP_HOME", "")
	if p, err := LoadHadoopConf(); p != nil || err != nil {
		t.Errorf("without a directory: %v %v", p, err)
	}
	t.Setenv("HADOOP_HOME", home)
	if p, err := LoadHadoopConf(); p != nil || err != nil {
		t.Errorf("HADOOP_HOME without a configuration: %v %v", p, err)
	}
	site(home+"/etc/hadoop", "core-site.xml", property("fs.defaultFS", "hdfs://${service}")+property("service", "a.example:1")+
		strings.Replace(property("dfs.replication", "4"), "</property>", "<final>true</final></property>", 1)+property("dfs.blocksize", "1m"))
	site(home+"/etc/hadoop", "hdfs-site.xml", property("dfs.replication", "5")+property("dfs.blocksize", "2m"))
	p, err := LoadHadoopConf()
	if err != nil {
		t.Fatal(err)
	}
	var c ClientConfig
	if err := c.Take(p); err != nil {
		t.Fatal(err)
	}
	if c.NameNodes[0] != "a.example:1" || c.Replication != 4 || c.BlockSize != 2<<20 {
		t.Errorf("%+v", c)
	}
	other := t.TempDir()
	site(other, "core-site.xml", property("fs.defaultFS", "hdfs://b.example"))
	t.Setenv("HADOOP_CONF_DIR", other)
	c = ClientConfig{}
	if p, err = LoadHadoopConf(); err != nil {
		t.Fatal(err)
	}
	if err := c.Take(p); err != nil || c.NameNodes[0] != "b.example:8020" {
		t.Errorf("%v %v", c.NameNodes, err)
	}
	more := t.TempDir()
	site(more, "more.xml", property("dfs.replication", "7"))
	c = ClientConfig{}
	if p, err = LoadHadoopConf(more + "/more.xml"); err != nil {
		t.Fatal(err)
	}
	if err := c.Take(p); err != nil || c.NameNodes[0] != "b.example:8020" || c.Replication != 7 {
		t.Errorf("%+v %v", c, err)
	}
	t.Setenv("HADOOP_CONF_DIR", other+"/none")
	if _, err := LoadHadoopConf(); err == nil {
		t.Error("a directory that is not there")
	}
}

// The page about the client lists the properties that it heeds, and no others.
func TestPropertiesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/hdfs-client.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Hadoop's properties")
	rows := map[string]bool{}
	for line := range strings.Lines(table) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` |"); ok && strings.HasPrefix(line, "| `") {
			rows[name] = true
		}
	}
	for _, p := range ClientProperties() {
		if !rows[p.Name] {
			t.Errorf("%s is missing", p.Name)
		}
		delete(rows, p.Name)
	}
	for name := range rows {
		t.Errorf("%s is not heeded", name)
	}
}
