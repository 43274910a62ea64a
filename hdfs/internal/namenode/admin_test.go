package namenode

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Operators turn safe mode on and off; while it is on changes are refused and the
// namespace can be saved.
func TestSafeModeByHand(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	r.write("/f", 1, 100, dns...)
	set := func(user string, action hdfspb.SafeModeActionProto) (bool, error) {
		resp, err := r.nn.setSafeMode(r.as(user), &hdfspb.SetSafeModeRequestProto{Action: &action})
		return resp.GetResult(), err
	}
	save := func(user string) error {
		_, err := r.nn.saveNamespace(r.as(user), &hdfspb.SaveNamespaceRequestProto{})
		return err
	}
	_, err := set("alice", hdfspb.SafeModeActionProto_SAFEMODE_ENTER)
	wantClass(t, err, exception.AccessControl)
	wantClass(t, save("root"), exception.IO)
	if on, err := set("root", hdfspb.SafeModeActionProto_SAFEMODE_ENTER); err != nil || !on {
		t.Fatal(on, err)
	}
	_, err = r.nn.mkdirs(r.as("root"), &hdfspb.MkdirsRequestProto{Src: proto.String("/d"), Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true)})
	wantClass(t, err, exception.SafeMode)
	if n := len(r.locations("/f").GetBlocks()); n != 1 {
		t.Fatalf("%d blocks of a file in safe mode", n)
	}
	wantClass(t, save("alice"), exception.AccessControl)
	if names, err := r.fs.List("/nn/snapshots"); err != nil || len(names) > 0 {
		t.Fatalf("before it is saved there is %q, %v", names, err)
	}
	if err := save("root"); err != nil {
		t.Fatal(err)
	}
	if names, err := r.fs.List("/nn/snapshots"); err != nil || len(names) == 0 {
		t.Fatalf("nothing was saved: %v", err)
	}
	if on, err := set("root", hdfspb.SafeModeActionProto_SAFEMODE_LEAVE); err != nil || on {
		t.Fatal(on, err)
	}
	r.mkdirs("root", "/d")
}

// What dfsadmin -report asks for is answered.
func TestReportOfTheFileSystem(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	r.write("/one", 1, 100, dns...)
	r.write("/three", 3, 100, dns...)
	for _, d := range dns {
		if len(d.replicas) == 2 { // it has the only replica of /one
			d.dead = true
		}
	}
	r.clock.advance(31 * time.Second)
	for _, d := range dns {
		d.heartbeat(dns)
	}
	r.turn(dns)
	stats := must[*hdfspb.GetFsReplicatedBlockStatsResponseProto](t)(r.nn.getFsReplicatedBlockStats(r.as("alice"), nil))
	if stats.GetMissingBlocks() != 1 || stats.GetMissingReplOneBlocks() != 1 || stats.GetLowRedundancy() != 1 || stats.GetHighestPrioLowRedundancyBlocks() != 1 {
		t.Fatalf("%v", stats)
	}
	_, err := r.nn.getDatanodeStorageReport(r.as("alice"), &hdfspb.GetDatanodeStorageReportRequestProto{Type: hdfspb.DatanodeReportTypeProto_LIVE.Enum()})
	wantClass(t, err, exception.AccessControl)
	report := must[*hdfspb.GetDatanodeStorageReportResponseProto](t)(r.nn.getDatanodeStorageReport(r.as("root"), &hdfspb.GetDatanodeStorageReportRequestProto{Type: hdfspb.DatanodeReportTypeProto_LIVE.Enum()}))
	if all := report.GetDatanodeStorageReports(); len(all) != 1 || len(all[0].GetStorageReports()) != 1 || all[0].GetStorageReports()[0].GetRemaining() != all[0].GetDatanodeInfo().GetRemaining() {
		t.Fatalf("%v", report)
	}
	if last, now := report.GetDatanodeStorageReports()[0].GetDatanodeInfo().GetLastBlockReportTime(), uint64(r.clock.now().UnixMilli()); last == 0 || last > now {
		t.Errorf("its last full report came at %d ms, now it is %d", last, now)
	}
	if _, err := proto.Marshal(must[*hdfspb.GetFsECBlockGroupStatsResponseProto](t)(r.nn.getFsECBlockGroupStats(r.as("alice"), nil))); err != nil {
		t.Fatal(err)
	}
	if len(must[*hdfspb.GetSlowDatanodeReportResponseProto](t)(r.nn.getSlowDatanodeReport(r.as("alice"), nil)).GetDatanodeInfoProto()) != 0 {
		t.Fatal("a slow DataNode")
	}
}
