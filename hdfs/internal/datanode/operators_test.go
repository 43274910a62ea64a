package datanode

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// as is a context in which user calls.
func as(user string) context.Context {
	return rpc.WithCall(context.Background(), &rpc.Call{User: user})
}

func wantClass(t *testing.T, err error, class exception.Class) {
	t.Helper()
	var refused *exception.Error
	if !errors.As(err, &refused) || refused.Class != class {
		t.Fatalf("got the error %v, want a %s", err, class)
	}
}

// Operators are told about a DataNode and have it do what they want; others are refused.
func TestOperators(t *testing.T) {
	ended := make(chan struct{})
	f := newFixture(t, 1, func(_ int, c *Config) {
		c.Dirs, c.FS = []Directory{{Path: t.TempDir()}}, vfs.Default // which tells its room
		c.Superuser, c.Groups = "root", func(u string) []string { return map[string][]string{"ops": {"supergroup"}}[u] }
		c.Shutdown = func() { close(ended) }
	})
	dn := f.nodes[0]
	if resp, err := dn.getDatanodeInfo(as("alice"), nil); err != nil || resp.GetLocalInfo().GetSoftwareVersion() == "" {
		t.Errorf("%v, %v", resp, err)
	}
	_, err := dn.triggerBlockReport(as("alice"), &hdfspb.TriggerBlockReportRequestProto{Incremental: proto.Bool(false)})
	wantClass(t, err, exception.AccessControl)
	_, err = dn.shutdownDatanode(as("alice"), nil)
	wantClass(t, err, exception.AccessControl)
	_, err = dn.getVolumeReport(as("alice"), nil)
	wantClass(t, err, exception.AccessControl)
	if v, err := dn.getVolumeReport(as("ops"), nil); err != nil || len(v.GetVolumeInfo()) != 1 {
		t.Errorf("the volumes are %v, %v", v, err)
	}
	_, err = dn.deleteBlockPool(as("root"), &hdfspb.DeleteBlockPoolRequestProto{BlockPool: proto.String(dn.store.Identity().BlockPoolID)})
	wantClass(t, err, exception.IO)
	if _, err := dn.shutdownDatanode(as("root"), nil); err != nil {
		t.Fatal(err)
	}
	_, err = dn.shutdownDatanode(as("root"), nil)
	wantClass(t, err, exception.IO)
	<-ended
}

// A full report goes to the NameNode when an operator asks for one.
func TestTriggerBlockReport(t *testing.T) {
	f := newFixture(t, 1, func(_ int, c *Config) { c.Superuser = "root" })
	dn := f.nodes[0]
	f.nn.mu.Lock()
	before := f.nn.full[dn.UUID()]
	f.nn.mu.Unlock()
	if _, err := dn.triggerBlockReport(as("root"), &hdfspb.TriggerBlockReportRequestProto{Incremental: proto.Bool(false)}); err != nil {
		t.Fatal(err)
	}
	f.nn.wait("another full report", func() bool { return f.nn.full[dn.UUID()] > before })
}
