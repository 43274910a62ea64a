package datanode

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

func TestAgree(t *testing.T) {
	const (
		final   = clusterpb.ReplicaState_FINALIZED
		written = clusterpb.ReplicaState_BEING_WRITTEN
		waiting = clusterpb.ReplicaState_WAITING_RECOVERY
	)
	type holder struct {
		state       clusterpb.ReplicaState
		gen, length uint64
		in          bool // takes part
		torn        bool
	}
	for _, c := range []struct {
		name     string
		truncate *uint64
		holders  []holder
		length   uint64
		fails    bool
		late     bool
	}{
		{name: "nobody"},
		{name: "empty ones", holders: []holder{{written, 5, 0, false, false}, {waiting, 5, 0, false, false}}},
		{name: "the shortest being written", length: 70, holders: []holder{{written, 5, 90, true, false}, {written, 5, 70, true, false}}},
		{name: "one of which its process has died", length: 50, holders: []holder{{written, 5, 90, true, false}, {written, 5, 70, true, false}, {waiting, 5, 50, true, false}}},
		{name: "one of which its machine has died", length: 70, holders: []holder{{written, 5, 90, true, false}, {written, 5, 70, true, false}, {waiting, 5, 50, false, true}}},
		{name: "after a restart of all", length: 50, holders: []holder{{waiting, 5, 90, true, false}, {waiting, 5, 50, true, false}, {waiting, 5, 0, false, false}}},
		{name: "after a restart of one and a power cut on the other", length: 90, holders: []holder{{waiting, 5, 90, true, false}, {waiting, 5, 50, false, true}}},
		{name: "after a power cut on all", length: 90, holders: []holder{{waiting, 5, 90, true, true}, {waiting, 5, 50, false, true}}},
		{name: "one lost more than the restart of the other", length: 40, holders: []holder{{waiting, 5, 90, true, true}, {waiting, 5, 40, true, false}}},
		{name: "a finalized one decides", length: 90, holders: []holder{{final, 5, 90, true, false}, {written, 5, 90, true, false}, {written, 5, 80, false, false}}},
		{name: "finalized ones that differ", fails: true, holders: []holder{{final, 5, 90, false, false}, {final, 5, 80, false, false}}},
		{name: "a finalized one shorter than its writer's bytes elsewhere", length: 70,
			holders: []holder{{final, 5, 40, false, false}, {written, 5, 90, true, false}, {written, 5, 70, true, false}}},
		{name: "the same after a restart of the others", length: 70,
			holders: []holder{{waiting, 5, 70, true, false}, {final, 5, 40, false, false}}},
		{name: "one finalized by an earlier recovery", length: 40,
			holders: []holder{{final, 6, 40, true, false}, {written, 5, 90, true, false}, {waiting, 5, 40, true, true}, {waiting, 5, 39, false, true}}},
		{name: "two finalized by two earlier recoveries", length: 90,
			holders: []holder{{final, 6, 40, false, false}, {final, 7, 90, true, false}, {written, 5, 90, true, false}}},
		{name: "one good and one bad finalized", length: 90,
			holders: []holder{{final, 5, 40, false, false}, {final, 5, 90, true, false}, {written, 5, 90, true, false}}},
		{name: "cut", truncate: proto.Uint64(60), length: 60,
			holders: []holder{{final, 5, 90, true, false}, {final, 5, 60, true, false}, {waiting, 5, 59, false, false}}},
		{name: "cut what nobody has, for long", late: true, truncate: proto.Uint64(60), holders: []holder{{final, 5, 59, false, false}}},
		{name: "cut what nobody has", truncate: proto.Uint64(60), fails: true, holders: []holder{{final, 5, 59, false, false}}},
	} {
		var all []*participant
		for _, h := range c.holders {
			all = append(all, &participant{replica: &clusterpb.Replica{
				Block: &clusterpb.Block{Generation: &h.gen, Length: &h.length}, State: h.state.Enum(),
			}, whole: !h.torn})
		}
		agreed, length, err := agree(all, &clusterpb.Command{Block: &clusterpb.Block{Generation: proto.Uint64(5)}, TruncateTo: c.truncate, Late: &c.late})
		if (err != nil) != c.fails || length != c.length {
			t.Errorf("%s: %d bytes, %v; want %d, failure %t", c.name, length, err, c.length, c.fails)
		}
		in := map[*participant]bool{}
		for _, p := range agreed {
			in[p] = true
		}
		for i, h := range c.holders {
			if in[all[i]] != h.in {
				t.Errorf("%s: holder %d takes part: %t", c.name, i, in[all[i]])
			}
		}
	}
}
