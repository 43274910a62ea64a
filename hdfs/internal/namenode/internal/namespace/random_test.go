package namespace

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// randomEntry makes an operation on a few paths, so that many of them meet.
func (m *machine) randomEntry(rng *rand.Rand) (user string, e *nspb.Entry) {
	names := []string{"a", "b", "c"}
	path := func() string {
		p := ""
		for range 1 + rng.IntN(3) {
			p += "/" + names[rng.IntN(len(names))]
		}
		return p
	}
	p, holder := path(), []string{"w1", "w2"}[rng.IntN(2)]
	user = []string{"root", "root", "root", "alice"}[rng.IntN(4)]
	var last *nspb.Block
	var fileID, lastID uint64
	if f, err := m.ns.File(Caller{Superuser: true}, p, 0); err == nil {
		fileID = f.Status.ID
		if f.Holder != "" && rng.IntN(5) > 0 {
			holder = f.Holder
		}
		if n := len(f.Blocks); n > 0 {
			b := f.Blocks[n-1]
			lastID = b.ID
			last = &nspb.Block{Id: &b.ID, Generation: &b.Generation, Length: proto.Uint64(max(b.Length, uint64(rng.IntN(101))))}
			if b.Construction == nil {
				last.Length = &b.Length
			}
		}
	}
	stamp := func() *uint64 { m.stamp++; s := m.stamp - 1; return &s }
	if rng.IntN(5) == 0 {
		return user, randomAttribute(rng, p)
	}
	e = &nspb.Entry{}
	switch rng.IntN(20) {
	case 0, 1:
		e.Op = &nspb.Entry_Mkdirs{Mkdirs: &nspb.Mkdirs{Path: &p, Mode: proto.Uint32(uint32(rng.IntN(0o2000))), CreateParent: proto.Bool(rng.IntN(2) == 0)}}
	case 2, 3, 4:
		e.Op = &nspb.Entry_Create{Create: &nspb.Create{Path: &p, Holder: &holder, Mode: proto.Uint32(0o644), Overwrite: proto.Bool(rng.IntN(2) == 0), CreateParent: proto.Bool(true), Replication: proto.Uint32(2), BlockSize: proto.Uint64(100)}}
	case 5, 6, 7, 8:
		e.Op = &nspb.Entry_AddBlock{AddBlock: &nspb.AddBlock{Path: &p, Holder: &holder, Previous: last, Generation: stamp(), Targets: []string{"d"}}}
	case 9, 10:
		e.Op = &nspb.Entry_Complete{Complete: &nspb.Complete{Path: &p, Holder: &holder, Last: last}}
	case 11:
		e.Op = &nspb.Entry_Append{Append: &nspb.Append{Path: &p, Holder: &holder, NewBlock: proto.Bool(rng.IntN(3) == 0), Targets: []string{"d"}}}
	case 12:
		e.Op = &nspb.Entry_Truncate{Truncate: &nspb.Truncate{Path: &p, Holder: &holder, Length: proto.Uint64(uint64(rng.IntN(250))), Generation: stamp(), Targets: []string{"d"}}}
	case 13:
		e.Op = &nspb.Entry_Rename{Rename: &nspb.Rename{From: &p, To: proto.String(path()), Strict: proto.Bool(rng.IntN(2) == 0), Overwrite: proto.Bool(rng.IntN(2) == 0)}}
	case 14:
		e.Op = &nspb.Entry_Delete{Delete: &nspb.Delete{Path: &p, Recursive: proto.Bool(rng.IntN(2) == 0)}}
	case 15:
		e.Op = &nspb.Entry_SetPermission{SetPermission: &nspb.SetPermission{Path: &p, Mode: proto.Uint32(uint32(rng.IntN(0o2000)))}}
	case 16:
		e.Op = &nspb.Entry_SetOwner{SetOwner: &nspb.SetOwner{Path: &p, Owner: proto.String([]string{"alice", "bob"}[rng.IntN(2)])}}
	case 17:
		e.Op = &nspb.Entry_StartRecovery{StartRecovery: &nspb.StartRecovery{File: &fileID, Block: &lastID, Generation: stamp()}}
		user = ""
	case 18:
		c := &nspb.CommitRecovery{Block: &lastID, Generation: stamp(), Length: proto.Uint64(last.GetLength()), Targets: []string{"d"}}
		if b := m.ns.blocks.Get(lastID); b != nil && b.Construction != nil {
			c.Generation = &b.Construction.Recovery
			if b.Construction.Truncate {
				c.Length = &b.Construction.TruncateTo
			}
		}
		e.Op = &nspb.Entry_CommitRecovery{CommitRecovery: c}
		user = ""
	case 19:
		if rng.IntN(2) == 0 {
			e.Op = &nspb.Entry_Concat{Concat: &nspb.Concat{Path: &p, Sources: []string{path()}}}
		} else {
			e.Op = &nspb.Entry_CloseFile{CloseFile: &nspb.CloseFile{File: &fileID, DropLast: proto.Bool(rng.IntN(2) == 0)}}
			user = ""
		}
	}
	if rng.IntN(3) == 0 {
		e.ClientId = []byte("0123456789abcdef")
		e.CallId = proto.Int32(int32(len(m.log))) // no other call has it
	}
	return user, e
}

