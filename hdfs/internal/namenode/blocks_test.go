package namenode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

func TestReplicationThreeOnOneDatanode(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	b := r.write("/f", 3, 100, dns...)
	l := r.locations("/f")
	if len(l.GetBlocks()) != 1 || len(l.GetBlocks()[0].GetLocs()) != 1 || l.GetFileLength() != 100 {
		t.Fatalf("locations: %v", l)
	}
	id := l.GetBlocks()[0].GetLocs()[0].GetId()
	if id.GetXferPort() != dns[0].port || id.GetIpcPort() != dns[0].port || id.GetIpAddr() != dns[0].host {
		t.Fatalf("location: %v", id)
	}
	r.clock.advance(10 * time.Second)
	r.turn(dns)
	stats := must[*hdfspb.GetFsStatsResponseProto](t)(r.nn.getFsStats(context.Background(), nil))
	if stats.GetUnderReplicated() != 1 || stats.GetMissingBlocks() != 0 {
		t.Fatalf("stats: %v", stats)
	}
	// A second DataNode gets a copy as soon as it is there.
	dns = append(dns, r.datanode(2))
	r.clock.advance(time.Second)
	r.check()
	r.turn(dns)
	if n := r.holders(b.GetBlockId(), dns); n != 2 {
		t.Fatalf("%d holders, want 2", n)
	}
}

func TestPlacement(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(5)
	dns[1].room = 10 // less than a block
	r.turn(dns)
	for i := range 50 {
		path := fmt.Sprint("/", i)
		r.create(path, "c", 3)
		resp := must[*hdfspb.AddBlockResponseProto](t)(r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{
			Src: &path, ClientName: proto.String("c"),
			ExcludeNodes: []*hdfspb.DatanodeInfoProto{{Id: &hdfspb.DatanodeIDProto{DatanodeUuid: proto.String("dn-1")}}},
		}))
		seen := map[string]bool{}
		for _, l := range resp.GetBlock().GetLocs() {
			seen[l.GetId().GetDatanodeUuid()] = true
		}
		if len(seen) != 3 || seen["dn-1"] || seen["dn-2"] {
			t.Fatalf("chose %v", seen)
		}
	}
	// The caller's address in these tests is 10.0.0.9.
	local := r.datanode(9)
	local.heartbeat(nil)
	for i := range 20 {
		path := fmt.Sprint("/local", i)
		r.create(path, "c", 2)
		if first := r.addBlock(path, "c", nil).GetLocs()[0].GetId().GetDatanodeUuid(); first != "dn-9" {
			t.Fatalf("the first of the pipeline is %s, not on the writer's host", first)
		}
	}
	r.create("/none", "c", 1)
	var all []*hdfspb.DatanodeInfoProto
	for _, d := range append(dns, local) {
		all = append(all, &hdfspb.DatanodeInfoProto{Id: &hdfspb.DatanodeIDProto{DatanodeUuid: &d.uuid}})
	}
	_, err := r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{Src: proto.String("/none"), ClientName: proto.String("c"), ExcludeNodes: all})
	wantClass(t, err, exception.IO)
}

func TestDeadDatanodeIsReplaced(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(4)
	b := r.write("/f", 3, 100, dns...)
	var victim *fakeDatanode
	for _, d := range dns {
		if d.replicas[b.GetBlockId()] != nil {
			victim = d
		}
	}
	victim.dead = true
	for range 5 {
		r.clock.advance(10 * time.Second)
		r.turn(dns)
	}
	if n := r.holders(b.GetBlockId(), dns); n != 3 {
		t.Fatalf("%d live holders after one died, want 3", n)
	}
	report := must[*hdfspb.GetDatanodeReportResponseProto](t)(r.nn.getDatanodeReport(context.Background(), &hdfspb.GetDatanodeReportRequestProto{Type: hdfspb.DatanodeReportTypeProto_DEAD.Enum()}))
	if len(report.GetDi()) != 1 || report.GetDi()[0].GetId().GetDatanodeUuid() != victim.uuid {
		t.Fatalf("dead: %v", report)
	}
	// It comes back: one too many is trimmed.
	victim.dead = false
	for range 5 {
		r.turn(dns)
		r.clock.advance(time.Second)
	}
	if n := r.holders(b.GetBlockId(), dns); n != 3 {
		t.Fatalf("%d holders after it came back, want 3", n)
	}
}

// A DataNode is made anew at its address: what the old one held is copied from elsewhere, or missing.
func TestWhatWasOnADatanodeMadeAnew(t *testing.T) {
	for _, c := range []struct {
		replication uint32
		missing     uint64
		holders     int
	}{{3, 0, 3}, {1, 1, 0}} {
		r := newRig(t)
		dns := r.datanodes(4)
		id := r.write("/f", c.replication, 100, dns...).GetBlockId()
		r.clock.advance(6 * time.Second)
		r.turn(dns)
		at := slices.IndexFunc(dns, func(d *fakeDatanode) bool { return d.replicas[id] != nil })
		anew := *dns[at]
		anew.uuid, anew.replicas = "anew", map[uint64]*clusterpb.Replica{}
		dns[at] = &anew
		anew.register()
		for range 5 {
			r.clock.advance(6 * time.Second)
			r.turn(dns)
		}
		if n := r.holders(id, dns); n != c.holders {
			t.Errorf("replication %d: %d holders, want %d", c.replication, n, c.holders)
		}
		stats := must[*hdfspb.GetFsStatsResponseProto](t)(r.nn.getFsStats(context.Background(), nil))
		if stats.GetMissingBlocks() != c.missing {
			t.Errorf("replication %d: %d blocks are missing, want %d", c.replication, stats.GetMissingBlocks(), c.missing)
		}
	}
}

