package namespace

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// Inodes that inherit the same list share one value, before and after a start; a change of one
// leaves the others.
func TestInheritedListsAreShared(t *testing.T) {
	m := newMachine(t)
	must := func(e *nspb.Entry) {
		t.Helper()
		if _, err := m.apply("root", e); err != nil {
			t.Fatal(err)
		}
	}
	mkdirs := func(path string) {
		t.Helper()
		must(&nspb.Entry{Op: &nspb.Entry_Mkdirs{Mkdirs: &nspb.Mkdirs{Path: &path, Mode: proto.Uint32(0o755), CreateParent: proto.Bool(true)}}})
	}
	set := func(path, user string) {
		t.Helper()
		op := &nspb.SetAcl{Path: &path, Change: nspb.SetAcl_MERGE.Enum()}
		for scope := range uint32(2) {
			op.Entries = append(op.Entries, &nspb.AclEntry{Scope: &scope, Type: proto.Uint32(0), Name: &user, Permissions: proto.Uint32(5)})
		}
		must(&nspb.Entry{Op: &nspb.Entry_SetAcl{SetAcl: op}})
	}
	mkdirs("/d")
	set("/d", "alice")
	for i := range 20 {
		mkdirs(fmt.Sprint("/d/", i))
	}
	check := func(when string) {
		t.Helper()
		values := make(map[*attributes]int)
		for i := range 20 {
			r, err := m.ns.resolve(&caller{Superuser: true}, fmt.Sprint("/d/", i), reading)
			if err != nil || len(r.last().acl()) == 0 {
				t.Fatal(r, err)
			}
			values[r.last().more]++
		}
		if len(values) != 2 {
			t.Errorf("%s 20 directories have %d values, want 2", when, len(values))
		}
	}
	set("/d/7", "bob")
	check("at first")
	m.roundTrip()
	check("after a start")
}

// What is remembered is bounded.
func TestSharedListsAreBounded(t *testing.T) {
	m := newMachine(t)
	path := "/d"
	if _, err := m.apply("root", &nspb.Entry{Op: &nspb.Entry_Mkdirs{Mkdirs: &nspb.Mkdirs{Path: &path, Mode: proto.Uint32(0o755), CreateParent: proto.Bool(true)}}}); err != nil {
		t.Fatal(err)
	}
	for i := range 2*sharedLists + 10 {
		entries := []*nspb.AclEntry{{Scope: proto.Uint32(0), Type: proto.Uint32(0), Name: proto.String(fmt.Sprint("user", i)), Permissions: proto.Uint32(5)}}
		if _, err := m.apply("root", &nspb.Entry{Op: &nspb.Entry_SetAcl{SetAcl: &nspb.SetAcl{Path: &path, Change: nspb.SetAcl_MERGE.Enum(), Entries: entries[:1]}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.apply("root", &nspb.Entry{Op: &nspb.Entry_SetAcl{SetAcl: &nspb.SetAcl{Path: &path, Change: nspb.SetAcl_REMOVE.Enum()}}}); err != nil {
			t.Fatal(err)
		}
		if len(m.ns.lists) > sharedLists {
			t.Fatalf("%d lists are remembered", len(m.ns.lists))
		}
	}
}