// TestDeterminism applies the same log three ways: at once, over a snapshot in the
// middle, and twice. All give the same bytes.
func TestDeterminism(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		m := newMachine(t)
		done := 0
		for i := range 1500 {
			user, e := m.randomEntry(rng)
			if _, err := m.apply(user, e); err == nil {
				done++
			}
			if i == 700 {
				m.roundTrip()
			}
			m.clock += int64(rng.IntN(2000))
		}
		if done < 200 {
			t.Fatalf("seed %d: only %d operations went through", seed, done)
		}
		want := m.snapshot()
		for range 2 {
			ns := New()
			for _, data := range m.log {
				var e nspb.Entry
				if err := proto.Unmarshal(data, &e); err != nil {
					t.Fatal(err)
				}
				ns.Apply(&e)
			}
			got, err := ns.AppendSnapshot(nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("seed %d: the same log gave another state", seed)
			}
		}
	}
}

func TestRetryCacheExpires(t *testing.T) {
	m := newMachine(t)
	client := [16]byte{1}
	mkdir := func(path string, id int32) {
		m.apply("root", &nspb.Entry{ClientId: client[:], CallId: &id, Op: &nspb.Entry_Mkdirs{Mkdirs: &nspb.Mkdirs{Path: &path, Mode: proto.Uint32(0o755)}}})
	}
	mkdir("/a", 1)
	if res, ok := m.ns.Answered(client, 1); !ok || !res.OK {
		t.Fatalf("answered: %+v %v", res, ok)
	}
	m.roundTrip()
	if _, ok := m.ns.Answered(client, 1); !ok {
		t.Fatal("a snapshot lost the call")
	}
	for i := range retryMillis / maxTick {
		m.clock += maxTick
		mkdir("/b", 2+int32(i))
		m.roundTrip()
	}
	if _, ok := m.ns.Answered(client, 1); ok {
		t.Fatal("the call is remembered for longer than ten minutes")
	}
	if _, ok := m.ns.Answered(client, 2); !ok {
		t.Fatal("the new call is not remembered")
	}
}

// TestRetryCacheOutlivesALeap has one entry come with a time that is far ahead, or
// far behind. Calls are remembered for as long as before, and no longer.
func TestRetryCacheOutlivesALeap(t *testing.T) {
	const year = 365 * 24 * 3600 * 1000
	for _, leap := range []int64{year, -year, math.MaxInt64 - 1<<40, math.MinInt64 + 1<<40} {
		m := newMachine(t)
		m.clock = 1_700_000_000_000
		client := [16]byte{1}
		next := int32(0)
		call := func() int32 {
			next++
			m.apply("root", &nspb.Entry{ClientId: client[:], CallId: proto.Int32(next), Op: &nspb.Entry_Mkdirs{Mkdirs: &nspb.Mkdirs{Path: proto.String(fmt.Sprint("/", next)), Mode: proto.Uint32(0o755)}}})
			return next
		}
		remembered := func(id int32, want bool, when string) {
			t.Helper()
			if _, ok := m.ns.Answered(client, id); ok != want {
				t.Fatalf("leap %d: call %d remembered %v, want %v: %s", leap, id, ok, want, when)
			}
		}
		before := call()
		m.clock += leap
		during := call()
		m.clock -= leap
		m.roundTrip()
		after := call()
		remembered(before, true, "the leap made it old")
		remembered(during, true, "the leap made it old")
		for range 2*retryMillis/maxTick + 2 {
			m.clock += maxTick / 2
			call()
		}
		remembered(before, false, "ten minutes have passed since")
		remembered(during, false, "ten minutes have passed since")
		remembered(after, false, "ten minutes have passed since")
		if n := len(m.ns.retry.order); n > 2*retryMillis/maxTick+2 {
			t.Fatalf("leap %d: %d calls are kept", leap, n)
		}
	}
}

