package namespace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

func quotaEntry(path string, names int64) *nspb.Entry {
	return &nspb.Entry{Op: &nspb.Entry_SetQuota{SetQuota: &nspb.SetQuota{Path: &path, Names: &names, Space: proto.Int64(quota.DontSet)}}}
}

// quickly applies an entry of the superuser and looks at nothing else.
func (m *machine) quickly(e *nspb.Entry) {
	m.t.Helper()
	e.TimeMs = proto.Int64(m.clock)
	if _, err := m.ns.Apply(e); err != nil {
		m.t.Fatal(err)
	}
}

func renameEntry(from, to string) *nspb.Entry {
	return &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{From: &from, To: &to}}}
}

// inParts checks an entry, limit names at a time, until the check is over. It returns the most names that one
// part looked at, and how many all of them did.
func (m *machine) inParts(e *nspb.Entry, limit int, between func()) (most, all int, changes bool, err error) {
	m.t.Helper()
	usual := m.ns.askedAtOnce
	e.TimeMs = proto.Int64(m.clock)
	m.ns.Ask(e)
	err = ErrLarge
	for turns := 0; errors.Is(err, ErrLarge); turns++ {
		if turns > 1_000_000 {
			m.t.Fatal("the check does not end")
		}
		s := m.ns.subtrees[e]
		look := func(part func()) {
			s.looked, m.ns.askedAtOnce = 0, limit
			part()
			m.ns.askedAtOnce = usual
			most, all = max(most, s.looked), all+s.looked
		}
		look(func() { m.ns.CountOn(e) })
		between()
		look(func() { _, changes, err = m.ns.Check(e) })
	}
	return most, all, changes, err
}

// Whatever an operation has to know of a large tree, no hold of a lock looks at more names than it may.
func TestLargeTreesAreLookedAtInParts(t *testing.T) {
	m := newMachine(t)
	const dirs, files = 1000, 99 // 100,000 names
	for d := range dirs {
		m.quickly(mkdirsEntry(fmt.Sprintf("/t/%04d", d), 0o755))
		for f := range files {
			m.quickly(createEntry(fmt.Sprintf("/t/%04d/%02d", d, f)))
		}
	}
	m.quickly(mkdirsEntry("/deep/er", 0o755))
	m.quickly(mkdirsEntry("/limited", 0o755))
	m.quickly(quotaEntry("/limited", 1<<40))
	calm := func() {}
	for _, c := range []struct {
		what  string
		e     *nspb.Entry
		least int // names that all parts look at
	}{
		{"a rename to a deeper place", renameEntry("/t", "/deep/er/t"), dirs},
		{"a quota", quotaEntry("/deep/er/t", 1<<40), dirs * files},
		{"a rename of what is counted", renameEntry("/deep/er/t", "/limited/t"), 0},
		{"a rename back", renameEntry("/limited/t", "/u"), 0},
	} {
		most, all, changes, err := m.inParts(c.e, askedAtOnce, calm)
		if err != nil || !changes || most > askedAtOnce || all < c.least {
			t.Fatalf("%s: %d names in a part, %d in all; %t, %v", c.what, most, all, changes, err)
		}
		res, err := m.ns.Apply(c.e)
		m.ns.Asked(c.e)
		if err != nil {
			t.Fatal(c.what, res, err)
		}
	}
	// A tree that is not counted moves to where it has to be.
	for d := range dirs {
		m.quickly(mkdirsEntry(fmt.Sprintf("/v/%04d/below", d), 0o755))
		m.quickly(createEntry(fmt.Sprintf("/v/%04d/f", d)))
	}
	e := renameEntry("/v", "/limited/v")
	most, all, changes, err := m.inParts(e, askedAtOnce, calm)
	if err != nil || !changes || most > askedAtOnce || all < 3*dirs {
		t.Fatalf("%d names in a part, %d in all; %t, %v", most, all, changes, err)
	}
	if !m.ns.few(m.ns.walk([]string{"v"}).last(), askedAtOnce) {
		t.Error("much is left to be counted when the entry comes")
	}
	m.ns.Apply(e)
	m.ns.Asked(e)
	m.audit()
	// A user who may see all asks what there is.
	q, err := m.ns.QuotaUsage(Caller{User: "bob"}, "/limited")
	if err != nil {
		t.Fatal(err)
	}
	for steps := 1; ; steps++ {
		u, done, err := q.Step(m.ns, askedAtOnce)
		if err != nil || q.walk.looked > askedAtOnce {
			t.Fatalf("%d names in a step: %v", q.walk.looked, err)
		}
		if done {
			if steps < 2 || u.Used.Names != 1+1+3*dirs {
				t.Errorf("%d names in %d steps", u.Used.Names, steps)
			}
			break
		}
	}
}

