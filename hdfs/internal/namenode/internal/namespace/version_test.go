package namespace

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// A snapshot of version 1, which holds its inodes one by one, is read as it was written.
func TestRestoreVersion1(t *testing.T) {
	data, err := os.ReadFile("golden/version1.snapshot")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("golden/version1.listing")
	if err != nil {
		t.Fatal(err)
	}
	ns, err := Restore(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, ns: ns}
	m.audit()
	if got := m.listing(); got != string(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if dn, ok := ns.Datanode("uuid-1"); !ok || dn.Hostname != "host-1" {
		t.Errorf("the DataNode is %+v", dn)
	}
	if len(ns.retry.order) == 0 {
		t.Error("it remembers no call")
	}
	m.roundTrip()
	if got := m.listing(); got != string(want) {
		t.Errorf("after it was written anew\n%swant\n%s", got, want)
	}
}

// listing tells all of the tree.
func (m *machine) listing() string {
	ns := m.ns
	var out strings.Builder
	files, directories, blocks := ns.Counts()
	fmt.Fprintln(&out, files, directories, blocks)
	var visit func(n *Inode)
	visit = func(n *Inode) {
		fmt.Fprintf(&out, "%s %d %s\n", ns.path(n), n.id, m.line(ns.status(n)))
		if n.dir != nil {
			n.dir.names.After("", func(_ string, id uint64) bool {
				visit(ns.inodes.Get(id))
				return true
			})
			return
		}
		for _, id := range n.file.blocks {
			b := ns.blocks.Get(id)
			fmt.Fprintf(&out, "  block %d generation %d length %d construction %t\n", b.ID, b.Generation, b.Length, b.Construction != nil)
		}
		if n.file.open() {
			fmt.Fprintf(&out, "  held by %s\n", n.file.heldBy())
		}
	}
	visit(ns.root())
	return out.String()
}

// A version stays what it was, whatever happens afterwards, and the state goes on as if
// none had been taken.
func TestVersionsDoNotChange(t *testing.T) {
	type version struct {
		v    *Version
		want []byte
	}
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m := newMachine(t)
		m.ns.reapNow = rng.IntN(3)
		var versions []version
		for range 600 {
			m.apply2(rng)
			if rng.IntN(30) == 0 {
				// What AppendSnapshot writes is written at once.
				versions = append(versions, version{v: m.ns.Freeze(), want: m.snapshot()})
			}
		}
		for i, v := range versions {
			var got bytes.Buffer
			if n, err := v.v.WriteTo(&got); err != nil || n != int64(got.Len()) {
				t.Fatal(n, err)
			}
			if !bytes.Equal(got.Bytes(), v.want) {
				t.Fatalf("seed %d: version %d is not what the state was", seed, i)
			}
		}
	}
}

// What is deleted is gone at once, and when its parts go changes no result: the same log
// gives the same answers and the same snapshot with any pace.
func TestReapingIsInvisible(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 4))
		m := newMachine(t)
		for range 1200 {
			m.apply2(rng)
		}
		type outcome struct {
			ok    bool
			inode uint64
			block string
			err   string
		}
		var want []outcome
		var snapshot []byte
		for pace := range 4 {
			ns := New()
			// The last one takes nothing apart by the way.
			ns.reapNow, ns.reapBehind = []int{reapNow, 0, 1, 0}[pace], []int{reapBehind, 1, 2, 0}[pace]
			backlog := 0
			for i, data := range m.log {
				var e nspb.Entry
				if err := proto.Unmarshal(data, &e); err != nil {
					t.Fatal(err)
				}
				if ns.Reaping() {
					backlog++
				}
				res, err := ns.Apply(&e)
				got := outcome{res.OK, res.Inode, fmt.Sprintf("%d %d %t", res.Block.ID, res.Block.Generation, res.Block.Construction != nil), fmt.Sprint(err)}
				if pace == 0 {
					want = append(want, got)
				} else if got != want[i] {
					t.Fatalf("seed %d, pace %d: entry %d gave %+v, want %+v", seed, pace, i, got, want[i])
				}
			}
			if pace == 3 && backlog == 0 {
				t.Fatal("nothing was ever left to be taken apart")
			}
			check := &machine{t: t, ns: ns}
			check.audit()
			got := check.snapshot()
			if pace == 0 {
				snapshot = got
			} else if !bytes.Equal(got, snapshot) {
				t.Fatalf("seed %d, pace %d: another snapshot", seed, pace)
			}
			for ns.Reaping() {
				ns.Reap(1 + rng.IntN(3))
				check.audit()
			}
			check.audit()
			if !bytes.Equal(check.snapshot(), snapshot) {
				t.Fatalf("seed %d, pace %d: another snapshot once all is taken apart", seed, pace)
			}
		}
	}
}