func TestCopyIsRetried(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	b := r.write("/f", 1, 100, dns...)
	r.replicate("/f", 2)
	r.clock.advance(6 * time.Second)
	r.check()
	// The command is lost with the heartbeat's answer.
	sent := 0
	for _, d := range dns {
		resp, err := r.nn.Heartbeat(context.Background(), &clusterpb.HeartbeatRequest{Uuid: &d.uuid, Session: &d.session, Storages: []*clusterpb.Storage{{Remaining: &d.room}}})
		if err != nil {
			t.Fatal(err)
		}
		sent += len(resp.GetCommands())
	}
	if sent != 1 {
		t.Fatalf("%d commands, want one copy", sent)
	}
	r.turn(dns)
	if n := r.holders(b.GetBlockId(), dns); n != 1 {
		t.Fatalf("copied again before the time-out: %d holders", n)
	}
	for range 14 {
		r.clock.advance(10 * time.Second)
		r.turn(dns)
	}
	if n := r.holders(b.GetBlockId(), dns); n != 2 {
		t.Fatalf("%d holders after the time-out, want 2", n)
	}
}

func TestCorruptReplicaIsReplaced(t *testing.T) {
	for _, spare := range []int{0, 1} {
		r := newRig(t)
		dns := r.datanodes(3 + spare)
		b := r.write("/f", 3, 100, dns...)
		var bad *fakeDatanode
		for _, d := range dns {
			if d.replicas[b.GetBlockId()] != nil {
				bad = d
			}
		}
		must[*hdfspb.ReportBadBlocksResponseProto](t)(r.nn.reportBadBlocks(r.as("root"), &hdfspb.ReportBadBlocksRequestProto{Blocks: []*hdfspb.LocatedBlockProto{{
			B: b, Locs: []*hdfspb.DatanodeInfoProto{{Id: &hdfspb.DatanodeIDProto{DatanodeUuid: &bad.uuid}}},
		}}}))
		for _, l := range r.locations("/f").GetBlocks()[0].GetLocs() {
			if l.GetId().GetDatanodeUuid() == bad.uuid {
				t.Fatal("a corrupt replica is offered")
			}
		}
		for range 4 {
			r.clock.advance(time.Second)
			r.turn(dns)
		}
		if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 3 || r.holders(b.GetBlockId(), dns) != 3 {
			t.Fatalf("spare %d: %d good replicas, %d holders, want 3", spare, n, r.holders(b.GetBlockId(), dns))
		}
		deleted := false
		for _, c := range bad.seen {
			deleted = deleted || c.GetKind() == clusterpb.Command_DELETE
		}
		if !deleted {
			t.Fatal("the corrupt replica was never deleted")
		}
	}
}

// A DataNode refuses to delete a replica that is newer than the one it is told to delete.
// What it says of that, in a full report or by itself, ends the order, or the block would never
// have its replicas.
func TestDeletionOfAnOlderReplicaEnds(t *testing.T) {
	for name, say := range map[string]func(*fakeDatanode, *hdfspb.ExtendedBlockProto){
		"in a full report": func(d *fakeDatanode, _ *hdfspb.ExtendedBlockProto) { d.report() },
		"by itself":        (*fakeDatanode).receive,
	} {
		r := newRig(t)
		dns := r.datanodes(3)
		b := r.write("/f", 3, 100, dns...)
		m, d := r.nn.blocks, dns[0]
		m.mu.Lock()
		n := m.nodes[d.uuid]
		m.deleteFrom(n, b.GetBlockId(), b.GetGenerationStamp()-1)
		m.drop(b.GetBlockId(), n)
		m.mu.Unlock()
		say(d, b)
		m.mu.Lock()
		left := len(n.deletions)
		m.mu.Unlock()
		if left != 0 {
			t.Errorf("%s: %d deletions are still ordered", name, left)
		}
		if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 3 {
			t.Errorf("%s: %d good replicas, want 3", name, n)
		}
	}
}

// A replica whose deletion is ordered does not count, whatever its DataNode says of it, until the
// deletion is done: else the next one to go would be the last.
func TestReplicaToBeDeletedDoesNotCount(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	b := r.write("/f", 2, 100, dns...)
	stays, goes := dns[0], dns[1]
	goes.room = 1 << 30
	goes.storages = []*clusterpb.Storage{{Id: proto.String("DS-1"), Capacity: proto.Uint64(2 << 40), Remaining: &goes.room}} // told by enroll, too
	r.turn(dns)
	r.replicate("/f", 1)
	r.clock.advance(6 * time.Second)
	r.check()
	goes.enroll()
	goes.changed(clusterpb.ReplicaChange_RECEIVED, goes.replicas[b.GetBlockId()])
	goes.report()
	if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 1 {
		t.Errorf("%d locations while a deletion is ordered, want 1", n)
	}
	stays.room = 1 << 20
	for range 2 {
		stays.heartbeat(dns)
		r.check()
	}
	r.turn(dns)
	if n := r.holders(b.GetBlockId(), dns); n != 1 {
		t.Errorf("%d holders, want 1", n)
	}
	// Once it is deleted the block may come back.
	goes.receive(b)
	if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 2 {
		t.Errorf("%d locations of a block that has come back, want 2", n)
	}
}