// Whatever happens while trees are counted in parts, each count is right, and no operation says
// anything else than where all is counted at once.
func TestCountingMeanwhile(t *testing.T) {
	parts := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 9))
		m, once := newMachine(t), newMachine(t)
		m.ns.askedAtOnce, once.ns.askedAtOnce = 1<<30, 1<<30
		both := func() {
			user, e := m.randomEntry(rng)
			once.clock = m.clock
			twin := proto.CloneOf(e)
			res, err := m.apply(user, e)
			other, otherErr := once.apply(user, twin)
			if fmt.Sprint(res.OK, res.Inode, err) != fmt.Sprint(other.OK, other.Inode, otherErr) {
				t.Fatalf("seed %d: %v: %+v, %v; counted at once: %+v, %v", seed, e, res, err, other, otherErr)
			}
		}
		for range 150 {
			both()
		}
		for range 40 {
			_, e := m.randomEntry(rng)
			if rng.IntN(2) == 0 {
				e = quotaEntry([]string{"/", "/a", "/b", "/a/b", "/a/a"}[rng.IntN(5)], int64(1+rng.IntN(40)))
			}
			root := "root"
			e.ClientId, e.CallId = nil, nil
			e.Caller = &nspb.Caller{User: &root, Superuser: proto.Bool(true)}
			_, all, changes, _ := m.inParts(e, 1+rng.IntN(4), func() {
				for range rng.IntN(3) {
					both()
				}
				m.auditLevels()
			})
			if all > 0 {
				parts++
			}
			if !changes || rng.IntN(4) == 0 { // refused, or given up
				m.ns.Asked(e)
				continue
			}
			res, err := m.ns.Apply(e)
			m.ns.Asked(e)
			other, otherErr := once.ns.Apply(proto.CloneOf(e))
			if fmt.Sprint(res.OK, res.Inode, err) != fmt.Sprint(other.OK, other.Inode, otherErr) {
				t.Fatalf("seed %d: %v: %+v, %v; counted at once: %+v, %v", seed, e, res, err, other, otherErr)
			}
			m.audit()
		}
	}
	if parts < 200 {
		t.Errorf("only %d operations looked at parts", parts)
	}
}

// auditLevels checks what has been counted of directories that are not whole.
func (m *machine) auditLevels() {
	m.t.Helper()
	for _, s := range m.ns.subtrees {
		for _, l := range s.count.levels {
			d := m.ns.byID(l.id)
			if d == nil || m.ns.limited(d.id) {
				continue // it is passed by
			}
			var want quota.Counts
			d.dir.names.After("", func(name string, id uint64) bool {
				for range m.ns.levels(d.id, name) {
					if n := m.ns.inodes.Get(id); n.dir != nil && !m.ns.limited(id) {
						m.t.Fatalf("%s is not counted, the directory above is up to %q", m.ns.path(n), l.after)
					}
					used := m.ns.usageOf(m.ns.inodes.Get(id), false)
					want.Add(&used)
					break
				}
				return true
			})
			if l.used != want {
				m.t.Fatalf("%s up to %q counts %+v and holds %+v", m.ns.path(d), l.after, l.used, want)
			}
		}
	}
}

