package namespace

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/internal/cow"
)

// machine runs operations as the NameNode does, and checks what must hold for each.
type machine struct {
	t     testing.TB
	ns    *Namespace
	clock int64
	stamp uint64
	log   [][]byte
}

func newMachine(t testing.TB) *machine {
	m := &machine{t: t, ns: New(), clock: 1000}
	m.apply("", &nspb.Entry{Op: &nspb.Entry_Format{Format: &nspb.Format{
		ClusterId: proto.String("CID"), BlockPoolId: proto.String("BP"), Superuser: proto.String("root"), Supergroup: proto.String("supergroup"),
	}}})
	m.apply("", &nspb.Entry{Op: &nspb.Entry_ReserveGenerations{ReserveGenerations: &nspb.ReserveGenerations{Limit: proto.Uint64(1 << 40)}}})
	m.stamp = firstStamp
	return m
}

func (m *machine) snapshot() []byte {
	buf, err := m.ns.AppendSnapshot(nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return buf
}

var groups = map[string][]string{"alice": {"staff"}, "bob": {"staff", "users"}}

// apply runs an entry as user; "" is the NameNode itself.
func (m *machine) apply(user string, e *nspb.Entry) (Result, error) {
	m.t.Helper()
	m.clock++
	e.TimeMs = &m.clock
	if user != "" {
		e.Caller = &nspb.Caller{User: &user, Groups: groups[user], Superuser: proto.Bool(user == "root")}
	}
	compare := m.clock%8 == 0 // two snapshots for each operation take their time
	var before []byte
	if compare {
		before = m.snapshot()
	}
	reaping := m.ns.Reaping()
	checked, changes, checkErr := m.ns.Check(e)
	if compare && !bytes.Equal(m.snapshot(), before) {
		m.t.Fatalf("Check changed the state: %v", e)
	}
	data, err := proto.Marshal(e)
	if err != nil {
		m.t.Fatal(err)
	}
	m.log = append(m.log, data)
	res, err := m.ns.Apply(e)
	if fmt.Sprint(err) != fmt.Sprint(checkErr) {
		m.t.Fatalf("Check says %v, Apply %v: %v", checkErr, err, e)
	}
	if !changes {
		if res.OK != checked.OK || len(res.Touched) > 0 || !reaping && len(res.Removed) > 0 {
			m.t.Fatalf("Check says that nothing changes, and %+v; Apply %+v: %v", checked, res, e)
		}
	}
	var refused *exception.Error
	if err != nil && !errors.As(err, &refused) {
		m.t.Fatal(err)
	}
	m.audit()
	return res, err
}

// audit checks that the indexes agree with the tree.
func (m *machine) audit() {
	m.t.Helper()
	ns := m.ns
	inodes, files, blocks, leased, recovering := 0, int64(0), 0, 0, 0
	if len(ns.detached) > 0 {
		m.auditDetached()
	}
	stack := []*Inode{ns.root()}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		inodes++
		m.auditAttributes(n)
		if ns.byID(n.id) != n {
			m.t.Fatalf("inode %d of %s is not in the index", n.id, ns.path(n))
		}
		if n.dir != nil {
			count, directories, last := 0, 0, ""
			n.dir.names.After("", func(name string, id uint64) bool {
				child := ns.inodes.Get(id)
				if child == nil || child.name != name || last != "" && !cow.Before(last, name) || child.parent != n.id {
					m.t.Fatalf("child %q after %q in %s", name, last, ns.path(n))
				}
				last = name
				count++
				if child.dir != nil {
					directories++
				}
				stack = append(stack, child)
				return true
			})
			if count != n.dir.names.Len() || directories != n.dir.directories {
				m.t.Fatalf("%s counts %d children, %d of them directories, and has %d and %d", ns.path(n), n.dir.names.Len(), n.dir.directories, count, directories)
			}
			continue
		}
		files++
		if n.file.open() {
			leased++
			if _, ok := ns.leases[*n.file.holder][n.id]; !ok {
				m.t.Fatalf("the lease of %s is not in the index", ns.path(n))
			}
		}
		for i, id := range n.file.blocks {
			blocks++
			b := ns.blocks.Get(id)
			if b == nil || b.ID != id || b.inode != n.id || b.ID >= ns.nextBlock || b.Generation >= ns.stamps {
				m.t.Fatalf("block %d of %s", id, ns.path(n))
			}
			if b.Construction != nil {
				if !n.file.open() || i != len(n.file.blocks)-1 {
					m.t.Fatalf("block %d of %s is under construction", b.ID, ns.path(n))
				}
				if b.Construction.Recovery != 0 {
					recovering++
					if _, ok := ns.recovering[b.ID]; !ok {
						m.t.Fatalf("recovery of block %d is not in the index", b.ID)
					}
				}
			}
		}
	}
	indexed := 0
	for holder, held := range ns.leases {
		if len(held) == 0 {
			m.t.Fatalf("holder %s without a lease", holder)
		}
		indexed += len(held)
	}
	if len(ns.detached) > 0 {
		return
	}
	if inodes != ns.inodes.Len() || files != ns.files || blocks != ns.blocks.Len() || leased != indexed || recovering != len(ns.recovering) {
		m.t.Fatalf("the tree has %d inodes, %d files, %d blocks, %d leases, %d recoveries; the indexes %d, %d, %d, %d, %d",
			inodes, files, blocks, leased, recovering, ns.inodes.Len(), ns.files, ns.blocks.Len(), indexed, len(ns.recovering))
	}
}

