package namenode

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// onRacks makes a map of live DataNodes 0, 1, ... on hosts h0, h1, ..., one on each rack
// named.
func onRacks(racks ...string) *blockMap {
	clock := newClock()
	m := newBlockMap(&Config{now: clock.now, StaleAfter: 30 * time.Second})
	for i, rack := range racks {
		n := m.addNode(namespace.Datanode{UUID: fmt.Sprint(i), Host: fmt.Sprint("h", i), Hostname: fmt.Sprint("name", i), Port: uint32(100 + i)})
		n.alive, n.registered, n.lastSeen, n.rack = true, true, clock.now(), rack
		n.setRoom(1 << 30)
	}
	return m
}

func racksOf(nodes []*node) string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.rack)
	}
	return strings.Join(out, " ")
}

// HDFS's rule: the first replica at the writer, the second on another rack, the
// third on the second's rack, and no rack has too many.
func TestPlacementOnRacks(t *testing.T) {
	const a, b, c = "/a", "/b", "/c"
	for _, test := range []struct {
		name  string
		racks []string
		want  want
		first string   // its uuid, if it must be a certain one
		ok    []string // racks in the pipeline's order
	}{
		{"writer on a DataNode", []string{a, a, a, b, b}, want{count: 3, writer: place{"h1", a}, fresh: true}, "1", []string{"/a /b /b"}},
		{"writer on a rack", []string{a, a, a, b, b}, want{count: 3, writer: place{"other", b}, fresh: true}, "", []string{"/b /a /a"}},
		{"writer nowhere", []string{a, a, b, b}, want{count: 3, fresh: true}, "", []string{"/a /b /b", "/b /a /a"}},
		{"writer on no rack of theirs", []string{a, a, b, b}, want{count: 3, writer: place{"other", c}, fresh: true}, "", []string{"/a /b /b", "/b /a /a"}},
		{"two", []string{a, a, a, a, b}, want{count: 2, writer: place{"h0", a}, fresh: true}, "0", []string{"/a /b"}},
		{"one rack", []string{a, a, a}, want{count: 3, writer: place{"h2", a}, fresh: true}, "2", []string{"/a /a /a"}},
		{"five on two racks", []string{a, a, a, a, a, a, a, b, b}, want{count: 5, writer: place{"h0", a}, fresh: true}, "0", []string{"/a /a /a /b /b"}},
		{"more than there are", []string{a, b}, want{count: 3, writer: place{"h1", b}, fresh: true}, "1", []string{"/b /a"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 100 {
				got := onRacks(test.racks...).choose(test.want)
				if text := racksOf(got); !slices.Contains(test.ok, text) || test.first != "" && got[0].dn.UUID != test.first {
					t.Fatalf("chosen %v on %s, want one of %q", uuids(got), text, test.ok)
				}
			}
		})
	}
}

func TestPlacementOfAnotherReplica(t *testing.T) {
	for range 100 {
		m := onRacks("/a", "/a", "/a", "/b", "/b")
		n := m.byIndex
		for _, c := range []struct {
			chosen []*node
			ok     func(*node) bool
		}{
			{n[:1], func(o *node) bool { return o.rack == "/b" }},
			{n[:2], func(o *node) bool { return o.rack == "/b" }},
			{[]*node{n[0], n[3]}, func(o *node) bool { return o.rack == "/a" }}, // the source's rack
			{n[:3], func(o *node) bool { return o.rack == "/b" }},
		} {
			got := m.choose(want{count: 1, writer: place{"h0", "/a"}, chosen: c.chosen})
			if len(got) != 1 || !c.ok(got[0]) || slices.Contains(c.chosen, got[0]) {
				t.Fatalf("beside %v: %v", uuids(c.chosen), uuids(got))
			}
		}
	}
}

func TestFavouredAndAvoided(t *testing.T) {
	for range 100 {
		m := onRacks("/a", "/a", "/a", "/b", "/b")
		w := want{count: 3, writer: place{"h0", "/a"}, fresh: true, favoured: m.favoured([]string{"h4:104", "name1/h1:101", "h2:9", "nobody"})}
		got := uuids(m.choose(w))
		if len(got) != 3 || !slices.Contains(got, "4") || !slices.Contains(got, "1") {
			t.Fatalf("4 and 1 are favoured: %v", got)
		}
		w.exclude = exclusion(m.byIndex[4:5])
		if got := uuids(m.choose(w)); len(got) != 3 || slices.Contains(got, "4") || !slices.Contains(got, "1") {
			t.Fatalf("4 is favoured and excluded: %v", got)
		}
		// Silent and busy DataNodes come last.
		m = onRacks("/a", "/a", "/a", "/a")
		m.byIndex[0].lastSeen = m.cfg.now().Add(-31 * time.Second)
		m.byIndex[1].transfers = 10
		if got := uuids(m.choose(want{count: 2, writer: place{"h0", "/a"}})); slices.Contains(got, "0") || slices.Contains(got, "1") {
			t.Fatalf("0 is silent and 1 busy: %v", got)
		}
		if got := m.choose(want{count: 4}); len(got) != 4 {
			t.Fatalf("only %v of four", uuids(got))
		}
	}
}

