package namespace

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

// What directories with limits hold is counted as operations go: ns.usage has it by their
// ids. It follows from the tree, so that snapshots leave it out and Restore counts
// anew. Where there is no limit above, nothing is counted.

// limits are what a directory may hold.
func (n *Inode) limits() quota.Limits {
	if n.more == nil || n.more.limits == nil {
		return quota.NoLimits(n.id == rootID)
	}
	return *n.more.limits
}

// limited tells whether there is a limit in the directory or above.
func (ns *Namespace) limited(id uint64) bool {
	if len(ns.usage) == 0 {
		return false
	}
	for n := ns.inodes.Get(id); n != nil; n = ns.inodes.Get(n.parent) {
		if _, ok := ns.usage[n.id]; ok {
			return true
		}
	}
	return false
}

// charge counts more, or less, in the directory and all above.
func (ns *Namespace) charge(id uint64, more *quota.Counts, less *quota.Counts) {
	if len(ns.usage) == 0 {
		return
	}
	for n := ns.inodes.Get(id); n != nil; n = ns.inodes.Get(n.parent) {
		if used, ok := ns.usage[n.id]; ok {
			used.Add(more)
			used.Sub(less)
			ns.usage[n.id] = used
		}
	}
}

// chargeBytes counts that each replica of a file has become longer.
func (ns *Namespace) chargeBytes(file uint64, bytes int64) {
	if len(ns.usage) == 0 {
		return
	}
	n := ns.inodes.Get(file)
	c := quota.Blocks(bytes, int(n.file.replication), ns.policy(n))
	ns.charge(n.parent, &c, &quota.Counts{})
}

// counted are the bytes that a replica of a block counts for.
func (f *file) counted(b *Block) int64 {
	if b.Construction != nil {
		return int64(f.blockSize)
	}
	return int64(b.Length)
}

// bytesOf are those of one replica of all the file's blocks.
func (ns *Namespace) bytesOf(f *file) (bytes int64) {
	for _, id := range f.blocks {
		bytes += f.counted(ns.blocks.Get(id))
	}
	return bytes
}

// usageOf counts a subtree under a storage policy from above. With known it takes what
// is known of directories with limits.
func (ns *Namespace) usageOf(n *Inode, policy uint8, known bool) (c quota.Counts) {
	type level struct {
		n      *Inode
		policy uint8
	}
	stack := []level{{n, policy}}
	for len(stack) > 0 {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if used, ok := ns.usage[at.n.id]; ok && known {
			c.Add(&used)
			continue
		}
		if own := at.n.ownPolicy(); own != storagepolicy.Unspecified {
			at.policy = own
		}
		c.Names++
		if at.n.file != nil {
			blocks := quota.Blocks(ns.bytesOf(at.n.file), int(at.n.file.replication), at.policy)
			c.Add(&blocks)
			continue
		}
		at.n.dir.names.After("", func(_ string, id uint64) bool {
			stack = append(stack, level{ns.inodes.Get(id), at.policy})
			return true
		})
	}
	return c
}

// recount counts anew in all directories with limits below n, n among them: their storage
// policy has changed.
func (ns *Namespace) recount(n *Inode) {
	for id := range ns.usage {
		d := ns.inodes.Get(id)
		for at := d; at != nil; at = ns.inodes.Get(at.parent) {
			if at.id == n.id {
				ns.usage[id] = ns.usageOf(d, ns.policy(d), false)
				break
			}
		}
	}
}

// countLimited counts in all directories with limits, after a restart.
func (ns *Namespace) countLimited() {
	ids := slices.Collect(maps.Keys(ns.usage))
	slices.SortFunc(ids, func(a, b uint64) int {
		return cmp.Compare(ns.depth(ns.inodes.Get(b)), ns.depth(ns.inodes.Get(a)))
	})
	for _, id := range ids { // the deepest first: what is known of those serves the others
		delete(ns.usage, id)
		d := ns.inodes.Get(id)
		ns.usage[id] = ns.usageOf(d, ns.policy(d), true)
	}
}

// room tells why there is no room for more in the directory or one above it, up to the
// one with the id stop, if that is not 0. freed is what is to be taken away before.
func (ns *Namespace) room(d *Inode, more *quota.Counts, freed *quota.Counts, stop uint64) error {
	if len(ns.usage) == 0 {
		return nil
	}
	for ; d != nil && d.id != stop; d = ns.inodes.Get(d.parent) {
		if used, ok := ns.usage[d.id]; ok {
			used.Sub(freed)
			l := d.limits()
			if err := l.Check(&used, more, ns.path(d)); err != nil {
				return err
			}
		}
	}
	return nil
}

// roomForNames is room for making so many names one by one.
func (ns *Namespace) roomForNames(d *Inode, count int, freed quota.Counts) error {
	if !ns.limited(d.id) {
		return nil
	}
	for range count {
		if err := ns.room(d, &quota.Counts{Names: 1}, &freed, 0); err != nil {
			return err
		}
		freed.Names--
	}
	return nil
}

