package namenode

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// Random histories beside a map of lists.
func TestReplicaMap(t *testing.T) {
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 5))
		m := newReplicaMap()
		model := map[uint64][]replica{}
		number := func() uint64 {
			switch rng.IntN(30) {
			case 0:
				return math.MaxUint64 - rng.Uint64N(2)
			case 1:
				return rng.Uint64()
			}
			return 1<<30 + rng.Uint64N(500)
		}
		for range 20_000 {
			id := number()
			node := uint32(rng.IntN(6))
			if rng.IntN(50) == 0 {
				node = 1<<16 + node
			}
			i := slices.IndexFunc(model[id], func(r replica) bool { return r.node == node })
			switch rng.IntN(6) {
			case 0, 1, 2:
				r := replica{
					generation: 1000 + rng.Uint64N(2)/uint64(1+rng.IntN(9)), length: 5, added: tick(rng.Uint32()), node: node, era: uint16(rng.Uint32()),
					mark: uint16(rng.Uint32()), state: clusterpb.ReplicaState(1 + rng.IntN(2)), corrupt: rng.IntN(5) == 0,
				}
				m.put(id, r)
				if i >= 0 {
					model[id][i] = r
				} else {
					model[id] = append(model[id], r)
				}
			case 3, 4:
				if m.drop(id, node) != (i >= 0) {
					t.Fatalf("block %d on node %d is there: %t", id, node, i < 0)
				}
				if i >= 0 {
					if model[id] = slices.Delete(model[id], i, i+1); len(model[id]) == 0 {
						delete(model, id)
					}
				}
			case 5:
				if rng.IntN(4) == 0 {
					m.forget(id)
					delete(model, id)
				} else if r, ok := m.find(id, node); ok != (i >= 0) || ok && r != model[id][i] {
					t.Fatalf("block %d on node %d is %+v, %t", id, node, r, ok)
				}
			}
			if got := slices.Collect(m.of(id)); !slices.Equal(got, model[id]) {
				t.Fatalf("block %d is\n%+v, want\n%+v", id, got, model[id])
			}
		}
		if m.count != len(model) {
			t.Fatalf("%d blocks, want %d", m.count, len(model))
		}
		// A walk in steps, that drops some on its way.
		var got []uint64
		want := slices.Sorted(maps.Keys(model))
		for next, done := uint64(0), false; !done; {
			before := len(got)
			next, done = m.walk(next, 100, func(id uint64) {
				got = append(got, id)
				if rng.IntN(2) == 0 {
					m.forget(id)
				}
			})
			if len(got)-before > 100+64 {
				t.Fatalf("%d blocks in one step", len(got)-before)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("walked over %d blocks, want %d", len(got), len(want))
		}
		for id := range model {
			m.forget(id)
		}
		if m.count != 0 || m.pages.Len() != 0 || len(m.lists) != 0 {
			t.Fatalf("%d blocks, %d pages and %d lists are left", m.count, m.pages.Len(), len(m.lists))
		}
	}
}

func TestTicksWrap(t *testing.T) {
	at := time.UnixMilli(math.MaxUint32*100 - 50)
	if !tickOf(at).before(tickOf(at.Add(10*time.Second))) || tickOf(at).before(tickOf(at)) || tickOf(at.Add(time.Second)).before(tickOf(at)) {
		t.Error("times are out of order")
	}
}

// A full report that leaves out what is spread over very many blocks counts as one only
// once all that it did not name is gone, and that takes several holds of the lock.
func TestSweepInSteps(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	cfg := Config{Dir: "unused", Superuser: "root", Groups: func(string) []string { return nil }, now: func() time.Time { return now }}
	if err := cfg.setDefaults(); err != nil {
		t.Fatal(err)
	}
	m := newBlockMap(&cfg)
	m.start(nil, "b")
	session := m.register(namespace.Datanode{UUID: "a", Host: "h", Port: 1}, "/r")
	n := m.nodes["a"]
	ns := namespace.New()
	const blocks = 3*scanStep + 5
	sequence := uint64(0)
	report := func(step uint64) {
		sequence++
		var rs []*clusterpb.Replica
		for id := uint64(0); id < blocks; id += step {
			rs = append(rs, &clusterpb.Replica{Block: blockPB(1<<30+id, 1000, 1), State: clusterpb.ReplicaState_FINALIZED.Enum()})
		}
		req := &clusterpb.BlockReportRequest{Uuid: &n.dn.UUID, Session: &session, Sequence: &sequence, ReportId: &sequence, Parts: proto.Uint32(1)}
		if _, err := m.beginPart(req, 1); err != nil {
			t.Fatal(err)
		}
		var spare sparePages
		spare.provide(rs)
		if err := m.listed(ns, req, rs, &spare); err != nil {
			t.Fatal(err)
		}
		if done, err := m.endPart(req); err != nil || !done {
			t.Fatal(done, err)
		}
	}
	report(1)
	steps := 0
	for ; len(m.scans) > 0; steps++ {
		if n.reported {
			t.Fatal("it has reported before the map was looked through")
		}
		m.scanOn(ns)
	}
	if !n.reported || n.replicas != blocks || steps < 2 {
		t.Fatalf("after %d steps: %t, %d replicas", steps, n.reported, n.replicas)
	}
	now = now.Add(2 * reportSlack)
	report(2)
	for len(m.scans) > 0 {
		m.scanOn(ns)
	}
	if want := (blocks + 1) / 2; n.replicas != want || m.replicas.count != want {
		t.Fatalf("%d replicas of %d blocks are left of %d", n.replicas, m.replicas.count, want)
	}
	// What is under way when the DataNode registers anew is given up.
	now = now.Add(2 * reportSlack)
	report(4)
	session = m.register(n.dn, "/r")
	for len(m.scans) > 0 {
		m.scanOn(ns)
	}
	if n.reported {
		t.Error("a report of an earlier session counts")
	}
}