// Blocks that are scheduled count as written, until they are reported, or for
// twenty minutes at most.
func TestScheduledBlocksCount(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	dns[0].room = 2500 // two blocks of 1,024
	r.turn(dns)
	chosen := func(path string) bool {
		r.create(path, path, 1)
		lb, err := r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{Src: &path, ClientName: &path, ExcludeNodes: []*hdfspb.DatanodeInfoProto{{Id: &hdfspb.DatanodeIDProto{
			IpAddr: proto.String(""), HostName: proto.String(""), DatanodeUuid: &dns[1].uuid, XferPort: proto.Uint32(0), InfoPort: proto.Uint32(0), IpcPort: proto.Uint32(0),
		}}}})
		if err != nil {
			wantClass(t, err, exception.IO)
			return false
		}
		if lb.GetBlock().GetLocs()[0].GetId().GetDatanodeUuid() != dns[0].uuid {
			t.Fatal("an excluded DataNode was chosen")
		}
		return true
	}
	if !chosen("/a") || !chosen("/b") {
		t.Fatal("there is room for two blocks")
	}
	if chosen("/c") {
		t.Fatal("a third block was placed while two are scheduled")
	}
	// The first one is reported; what it takes is in the heartbeat.
	lb := r.addBlock("/a", "/a", nil) // the same block again
	b := lb.GetB()
	b.NumBytes = proto.Uint64(1)
	dns[0].receive(b)
	if !chosen("/d") {
		t.Fatal("no room after a block was reported that is shorter than expected")
	}
	if chosen("/e") {
		t.Fatal("two are scheduled again")
	}
	r.clock.advance(2*scheduleRoll + time.Second)
	r.turn(dns)
	if !chosen("/f") {
		t.Fatal("scheduled blocks count for ever")
	}
}

// A file that can't be changed leaves no block scheduled.
func TestScheduledAndRefused(t *testing.T) {
	var s scheduled
	at := newClock()
	for range 3 {
		s.add(at.now())
	}
	at.advance(scheduleRoll)
	s.add(at.now())
	if n := s.count(at.now()); n != 4 {
		t.Fatalf("%d after a roll, want 4", n)
	}
	s.done(at.now())
	at.advance(scheduleRoll)
	if n := s.count(at.now()); n != 1 {
		t.Fatalf("%d after two rolls, want the one of the second", n)
	}
	r := newRig(t)
	dns := r.datanodes(1)
	r.create("/f", "w", 1)
	targets, _, err := r.nn.place(&hdfspb.AddBlockRequestProto{Src: proto.String("/f")}, 1, 1024, place{})
	if err != nil || len(targets) != 1 {
		t.Fatal(targets, err)
	}
	n := r.nn.blocks.nodes[dns[0].uuid]
	if got := n.scheduled.count(r.clock.now()); got != 1 {
		t.Fatalf("%d scheduled after a placement", got)
	}
	r.nn.blocks.unplace(targets)
	if got := n.scheduled.count(r.clock.now()); got != 0 {
		t.Fatalf("%d scheduled after it was taken back", got)
	}
}

// racked has DataNode i on the i-th rack.
func racked(t *testing.T, racks ...string) (*rig, func(i int)) {
	t.Helper()
	table := filepath.Join(t.TempDir(), "racks")
	put := func(n int) {
		var text strings.Builder
		for i, rack := range racks[:n] {
			fmt.Fprintf(&text, "10.0.0.%d %s\n", i+1, rack)
		}
		if err := os.WriteFile(table, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(len(racks))
	return newRig(t, func(c *Config) { c.TopologyTable = table }), put
}

// Locations carry the rack and are sorted by the distance to the reader.
func TestLocationsByDistance(t *testing.T) {
	r, _ := racked(t, "/x/1", "/x/1", "/x/2", "/y/1", "/x/1", "/x/1", "/x/1", "/x/1", "/x/2") // the caller of the rig is 10.0.0.9
	dns := r.datanodes(4)
	r.write("/f", 4, 100, dns...)
	for range 20 {
		var got []string
		for _, l := range r.locations("/f").GetBlocks()[0].GetLocs() {
			got = append(got, l.GetLocation())
		}
		if text := strings.Join(got, " "); text != "/x/2 /x/1 /x/1 /y/1" {
			t.Fatalf("a reader on /x/2 is sent to %s", text)
		}
	}
}

// When a second rack comes, blocks that are on one alone get a replica there, and
// lose one of the first.
func TestSecondRackComes(t *testing.T) {
	r, _ := racked(t, "/a", "/a", "/a", "/b")
	dns := r.datanodes(3)
	b := r.write("/f", 3, 100, dns...)
	r.clock.advance(6 * time.Second)
	r.turn(dns)
	dns = append(dns, r.datanode(4))
	for range 4 {
		r.turn(dns)
		r.clock.advance(time.Second)
	}
	if n := r.holders(b.GetBlockId(), dns); n != 3 || dns[3].replicas[b.GetBlockId()] == nil {
		t.Fatalf("%d holders, on the second rack: %v", n, dns[3].replicas[b.GetBlockId()])
	}
	// A surplus never takes the only one of a rack, however full it is.
	dns[3].room = 1
	dns[3].heartbeat(dns)
	for _, d := range dns[:3] {
		if d.replicas[b.GetBlockId()] == nil {
			d.store(b.GetBlockId(), b.GetGenerationStamp(), 100, clusterpb.ReplicaState_FINALIZED)
			d.changed(clusterpb.ReplicaChange_RECEIVED, d.replicas[b.GetBlockId()])
		}
	}
	r.check()
	r.turn(dns)
	if n := r.holders(b.GetBlockId(), dns); n != 3 || dns[3].replicas[b.GetBlockId()] == nil {
		t.Fatalf("%d holders after the surplus was deleted, on the second rack: %v", n, dns[3].replicas[b.GetBlockId()])
	}
}