// roomForBytes is room for so many more bytes in each replica of a file, once it is
// shorter by freed.
func (ns *Namespace) roomForBytes(n *Inode, bytes, freed int64) error {
	if !ns.limited(n.parent) {
		return nil
	}
	policy := ns.policy(n)
	more := quota.Blocks(bytes, int(n.file.replication), policy)
	less := quota.Blocks(freed, int(n.file.replication), policy)
	return ns.room(ns.inodes.Get(n.parent), &more, &less, 0)
}

// roomForMove is room for what a rename moves, without what it replaces.
func (ns *Namespace) roomForMove(from, to resolved) error {
	if len(ns.usage) == 0 {
		return nil
	}
	common := uint64(0)
	for i := range min(len(from.nodes), len(to.nodes)) {
		if from.nodes[i].id != to.nodes[i].id {
			break
		}
		common = from.nodes[i].id
	}
	bound := false
	for d := to.parent(); d != nil && d.id != common; d = ns.inodes.Get(d.parent) {
		_, limited := ns.usage[d.id]
		bound = bound || limited
	}
	if !bound {
		return nil
	}
	more := ns.usageOf(from.last(), ns.policy(to.parent()), false)
	if target := to.last(); target != nil {
		less := ns.usageOf(target, ns.policy(target), true)
		more.Sub(&less)
	}
	return ns.room(to.parent(), &more, &quota.Counts{}, common)
}

func (t *txn) setQuota(op *nspb.SetQuota) error {
	ns := t.ns
	request := quota.Request{Names: op.GetNames(), Space: op.GetSpace(), Type: storagepolicy.Type(min(op.GetType(), 255))}
	t.caller.operation = request.Operation()
	if !op.GetByOwner() {
		if err := needSuperuser(&t.caller); err != nil {
			return err
		}
	}
	r, err := ns.resolve(&t.caller, op.GetPath(), writing)
	if err != nil {
		return err
	}
	if parent := r.parent(); !t.caller.Superuser && (parent == nil || ns.needOwner(&t.caller, parent) != nil) {
		return exception.New(exception.AccessControl, "Access denied for user %s. Superuser or owner of parent folder privilege is required", t.caller.User)
	}
	if err := request.Check(!op.GetNoTypes()); err != nil {
		return err
	}
	n := r.last()
	switch {
	case n == nil:
		return exception.New(exception.FileNotFound, "Directory does not exist: %s", r)
	case n.dir == nil:
		return exception.New(exception.PathIsNotDirectory, "`%s': Is not a directory", r)
	}
	before := n.limits()
	after := request.Apply(before, n.id == rootID)
	if after == before || !t.write() {
		return nil
	}
	n = ns.inodes.Change(n.id)
	if !after.Bound(n.id == rootID) {
		n.alter(func(a *attributes) { a.limits = nil })
		delete(ns.usage, n.id)
		return nil
	}
	n.alter(func(a *attributes) { a.limits = &after })
	if _, known := ns.usage[n.id]; !known {
		ns.usage[n.id] = ns.usageOf(n, ns.policy(n), true)
	}
	return nil
}

func limitsRecord(l *quota.Limits) *nspb.SnapshotLimits {
	if l == nil {
		return nil
	}
	return &nspb.SnapshotLimits{Names: proto.Int64(l.Names), Space: proto.Int64(l.Space), Types: slices.Clone(l.Types[:])}
}

func restoreLimits(rec *nspb.SnapshotLimits) (*quota.Limits, error) {
	if rec == nil {
		return nil, nil
	}
	l := quota.NoLimits(false)
	if len(rec.GetTypes()) > len(l.Types) {
		return nil, fmt.Errorf("limits for %d kinds of storage, of which there are %d", len(rec.GetTypes()), len(l.Types))
	}
	l.Names, l.Space = rec.GetNames(), rec.GetSpace()
	copy(l.Types[:], rec.GetTypes())
	return &l, nil
}

// QuotaUsage is what a directory may hold and holds.
type QuotaUsage struct {
	Limits quota.Limits
	Used   quota.Counts
}

// QuotaUsage returns what a directory with limits may hold and holds. ok is false for
// other paths: then it takes a summary. The caller needs access to all below.
func (ns *Namespace) QuotaUsage(c Caller, path string) (u QuotaUsage, ok bool, err error) {
	r, err := ns.resolve(&c, path, reading)
	if err != nil {
		return u, false, err
	}
	n := r.last()
	if n == nil {
		return u, false, exception.New(exception.FileNotFound, "File/Directory does not exist: %s", r)
	}
	if !c.Superuser {
		if err := ns.eachDirectory(n, func(d *Inode) error { return ns.need(&c, d, Read|Execute) }); err != nil {
			return u, false, err
		}
	}
	used, ok := ns.usage[n.id]
	return QuotaUsage{Limits: n.limits(), Used: used}, ok, nil
}
