package namespace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

func deleteBy(user, path string) *nspb.Entry {
	return &nspb.Entry{
		TimeMs: proto.Int64(1), Caller: &nspb.Caller{User: &user, Groups: groups[user], Superuser: proto.Bool(false)},
		Op: &nspb.Entry_Delete{Delete: &nspb.Delete{Path: &path, Recursive: proto.Bool(true)}},
	}
}

// allowed is what asking for all at once says.
func (m *machine) allowed(e *nspb.Entry) bool {
	most := m.ns.askedAtOnce
	m.ns.askedAtOnce = 1 << 30
	_, changes, err := m.ns.Check(proto.CloneOf(e))
	m.ns.askedAtOnce = most
	if errors.Is(err, ErrLarge) {
		m.t.Fatal(err)
	}
	return changes && err == nil
}

// No check of a delete looks at more of a tree than it may, and those that follow look at
// the rest.
func TestRightsBelowALargeTree(t *testing.T) {
	m := newMachine(t)
	const dirs, files = 300, 40
	m.apply("root", mkdirsEntry("/t", 0o777))
	for d := range dirs {
		m.apply("alice", mkdirsEntry(fmt.Sprintf("/t/%03d/below", d), 0o755))
	}
	for f := range files {
		m.apply("alice", createEntry(fmt.Sprintf("/t/007/f%d", f)))
	}
	m.apply("root", &nspb.Entry{Op: &nspb.Entry_SetPermission{SetPermission: &nspb.SetPermission{Path: proto.String("/"), Mode: proto.Uint32(0o777)}}})
	m.apply("root", &nspb.Entry{Op: &nspb.Entry_SetPermission{SetPermission: &nspb.SetPermission{Path: proto.String("/t/007"), Mode: proto.Uint32(0o1755)}}})
	m.ns.askedAtOnce = 50
	e := deleteBy("alice", "/t")
	_, _, err := m.ns.Check(e)
	if !errors.Is(err, ErrLarge) {
		t.Fatalf("the first check said %v", err)
	}
	m.ns.Ask(e)
	checks, changes := 0, false
	for err = ErrLarge; errors.Is(err, ErrLarge); checks++ {
		_, changes, err = m.ns.Check(e)
	}
	// A directory is looked at when its name is, and when it is asked itself.
	if least := (2*dirs + files) / 50; err != nil || !changes || checks < least || checks > 4*least {
		t.Fatalf("%d checks: %t, %v", checks, changes, err)
	}
	// What changes meanwhile is asked, and nothing else.
	m.apply("alice", mkdirsEntry("/t/more", 0o755))
	if len(m.ns.subtrees[e].stack) != 1 || !m.ns.subtrees[e].stack[0].alone {
		t.Errorf("a new directory leaves %v to be asked", m.ns.subtrees[e].stack)
	}
	if _, changes, err := m.ns.Check(e); err != nil || !changes {
		t.Errorf("after a change, the check said %t, %v", changes, err)
	}
	res, err := m.ns.Apply(e)
	m.ns.Asked(e)
	if err != nil || !res.OK || len(m.ns.subtrees) > 0 {
		t.Fatal(res, err)
	}
}

func mkdirsEntry(path string, mode uint32) *nspb.Entry {
	return &nspb.Entry{Op: &nspb.Entry_Mkdirs{Mkdirs: &nspb.Mkdirs{Path: &path, Mode: &mode, CreateParent: proto.Bool(true)}}}
}

func createEntry(path string) *nspb.Entry {
	return &nspb.Entry{Op: &nspb.Entry_Create{Create: &nspb.Create{Path: &path, Holder: proto.String("c"), Mode: proto.Uint32(0o644), CreateParent: proto.Bool(true), Replication: proto.Uint32(3), BlockSize: proto.Uint64(1 << 20)}}}
}

