package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/verbena-data/verbena/hdfs"
)

func parseAccess(t *testing.T, args ...string) (hdfs.AccessConfig, error) {
	t.Helper()
	var a access
	var h hadoopFlags
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	a.add(flags)
	h.add(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	p, err := h.read(isNameNodeProperty)
	if err != nil {
		return hdfs.AccessConfig{}, err
	}
	return a.resolved(p)
}

func TestAccessFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hdfs-site.xml")
	if err := os.WriteFile(file, []byte(`<?xml version="1.0"?><configuration>
<property><name>dfs.permissions.superusergroup</name><value> admins </value><final>true</final></property>
<property><name>dfs.replication</name><value>2</value></property>
<property><name>hadoop.proxyuser.hive.hosts</name><value>10.0.0.0/8, gateway</value></property>
<property><name>hadoop.proxyuser.hive.groups</name><value>users</value></property>
<property><name>dfs.block.access.token.enable</name><value>false</value></property>
</configuration>`), 0o600); err != nil {
		t.Fatal(err)
	}
	hive := hdfs.ProxyUser{Hosts: []string{"10.0.0.0/8", "gateway"}, Groups: []string{"users"}}
	for _, test := range []struct {
		args string
		want hdfs.AccessConfig
	}{
		{"", hdfs.AccessConfig{}},
		{"--hadoop-conf FILE", hdfs.AccessConfig{Supergroup: "admins", NoBlockTokens: true, ProxyUsers: map[string]hdfs.ProxyUser{"hive": hive}}},
		{"--hadoop-conf FILE --property dfs.permissions.superusergroup=wheel --property dfs.block.access.token.enable=true --property hadoop.proxyuser.a.b.users=*",
			hdfs.AccessConfig{Supergroup: "wheel", ProxyUsers: map[string]hdfs.ProxyUser{"hive": hive, "a.b": {Users: []string{"*"}}}}},
		{"--property dfs.permissions.superusergroup=wheel --supergroup root --superuser hdfs --no-block-tokens", hdfs.AccessConfig{Superuser: "hdfs", Supergroup: "root", NoBlockTokens: true}},
		{"--property dfs.block.access.token.lifetime=5 --property dfs.block.access.key.update.interval=90s", hdfs.AccessConfig{BlockTokenLifetime: 5 * time.Minute, BlockKeyInterval: 90 * time.Second}},
	} {
		got, err := parseAccess(t, strings.Fields(strings.ReplaceAll(test.args, "FILE", file))...)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v %v, want %+v", test.args, got, err, test.want)
		}
	}
	for args, want := range map[string]string{
		"--property nonsense":                              "NAME=VALUE",
		"--property dfs.replicas=2":                        "no such property",
		"--property dfs.block.access.token.enable=perhaps": "perhaps",
		"--property dfs.block.access.token.lifetime=0":     "a second or more",
		"--property dfs.block.access.token.lifetime=long":  "long",
		"--property hadoop.proxyuser.hive=*":               "no such property",
		"--property hadoop.proxyuser.hive.doors=*":         "no such property",
		"--hadoop-conf /nowhere.xml":                       "/nowhere.xml",
	} {
		if got, err := parseAccess(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v %v, want %q", args, got, err, want)
		}
	}
	if len(accessHelp) == 0 || !strings.Contains(accessHelp, hdfs.AccessProperties()[0]) {
		t.Error("the help does not tell of the properties")
	}
}