// A tree larger than what one entry takes apart is gone at once, and its blocks are
// handed over bit by bit, each once.
func TestDeleteOfALargeTree(t *testing.T) {
	m := newMachine(t)
	ns := m.ns
	do := func(e *nspb.Entry) Result {
		res, err := ns.Apply(e)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	blocks := map[uint64]bool{}
	holder := proto.String("w")
	for i := range 5000 {
		path := proto.String(fmt.Sprintf("/big/%d/%d/f%d", i%3, i%40, i))
		do(&nspb.Entry{Op: &nspb.Entry_Create{Create: &nspb.Create{Path: path, Holder: holder, CreateParent: proto.Bool(true), Replication: proto.Uint32(1), BlockSize: proto.Uint64(100)}}})
		res := do(&nspb.Entry{Op: &nspb.Entry_AddBlock{AddBlock: &nspb.AddBlock{Path: path, Holder: holder, Generation: proto.Uint64(firstStamp), Targets: []string{"d"}}}})
		blocks[res.Block.ID] = true
	}
	m.audit()
	gone := func(ids []uint64) {
		for _, id := range ids {
			if !blocks[id] {
				t.Fatalf("block %d goes twice, or was never there", id)
			}
			delete(blocks, id)
		}
	}
	res := do(&nspb.Entry{Op: &nspb.Entry_Delete{Delete: &nspb.Delete{Path: proto.String("/big"), Recursive: proto.Bool(true)}}})
	if len(res.Removed) > reapNow || !ns.Reaping() {
		t.Fatalf("one entry took %d blocks apart", len(res.Removed))
	}
	gone(res.Removed)
	m.audit()
	if ns.Leased("w") || len(ns.Holders()) > 0 {
		t.Error("a writer still has leases of deleted files")
	}
	data := m.snapshot()
	if again, err := Restore(bytes.NewReader(data)); err != nil || again.Reaping() || again.inodes.Len() != 1 {
		t.Fatalf("the snapshot has %d inodes: %v", again.inodes.Len(), err)
	}
	res = do(&nspb.Entry{Op: &nspb.Entry_Mkdirs{Mkdirs: &nspb.Mkdirs{Path: proto.String("/big/0"), Mode: proto.Uint32(0o755), CreateParent: proto.Bool(true)}}})
	gone(res.Removed)
	for ns.Reaping() {
		ids := ns.Reap(300)
		if len(ids) > 300 {
			t.Fatalf("%d blocks at once", len(ids))
		}
		gone(ids)
	}
	if len(blocks) > 0 {
		t.Errorf("%d blocks never went", len(blocks))
	}
	m.audit()
}

// Records are written without protobuf's code, and are what that code would write, but
// for the fields that are 0.
func TestRecordsAreTheMessages(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	m := newMachine(t)
	plain := 0
	for range 2000 {
		m.apply2(rng)
	}
	v := m.ns.Freeze()
	for _, n := range v.inodes.From(0) {
		if !v.plain(n) {
			continue
		}
		plain++
		var got nspb.SnapshotInode
		rec := v.appendInode(nil, n)
		if err := proto.Unmarshal(rec, &got); err != nil {
			t.Fatal(err)
		}
		again, blocks, err := inodeOf(&got)
		want, wantBlocks, wantErr := inodeOf(v.record(n))
		if err != nil || wantErr != nil || fmt.Sprintf("%+v %+v", v.record(again), blocks) != fmt.Sprintf("%+v %+v", v.record(want), wantBlocks) {
			t.Fatalf("%+v\nwas written as\n%+v", want, again)
		}
		var d decoder
		var fast Inode
		var fastBlocks []Block
		name, ok := d.plain(rec, &fast, &fastBlocks)
		if fast.name = string(name); !ok || fmt.Sprint(v.record(&fast)) != fmt.Sprint(v.record(want)) || fmt.Sprint(fastBlocks) != fmt.Sprint(wantBlocks) {
			t.Fatalf("%+v\nwas read as\n%+v", want, fast)
		}
	}
	if plain < 5 {
		t.Fatalf("%d inodes were plain", plain)
	}
}

// A batch that ends within a record, or has more than bytes of records, is an error.
func TestDamagedBatches(t *testing.T) {
	m := newMachine(t)
	header := m.ns.Freeze().header
	head := protowire.AppendBytes(nil, mustMarshal(t, header))
	root := protowire.AppendBytes(nil, m.ns.Freeze().appendInode(nil, m.ns.root()))
	for name, data := range map[string][]byte{
		"no batch":          head,
		"an empty one":      append(bytes.Clone(head), 0),
		"no end":            protowire.AppendBytes(bytes.Clone(head), root),
		"half a record":     append(protowire.AppendBytes(bytes.Clone(head), root[:len(root)/2]), 0),
		"the root twice":    append(protowire.AppendBytes(bytes.Clone(head), append(bytes.Clone(root), root...)), 0),
		"a length too long": protowire.AppendVarint(bytes.Clone(head), 1<<40),
	} {
		if ns, err := Restore(bytes.NewReader(data)); err == nil {
			t.Errorf("%s: restored %d inodes", name, ns.inodes.Len())
		}
	}
	if _, err := Restore(bytes.NewReader(append(protowire.AppendBytes(bytes.Clone(head), root), 0))); err != nil {
		t.Errorf("the root alone: %v", err)
	}
}

func mustMarshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
