package namenode

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

func storagesOf(name string, kinds ...hdfspb.StorageTypeProto) []*clusterpb.Storage {
	var out []*clusterpb.Storage
	for i, k := range kinds {
		out = append(out, &clusterpb.Storage{
			Id: proto.String(fmt.Sprintf("DS-%s-%d", name, i)), Type: proto.Uint32(uint32(k)),
			Capacity: proto.Uint64(10_000), Used: proto.Uint64(100), Remaining: proto.Uint64(5_000),
		})
	}
	return out
}

// setRoom has a DataNode say how much room it has, in one storage.
func (n *node) setRoom(remaining uint64) {
	n.storages.register(n.dn.UUID, nil)
	n.storages.report([]*clusterpb.Storage{{Remaining: &remaining}})
	n.remaining = remaining
}

func (r *rig) storageReport() []*hdfspb.DatanodeStorageReportProto {
	r.t.Helper()
	return must[*hdfspb.GetDatanodeStorageReportResponseProto](r.t)(r.nn.getDatanodeStorageReport(r.as("root"), &hdfspb.GetDatanodeStorageReportRequestProto{})).GetDatanodeStorageReports()
}

// What is in a storage that fails is copied elsewhere, also to the same DataNode, and what
// comes late of it counts for nothing.
func TestStorageFails(t *testing.T) {
	r := newRig(t)
	var dns []*fakeDatanode
	const disk, ssd = hdfspb.StorageTypeProto_DISK, hdfspb.StorageTypeProto_SSD
	for i := 1; i <= 3; i++ {
		d := &fakeDatanode{
			r: r, uuid: fmt.Sprintf("dn-%d", i), host: fmt.Sprintf("10.0.0.%d", i), port: uint32(9000 + i),
			replicas: map[uint64]*clusterpb.Replica{}, storages: storagesOf(fmt.Sprint("dn-", i), disk, ssd),
		}
		d.register()
		dns = append(dns, d)
	}
	r.check()
	b := r.write("/f", 2, 100, dns...)
	other := r.write("/g", 2, 100, dns...)
	id := b.GetBlockId()
	var hurt *fakeDatanode
	for _, d := range dns { // all say that it is in the second one
		if d.replicas[id] != nil {
			hurt = d
			d.replicas[id].Storage = proto.Uint32(1)
		}
		d.report()
	}
	lb := r.locations("/f").GetBlocks()[0]
	for i, at := range lb.GetLocs() {
		if want := "DS-" + at.GetId().GetDatanodeUuid() + "-1"; lb.GetStorageIDs()[i] != want || lb.GetStorageTypes()[i] != ssd {
			t.Fatalf("in %v %v, want %s", lb.GetStorageIDs(), lb.GetStorageTypes(), want)
		}
	}
	late := proto.CloneOf(hurt.replicas[id])
	delete(hurt.replicas, id)
	hurt.storages[1].Failed, hurt.storages[1].Remaining = proto.Bool(true), proto.Uint64(0)
	hurt.heartbeat(dns)
	hurt.changed(clusterpb.ReplicaChange_RECEIVED, late)
	if n := len(r.locations("/f").GetBlocks()[0].GetLocs()); n != 1 {
		t.Fatalf("%d locations with a storage that has failed", n)
	}
	if n := len(r.locations("/g").GetBlocks()[0].GetLocs()); n != 2 {
		t.Fatalf("%d locations of a block in other storages", n)
	}
	for range 5 {
		r.turn(dns)
		r.clock.advance(10 * time.Second)
	}
	if r.holders(id, dns) != 2 || r.holders(other.GetBlockId(), dns) != 2 {
		t.Fatalf("%d and %d holders, want 2", r.holders(id, dns), r.holders(other.GetBlockId(), dns))
	}
	for _, d := range r.storageReport() {
		all := d.GetStorageReports()
		if len(all) != 2 || all[0].GetFailed() || all[1].GetFailed() != (d.GetDatanodeInfo().GetId().GetDatanodeUuid() == hurt.uuid) ||
			all[1].GetStorage().GetStorageType() != ssd || all[0].GetCapacity() != 10_000 || all[0].GetNonDfsUsed() != 4_900 {
			t.Errorf("%v", d)
		}
	}
	// A new disk is in its place, and another one is gone.
	hurt.storages = storagesOf("new", disk)
	hurt.register()
	for _, d := range r.storageReport() {
		if all := d.GetStorageReports(); d.GetDatanodeInfo().GetId().GetDatanodeUuid() == hurt.uuid && (len(all) != 1 || all[0].GetStorageUuid() != "DS-new-0" || all[0].GetFailed()) {
			t.Errorf("%v", d)
		}
	}
}