// The pages that a report fills are made before it has the lock; a page of which nothing is kept
// goes again: a walk would end there.
func TestPagesOfAReport(t *testing.T) {
	const first = uint64(1 << 30)
	var rs []*clusterpb.Replica
	for id := first; id < first+3*64+10; id++ {
		rs = append(rs, &clusterpb.Replica{Block: blockPB(id, 1000, 1), State: clusterpb.ReplicaState_FINALIZED.Enum()})
	}
	cfg := Config{Dir: "unused", Superuser: "root", Groups: func(string) []string { return nil }}
	if err := cfg.setDefaults(); err != nil {
		t.Fatal(err)
	}
	m := newBlockMap(&cfg)
	m.start(nil, "b")
	session := m.register(namespace.Datanode{UUID: "a", Host: "h", Port: 1}, "/r")
	n := m.nodes["a"]
	for id := first + 64; id < first+128; id++ {
		m.deleteFrom(n, id, 1000)
	}
	req := &clusterpb.BlockReportRequest{Uuid: &n.dn.UUID, Session: &session, Sequence: proto.Uint64(1), ReportId: proto.Uint64(1), Parts: proto.Uint32(1)}
	if _, err := m.beginPart(req, 1); err != nil {
		t.Fatal(err)
	}
	var spare sparePages
	spare.provide(rs)
	if len(spare.wanted) != 3 || len(spare.free) != 3 {
		t.Fatalf("%d pages are wanted, %d made", len(spare.wanted), len(spare.free))
	}
	if n := testing.AllocsPerRun(10, func() { spare.provide(rs) }); n != 0 {
		t.Errorf("what is there already was made again, with %v allocations", n)
	}
	if err := m.listed(namespace.New(), req, rs, &spare); err != nil {
		t.Fatal(err)
	}
	var walked []uint64
	for next, done := uint64(0), false; !done; {
		next, done = m.replicas.walk(next, 10, func(id uint64) { walked = append(walked, id) })
	}
	if len(spare.free) != 0 || m.replicas.pages.Len() != 3 || len(walked) != 2*64+10 || m.replicas.count != len(walked) {
		t.Errorf("%d pages left, %d in the map, %d blocks found of %d", len(spare.free), m.replicas.pages.Len(), len(walked), m.replicas.count)
	}
}

// Many deletions that wait for their DataNode do not make a heartbeat look at all of them.
func TestHeartbeatsLookAtAFewDeletions(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	cfg := Config{Dir: "unused", Superuser: "root", Groups: func(string) []string { return nil }, now: func() time.Time { return now }}
	if err := cfg.setDefaults(); err != nil {
		t.Fatal(err)
	}
	m := newBlockMap(&cfg)
	m.start(nil, "b")
	m.register(namespace.Datanode{UUID: "a", Host: "h", Port: 1}, "/r")
	m.safeMode = false
	n := m.nodes["a"]
	const blocks = 10 * scanStep
	for id := range uint64(blocks) {
		m.deleteFrom(n, id, 1000)
	}
	told := make(map[uint64]bool)
	for range 100_000 {
		if len(told) == blocks {
			break
		}
		for _, cmd := range m.commandsFor(n, now) {
			id := cmd.GetBlock().GetId()
			if told[id] {
				t.Fatalf("the deletion of %d was told twice at once", id)
			}
			told[id] = true
		}
	}
	if len(told) != blocks {
		t.Fatalf("%d deletions of %d were told", len(told), blocks)
	}
	if cmds := m.commandsFor(n, now); len(cmds) != 0 {
		t.Errorf("%d deletions were told again at once", len(cmds))
	}
	now = now.Add(cfg.DeleteRetry)
	if cmds := m.commandsFor(n, now); len(cmds) != cfg.DeletesPerHeartbeat {
		t.Errorf("%d deletions were told again in time", len(cmds))
	}
}

// Blocks that were postponed until a full report come back in steps, each once.
func TestPostponedInSteps(t *testing.T) {
	cfg := Config{Dir: "unused", Superuser: "root", Groups: func(string) []string { return nil }}
	if err := cfg.setDefaults(); err != nil {
		t.Fatal(err)
	}
	m := newBlockMap(&cfg)
	due, far := new(blockSet), new(blockSet)
	far.add(1 << 20)
	for id := range uint64(3*settleBatch + 7) {
		due.add(id)
	}
	m.due = append(m.due, due, far)
	seen, turns := make(map[uint64]bool), 0
	for ; len(m.due) > 0; turns++ {
		m.takeDue()
		if m.ready.count > settleBatch {
			t.Fatalf("%d blocks in one turn", m.ready.count)
		}
		for {
			id, ok := m.ready.pop()
			if !ok {
				break
			}
			if seen[id] {
				t.Fatalf("block %d came twice", id)
			}
			seen[id] = true
		}
	}
	if len(seen) != 3*settleBatch+8 || turns < 4 {
		t.Errorf("%d blocks in %d turns", len(seen), turns)
	}
}
