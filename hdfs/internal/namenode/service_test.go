package namenode

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// listed is a rig whose lists of hosts a test writes.
type listed struct {
	*rig
	include, exclude string
	change           func(*Config)
}

func newListed(t *testing.T, combined bool) *listed {
	t.Helper()
	dir := t.TempDir()
	l := &listed{include: filepath.Join(dir, "include"), exclude: filepath.Join(dir, "exclude")}
	l.change = func(c *Config) {
		c.Hosts, c.HostsExclude, c.HostsCombined = l.include, l.exclude, combined
		c.Replication = 2
	}
	for _, f := range []string{l.include, l.exclude} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if combined {
		if err := os.WriteFile(l.include, []byte("[]"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.rig = newRig(t, l.change)
	return l
}

func (l *listed) list(file, text string) {
	l.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	must[*hdfspb.RefreshNodesResponseProto](l.t)(l.nn.refreshNodes(l.as("root"), &hdfspb.RefreshNodesRequestProto{}))
}

func (r *rig) turns(n int, dns []*fakeDatanode) {
	r.t.Helper()
	for range n {
		r.turn(dns)
		r.clock.advance(time.Second)
	}
}

func (r *rig) reported(kind hdfspb.DatanodeReportTypeProto) (states map[string]hdfspb.DatanodeInfoProto_AdminState) {
	r.t.Helper()
	states = make(map[string]hdfspb.DatanodeInfoProto_AdminState)
	for _, d := range must[*hdfspb.GetDatanodeReportResponseProto](r.t)(r.nn.getDatanodeReport(r.as("root"), &hdfspb.GetDatanodeReportRequestProto{Type: kind.Enum()})).GetDi() {
		states[d.GetId().GetDatanodeUuid()] = d.GetAdminState()
	}
	return states
}

// holding returns the DataNodes that have a replica, and those that have none.
func holding(id uint64, dns []*fakeDatanode) (with, without []*fakeDatanode) {
	for _, d := range dns {
		if d.replicas[id] != nil {
			with = append(with, d)
		} else {
			without = append(without, d)
		}
	}
	return with, without
}

// A DataNode that is excluded hands its blocks over, can then be stopped, and
// comes back into service.
func TestDecommission(t *testing.T) {
	r := newListed(t, false)
	dns := r.datanodes(3)
	b := r.write("/f", 2, 100, dns...)
	with, without := holding(b.GetBlockId(), dns)
	leaving := with[0]
	_, err := r.nn.refreshNodes(r.as("alice"), &hdfspb.RefreshNodesRequestProto{})
	wantClass(t, err, exception.AccessControl)

	r.list(r.exclude, leaving.host)
	if got := r.reported(hdfspb.DatanodeReportTypeProto_DECOMMISSIONING); len(got) != 1 || got[leaving.uuid] != decommissioning {
		t.Fatalf("decommissioning: %v", got)
	}
	r.turns(3, dns)
	if without[0].replicas[b.GetBlockId()] == nil || leaving.replicas[b.GetBlockId()] == nil {
		t.Fatal("its replica was not copied, or deleted")
	}
	if got := r.reported(hdfspb.DatanodeReportTypeProto_ALL); got[leaving.uuid] != decommissioned {
		t.Fatalf("after its blocks were copied: %v", got)
	}
	locs := r.locations("/f").GetBlocks()[0].GetLocs()
	if len(locs) != 3 || locs[2].GetId().GetDatanodeUuid() != leaving.uuid || locs[2].GetAdminState() != decommissioned {
		t.Fatalf("locations: %v", locs)
	}
	for i := range 20 {
		path := fmt.Sprint("/g", i)
		r.create(path, "w", 3)
		for _, l := range r.addBlock(path, "w", nil).GetLocs() {
			if l.GetId().GetDatanodeUuid() == leaving.uuid {
				t.Fatal("a block was placed on it")
			}
		}
	}
	// The NameNode starts without it, and does not wait.
	leaving.dead = true
	r.nn.Close()
	r.open(r.change)
	for _, d := range dns {
		if d != leaving {
			d.register()
		}
	}
	r.check()
	if r.nn.InSafeMode() {
		t.Fatal("a start waits for a DataNode that has been decommissioned")
	}
	// It comes back: it is decommissioned again, and then taken into service.
	leaving.dead = false
	leaving.register()
	r.turns(3, dns)
	if got := r.reported(hdfspb.DatanodeReportTypeProto_ALL); got[leaving.uuid] != decommissioned {
		t.Fatalf("after its return: %v", got)
	}
	r.list(r.exclude, "")
	r.turns(3, dns)
	if got := r.reported(hdfspb.DatanodeReportTypeProto_LIVE); got[leaving.uuid] != inService || len(got) != 3 {
		t.Fatalf("back in service: %v", got)
	}
	if n := r.holders(b.GetBlockId(), dns); n != 2 {
		t.Fatalf("%d replicas after it came back into service, want 2", n)
	}
}

// A decommission waits for as long as a block has no place elsewhere.
func TestDecommissionWaits(t *testing.T) {
	r := newListed(t, false)
	dns := r.datanodes(2)
	b := r.write("/f", 2, 100, dns...)
	r.list(r.exclude, dns[0].host)
	r.turns(3, dns)
	if got := r.reported(hdfspb.DatanodeReportTypeProto_ALL); got[dns[0].uuid] != decommissioning {
		t.Fatalf("without another DataNode: %v", got)
	}
	dns = append(dns, r.datanode(3))
	r.turns(3, dns)
	if got := r.reported(hdfspb.DatanodeReportTypeProto_ALL); got[dns[0].uuid] != decommissioned || dns[2].replicas[b.GetBlockId()] == nil {
		t.Fatalf("with another DataNode: %v", got)
	}
}

// What a DataNode in maintenance has is neither copied nor read, but for blocks that
// would have no replica elsewhere; when the time is over it counts as dead.
func TestMaintenance(t *testing.T) {
	r := newListed(t, true)
	dns := r.datanodes(3)
	two := r.write("/two", 2, 100, dns...)
	with, _ := holding(two.GetBlockId(), dns)
	away := with[0]
	one := r.write("/one", 1, 100, dns...)
	for r.holders(one.GetBlockId(), []*fakeDatanode{away}) == 0 { // it must be there
		r.t.Helper()
		must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(r.as("root"), &hdfspb.DeleteRequestProto{Src: proto.String("/one"), Recursive: proto.Bool(false)}))
		one = r.write("/one", 1, 100, dns...)
	}
	until := r.clock.now().Add(time.Hour).UnixMilli()
	hosts := "["
	for i, d := range dns {
		if i > 0 {
			hosts += ","
		}
		hosts += fmt.Sprintf(`{"hostName":%q`, d.host)
		if d == away {
			hosts += fmt.Sprintf(`,"adminState":"IN_MAINTENANCE","maintenanceExpireTimeInMS":%d`, until)
		}
		hosts += "}"
	}
	r.list(r.include, hosts+"]")
	if got := r.reported(hdfspb.DatanodeReportTypeProto_ENTERING_MAINTENANCE); len(got) != 1 || got[away.uuid] != enteringMaintenance {
		t.Fatalf("entering maintenance: %v", got)
	}
	r.turns(4, dns)
	if got := r.reported(hdfspb.DatanodeReportTypeProto_IN_MAINTENANCE); len(got) != 1 {
		t.Fatalf("in maintenance: %v", r.reported(hdfspb.DatanodeReportTypeProto_ALL))
	}
	if n := r.holders(one.GetBlockId(), dns); n != 2 {
		t.Fatalf("%d replicas of a block whose only one was there, want another", n)
	}
	away.dead = true
	r.turns(40, dns)
	if n := r.holders(two.GetBlockId(), dns); n != 1 {
		t.Fatalf("%d live replicas of a block with another in maintenance, want no copy", n)
	}
	if locs := r.locations("/two").GetBlocks()[0].GetLocs(); len(locs) != 1 || locs[0].GetId().GetDatanodeUuid() == away.uuid {
		t.Fatalf("locations: %v", locs)
	}
	r.clock.advance(time.Hour)
	for _, d := range dns {
		d.heartbeat(dns)
	}
	r.turns(4, dns)
	if n := r.holders(two.GetBlockId(), dns); n != 2 {
		t.Fatalf("%d live replicas after the maintenance, want 2", n)
	}
}

// What the list of admitted hosts does not name is refused, given up and forgotten.
func TestNotAdmitted(t *testing.T) {
	r := newListed(t, false)
	dns := r.datanodes(3)
	b := r.write("/f", 2, 100, dns...)
	with, without := holding(b.GetBlockId(), dns)
	r.list(r.include, with[1].host+" "+without[0].host)
	if _, err := r.nn.Register(context.Background(), &clusterpb.RegisterRequest{Datanode: with[0].pb()}); err == nil {
		t.Fatal("a DataNode that the list does not name registered")
	}
	with[0].dead = true
	r.turns(4, dns)
	if n := r.holders(b.GetBlockId(), dns); n != 2 {
		t.Fatalf("%d replicas on DataNodes that are admitted, want 2", n)
	}
	if got := r.reported(hdfspb.DatanodeReportTypeProto_ALL); len(got) != 2 {
		t.Fatalf("it is not forgotten: %v", got)
	}
}

// A DataNode that is dead is noted in the log: no start waits for it, and after a
// week it is forgotten. If it returns it counts as any other.
func TestGoneDatanodes(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	dns[1].dead = true
	r.clock.advance(29 * time.Second)
	r.turn(dns)
	r.clock.advance(5 * time.Second)
	r.turn(dns)
	if got := r.reported(hdfspb.DatanodeReportTypeProto_DEAD); len(got) != 1 {
		t.Fatalf("dead: %v", got)
	}
	for range 2 { // from the log, then from a snapshot
		r.nn.Close()
		r.open()
		dns[0].register()
		r.check()
		if r.nn.InSafeMode() {
			t.Fatal("a start waits for a DataNode that was dead before")
		}
		if err := r.nn.journal.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	dns[1].dead = false
	dns[1].register()
	r.turn(dns)
	r.nn.Close()
	r.open()
	dns[0].register()
	r.check()
	if !r.nn.InSafeMode() {
		t.Fatal("a start does not wait for a DataNode that had returned")
	}
	r.clock.advance(31 * time.Second)
	dns[0].heartbeat(dns)
	r.check()
	if r.nn.InSafeMode() {
		t.Fatal("a start waits for ever")
	}
	r.clock.advance(7*24*time.Hour - time.Minute)
	dns[0].register()
	r.check()
	if got := r.reported(hdfspb.DatanodeReportTypeProto_ALL); len(got) != 2 {
		t.Fatalf("forgotten too early: %v", got)
	}
	r.clock.advance(2 * time.Minute)
	dns[0].register()
	r.check()
	if got := r.reported(hdfspb.DatanodeReportTypeProto_ALL); len(got) != 1 {
		t.Fatalf("not forgotten after a week: %v", got)
	}
	r.nn.Close()
	r.open()
	if got := r.reported(hdfspb.DatanodeReportTypeProto_ALL); len(got) != 1 {
		t.Fatalf("it is back after a start: %v", got)
	}
	// It may come back all the same.
	dns[0].register()
	dns[1].register()
	r.check()
	if got := r.reported(hdfspb.DatanodeReportTypeProto_LIVE); len(got) != 2 {
		t.Fatalf("live: %v", got)
	}
}

func copiesOrdered(dns []*fakeDatanode) (n int) {
	for _, d := range dns {
		for _, c := range d.seen {
			if c.GetKind() == clusterpb.Command_REPLICATE {
				n++
			}
		}
		d.seen = nil
	}
	return n
}

// After a cold start nothing is copied that a slow DataNode may still bring; after
// its dead time it is.
func TestColdStartIsNoStorm(t *testing.T) {
	for _, comes := range []bool{true, false} {
		change := func(c *Config) { c.DeadAfter = 10 * time.Minute }
		r := newRig(t, change)
		dns := r.datanodes(3)
		for i := range 5 {
			r.write(fmt.Sprint("/f", i), 2, 100, dns...)
		}
		r.nn.Close()
		r.open(change)
		slow := dns[2]
		slow.dead = true
		lacking := len(slow.replicas)
		if lacking == 0 {
			continue
		}
		dns[0].register()
		dns[1].register()
		copiesOrdered(dns)
		for range 9 {
			r.clock.advance(time.Minute)
			r.turns(2, dns)
		}
		if r.nn.InSafeMode() {
			t.Fatal("still in safe mode after nine minutes")
		}
		if n := copiesOrdered(dns); n != 0 {
			t.Fatalf("%d copies before the third DataNode can be dead", n)
		}
		if stats := must[*hdfspb.GetFsStatsResponseProto](t)(r.nn.getFsStats(r.as("root"), nil)); stats.GetUnderReplicated() != uint64(lacking) {
			t.Fatalf("%d blocks lack replicas, want %d", stats.GetUnderReplicated(), lacking)
		}
		if comes {
			slow.dead = false
			slow.register()
		}
		r.clock.advance(2 * time.Minute)
		for _, d := range dns {
			d.heartbeat(dns)
		}
		r.turns(4, dns)
		want := lacking
		if comes {
			want = 0
		}
		if n := copiesOrdered(dns); n != want {
			t.Fatalf("%d copies ordered, want %d; it has come: %t", n, want, comes)
		}
	}
}

// Copies are ordered at HDFS's pace, the most urgent first.
func TestCopiesArePaced(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.ReplicationWork, c.ReplicationStreams, c.RedundancyInterval = 2, 2, 3*time.Second
	})
	dns := r.datanodes(4)
	for i := range 60 {
		r.write(fmt.Sprint("/f", i), 3, 2<<20, dns...)
	}
	r.clock.advance(6 * time.Second)
	r.check()
	dead := dns[3]
	dead.dead = true
	var urgent uint64 // one block loses all but one replica
	for id := range dead.replicas {
		urgent = id
		break
	}
	with, _ := holding(urgent, dns[:3])
	rep := with[0].replicas[urgent]
	delete(with[0].replicas, urgent)
	r.clock.advance(31 * time.Second)
	for _, d := range dns[:3] {
		if resp, err := r.nn.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{Uuid: &d.uuid, Session: &d.session, Storages: []*clusterpb.Storage{{Capacity: proto.Uint64(2 << 40), Remaining: &d.room}}}); err != nil || len(resp.GetCommands()) > 0 {
			t.Fatal(resp, err)
		}
	}
	with[0].changed(clusterpb.ReplicaChange_DELETED, rep)
	lacking := len(dead.replicas)
	r.check() // the DataNode is dead
	ordered, turns := 0, 0
	for ; ordered < lacking+1 && turns < 1000; turns++ {
		r.check()
		for _, d := range dns[:3] {
			resp, err := r.nn.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{Uuid: &d.uuid, Session: &d.session, Storages: []*clusterpb.Storage{{Capacity: proto.Uint64(2 << 40), Remaining: &d.room}}})
			if err != nil {
				t.Fatal(err)
			}
			streams := 0
			for _, c := range resp.GetCommands() {
				if c.GetKind() != clusterpb.Command_REPLICATE {
					continue
				}
				streams++
				ordered++
				b := c.GetBlock()
				if turns == 0 && b.GetId() == urgent {
					urgent = 0
				}
				for _, to := range c.GetTargets() {
					for _, o := range dns[:3] {
						if o.uuid == to.GetUuid() {
							o.store(b.GetId(), b.GetGeneration(), b.GetLength(), clusterpb.ReplicaState_FINALIZED)
							o.changed(clusterpb.ReplicaChange_RECEIVED, o.replicas[b.GetId()])
						}
					}
				}
			}
			if streams > 4 {
				t.Fatalf("%d copies from one DataNode at a time", streams)
			}
		}
		if turns == 0 && urgent != 0 {
			t.Fatal("the block with one replica left does not come first")
		}
		if limit := 6 * (turns/3 + 1); ordered > limit {
			t.Fatalf("%d copies ordered in %d s, the pace allows %d", ordered, turns, limit)
		}
		r.clock.advance(time.Second)
	}
	if ordered < lacking {
		t.Fatalf("only %d of %d blocks were copied in %d s", ordered, lacking, turns)
	}
}