// Replicas that were to be deleted when there were others are kept if those are gone when their
// DataNodes can be told: they are the last.
func TestDeletionsThatWaitedSpareTheLastReplica(t *testing.T) {
	freeze := func(r *rig, action hdfspb.SafeModeActionProto) {
		must[*hdfspb.SetSafeModeResponseProto](r.t)(r.nn.setSafeMode(r.as("root"), &hdfspb.SetSafeModeRequestProto{Action: action.Enum()}))
	}
	for name, wait := range map[string]func(r *rig, stays *fakeDatanode, goes []*fakeDatanode){
		"in safe mode": func(r *rig, stays *fakeDatanode, goes []*fakeDatanode) {
			freeze(r, hdfspb.SafeModeActionProto_SAFEMODE_ENTER)
			stays.dead = true
			for range 5 {
				r.turns(10, goes)
			}
			if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 2 {
				r.t.Errorf("%d locations in safe mode, want 2", n)
			}
			freeze(r, hdfspb.SafeModeActionProto_SAFEMODE_LEAVE)
		},
		"in safe mode, and nothing is heard": func(r *rig, stays *fakeDatanode, goes []*fakeDatanode) {
			freeze(r, hdfspb.SafeModeActionProto_SAFEMODE_ENTER)
			stays.dead = true
			r.clock.advance(29 * time.Second)
			for _, d := range goes {
				d.r.nn.blocks.nodes[d.uuid].lastSeen = r.clock.now()
			}
			r.clock.advance(2 * time.Second)
			r.check()
			freeze(r, hdfspb.SafeModeActionProto_SAFEMODE_LEAVE)
		},
		"the loss is not looked at yet": func(r *rig, stays *fakeDatanode, _ []*fakeDatanode) {
			stays.dead = true
			r.nn.blocks.mu.Lock()
			r.nn.blocks.lose(r.nn.blocks.nodes[stays.uuid])
			r.nn.blocks.mu.Unlock()
		},
		"all are dead": func(r *rig, stays *fakeDatanode, goes []*fakeDatanode) {
			r.clock.advance(31 * time.Second)
			r.check()
			stays.dead = true
			for _, d := range goes {
				d.enroll()
				d.heartbeat(goes)
				d.report()
			}
			if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 2 {
				r.t.Errorf("%d locations after their return, want 2", n)
			}
		},
		"they start anew": func(r *rig, stays *fakeDatanode, goes []*fakeDatanode) {
			r.clock.advance(29 * time.Second)
			for _, d := range goes {
				d.enroll()
			}
			r.clock.advance(2 * time.Second)
			stays.dead = true
			r.check()
			for _, d := range goes {
				d.heartbeat(goes)
				d.report()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			dns := r.datanodes(3)
			b := r.write("/f", 3, 100, dns...)
			stray := r.write("/stray", 3, 100, dns...)
			r.replicate("/f", 1)
			must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(r.as("root"), &hdfspb.DeleteRequestProto{Src: proto.String("/stray"), Recursive: proto.Bool(false)}))
			r.clock.advance(6 * time.Second)
			r.check()
			at := slices.IndexFunc(dns, func(d *fakeDatanode) bool {
				_, goes := r.nn.blocks.nodes[d.uuid].deletions[b.GetBlockId()]
				return !goes
			})
			goes := slices.Delete(slices.Clone(dns), at, at+1)
			wait(r, dns[at], goes)
			for range 4 {
				r.turns(10, goes)
			}
			if n, known := r.holders(b.GetBlockId(), goes), len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 1 || known != 1 {
				t.Errorf("%d replicas of the block are left, %d known, want 1", n, known)
			}
			if n := r.holders(stray.GetBlockId(), goes); n != 0 {
				t.Errorf("%d replicas of a deleted file's block are left", n)
			}
			if n := len(r.nn.blocks.doubted); n != 0 {
				t.Errorf("%d blocks are in doubt", n)
			}
		})
	}
}

// A deletion that is doubted while its block is written is given up with the last DataNode that writes, and
// else waits for the end of the block.
func TestDoubtOfABlockBeingWritten(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("the writing DataNode is lost: ", lost), func(t *testing.T) {
			r := newRig(t)
			dns := r.datanodes(2)
			b := r.write("/f", 2, 100, dns...)
			id := b.GetBlockId()
			r.replicate("/f", 1)
			r.clock.advance(6 * time.Second)
			r.check()
			m := r.nn.blocks
			at := slices.IndexFunc(dns, func(d *fakeDatanode) bool { return len(m.nodes[d.uuid].deletions) == 1 })
			goes, writes := dns[at], dns[1-at]
			must[*hdfspb.AppendResponseProto](t)(r.nn.append(r.as("root"), &hdfspb.AppendRequestProto{Src: proto.String("/f"), ClientName: proto.String("w")}))
			if lost {
				m.mu.Lock()
				m.lose(m.nodes[writes.uuid])
				m.mu.Unlock()
			} else {
				writes.store(id, b.GetGenerationStamp(), 150, clusterpb.ReplicaState_BEING_WRITTEN)
				writes.changed(clusterpb.ReplicaChange_RECEIVING, writes.replicas[id])
			}
			goes.heartbeat(dns)
			if len(m.doubted) != 1 || goes.replicas[id] == nil {
				t.Fatal("the deletion is not doubted")
			}
			r.check()
			_, ordered := m.nodes[goes.uuid].deletions[id]
			if len(m.doubted) != 0 || ordered == lost {
				t.Errorf("%d blocks in doubt, the deletion is ordered: %t", len(m.doubted), ordered)
			}
			goes.heartbeat(dns)
			if goes.replicas[id] == nil {
				t.Fatal("the replica was deleted while the block was written")
			}
			if lost {
				return
			}
			b.NumBytes = proto.Uint64(150)
			writes.receive(b)
			if !r.complete("/f", "w", b) {
				t.Fatal("not closed")
			}
			r.check()
			goes.heartbeat(dns)
			if goes.replicas[id] != nil {
				t.Error("the replica was not deleted after the end of the block")
			}
		})
	}
}

// A deletion that was doubted is carried out if its file is deleted, too.
func TestDoubtEndsWithTheFile(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	b := r.write("/f", 2, 100, dns...)
	r.replicate("/f", 1)
	r.clock.advance(6 * time.Second)
	r.check()
	m := r.nn.blocks
	at := slices.IndexFunc(dns, func(d *fakeDatanode) bool { return len(m.nodes[d.uuid].deletions) == 1 })
	m.mu.Lock()
	m.lose(m.nodes[dns[1-at].uuid])
	m.mu.Unlock()
	dns[at].heartbeat(dns)
	if len(m.doubted) != 1 || dns[at].replicas[b.GetBlockId()] == nil {
		t.Fatal("the deletion of the last replica is not doubted")
	}
	must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(r.as("root"), &hdfspb.DeleteRequestProto{Src: proto.String("/f"), Recursive: proto.Bool(false)}))
	r.check()
	dns[at].heartbeat(dns)
	if len(m.doubted) != 0 || dns[at].replicas[b.GetBlockId()] != nil {
		t.Error("the replica of a deleted file was not deleted")
	}
}