// A block needs room in one storage: that of all together does not do.
func TestRoomOfStorages(t *testing.T) {
	s := storages{}
	named := storagesOf("a", 1, 1, 2)
	s.register("a", named)
	s.report(named)
	for size, want := range map[uint64]uint64{1: 15_000, 5_000: 15_000, 5_001: 0} {
		if got := s.room(size); got != want {
			t.Errorf("%d bytes of room for blocks of %d, want %d", got, size, want)
		}
	}
	named[0].Remaining = proto.Uint64(200)
	named[2].Failed = proto.Bool(true)
	if failed := s.report(named); len(failed) != 1 || failed[0] != 2 || s.room(201) != 5_000 || s.room(200) != 5_200 {
		t.Errorf("%v, %d, %d", failed, s.room(201), s.room(200))
	}
	if failed := s.report(named); failed != nil {
		t.Errorf("%v failed again", failed)
	}
	named[2].Failed = nil
	if s.report(named); s.room(201) != 5_000 {
		t.Error("a storage is back without a registration")
	}
}

// A registration tells what room there is: blocks need not wait for the first heartbeat.
func TestRegistrationTellsRoom(t *testing.T) {
	r := newRig(t)
	d := &fakeDatanode{r: r, uuid: "dn-1", host: "10.0.0.1", port: 9001, replicas: map[uint64]*clusterpb.Replica{}, room: 1 << 40}
	d.storages = []*clusterpb.Storage{{Id: proto.String("DS-1"), Capacity: proto.Uint64(1 << 41), Remaining: proto.Uint64(1 << 40)}}
	d.enroll()
	d.report()
	r.create("/file", "c", 1)
	r.addBlock("/file", "c", nil)
}

// What DataNodes claim stays within bounds.
func TestClaimsOfStorages(t *testing.T) {
	for _, bad := range [][]*clusterpb.Storage{
		storagesOf("many", make([]hdfspb.StorageTypeProto, maxStorages+1)...), storagesOf(strings.Repeat("x", maxStorageID), 1),
	} {
		d := &clusterpb.Datanode{Uuid: proto.String("d"), Host: proto.String("10.0.0.9"), Port: proto.Uint32(1)}
		if _, err := newRig(t).nn.Register(t.Context(), &clusterpb.RegisterRequest{Datanode: d, Storages: bad}); err == nil || !strings.Contains(err.Error(), "at most") {
			t.Errorf("registered with %d storages: %v", len(bad), err)
		}
	}
	s := storages{}
	for round := range 10 {
		named := storagesOf(fmt.Sprint(round), make([]hdfspb.StorageTypeProto, 100)...)
		s.register("a", named)
		if len(s.all) > maxStorages || len(s.told) != 100 {
			t.Fatalf("%d storages, %d told", len(s.all), len(s.told))
		}
		if id, kind := s.named(s.of(&clusterpb.Replica{Storage: proto.Uint32(99)})); id != fmt.Sprintf("DS-%d-99", round) || kind != hdfspb.StorageTypeProto_DISK {
			t.Errorf("%s %v", id, kind)
		}
	}
	s.register("a", storagesOf("many", make([]hdfspb.StorageTypeProto, 1000)...))
	s.report(storagesOf("many", make([]hdfspb.StorageTypeProto, 2000)...))
	if i := s.of(&clusterpb.Replica{Storage: proto.Uint32(999)}); i != unknownStorage || len(s.all) != maxStorages {
		t.Errorf("storage %d of %d", i, len(s.all))
	}
	s.register("b", []*clusterpb.Storage{{Failed: proto.Bool(true)}, {Id: proto.String("x"), Type: proto.Uint32(77)}})
	if id, kind := s.named(unknownStorage); s.of(&clusterpb.Replica{}) != unknownStorage || id != "x" || kind != hdfspb.StorageTypeProto_DISK {
		t.Errorf("%s %v", id, kind)
	}
}