// What changes while a tree is asked in parts is heard as if all were asked at the end.
func TestRightsBelowChangeMeanwhile(t *testing.T) {
	outcomes := map[bool]int{}
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m := newMachine(t)
		m.ns.askedAtOnce = 2 + rng.IntN(4)
		calm := true // all below is alice's, but for empty directories of bob's
		name := func() string { return []string{"d0", "d1", "d2", "d3", "bobs0", "bobs1"}[rng.IntN(6)] }
		path := func() string {
			at := []string{"/t", "/t", "/o"}[rng.IntN(3)]
			for range rng.IntN(4) {
				at += "/" + name()
			}
			return at
		}
		user := func() string { return []string{"alice", "bob"}[rng.IntN(2)] }
		change := func() {
			var e *nspb.Entry
			who := user()
			switch p := path(); rng.IntN(7) {
			case 0:
				e = mkdirsEntry(p+"/bobs"+fmt.Sprint(rng.IntN(2)), 0o755)
				who = "bob"
				if rng.IntN(3) > 0 {
					e, who = mkdirsEntry(p+"/d"+fmt.Sprint(rng.IntN(4)), 0o777), "alice"
				}
			case 1:
				e = createEntry(p + "/" + fmt.Sprint("f", rng.IntN(3)))
			case 2:
				mode := []uint32{0o777, 0o777, 0o777, 0o1777, 0o500}[rng.IntN(5)]
				if calm {
					mode |= 0o777
				}
				e = &nspb.Entry{Op: &nspb.Entry_SetPermission{SetPermission: &nspb.SetPermission{Path: &p, Mode: &mode}}}
			case 3:
				e = &nspb.Entry{Op: &nspb.Entry_SetOwner{SetOwner: &nspb.SetOwner{Path: &p, Owner: proto.String(user())}}}
			case 4, 5:
				e = &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{From: &p, To: proto.String(path() + "/" + name())}}}
			case 6:
				e = &nspb.Entry{Op: &nspb.Entry_Delete{Delete: &nspb.Delete{Path: proto.String(p + "/" + name()), Recursive: proto.Bool(true)}}}
			}
			switch e.Op.(type) {
			case *nspb.Entry_SetPermission, *nspb.Entry_Rename, *nspb.Entry_Delete:
				who = "root"
			case *nspb.Entry_SetOwner:
				if who = "root"; calm {
					return
				}
			case *nspb.Entry_Create:
				if calm {
					who = "alice"
				}
			}
			e.TimeMs = proto.Int64(1)
			e.Caller = &nspb.Caller{User: &who, Groups: groups[who], Superuser: proto.Bool(who == "root")}
			_, _ = m.ns.Apply(e) // it may be refused
		}
		for _, top := range []string{"/t", "/o"} {
			m.apply("root", mkdirsEntry(top, 0o777))
			m.apply("root", &nspb.Entry{Op: &nspb.Entry_SetPermission{SetPermission: &nspb.SetPermission{Path: &top, Mode: proto.Uint32(0o777)}}})
		}
		m.apply("root", &nspb.Entry{Op: &nspb.Entry_SetPermission{SetPermission: &nspb.SetPermission{Path: proto.String("/"), Mode: proto.Uint32(0o777)}}})
		for range 80 {
			change()
		}
		calm = false
		e := deleteBy("alice", "/t")
		m.ns.Ask(e)
		changes, err := false, ErrLarge
		for n := 0; errors.Is(err, ErrLarge); n++ {
			if n < 100 && rng.IntN(4) == 0 {
				change()
			}
			_, changes, err = m.ns.Check(e)
		}
		if now := m.allowed(e); now != (changes && err == nil) {
			t.Fatalf("seed %d: asked in parts %t, %v; at once %t", seed, changes, err, now)
		}
		if rng.IntN(2) == 0 {
			change()
		}
		now := m.allowed(e)
		res, _ := m.ns.Apply(e)
		if res.OK != now {
			t.Fatalf("seed %d: applied %t, asked at once %t", seed, res.OK, now)
		}
		m.ns.Asked(e)
		outcomes[now]++
	}
	if outcomes[true] < 20 || outcomes[false] < 20 {
		t.Errorf("outcomes are one-sided: %v", outcomes)
	}
}

// Each kind of change that takes a right away, or brings in what may not be deleted, is heard after
// all has been asked.
func TestRightsBelowAreAskedAgain(t *testing.T) {
	setMode := func(path string, mode uint32) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_SetPermission{SetPermission: &nspb.SetPermission{Path: &path, Mode: &mode}}}
	}
	rename := func(from, to string) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{From: &from, To: &to}}}
	}
	setOwner := func(path, owner string) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_SetOwner{SetOwner: &nspb.SetOwner{Path: &path, Owner: &owner}}}
	}
	for name, change := range map[string]*nspb.Entry{
		"a mode":                          setMode("/t/full", 0o555),
		"an owner":                        setOwner("/t/full", "bob"),
		"an owner in a sticky directory":  setOwner("/t/sticky/f", "bob"),
		"a file in another's directory":   createEntry("/t/bobs/f"),
		"a file moved there":              rename("/o/f", "/t/bobs/f"),
		"another's directory moved below": rename("/o/bobs", "/t/full/bobs"),
		"an access control list": {Op: &nspb.Entry_SetAcl{SetAcl: &nspb.SetAcl{Path: proto.String("/t/full"), Change: nspb.SetAcl_MERGE.Enum(), Entries: []*nspb.AclEntry{
			{Scope: proto.Uint32(0), Type: proto.Uint32(0), Permissions: proto.Uint32(4)},
		}}}},
	} {
		m := newMachine(t)
		for _, e := range []struct {
			user string
			do   *nspb.Entry
		}{
			{"root", setMode("/", 0o777)}, {"root", mkdirsEntry("/o", 0o777)}, {"root", setMode("/o", 0o777)},
			{"root", mkdirsEntry("/t", 0o777)}, {"root", setMode("/t", 0o777)}, {"alice", mkdirsEntry("/t/full", 0o755)},
			{"alice", createEntry("/t/full/f")}, {"alice", createEntry("/t/sticky/f")}, {"root", setOwner("/t/sticky", "bob")},
			{"root", setMode("/t/sticky", 0o1777)}, {"bob", mkdirsEntry("/t/bobs", 0o755)}, {"bob", mkdirsEntry("/o/bobs", 0o755)},
			{"bob", createEntry("/o/f")}, {"bob", createEntry("/o/bobs/f")},
		} {
			if _, err := m.apply(e.user, e.do); err != nil {
				t.Fatal(err)
			}
		}
		m.ns.askedAtOnce = 1
		e := deleteBy("alice", "/t")
		m.ns.Ask(e)
		err := ErrLarge
		for errors.Is(err, ErrLarge) {
			_, _, err = m.ns.Check(e)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.apply("root", change); err != nil {
			t.Fatal(name, err)
		}
		if m.allowed(e) {
			t.Fatalf("%s forbids nothing", name)
		}
		if res, err := m.ns.Apply(e); err == nil {
			t.Errorf("%s: the delete was applied: %t", name, res.OK)
		}
	}
}