// A deletion that is ordered while its DataNode's full report comes outlives the report.
func TestDeletionDuringAFullReport(t *testing.T) {
	r := newRig(t)
	d := r.datanodes(1)[0]
	b := r.write("/f", 1, 100, d)
	part := func(i uint32, replicas ...*clusterpb.Replica) {
		must[*clusterpb.BlockReportResponse](t)(r.nn.BlockReport(context.Background(), &clusterpb.BlockReportRequest{
			Uuid: &d.uuid, Session: &d.session, Sequence: d.next(), ReportId: proto.Uint64(1), Part: &i, Parts: proto.Uint32(2), Replicas: replicas,
		}))
	}
	part(0, d.replicas[b.GetBlockId()])
	must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(r.as("root"), &hdfspb.DeleteRequestProto{Src: proto.String("/f"), Recursive: proto.Bool(false)}))
	part(1)
	r.turn([]*fakeDatanode{d})
	if d.replicas[b.GetBlockId()] != nil {
		t.Error("the replica was not deleted")
	}
}

// A copy that was ordered before changes were refused, and is late when they are taken again, is
// ordered anew and not twice.
func TestLateCopiesAreGivenUp(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	b := r.write("/f", 1, 100, dns...)
	r.replicate("/f", 2)
	r.clock.advance(6 * time.Second)
	r.check()
	r.nn.blocks.freeze(true)
	r.turns(int(r.nn.cfg.CopyTimeout/time.Second)+2, dns)
	r.nn.blocks.freeze(false)
	copiesOrdered(dns)
	for _, d := range dns {
		d.heartbeat(nil)
	}
	if n := copiesOrdered(dns); n != 0 {
		t.Errorf("%d late copies were ordered", n)
	}
	r.turns(3, dns)
	if n := copiesOrdered(dns); n != 1 || r.holders(b.GetBlockId(), dns) != 2 {
		t.Errorf("%d copies were ordered, want 1; %d holders", n, r.holders(b.GetBlockId(), dns))
	}
}

func TestLastReplicaIsKept(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(3)
	b := r.write("/f", 1, 100, dns...)
	var holder *fakeDatanode
	for _, d := range dns {
		if d.replicas[b.GetBlockId()] != nil {
			holder = d
		}
	}
	holder.changed(clusterpb.ReplicaChange_CORRUPT, holder.replicas[b.GetBlockId()])
	for range 50 {
		r.clock.advance(5 * time.Second)
		r.turn(dns)
	}
	if r.holders(b.GetBlockId(), dns) != 1 {
		t.Fatal("the last replica was deleted")
	}
	l := r.locations("/f").GetBlocks()[0]
	if !l.GetCorrupt() || len(l.GetLocs()) != 1 {
		t.Fatalf("location of a corrupt last replica: %v", l)
	}
}

func TestStaleAndWrongReplicas(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	b := r.write("/f", 1, 100, dns...)
	var other *fakeDatanode
	for _, d := range dns {
		if d.replicas[b.GetBlockId()] == nil {
			other = d
		}
	}
	for _, wrong := range []*clusterpb.Replica{
		{Block: blockPB(b.GetBlockId(), b.GetGenerationStamp()-1, 100), State: clusterpb.ReplicaState_FINALIZED.Enum()},
		{Block: blockPB(b.GetBlockId(), b.GetGenerationStamp(), 99), State: clusterpb.ReplicaState_FINALIZED.Enum()},
		{Block: blockPB(b.GetBlockId(), b.GetGenerationStamp(), 100), State: clusterpb.ReplicaState_WAITING_RECOVERY.Enum()},
	} {
		other.replicas[b.GetBlockId()] = wrong
		other.report()
		if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 1 {
			t.Fatalf("%v is offered to readers", wrong)
		}
		r.turn(dns)
		r.turn(dns)
		if other.replicas[b.GetBlockId()] != nil {
			t.Fatalf("%v was not deleted though there is a good replica", wrong)
		}
	}
}

func TestOrphans(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	b := r.write("/f", 1, 100, dns...)
	r.create("/open", "w", 1)
	open := r.addBlock("/open", "w", nil).GetB()
	dns[0].store(open.GetBlockId(), open.GetGenerationStamp(), 5, clusterpb.ReplicaState_BEING_WRITTEN)
	must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(r.as("root"), &hdfspb.DeleteRequestProto{Src: proto.String("/f"), Recursive: proto.Bool(false)}))
	future := open.GetBlockId() + 1000
	dns[0].store(future, 1, 7, clusterpb.ReplicaState_FINALIZED)
	dns[0].store(future+1, 1, 7, clusterpb.ReplicaState_BEING_WRITTEN)
	dns[0].store(1<<62, 1<<62, 7, clusterpb.ReplicaState_FINALIZED)
	dns[0].report()
	for range 4 {
		r.clock.advance(11 * time.Second)
		r.turn(dns)
	}
	if dns[0].replicas[b.GetBlockId()] != nil {
		t.Error("a deleted file's replica is still there")
	}
	if dns[0].replicas[open.GetBlockId()] == nil {
		t.Error("a replica under construction was deleted")
	}
	for _, id := range []uint64{future, future + 1, 1 << 62} {
		if dns[0].replicas[id] != nil {
			t.Errorf("the replica of block %d, which was never allocated, is still there", id)
		}
	}
}