// auditDetached checks that nobody sees what was deleted and is still there.
func (m *machine) auditDetached() {
	ns := m.ns
	seen := make(map[uint64]bool)
	stack := []*Inode{ns.root()}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		seen[n.id] = true
		if n.dir != nil {
			n.dir.names.After("", func(_ string, id uint64) bool {
				stack = append(stack, ns.inodes.Get(id))
				return true
			})
		}
	}
	for id, n := range ns.inodes.From(0) {
		if (ns.byID(id) != nil) != seen[id] {
			m.t.Fatalf("inode %d is seen by its id %t, in the tree %t", id, !seen[id], seen[id])
		}
		if _, ok := ns.StatID(id); ok != seen[id] {
			m.t.Fatalf("inode %d has a status: %t", id, ok)
		}
		if n.file == nil {
			continue
		}
		for _, b := range n.file.blocks {
			if _, ok := ns.Block(b); ok != seen[id] {
				m.t.Fatalf("block %d of inode %d is known: %t", b, id, ok)
			}
		}
	}
	for _, holder := range ns.Holders() {
		for _, id := range ns.OpenFiles(holder) {
			if !seen[id] {
				m.t.Fatalf("%s has a lease of inode %d, which is deleted", holder, id)
			}
		}
	}
}

// roundTrip checks that a snapshot restores to the same state.
func (m *machine) roundTrip() {
	m.t.Helper()
	first := m.snapshot()
	ns, err := Restore(bytes.NewReader(first))
	if err != nil {
		m.t.Fatal(err)
	}
	ns.reapNow = m.ns.reapNow
	second, err := ns.AppendSnapshot(nil)
	if err != nil {
		m.t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		m.t.Fatal("a restored snapshot differs")
	}
	m.ns = ns
	m.audit()
}

func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		m := newMachine(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			m.t = t
			if d.Cmd != "run" {
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			var out strings.Builder
			for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
				fields := strings.Fields(line)
				if len(fields) < 2 {
					d.Fatalf(t, "want: user operation ...: %q", line)
				}
				out.WriteString(m.command(d, fields[0], fields[1], fields[2:]))
			}
			m.roundTrip()
			return out.String()
		})
	})
}

func (m *machine) command(d *datadriven.TestData, user, op string, args []string) string {
	t := m.t.(*testing.T)
	w := words{t, d, args}
	if op == "write" {
		return m.write(d, user, w)
	}
	if ask := queries[op]; ask != nil {
		who := callerOf(&nspb.Entry{Caller: &nspb.Caller{User: &user, Groups: groups[user], Superuser: proto.Bool(user == "root")}})
		out, err := ask(m, who, w)
		if err != nil {
			return err.Error() + "\n"
		}
		return out
	}
	var e *nspb.Entry
	if entry := changes[op]; entry != nil {
		e = entry(m, w)
	} else if entry := ownChanges[op]; entry != nil {
		var err error
		if e, err = entry(m, w); err != nil {
			return err.Error() + "\n"
		}
		user = ""
	} else {
		d.Fatalf(t, "unknown operation %s", op)
	}
	res, err := m.apply(user, e)
	if err != nil {
		return err.Error() + "\n"
	}
	out := "ok"
	if !res.OK {
		out = "false"
		switch op {
		case "chmod", "chown", "chgrp", "times", "fsync", "abandon":
			out = "ok" // these have no answer
		}
	}
	if res.Block.ID != 0 {
		out += blocksLine([]Block{res.Block})
	}
	if len(res.Removed) > 0 {
		out += fmt.Sprintf(" removed %d", relative(res.Removed))
	}
	return out + "\n"
}