// A change of storage policy, and a rename to where another one counts, look at nothing below: a tree of
// which a name leads nowhere would end who walks it.
func TestPoliciesAndRenamesLookAtNothingBelow(t *testing.T) {
	m := newMachine(t)
	policy := func(path, name string) *nspb.Entry {
		p, _ := storagepolicy.ByName(name)
		return &nspb.Entry{Op: &nspb.Entry_SetStoragePolicy{SetStoragePolicy: &nspb.SetStoragePolicy{Path: &path, Policy: proto.Uint32(uint32(p.ID))}}}
	}
	// 3 replicas of 1 MiB each: of a file without a policy, and of one below a directory that has its own.
	for _, path := range []string{"/q/t/x/open", "/q/t/warm/f", "/q/t/x/gone"} {
		m.quickly(createEntry(path))
		m.quickly(&nspb.Entry{Op: &nspb.Entry_AddBlock{AddBlock: &nspb.AddBlock{Path: &path, Holder: proto.String("c"), Generation: m.next(), Targets: []string{"d"}}}})
	}
	m.quickly(mkdirsEntry("/p", 0o755))
	m.quickly(policy("/q/t/warm", "WARM"))
	m.quickly(policy("/p", "ALL_SSD"))
	m.quickly(quotaEntry("/", 1<<40))
	m.ns.inodes.Delete(m.ns.walk([]string{"q", "t", "x", "gone"}).last().id)
	for _, c := range []struct {
		e                  *nspb.Entry
		path               []string
		disk, ssd, archive int64 // MiB below path
	}{
		{policy("/q", "ONE_SSD"), []string{"q"}, 2*2 + 1, 2, 2},
		{policy("/q/t", "HOT"), []string{"q"}, 2*3 + 1, 0, 2},
		{policy("/q/t", "ALL_SSD"), []string{"q", "t", "x"}, 0, 6, 0},
		{policy("/q/t", ""), []string{"q"}, 2*2 + 1, 2, 2},
		{renameEntry("/q/t", "/p/t"), []string{"p", "t"}, 1, 6, 2},
		{renameEntry("/p/t", "/t"), nil, 1, 0, 2},
		{policy("/", "COLD"), []string{"t", "x"}, 0, 0, 6},
	} {
		m.quickly(c.e)
		n := m.ns.walk(c.path).last()
		used := m.ns.usage[n.id].Under(m.ns.policy(n))
		var want quota.Counts
		want.Types[storagepolicy.Disk], want.Types[storagepolicy.SSD], want.Types[storagepolicy.Archive] = c.disk<<20, c.ssd<<20, c.archive<<20
		if used.Types != want.Types {
			t.Errorf("after %v %v counts %v, want %v", c.e, c.path, used.Types, want.Types)
		}
	}
}

// A directory that comes among the names which have been counted is counted, too.
func TestDirectoryComesWhereAllIsCounted(t *testing.T) {
	m := newMachine(t)
	for _, path := range []string{"/q/below/more", "/p/a", "/p/m", "/p/z/z"} {
		m.quickly(mkdirsEntry(path, 0o755))
	}
	moved := false
	e := quotaEntry("/p", 100)
	_, _, _, err := m.inParts(e, 1, func() {
		for l := range m.ns.levels(m.ns.walk([]string{"p"}).last().id, "m") {
			if !moved && l.after == "m" {
				m.quickly(renameEntry("/q", "/p/c"))
				moved = true
				break
			}
		}
		m.auditLevels()
	})
	if err != nil || !moved {
		t.Fatalf("moved %t: %v", moved, err)
	}
	m.quickly(e)
	m.ns.Asked(e)
	m.audit()
	if used := m.ns.usage[m.ns.walk([]string{"p"}).last().id]; used.Names != 8 {
		t.Errorf("%d names", used.Names)
	}
}