// What DataNodes have of blocks, and generations, that were never given out is
// in the way of no later block, nor after another start.
func TestCountersOutrunWhatIsReported(t *testing.T) {
	r := newRig(t)
	d := r.datanodes(1)[0]
	b := r.write("/f", 1, 100, d)
	planted := b.GetBlockId() + 1000
	d.store(planted, b.GetGenerationStamp()+100, 7, clusterpb.ReplicaState_FINALIZED)
	d.report()
	b = r.write("/g", 1, 100, d)
	if b.GetBlockId() <= planted || b.GetGenerationStamp() <= 1100 {
		t.Errorf("block %d of generation %d follows a report of %d", b.GetBlockId(), b.GetGenerationStamp(), planted)
	}
	far := &clusterpb.Replica{Block: blockPB(planted+5000, b.GetGenerationStamp()+50_000, 7), State: clusterpb.ReplicaState_BEING_WRITTEN.Enum()}
	d.changed(clusterpb.ReplicaChange_RECEIVING, far)
	// Absurd numbers don't use the counters up.
	d.changed(clusterpb.ReplicaChange_RECEIVING, &clusterpb.Replica{Block: blockPB(1<<62, 1<<62, 7), State: clusterpb.ReplicaState_BEING_WRITTEN.Enum()})
	r.nn.Close()
	r.open()
	d.register()
	b = r.write("/h", 1, 100, d)
	if id, g := far.GetBlock().GetId(), far.GetBlock().GetGeneration(); b.GetBlockId() <= id || b.GetGenerationStamp() <= g || b.GetBlockId() >= 1<<61 || b.GetGenerationStamp() >= 1<<61 {
		t.Errorf("block %d of generation %d follows a report of %d and %d", b.GetBlockId(), b.GetGenerationStamp(), id, g)
	}
}

// A DataNode that was away still has the replica that it was writing, of an
// older generation.
func TestStaleReplicaBeingWrittenIsDeleted(t *testing.T) {
	r := newRig(t)
	d := r.datanodes(2)
	b := r.write("/f", 1, 100, d...)
	for range 3 {
		r.clock.advance(6 * time.Second)
		r.turn(d)
	}
	other := d[0]
	if other.replicas[b.GetBlockId()] != nil {
		other = d[1]
	}
	other.store(b.GetBlockId(), b.GetGenerationStamp()-1, 50, clusterpb.ReplicaState_BEING_WRITTEN)
	other.register()
	for range 3 {
		r.turn(d)
	}
	if other.replicas[b.GetBlockId()] != nil || r.holders(b.GetBlockId(), d) != 1 {
		t.Fatal("the stale replica is still there, or the good one is gone")
	}
}

func TestSafeMode(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	b := r.write("/f", 2, 100, dns...)
	r.write("/gone", 2, 100, dns...)
	must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(r.as("root"), &hdfspb.DeleteRequestProto{Src: proto.String("/gone"), Recursive: proto.Bool(false)}))
	r.nn.Close()
	r.open()
	if !r.nn.InSafeMode() {
		t.Fatal("no safe mode after a start")
	}
	if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 0 {
		t.Fatalf("%d locations before any report", n)
	}
	dns[0].register()
	r.clock.advance(10 * time.Second)
	dns[0].seen = nil
	r.turn(dns[:1])
	if !r.nn.InSafeMode() || len(dns[0].seen) > 0 {
		t.Fatalf("commands %v while a DataNode's report is awaited", dns[0].seen)
	}
	if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 1 {
		t.Fatalf("%d locations after a report", n)
	}
	r.mkdirs("root", "/still/works")
	dns[1].register()
	for range 3 {
		r.turn(dns)
	}
	if r.nn.InSafeMode() {
		t.Fatal("safe mode though all have reported")
	}
	if n := len(dns[0].replicas); n != 1 {
		t.Fatalf("%d replicas, want that of the deleted file gone", n)
	}
	if r.holders(b.GetBlockId(), dns) != 2 {
		t.Fatal("a good replica is gone")
	}

	// One that never comes back ends the wait by the time-out.
	r.nn.Close()
	r.open()
	dns[0].register()
	r.clock.advance(31 * time.Second)
	r.turn(dns[:1])
	if r.nn.InSafeMode() {
		t.Fatal("safe mode after its time-out")
	}
}

// A start that asks for a share of the blocks, and for DataNodes, waits for them beyond its time.
func TestSafeModeThreshold(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	r.write("/one", 2, 100, dns...)
	two := r.write("/two", 2, 100, dns...)
	for _, c := range []struct {
		name   string
		change func(*Config)
		nodes  int  // that come
		ends   bool // the wait
	}{
		{"as ever", func(*Config) {}, 1, true},
		{"all blocks", func(c *Config) { c.SafeModeShare = 1 }, 1, false},
		{"half of them", func(c *Config) { c.SafeModeShare = 0.5 }, 1, true},
		{"half of them, twice", func(c *Config) { c.SafeModeShare, c.SafeModeReplicas = 0.5, 2 }, 1, false},
		{"half of them, twice, and they come", func(c *Config) { c.SafeModeShare, c.SafeModeReplicas = 0.5, 2 }, 2, true},
		{"all blocks, and they come", func(c *Config) { c.SafeModeShare = 1 }, 2, true},
		{"two DataNodes", func(c *Config) { c.SafeModeNodes = 2 }, 1, false},
		{"two DataNodes, and they come", func(c *Config) { c.SafeModeNodes = 2 }, 2, true},
		{"never", func(c *Config) { c.SafeModeShare = 1.5 }, 2, false},
	} {
		delete(dns[0].replicas, two.GetBlockId())
		r.nn.Close()
		r.open(c.change)
		for _, d := range dns[:c.nodes] {
			d.register()
		}
		r.clock.advance(29 * time.Second)
		r.turn(dns[:c.nodes])
		r.clock.advance(2 * time.Second)
		for range 4 {
			r.turn(dns[:c.nodes])
			r.clock.advance(2 * time.Second)
		}
		if r.nn.InSafeMode() == c.ends {
			t.Errorf("%s: safe mode %t", c.name, !c.ends)
		}
		if c.ends {
			continue
		}
		must[*hdfspb.SetSafeModeResponseProto](t)(r.nn.setSafeMode(r.as("root"), &hdfspb.SetSafeModeRequestProto{Action: hdfspb.SafeModeActionProto_SAFEMODE_LEAVE.Enum()}))
		if r.nn.InSafeMode() {
			t.Errorf("%s: an operator can't end it", c.name)
		}
	}
}

