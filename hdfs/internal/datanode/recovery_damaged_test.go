package datanode

import (
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

// One holder has all bytes, but some of them do not match their checksums; the other has lost a few with its
// machine. The recovery ends with what the other one has, as HDFS's would: the first attempt finds out that
// the longer replica can't be brought to it.
func TestDamagedReplicaDoesNotDecide(t *testing.T) {
	f := newFixture(t, 2, nil)
	data := random(1, 3000)
	for i, n := range []int{3000, 2000} {
		openWrite(t, f.nodes[i:i+1], create, 1, 1001, 0, 0, 0).flush(0, data[:n], false, 1)
	}
	f.nodes[1].cfg.BootID = "another boot"
	f.restart(1)
	whole := f.nodes[0]
	file, err := whole.cfg.FS.OpenReadWrite("/dn/blocks/00/blk_1", vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = file.WriteAt([]byte{data[2500] ^ 4}, 2500)
	must(t, err)
	must(t, file.Close())
	f.nn.event(func() {
		f.nn.commands[whole.UUID()] = []*clusterpb.Command{{
			Kind: clusterpb.Command_RECOVER.Enum(), NewGeneration: proto.Uint64(1002), Targets: []*clusterpb.Datanode{f.nodes[0].proto(), f.nodes[1].proto()},
			Block: &clusterpb.Block{Id: proto.Uint64(1), Generation: proto.Uint64(1001)},
		}}
	})
	f.nn.wait("the damage to be told", func() bool {
		return slices.ContainsFunc(f.nn.changes[whole.UUID()], func(c *clusterpb.ReplicaChange) bool {
			return c.GetKind() == clusterpb.ReplicaChange_CORRUPT && c.GetReplica().GetBlock().GetId() == 1
		})
	})
	r, err := whole.store.Get(1)
	must(t, err)
	began := time.Now()
	for generation := uint64(1003); ; generation++ {
		if i, err := r.InitRecovery(1001, generation); err == nil && i.Length == 0 {
			break // the attempt has ended
		}
		if time.Since(began) > patient {
			t.Fatal("the damaged replica has a say")
		}
	}
	c := f.recover(whole, 1, 1001, 1<<20, nil)
	if c.GetBlock().GetLength() != 2000 || len(c.GetDatanodes()) != 1 || c.GetDatanodes()[0].GetUuid() != f.nodes[1].UUID() {
		t.Errorf("the recovery ends with %v", c)
	}
}