// words are the arguments of an operation in a script.
type words struct {
	t    *testing.T
	d    *datadriven.TestData
	args []string
}

func (w words) has(word string) *bool { return proto.Bool(slices.Contains(w.args, word)) }

func (w words) lacks(word string) *bool { return proto.Bool(!slices.Contains(w.args, word)) }

func (w words) num(i, base int) uint64 {
	n, err := strconv.ParseUint(w.args[i], base, 64)
	if err != nil {
		w.d.Fatalf(w.t, "%v", err)
	}
	return n
}

// mode is argument i, an octal number.
func (w words) mode(i int) *uint32 { return proto.Uint32(uint32(w.num(i, 8))) }

// signed is argument i, which may be negative.
func (w words) signed(i int) *int64 {
	n, err := strconv.ParseInt(w.args[i], 10, 64)
	if err != nil {
		w.d.Fatalf(w.t, "%v", err)
	}
	return &n
}

// block is what stands behind word= as id:generation:length, or nil.
func (w words) block(word string) *nspb.Block {
	for _, a := range w.args {
		rest, ok := strings.CutPrefix(a, word+"=")
		if !ok {
			continue
		}
		p := strings.Split(rest, ":")
		b := &nspb.Block{Id: new(uint64), Generation: new(uint64), Length: new(uint64)}
		for i, f := range []*uint64{b.Id, b.Generation, b.Length} {
			v, err := strconv.ParseUint(p[i], 10, 64)
			if err != nil {
				w.d.Fatalf(w.t, "%v", err)
			}
			*f = v
		}
		*b.Id += firstBlockID
		return b
	}
	return nil
}

// next is a new generation.
func (m *machine) next() *uint64 {
	s := m.stamp
	m.stamp++
	return &s
}

// changes are what users ask for.
var changes = map[string]func(m *machine, w words) *nspb.Entry{
	"mkdirs": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Mkdirs{Mkdirs: &nspb.Mkdirs{Path: &w.args[0], Mode: w.mode(1), CreateParent: w.lacks("noparent")}}}
	},
	"create": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Create{Create: &nspb.Create{Path: &w.args[0], Holder: &w.args[1], Mode: proto.Uint32(0o644), Replication: proto.Uint32(3), BlockSize: proto.Uint64(100),
			Overwrite: w.has("overwrite"), CreateParent: w.lacks("noparent"), MustExist: w.has("mustexist")}}}
	},
	"addblock": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_AddBlock{AddBlock: &nspb.AddBlock{Path: &w.args[0], Holder: &w.args[1], Previous: w.block("prev"), Generation: m.next(), Targets: []string{"dn1", "dn2"}}}}
	},
	"abandon": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_AbandonBlock{AbandonBlock: &nspb.AbandonBlock{Path: &w.args[0], Holder: &w.args[1], Block: w.block("block")}}}
	},
	"complete": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Complete{Complete: &nspb.Complete{Path: &w.args[0], Holder: &w.args[1], Last: w.block("last")}}}
	},
	"fsync": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Fsync{Fsync: &nspb.Fsync{Path: &w.args[0], Holder: &w.args[1], LastBlockLength: proto.Int64(int64(w.num(2, 10)))}}}
	},
	"append": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Append{Append: &nspb.Append{Path: &w.args[0], Holder: &w.args[1], NewBlock: w.has("newblock"), Targets: []string{"dn1"}}}}
	},
	"truncate": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Truncate{Truncate: &nspb.Truncate{Path: &w.args[0], Holder: &w.args[1], Length: proto.Uint64(w.num(2, 10)), Generation: m.next(), Targets: []string{"dn1"}}}}
	},
	"pipeline": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_UpdatePipeline{UpdatePipeline: &nspb.UpdatePipeline{Holder: &w.args[0], Old: w.block("old"), New: w.block("new"), Targets: []string{"dn2"}}}}
	},
	"rename": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{From: &w.args[0], To: &w.args[1]}}}
	},
	"rename2": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{From: &w.args[0], To: &w.args[1], Strict: proto.Bool(true), Overwrite: w.has("overwrite")}}}
	},
	"delete": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Delete{Delete: &nspb.Delete{Path: &w.args[0], Recursive: w.has("recursive")}}}
	},
	"chmod": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_SetPermission{SetPermission: &nspb.SetPermission{Path: &w.args[0], Mode: w.mode(1)}}}
	},
	"chown": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_SetOwner{SetOwner: &nspb.SetOwner{Path: &w.args[0], Owner: &w.args[1], Group: &w.args[2]}}}
	},
	"chgrp": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_SetOwner{SetOwner: &nspb.SetOwner{Path: &w.args[0], Group: &w.args[1]}}}
	},
	"times": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_SetTimes{SetTimes: &nspb.SetTimes{Path: &w.args[0], MtimeMs: proto.Int64(int64(w.num(1, 10))), AtimeMs: proto.Int64(-1)}}}
	},
	"setrep": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_SetReplication{SetReplication: &nspb.SetReplication{Path: &w.args[0], Replication: proto.Uint32(uint32(w.num(1, 10)))}}}
	},
	"quota": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_SetQuota{SetQuota: &nspb.SetQuota{Path: &w.args[0], Names: w.signed(1), Space: w.signed(2)}}}
	},
	"concat": func(m *machine, w words) *nspb.Entry {
		return &nspb.Entry{Op: &nspb.Entry_Concat{Concat: &nspb.Concat{Path: &w.args[0], Sources: w.args[1:]}}}
	},
}

