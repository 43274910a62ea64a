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

// What directories hold is counted as operations go, in those with limits and all below them:
// ns.usage has it by their ids. So what a deletion or a rename takes away there is known without a
// walk. Of files for which a storage policy above would count it leaves open for which kinds of storage they
// count: so no change of policies above, and no rename, changes what is counted below. It follows from the tree, so that snapshots leave it out and Restore counts
// anew. Where nothing is counted above, a change ends at the first directory that is not. Directories
// that have lost their limits are counted on, until there is no limit any more.

// limits are what a directory may hold.
func (n *Inode) limits() quota.Limits {
	if n.more == nil || n.more.limits == nil {
		return quota.NoLimits(n.id == rootID)
	}
	return *n.more.limits
}

// bound tells whether the directory itself has limits.
func (n *Inode) bound() bool { return n.more != nil && n.more.limits != nil }

// limited tells whether the directory is counted. All are that have limits, or lie below one that has.
func (ns *Namespace) limited(directory uint64) bool {
	_, ok := ns.usage[directory]
	return ok
}

// own is what an inode adds to the directory that it is in, if that is what the inode holds: if it has a
// storage policy, that tells the kinds of storage of what is open.
func (n *Inode) own(c quota.Counts) quota.Counts { return c.Under(n.ownPolicy()) }

// charge counts more, or less, of what n adds to its directory, in all directories above it.
func (ns *Namespace) charge(n *Inode, more *quota.Counts, less *quota.Counts) {
	if len(ns.usage) == 0 && len(ns.subtrees) == 0 {
		return
	}
	change := *more
	change.Sub(less)
	for n.id != rootID {
		parent := ns.inodes.Get(n.parent)
		if parent == nil {
			return
		}
		used, ok := ns.usage[parent.id]
		if !ok { // nor above
			for l := range ns.levels(parent.id, n.name) {
				l.used.Add(&change)
			}
			return
		}
		used.Add(&change)
		ns.usage[parent.id] = used
		change = parent.own(change)
		n = parent
	}
}

// chargeBytes counts that each replica of a file has become longer.
func (ns *Namespace) chargeBytes(file uint64, bytes int64) {
	n := ns.inodes.Get(file)
	if !ns.counts(n.parent, n.name) {
		return
	}
	c := n.blocksOf(bytes)
	ns.charge(n, &c, &quota.Counts{})
}