// TestRetryCacheIsBounded has more calls come in ten minutes than are kept, and
// restores a snapshot that has more than that.
func TestRetryCacheIsBounded(t *testing.T) {
	ns := New()
	ns.Apply(&nspb.Entry{Op: &nspb.Entry_Format{Format: &nspb.Format{ClusterId: proto.String("c"), BlockPoolId: proto.String("b"), Superuser: proto.String("root"), Supergroup: proto.String("root")}}})
	var client [16]byte
	for i := range maxCalls + 1000 {
		_, err := ns.Apply(&nspb.Entry{TimeMs: proto.Int64(1), ClientId: client[:], CallId: proto.Int32(int32(i)), Op: &nspb.Entry_ReserveGenerations{ReserveGenerations: &nspb.ReserveGenerations{Limit: proto.Uint64(1)}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(ns.retry.order) != maxCalls || ns.retry.places.used != maxCalls {
		t.Fatalf("%d calls are kept", len(ns.retry.order))
	}
	if _, ok := ns.Answered(client, maxCalls+999); !ok {
		t.Fatal("the newest call is forgotten")
	}
	// As a version without the bound has written it.
	var older []remembered
	for i := range 1000 {
		older = append(older, remembered{callKey{client, -1 - int32(i)}, call{time: ns.clock}})
	}
	ns.retry.order = append(older, ns.retry.order...)
	buf, err := ns.AppendSnapshot(nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Restore(bytes.NewReader(buf))
	if err != nil {
		t.Fatal(err)
	}
	if len(again.retry.order) != maxCalls {
		t.Fatalf("%d calls were restored", len(again.retry.order))
	}
	if _, ok := again.Answered(client, maxCalls+999); !ok {
		t.Fatal("the newest call was not restored")
	}
}

func FuzzRestore(f *testing.F) {
	m := newMachine(f)
	rng := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		m.apply2(rng)
	}
	full := m.snapshot()
	f.Add(full)
	f.Add(full[:len(full)/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		ns, err := Restore(bytes.NewReader(data))
		if err != nil {
			return
		}
		// What was taken is consistent, and writes itself back.
		m := &machine{t: t, ns: ns}
		m.audit()
		m.roundTrip()
	})
}

// FuzzApply applies whatever decodes as an entry.
func FuzzApply(f *testing.F) {
	m := newMachine(f)
	rng := rand.New(rand.NewPCG(8, 8))
	for range 60 {
		m.apply2(rng)
	}
	for _, e := range m.log {
		f.Add(e)
	}
	state := m.snapshot()
	f.Fuzz(func(t *testing.T, data []byte) {
		var e nspb.Entry
		if proto.Unmarshal(data, &e) != nil {
			return
		}
		ns, err := Restore(bytes.NewReader(state))
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{t: t, ns: ns}
		_, _, checkErr := ns.Check(&e)
		key, remembered := keyOf(&e)
		_, answered := ns.retry.get(key)
		_, err = ns.Apply(&e)
		if !(remembered && answered) && fmt.Sprint(err) != fmt.Sprint(checkErr) {
			t.Fatalf("Check says %v, Apply %v", checkErr, err)
		}
		m.audit()
		m.roundTrip()
	})
}

func (m *machine) apply2(rng *rand.Rand) {
	user, e := m.randomEntry(rng)
	m.apply(user, e)
}

func BenchmarkApplyCreate(b *testing.B) {
	ns := New()
	root := proto.String("root")
	ns.Apply(&nspb.Entry{Op: &nspb.Entry_Format{Format: &nspb.Format{ClusterId: proto.String("c"), BlockPoolId: proto.String("b"), Superuser: root, Supergroup: root}}})
	caller := &nspb.Caller{User: root, Superuser: proto.Bool(true)}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		_, err := ns.Apply(&nspb.Entry{TimeMs: proto.Int64(int64(i)), Caller: caller, Op: &nspb.Entry_Create{Create: &nspb.Create{
			Path: proto.String(fmt.Sprintf("/%03d/%09d", i%100, i/100)), Holder: root, CreateParent: proto.Bool(true), Replication: proto.Uint32(3), BlockSize: proto.Uint64(1 << 20),
		}}})
		if err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// TestDatanodesAreBounded registers names that are too long, and more than there may be.
func TestDatanodesAreBounded(t *testing.T) {
	ns := New()
	register := func(uuid, host, hostname string, port uint32) error {
		_, err := ns.Apply(&nspb.Entry{Op: &nspb.Entry_RegisterDatanode{RegisterDatanode: &nspb.RegisterDatanode{Uuid: &uuid, Host: &host, Port: &port, Hostname: &hostname}}})
		return err
	}
	long := strings.Repeat("x", maxHostLength+1)
	for _, bad := range [][3]string{{long[:maxUUIDLength+1], "h", "h"}, {"u", long, "h"}, {"u", "h", long}} {
		if err := register(bad[0], bad[1], bad[2], 1); err == nil {
			t.Errorf("names of %d, %d and %d bytes are taken", len(bad[0]), len(bad[1]), len(bad[2]))
		}
	}
	if err := register(long[:maxUUIDLength], long[:maxHostLength], long[:maxHostLength], 1); err != nil {
		t.Error(err)
	}
	for i := len(ns.datanodes); i < maxDatanodes; i++ {
		dn := Datanode{UUID: fmt.Sprint(i), Host: "h", Port: uint32(i)}
		ns.datanodes[dn.UUID] = dn
	}
	if err := register("one more", "other", "other", 1); err == nil || len(ns.datanodes) != maxDatanodes {
		t.Errorf("%d are registered: %v", len(ns.datanodes), err)
	}
	if err := register("7", "other", "other", 1); err != nil {
		t.Errorf("one that is known has moved: %v", err)
	}
}