func TestAddBlockWaitsForDatanodesAfterAStart(t *testing.T) {
	r := newRig(t)
	r.datanodes(1)
	r.create("/f", "w", 1)
	r.nn.Close()
	r.open(func(c *Config) { c.CompleteWait = time.Minute })
	got := make(chan error)
	go func() {
		_, err := r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{Src: proto.String("/f"), ClientName: proto.String("w")})
		got <- err
	}()
	r.datanode(1)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// The first DataNode that is back gets no block alone while the others are on their way, unless they take
// too long.
func TestAddBlockWaitsForAllDatanodesAfterAStart(t *testing.T) {
	r := newRig(t)
	r.datanodes(3)
	r.create("/f", "w", 3)
	add := func(ctx context.Context) (*hdfspb.AddBlockResponseProto, error) {
		return r.nn.addBlock(ctx, &hdfspb.AddBlockRequestProto{Src: proto.String("/f"), ClientName: proto.String("w")})
	}
	r.nn.Close()
	r.open(func(c *Config) { c.CompleteWait = time.Minute })
	r.datanode(1)
	gone, cancel := context.WithCancel(r.as("root"))
	cancel()
	if resp, err := add(gone); !errors.Is(err, context.Canceled) {
		t.Fatalf("a client that is gone got %v, %v", resp.GetBlock().GetLocs(), err)
	}
	for _, n := range r.nn.blocks.nodes {
		if left := n.scheduled.count(r.clock.now()); left != 0 {
			t.Errorf("%d blocks are scheduled on %s", left, n.dn.UUID)
		}
	}
	got := make(chan *hdfspb.AddBlockResponseProto)
	go func() {
		resp, err := add(r.as("root"))
		if err != nil {
			t.Error(err)
		}
		got <- resp
	}()
	r.datanode(2)
	r.datanode(3)
	if n := len((<-got).GetBlock().GetLocs()); n != 3 {
		t.Errorf("a block on %d DataNodes", n)
	}
	r.nn.Close()
	r.open()
	r.datanode(1)
	r.create("/g", "w", 3)
	resp := must[*hdfspb.AddBlockResponseProto](t)(r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{Src: proto.String("/g"), ClientName: proto.String("w")}))
	if n := len(resp.GetBlock().GetLocs()); n != 1 {
		t.Errorf("a block on %d DataNodes, one is back", n)
	}
}

func TestReadWaitsForReportsAfterAStart(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	r.write("/f", 1, 100, dns...)
	r.nn.Close()
	r.open(func(c *Config) { c.CompleteWait = time.Minute })
	got := make(chan *hdfspb.LocatedBlocksProto)
	go func() { got <- r.locations("/f") }()
	dns[0].register()
	if l := <-got; len(l.GetBlocks()) != 1 || len(l.GetBlocks()[0].GetLocs()) != 1 {
		t.Fatalf("located: %v", l)
	}
}

// TestLogOfANewerVersion finds an operation in the log that nobody here knows:
// the file system must not open as if it were not there.
func TestLogOfANewerVersion(t *testing.T) {
	r := newRig(t)
	r.mkdirs("root", "/a")
	if _, err := r.nn.propose(t.Context(), &nspb.Entry{}); err == nil {
		t.Fatal("an entry without an operation was applied")
	}
	if _, err := r.nn.mkdirs(r.as("root"), &hdfspb.MkdirsRequestProto{Src: proto.String("/b"), Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true)}); err == nil {
		t.Fatal("the state went on after an entry that it could not follow")
	}
	r.nn.Close()
	nn, err := Open(t.Context(), Config{Dir: "/nn", FS: r.fs, Superuser: "root"})
	if err == nil {
		nn.Close()
		t.Fatal("opened")
	}
	if !strings.Contains(err.Error(), "run a version at least as new") {
		t.Fatalf("the error does not say what to do: %v", err)
	}
}

func TestListingWithLocations(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(3)
	for i := range 600 {
		r.write(fmt.Sprintf("/d/%03d", i), 3, 100, dns...)
	}
	after, n, pages := []byte{}, 0, 0
	for {
		list := must[*hdfspb.GetListingResponseProto](t)(r.nn.getListing(r.as("root"), &hdfspb.GetListingRequestProto{Src: proto.String("/d"), StartAfter: after, NeedLocation: proto.Bool(true)})).GetDirList()
		pages++
		for _, fs := range list.GetPartialListing() {
			if want := fmt.Sprintf("%03d", n); string(fs.GetPath()) != want || len(fs.GetLocations().GetBlocks()) != 1 || len(fs.GetLocations().GetBlocks()[0].GetLocs()) != 3 {
				t.Fatalf("entry %d: %v", n, fs)
			}
			n++
		}
		if int(list.GetRemainingEntries()) != 600-n {
			t.Fatalf("%d remain after %d of 600", list.GetRemainingEntries(), n)
		}
		if list.GetRemainingEntries() == 0 {
			break
		}
		after = list.GetPartialListing()[len(list.GetPartialListing())-1].GetPath()
	}
	if n != 600 || pages != 2 {
		t.Fatalf("%d entries in %d pages", n, pages)
	}
}