// ownChanges are the NameNode's own.
var ownChanges = map[string]func(m *machine, w words) (*nspb.Entry, error){
	"recover": func(m *machine, w words) (*nspb.Entry, error) {
		f, err := m.ns.File(Caller{Superuser: true}, w.args[0], 0)
		if err != nil {
			return nil, err
		}
		id := idOf(nil)
		if len(f.Blocks) > 0 {
			id = f.Blocks[len(f.Blocks)-1].ID
		}
		return &nspb.Entry{Op: &nspb.Entry_StartRecovery{StartRecovery: &nspb.StartRecovery{File: &f.Status.ID, Block: &id, Generation: m.next()}}}, nil
	},
	"recovered": func(m *machine, w words) (*nspb.Entry, error) {
		b := w.block("block")
		rec := &nspb.CommitRecovery{Block: b.Id, Generation: b.Generation, Length: b.Length, Targets: []string{"dn1"}}
		if *w.has("nobody") {
			rec.Targets = nil
		}
		return &nspb.Entry{Op: &nspb.Entry_CommitRecovery{CommitRecovery: rec}}, nil
	},
	"close": func(m *machine, w words) (*nspb.Entry, error) {
		f, err := m.ns.File(Caller{Superuser: true}, w.args[0], 0)
		if err != nil {
			return nil, err
		}
		return &nspb.Entry{Op: &nspb.Entry_CloseFile{CloseFile: &nspb.CloseFile{File: &f.Status.ID, DropLast: w.has("drop")}}}, nil
	},
}

