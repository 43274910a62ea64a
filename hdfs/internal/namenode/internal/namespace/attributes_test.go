package namespace

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/acl"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/xattr"
)

// randomAttribute is an operation on what few inodes have.
func randomAttribute(rng *rand.Rand, path string) *nspb.Entry {
	switch rng.IntN(4) {
	case 3:
		return randomQuota(rng, path)
	case 0:
		return randomACL(rng, path)
	case 1:
		return randomXAttr(rng, path)
	}
	policies := []uint32{0, 1, 2, 3, 5, 7, 10, 12, 14, 15, 300}
	return &nspb.Entry{Op: &nspb.Entry_SetStoragePolicy{SetStoragePolicy: &nspb.SetStoragePolicy{Path: &path, Policy: proto.Uint32(policies[rng.IntN(len(policies))])}}}
}

func randomQuota(rng *rand.Rand, path string) *nspb.Entry {
	limits := []int64{-1, -1, 0, 1, 3, 5, quota.DontSet, quota.DontSet}
	op := &nspb.SetQuota{Path: &path, Names: &limits[rng.IntN(len(limits))], Space: &limits[rng.IntN(len(limits))]}
	if *op.Space > 0 && *op.Space < quota.DontSet {
		op.Space = proto.Int64(*op.Space * 200)
	}
	if rng.IntN(3) == 0 {
		op.Names, op.Type = proto.Int64(quota.DontSet), proto.Uint32(uint32(1+rng.IntN(6)))
	}
	return &nspb.Entry{Op: &nspb.Entry_SetQuota{SetQuota: op}}
}

func randomXAttr(rng *rand.Rand, path string) *nspb.Entry {
	a := &nspb.XAttr{Namespace: proto.Uint32(uint32(rng.IntN(6))), Name: proto.String([]string{"a", "b", "c", "d"}[rng.IntN(4)])}
	if rng.IntN(4) == 0 {
		path, a.Namespace = "/.reserved/raw"+path, proto.Uint32(uint32(xattr.Raw))
	}
	if rng.IntN(3) == 0 {
		return &nspb.Entry{Op: &nspb.Entry_RemoveXattr{RemoveXattr: &nspb.RemoveXAttr{Path: &path, Attr: a}}}
	}
	a.Value = make([]byte, rng.IntN(3)*600)
	return &nspb.Entry{Op: &nspb.Entry_SetXattr{SetXattr: &nspb.SetXAttr{
		Path: &path, Attr: a, Limit: proto.Uint32(3), Create: proto.Bool(rng.IntN(3) > 0), Replace: proto.Bool(rng.IntN(3) > 0),
	}}}
}

func randomACL(rng *rand.Rand, path string) *nspb.Entry {
	op := &nspb.SetAcl{Path: &path, Change: nspb.SetAcl_Change(1 + rng.IntN(5)).Enum()}
	for range rng.IntN(5) {
		op.Entries = append(op.Entries, &nspb.AclEntry{
			Scope: proto.Uint32(uint32(rng.IntN(2))), Type: proto.Uint32(uint32(rng.IntN(4))), Permissions: proto.Uint32(uint32(rng.IntN(8))),
			Name: proto.String([]string{"", "", "alice", "bob"}[rng.IntN(4)]),
		})
	}
	return &nspb.Entry{Op: &nspb.Entry_SetAcl{SetAcl: op}}
}

// auditUsage checks what is counted of a directory against all that is below.
func (m *machine) auditUsage(n *Inode, used quota.Counts) {
	m.t.Helper()
	var want quota.Counts
	for stack := []*Inode{n}; len(stack) > 0; {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		want.Names++
		if at.dir != nil {
			at.dir.names.After("", func(_ string, id uint64) bool {
				stack = append(stack, m.ns.inodes.Get(id))
				return true
			})
			continue
		}
		bytes, replication := m.ns.bytesOf(at.file), int(at.file.replication)
		want.Space += bytes * int64(replication)
		if policy := m.ns.policy(at); policy != storagepolicy.Unspecified {
			p, _ := storagepolicy.ByID(policy)
			for _, t := range p.Choose(replication) {
				want.Types[t] += bytes
			}
		}
	}
	got := used.Under(m.ns.policy(n))
	if got.Open = (quota.Undecided{}); got != want {
		m.t.Fatalf("%s counts %+v, which is %+v, and holds %+v", m.ns.path(n), used, got, want)
	}
}