func TestFullReportInParts(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	d := dns[0]
	b1 := r.write("/1", 1, 10, d)
	b2 := r.write("/2", 1, 10, d)
	r.clock.advance(time.Hour)
	part := func(id uint64, n, of uint32, reps ...*clusterpb.Replica) error {
		_, err := r.nn.BlockReport(context.Background(), &clusterpb.BlockReportRequest{
			Uuid: &d.uuid, Session: &d.session, Sequence: proto.Uint64(d.sequence + 1), ReportId: &id, Part: &n, Parts: &of, Replicas: reps,
		})
		if err == nil {
			d.sequence++ // what is refused has no number
		}
		return err
	}
	located := func(path string) int { return len(r.locations(path).GetBlocks()[0].GetLocs()) }
	if err := part(7, 0, 2, d.replicas[b1.GetBlockId()]); err != nil {
		t.Fatal(err)
	}
	if located("/2") != 1 {
		t.Fatal("the first part of two took away what the second may name")
	}
	if err := part(7, 1, 2); err != nil {
		t.Fatal(err)
	}
	if located("/1") != 1 || located("/2") != 0 {
		t.Fatalf("after the report: %d and %d locations, want 1 and 0", located("/1"), located("/2"))
	}
	if err := part(8, 1, 2); err == nil {
		t.Fatal("a second part without its first was taken")
	}
	if err := part(9, 3, 2); err == nil {
		t.Fatal("part 3 of 2 was taken")
	}
	// What came after the DataNode may have made its list is not taken away.
	d.receive(b2)
	if err := part(10, 0, 1, d.replicas[b1.GetBlockId()]); err != nil {
		t.Fatal(err)
	}
	if located("/2") != 1 {
		t.Fatal("a report took away what was received just now")
	}
}

// A report that comes again, or late, changes nothing: neither within its session nor
// out of an earlier one.
func TestReportsAreCarriedOutOnce(t *testing.T) {
	r := newRig(t)
	d := r.datanodes(1)[0]
	b := r.write("/f", 1, 100, d)
	id := b.GetBlockId()
	located := func() int { return len(r.locations("/f").GetBlocks()[0].GetLocs()) }
	change := func(session, sequence uint64, kind clusterpb.ReplicaChange_Kind) error {
		_, err := r.nn.BlocksChanged(context.Background(), &clusterpb.BlocksChangedRequest{
			Uuid: &d.uuid, Session: &session, Sequence: &sequence, Changes: []*clusterpb.ReplicaChange{{Kind: kind.Enum(), Replica: d.replicas[id]}},
		})
		return err
	}
	received := d.sequence
	if err := change(d.session, *d.next(), clusterpb.ReplicaChange_DELETED); err != nil {
		t.Fatal(err)
	}
	deleted := d.sequence
	for range 2 {
		for _, sequence := range []uint64{received, deleted} {
			if err := change(d.session, sequence, clusterpb.ReplicaChange_RECEIVED); err != nil {
				t.Fatalf("report %d again: %v", sequence, err)
			}
		}
	}
	full := &clusterpb.BlockReportRequest{Uuid: &d.uuid, Session: &d.session, Sequence: &received, ReportId: proto.Uint64(9), Parts: proto.Uint32(1), Replicas: []*clusterpb.Replica{d.replicas[id]}}
	if _, err := r.nn.BlockReport(context.Background(), full); err != nil {
		t.Fatalf("a full report again: %v", err)
	}
	if n := located(); n != 0 {
		t.Fatalf("%d replicas after reports that came late", n)
	}
	// Numbers that nobody can have sent: one is missing, or there is none.
	for _, sequence := range []uint64{deleted + 2, 0} {
		if err := change(d.session, sequence, clusterpb.ReplicaChange_RECEIVED); !errors.Is(err, cluster.ErrNotRegistered) {
			t.Errorf("report %d after %d: %v", sequence, deleted, err)
		}
	}
	// A new session, which an earlier one cannot disturb.
	rep := d.replicas[id]
	delete(d.replicas, id)
	old := d.session
	d.register()
	d.replicas[id] = rep
	if old == d.session || d.session == 0 {
		t.Fatalf("the sessions are %d and %d", old, d.session)
	}
	for _, session := range []uint64{old, 0} {
		if err := change(session, d.sequence+1, clusterpb.ReplicaChange_RECEIVED); !errors.Is(err, cluster.ErrNotRegistered) {
			t.Errorf("a report of session %d: %v", session, err)
		}
		resp, err := r.nn.Heartbeat(context.Background(), &clusterpb.HeartbeatRequest{Uuid: &d.uuid, Session: &session})
		if err != nil || len(resp.GetCommands()) != 1 || resp.GetCommands()[0].GetKind() != clusterpb.Command_REGISTER {
			t.Errorf("heartbeat of session %d: %v %v", session, resp, err)
		}
	}
	if n := located(); n != 0 {
		t.Fatalf("%d replicas after reports of an earlier session", n)
	}
	if err := change(d.session, *d.next(), clusterpb.ReplicaChange_RECEIVED); err != nil || located() != 1 {
		t.Fatalf("a report in order: %v, %d replicas", err, located())
	}
}

// The commit of a recovery that comes again says nothing of what has become of the
// replicas since.
func TestCommitOfARecoveryAgain(t *testing.T) {
	r := newRig(t)
	d := r.datanodes(1)[0]
	b := r.write("/f", 1, 100, d)
	must[*hdfspb.TruncateResponseProto](t)(r.nn.truncate(r.as("root"), &hdfspb.TruncateRequestProto{Src: proto.String("/f"), NewLength: proto.Uint64(50), ClientName: proto.String("c")}))
	var commit *clusterpb.CommitRecoveryRequest
	d.recover = func(c *clusterpb.Command) {
		commit = &clusterpb.CommitRecoveryRequest{Uuid: &d.uuid, Block: blockPB(b.GetBlockId(), c.GetBlock().GetGeneration(), 50), NewGeneration: c.NewGeneration, Datanodes: []*clusterpb.Datanode{d.pb()}}
		d.store(b.GetBlockId(), c.GetNewGeneration(), 50, clusterpb.ReplicaState_FINALIZED)
	}
	for i := 0; commit == nil; i++ {
		if i == 10 {
			t.Fatal("no recovery was ordered")
		}
		r.turn([]*fakeDatanode{d})
	}
	located := func() int { return len(r.locations("/f").GetBlocks()[0].GetLocs()) }
	must[*clusterpb.CommitRecoveryResponse](t)(r.nn.CommitRecovery(context.Background(), commit))
	if n := located(); n != 1 {
		t.Fatalf("%d replicas after the commit", n)
	}
	d.changed(clusterpb.ReplicaChange_DELETED, d.replicas[b.GetBlockId()])
	must[*clusterpb.CommitRecoveryResponse](t)(r.nn.CommitRecovery(context.Background(), commit))
	if n := located(); n != 0 {
		t.Fatalf("%d replicas after the commit came again", n)
	}
}