// queries change nothing.
var queries = map[string]func(m *machine, who Caller, w words) (string, error){
	"used": func(m *machine, who Caller, w words) (string, error) {
		q, err := m.ns.QuotaUsage(who, w.args[0])
		if err != nil {
			return "", err
		}
		if q == nil {
			return "no limits\n", nil
		}
		u, _, err := q.Step(m.ns, math.MaxInt)
		if err != nil {
			return "", err
		}
		if !q.Limited {
			return "no limits\n", nil
		}
		return fmt.Sprintf("%d names of %d, %d bytes of %d\n", u.Used.Names, u.Limits.Names, u.Used.Space, u.Limits.Space), nil
	},
	"ls": func(m *machine, who Caller, w words) (string, error) {
		after := ""
		if len(w.args) > 1 {
			after = w.args[1]
		}
		entries, rest, ok, err := m.ns.List(who, w.args[0], after, 3, false)
		if err != nil {
			return "", err
		}
		if !ok {
			return "nothing there\n", nil
		}
		var names []string
		for _, e := range entries {
			names = append(names, strconv.Quote(e.Status.Name))
		}
		return fmt.Sprintf("%s and %d more\n", strings.Join(names, " "), rest), nil
	},
	"stat": func(m *machine, who Caller, w words) (string, error) {
		s, ok, err := m.ns.Stat(who, w.args[0])
		if err != nil {
			return "", err
		}
		if !ok {
			return "nothing there\n", nil
		}
		return m.line(s) + "\n", nil
	},
	"read": func(m *machine, who Caller, w words) (string, error) {
		f, err := m.ns.File(who, w.args[0], Read)
		if err != nil {
			return "", err
		}
		return m.line(f.Status) + blocksLine(f.Blocks) + "\n", nil
	},
	"du": func(m *machine, who Caller, w words) (string, error) {
		s, err := m.ns.Sum(who, w.args[0])
		for done := false; err == nil && !done; {
			done, err = s.Step(m.ns, 2)
		}
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d bytes, %d on disk, %d files, %d directories\n", s.Total.Length, s.Total.Space, s.Total.Files, s.Total.Directories), nil
	},
	"tree": func(m *machine, who Caller, w words) (string, error) {
		var out strings.Builder
		m.tree(&out, m.ns.root())
		return out.String(), nil
	},
	"leases": func(m *machine, who Caller, w words) (string, error) {
		var out strings.Builder
		for _, h := range m.ns.Holders() {
			fmt.Fprintf(&out, "%s: %d\n", h, len(m.ns.OpenFiles(h)))
		}
		return out.String() + fmt.Sprintf("%d recovering\n", len(m.ns.recovering)), nil
	},
}

// write makes a closed file with blocks of the lengths that follow its name.
func (m *machine) write(d *datadriven.TestData, user string, w words) string {
	out := m.command(d, user, "create", []string{w.args[0], "w"})
	prev := ""
	for _, a := range w.args[1:] {
		var cmd []string
		if prev != "" {
			cmd = append(cmd, "prev="+prev)
		}
		m.command(d, user, "addblock", append([]string{w.args[0], "w"}, cmd...))
		prev = fmt.Sprintf("%d:%d:%s", m.ns.nextBlock-1-firstBlockID, m.stamp-1, a)
	}
	cmd := []string{w.args[0], "w"}
	if prev != "" {
		cmd = append(cmd, "last="+prev)
	}
	if !strings.HasPrefix(out, "ok") {
		return out
	}
	return m.command(d, user, "complete", cmd)
}

func relative(ids []uint64) []uint64 {
	out := make([]uint64, len(ids))
	for i, id := range ids {
		out[i] = id - firstBlockID
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

func blocksLine(blocks []Block) string {
	var out strings.Builder
	for _, b := range blocks {
		fmt.Fprintf(&out, " %d:%d:%d", b.ID-firstBlockID, b.Generation, b.Length)
		if u := b.Construction; u != nil {
			fmt.Fprintf(&out, "(at %s", strings.Join(u.Targets, ","))
			if u.Recovery != 0 {
				fmt.Fprintf(&out, ", recovery %d", u.Recovery)
			}
			if u.Truncate {
				fmt.Fprintf(&out, ", truncate to %d", u.TruncateTo)
			}
			out.WriteString(")")
		}
	}
	return out.String()
}

func (m *machine) line(s Status) string {
	mode := fs.FileMode(s.Mode & 0o777)
	if s.Directory {
		mode |= fs.ModeDir
	}
	out := fmt.Sprintf("%v %s:%s", mode, s.Owner, s.Group)
	if s.Mode&sticky != 0 {
		out += " sticky"
	}
	if !s.Directory {
		out += fmt.Sprintf(" %d bytes x%d", s.Length, s.Replication)
	}
	if s.Open {
		out += " open"
	}
	return out
}

func (m *machine) tree(out *strings.Builder, n *Inode) {
	fmt.Fprintf(out, "%-12s %s\n", m.ns.path(n), m.line(m.ns.status(n)))
	if n.dir == nil {
		return
	}
	n.dir.names.After("", func(_ string, id uint64) bool {
		m.tree(out, m.ns.inodes.Get(id))
		return true
	})
}