// blocksOf is what so many bytes of each replica of a file add to its directory.
func (n *Inode) blocksOf(bytes int64) quota.Counts {
	return quota.Blocks(bytes, int(n.file.replication), n.ownPolicy())
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

// usageOf counts what n and all below it add to the directory that n is in. With known it takes
// what is known of directories that are counted.
func (ns *Namespace) usageOf(n *Inode, known bool) (c quota.Counts) {
	type level struct {
		n      *Inode
		policy uint8 // the nearest above, up to n
	}
	stack := []level{{n: n}}
	for len(stack) > 0 {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if own := at.n.ownPolicy(); own != storagepolicy.Unspecified {
			at.policy = own
		}
		if used, ok := ns.usage[at.n.id]; ok && known {
			used = used.Under(at.policy)
			c.Add(&used)
			continue
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

// count counts in a directory and all below it.
func (ns *Namespace) count(n *Inode) {
	type level struct {
		n     *Inode
		above int
		used  quota.Counts
	}
	levels := []level{{n: n, above: -1}}
	for i := 0; i < len(levels); i++ {
		used := quota.Counts{Names: 1}
		levels[i].n.dir.names.After("", func(_ string, id uint64) bool {
			child := ns.inodes.Get(id)
			if child.dir != nil {
				levels = append(levels, level{n: child, above: i})
				return true
			}
			c := ns.usageOf(child, false)
			used.Add(&c)
			return true
		})
		levels[i].used = used
	}
	for i := len(levels) - 1; i >= 0; i-- { // those below come behind
		at := &levels[i]
		ns.usage[at.n.id] = at.used
		if at.above >= 0 {
			more := at.n.own(at.used)
			levels[at.above].used.Add(&more)
		}
	}
}

// countLimited counts where there are limits, after a restart: ns.usage has the directories that have
// some.
func (ns *Namespace) countLimited() {
	ids := slices.Collect(maps.Keys(ns.usage))
	ns.bounds = len(ids)
	clear(ns.usage)
	slices.SortFunc(ids, func(a, b uint64) int {
		return cmp.Compare(ns.depth(ns.inodes.Get(a)), ns.depth(ns.inodes.Get(b)))
	})
	for _, id := range ids { // those above count what is below, too
		if d := ns.inodes.Get(id); !ns.limited(id) {
			ns.count(d)
		}
	}
}

// room tells why there is no room for more in the directory or one above it, up to the
// one with the id stop, if that is not 0. freed is what is to be taken away before. Both are as they are
// added to the directory.
func (ns *Namespace) room(d *Inode, more *quota.Counts, freed *quota.Counts, stop uint64) error {
	if len(ns.usage) == 0 {
		return nil
	}
	for ; d != nil && d.id != stop; d = ns.inodes.Get(d.parent) {
		if d.bound() {
			policy := ns.policy(d)
			used, wanted := ns.usage[d.id], more.Under(policy)
			used.Sub(freed)
			used = used.Under(policy)
			l := d.limits()
			if err := l.Check(&used, &wanted, ns.path(d)); err != nil {
				return err
			}
		}
		if d.ownPolicy() != storagepolicy.Unspecified {
			above, gone := d.own(*more), d.own(*freed)
			more, freed = &above, &gone
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
	more, less := n.blocksOf(bytes), n.blocksOf(freed)
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
		bound = bound || d.bound()
	}
	if !bound {
		return nil
	}
	more := ns.usageOf(from.last(), true)
	if target := to.last(); target != nil {
		less := ns.usageOf(target, true)
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
	if after == before {
		return nil
	}
	if after.Bound(n.id == rootID) {
		if err := t.needCounted(n); err != nil {
			return err
		}
	}
	if !t.write() {
		return nil
	}
	was := n.bound()
	n = ns.inodes.Change(n.id)
	if !after.Bound(n.id == rootID) {
		n.alter(func(a *attributes) { a.limits = nil })
		if was {
			ns.unbound()
		}
		return nil
	}
	n.alter(func(a *attributes) { a.limits = &after })
	if !was {
		ns.bounds++
	}
	if !ns.limited(n.id) {
		ns.count(n)
	}
	return nil
}

// unbound notes that a directory with limits has none any more, or is no more. Without any nothing needs
// to be counted.
func (ns *Namespace) unbound() {
	if ns.bounds--; ns.bounds == 0 && len(ns.subtrees) == 0 {
		ns.usage = make(map[uint64]quota.Counts)
	}
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

// UsageQuestion asks what a directory holds, in steps: of a caller who is no superuser whether
// he may know of all below. What changes between the steps may be heard or not.
type UsageQuestion struct {
	// Limited tells that the directory has limits, so that what it holds is known. Else it takes a summary.
	Limited bool
	caller  Caller
	walk    subtree
}

// QuotaUsage begins to ask what path may hold and holds. It returns nil for a file, which takes a
// summary.
func (ns *Namespace) QuotaUsage(c Caller, path string) (*UsageQuestion, error) {
	r, err := ns.resolve(&c, path, reading)
	if err != nil {
		return nil, err
	}
	n := r.last()
	if n == nil {
		return nil, exception.New(exception.FileNotFound, "File/Directory does not exist: %s", r)
	}
	if n.dir == nil {
		return nil, nil
	}
	q := &UsageQuestion{Limited: n.bound(), caller: c}
	q.walk.begin(n.id, question{want: Read | Execute})
	return q, nil
}

// Step looks at about limit names, and says what a directory with limits holds once it is done.
func (q *UsageQuestion) Step(ns *Namespace, limit int) (u QuotaUsage, done bool, err error) {
	if !q.caller.Superuser {
		if err := ns.ask(&q.caller, &q.walk, limit); err != nil || len(q.walk.stack) > 0 {
			return u, false, err
		}
	}
	n := ns.byID(q.walk.root)
	if n == nil {
		return u, false, exception.New(exception.FileNotFound, "File/Directory does not exist: it was deleted")
	}
	return QuotaUsage{Limits: n.limits(), Used: ns.usage[n.id].Under(ns.policy(n))}, true, nil
}