func TestRegister(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	for _, bad := range []*clusterpb.RegisterRequest{
		{},
		{Datanode: &clusterpb.Datanode{Uuid: proto.String("x"), Host: proto.String("no such host"), Port: proto.Uint32(1)}},
		{Datanode: &clusterpb.Datanode{Uuid: proto.String("x"), Host: proto.String("10.0.0.1"), Port: proto.Uint32(70000)}},
		{Datanode: &clusterpb.Datanode{Uuid: proto.String("x"), Host: proto.String("10.0.0.1"), Port: proto.Uint32(1)}, ClusterId: proto.String("CID-other")},
		{Datanode: &clusterpb.Datanode{Uuid: proto.String("x"), Host: proto.String("10.0.0.1"), Port: proto.Uint32(1)}, BlockPoolId: proto.String("BP-other")},
	} {
		_, err := r.nn.Register(ctx, bad)
		if err == nil {
			t.Errorf("registered %v", bad)
		}
		if foreign := bad.ClusterId != nil || bad.BlockPoolId != nil; errors.Is(err, cluster.ErrForeign) != foreign {
			t.Errorf("the error for %v: %v", bad, err)
		}
	}
	resp, err := r.nn.Heartbeat(ctx, &clusterpb.HeartbeatRequest{Uuid: proto.String("x")})
	if err != nil || len(resp.GetCommands()) != 1 || resp.GetCommands()[0].GetKind() != clusterpb.Command_REGISTER {
		t.Fatalf("heartbeat of a stranger: %v %v", resp, err)
	}
	if _, err := r.nn.BlockReport(ctx, &clusterpb.BlockReportRequest{Uuid: proto.String("x")}); !errors.Is(err, cluster.ErrNotRegistered) {
		t.Fatalf("report of a stranger: %v", err)
	}
	// A DataNode made anew at the same address replaces the old one.
	d := r.datanode(1)
	d2 := *d
	d2.uuid = "dn-1-again"
	d2.register()
	report := must[*hdfspb.GetDatanodeReportResponseProto](t)(r.nn.getDatanodeReport(ctx, &hdfspb.GetDatanodeReportRequestProto{Type: hdfspb.DatanodeReportTypeProto_ALL.Enum()}))
	if len(report.GetDi()) != 1 || report.GetDi()[0].GetId().GetDatanodeUuid() != "dn-1-again" {
		t.Fatalf("DataNodes: %v", report)
	}
}

func TestChooseFavoursRoom(t *testing.T) {
	cfg := Config{now: time.Now, StaleAfter: time.Hour}
	m := newBlockMap(&cfg)
	for i := range 10 {
		n := m.addNode(namespace.Datanode{UUID: fmt.Sprint(i)})
		n.alive, n.registered, n.lastSeen = true, true, time.Now()
		n.setRoom(uint64(1000 * (i + 1)))
	}
	count := map[string]int{}
	for range 2000 {
		for _, n := range m.choose(want{count: 1, size: 500}) {
			count[n.dn.UUID]++
		}
	}
	if count["0"] >= count["9"] || count["0"] == 0 {
		t.Fatalf("chosen: %v", count)
	}
}

// Three holders die and are replaced. They come back with empty disks, and say
// so only after a while: the replicas that replaced them must stay.
func TestNothingIsDeletedOnTheWordOfTheReturned(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(6)
	b := r.write("/f", 3, 100, dns...)
	id := b.GetBlockId()
	var old []*fakeDatanode
	for _, d := range dns {
		if d.replicas[id] != nil {
			old = append(old, d)
		}
	}
	// One after the other, so that there is always one to copy from.
	for _, d := range old {
		d.dead = true
		for range 5 {
			r.clock.advance(10 * time.Second)
			r.turn(dns)
		}
	}
	if n := r.holders(id, dns); n != 3 {
		t.Fatalf("%d live holders after three died, want 3", n)
	}
	for _, d := range old {
		clear(d.replicas)
		d.dead = false
		d.enroll()
		d.room *= 2 // an empty disk
		if _, err := r.nn.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{Uuid: &d.uuid, Session: &d.session, Storages: []*clusterpb.Storage{{Capacity: proto.Uint64(2 << 40), Remaining: &d.room}}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		r.check()
		for _, d := range dns {
			if !slices.Contains(old, d) {
				d.heartbeat(dns)
			}
		}
	}
	if n := r.holders(id, dns); n != 3 {
		t.Fatalf("%d holders are left while three have yet to report, want 3", n)
	}
	for _, d := range old {
		d.report()
		r.turn(dns)
	}
	if n := r.holders(id, dns); n != 3 {
		t.Fatalf("%d holders are left after the reports, want 3", n)
	}
	if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 3 {
		t.Fatalf("%d locations, want 3", n)
	}
}

// A surplus that waited for a full report is deleted after it.
func TestPostponedSurplusIsDeleted(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	b := r.write("/f", 2, 100, dns...)
	dns[0].enroll()
	r.replicate("/f", 1)
	r.clock.advance(6 * time.Second)
	r.check()
	dns[1].heartbeat(dns)
	if n := r.holders(b.GetBlockId(), dns); n != 2 {
		t.Fatalf("%d holders before the report, want 2", n)
	}
	dns[0].report()
	r.check()
	r.turn(dns)
	if n := r.holders(b.GetBlockId(), dns); n != 1 {
		t.Fatalf("%d holders after the report, want 1", n)
	}
}

// A full report takes away what was said before the registration, however
// shortly before.
func TestReportAfterAQuickReturn(t *testing.T) {
	r := newRig(t)
	d := r.datanodes(1)[0]
	r.write("/f", 1, 100, d)
	clear(d.replicas)
	d.register()
	if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 0 {
		t.Fatalf("%d locations of a block whose only holder came back empty", n)
	}
}