// auditAttributes checks what must hold of an inode's attributes.
func (m *machine) auditAttributes(n *Inode) {
	m.t.Helper()
	limited := false
	for at := n; at != nil; at = m.ns.inodes.Get(at.parent) {
		limited = limited || at.bound()
	}
	limited = limited || n.id != rootID && m.ns.limited(n.parent)
	if used, ok := m.ns.usage[n.id]; !ok && limited && n.dir != nil || ok && n.dir == nil {
		m.t.Fatalf("%s has limits, or is below what is counted: %t, but is counted: %t", m.ns.path(n), limited, ok)
	} else if ok {
		m.auditUsage(n, used)
	}
	if n.more == nil {
		return
	}
	if n.more.empty() {
		m.t.Fatalf("%s keeps a value for nothing", m.ns.path(n))
	}
	if n.ownPolicy() != 0 && !m.ns.policies {
		m.t.Fatalf("%s has a storage policy, but nobody knows", m.ns.path(n))
	}
	if err := xattr.CheckList(n.xattrs()); err != nil {
		m.t.Fatalf("%s: %v", m.ns.path(n), err)
	}
	if len(n.acl()) == 0 {
		return
	}
	if err := acl.Check(n.acl()); err != nil {
		m.t.Fatalf("%s: %v", m.ns.path(n), err)
	}
	if n.dir == nil && len(acl.DefaultsOf(n.acl())) > 0 {
		m.t.Fatalf("the file %s has a default list", m.ns.path(n))
	}
}

var writeGolden = flag.String("golden", "", "have TestGolden write golden/NAME.snapshot and golden/NAME.log, instead of reading all that is there")

// TestGolden reads what earlier versions have written: a log, and the snapshot
// that it had led to. It leads to the same state now.
func TestGolden(t *testing.T) {
	if *writeGolden != "" {
		keepGolden(t, *writeGolden)
	}
	logs, err := filepath.Glob("golden/*.log")
	if err != nil || len(logs) == 0 {
		t.Fatalf("no log in golden (%v)", err)
	}
	for _, name := range logs {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		replayed := New()
		in := bufio.NewReader(bytes.NewReader(data))
		entries := 0
		for ; ; entries++ {
			var e nspb.Entry
			err := protodelim.UnmarshalFrom(in, &e)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: entry %d: %v", name, entries, err)
			}
			replayed.Apply(&e)
		}
		kept, err := os.ReadFile(name[:len(name)-len("log")] + "snapshot")
		if err != nil {
			t.Fatal(err)
		}
		restored, err := Restore(bytes.NewReader(kept))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, want := stateOf(t, replayed), stateOf(t, restored); entries < 100 || got != want {
			t.Errorf("%s: its %d entries lead to another state than its snapshot", name, entries)
		}
	}
}

func stateOf(t *testing.T, ns *Namespace) string {
	data, err := ns.AppendSnapshot(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func keepGolden(t *testing.T, name string) {
	m := newMachine(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 600 {
		user, e := m.randomEntry(rng)
		m.apply(user, e)
		m.clock += int64(rng.IntN(2000))
	}
	var log bytes.Buffer
	for _, data := range m.log {
		var e nspb.Entry
		if err := proto.Unmarshal(data, &e); err != nil {
			t.Fatal(err)
		}
		if _, err := protodelim.MarshalTo(&log, &e); err != nil {
			t.Fatal(err)
		}
	}
	for suffix, data := range map[string][]byte{"log": log.Bytes(), "snapshot": m.snapshot()} {
		if err := os.WriteFile(fmt.Sprintf("golden/%s.%s", name, suffix), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
