package hdfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/datanode"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode"
	"github.com/verbena-data/verbena/hdfs/internal/reconfigure"
	"github.com/verbena-data/verbena/providers"
)

// What is said to be adjustable changes an adjustment.
func TestAdjustableProperties(t *testing.T) {
	text := map[string]string{choiceProperty: bySpace, thresholdProperty: "1g", preferenceProperty: "0.5", diskTimeoutProperty: "3m"}
	for _, name := range adjustableOfDataNodes {
		p := &conf.Properties{}
		p.Set(name, text[name], "test")
		c, err := dataNodeConfig(&DataNodeConfig{Dir: "/d", Properties: p})
		none, _ := dataNodeConfig(&DataNodeConfig{Dir: "/d"})
		got, want := datanode.Adjustment{DiskTimeout: c.DiskTimeout, Choice: c.Choice}, datanode.Adjustment{DiskTimeout: none.DiskTimeout, Choice: none.Choice}
		if err != nil || got == want {
			t.Errorf("%s changes nothing: %v", name, err)
		}
	}
	known := NameNodeProperties()
	seen := namenode.Adjustment{}
	for _, name := range adjustableOfNameNodes {
		if !slices.ContainsFunc(known, func(k NameNodeProperty) bool { return k.Name == name }) {
			t.Errorf("there is no %s", name)
		}
		p := &conf.Properties{}
		p.Set(name, "77", "test")
		c, err := nameNodeConfig(p)
		got := c.Adjustment()
		if err != nil || got == (namenode.Adjustment{}) {
			t.Errorf("%s changes nothing: %v", name, err)
		}
		all, one := reflect.ValueOf(&seen).Elem(), reflect.ValueOf(got)
		for i := range one.NumField() {
			if !one.Field(i).IsZero() {
				all.Field(i).Set(one.Field(i))
			}
		}
	}
	for i := range reflect.ValueOf(seen).NumField() {
		if reflect.ValueOf(seen).Field(i).IsZero() {
			t.Errorf("no property changes %s", reflect.TypeOf(seen).Field(i).Name)
		}
	}
}

// An operator changes a file, and has both nodes read it again: what they are told by RPC is what they do.
func TestReconfiguration(t *testing.T) {
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, secret := filepath.Join(dir, "hdfs-site.xml"), filepath.Join(dir, "secret")
	write := func(beat, timeout string) {
		text := "<configuration><property><name>dfs.heartbeat.interval</name><value>" + beat + "</value></property>" +
			"<property><name>" + diskTimeoutProperty + "</name><value>" + timeout + "</value></property></configuration>"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1s", "5m")
	p, err := conf.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	nn, err := StartNameNode(t.Context(), NameNodeConfig{Runtime: rt, Dir: filepath.Join(dir, "names"), Listen: "127.0.0.1:0", ClusterSecret: secret, Properties: p})
	if err != nil {
		t.Fatal(err)
	}
	dn, err := StartDataNode(t.Context(), DataNodeConfig{Runtime: rt, Dir: filepath.Join(dir, "blocks"), Listen: "127.0.0.1:0", NameNode: nn.Addr(), ClusterSecret: secret, Properties: p})
	if err != nil {
		t.Fatal(err)
	}
	c := rpc.NewClient(rpc.ClientConfig{})
	defer func() {
		c.Close()
		if err := errors.Join(dn.Close(), nn.Close(), rt.Close()); err != nil {
			t.Error(err)
		}
	}()
	write("2s", "none")
	for address, want := range map[string]string{
		nn.Addr(): `dfs.heartbeat.interval "1s" to "2s" ""`,
		dn.Addr(): diskTimeoutProperty + ` "5m" to "none" "`,
	} {
		call := func(user, method string, req, resp proto.Message) error {
			return c.Proxy(rpc.Target{Address: address, Protocol: reconfigure.Protocol, User: user}).Call(t.Context(), method, req, resp, rpc.Idempotent)
		}
		root, status := superuser(t), &hdfspb.GetReconfigurationStatusResponseProto{}
		if err := call("nobody-special", "startReconfiguration", &hdfspb.StartReconfigurationRequestProto{}, &hdfspb.StartReconfigurationResponseProto{}); err == nil {
			t.Error("everybody may")
		}
		if err := call(root, "startReconfiguration", &hdfspb.StartReconfigurationRequestProto{}, &hdfspb.StartReconfigurationResponseProto{}); err != nil {
			t.Fatal(err)
		}
		if err := call(root, "getReconfigurationStatus", &hdfspb.GetReconfigurationStatusRequestProto{}, status); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, c := range status.GetChanges() {
			got += fmt.Sprintf("%s %q to %q %q", c.GetName(), c.GetOldValue(), c.GetNewValue(), c.GetErrorMessage())
		}
		if !strings.HasPrefix(got, want) || strings.HasSuffix(want, `to "none" "`) && strings.HasSuffix(got, `""`) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
