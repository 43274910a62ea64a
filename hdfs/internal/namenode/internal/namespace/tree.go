package namespace

import (
	"slices"
	"strings"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
)

// newDirectory adds a directory. Its access time is 0 until it is set.
func (t *txn) newDirectory(parent *Inode, name string, m modes) *Inode {
	n := t.newChild(parent, name, &directory{gen: t.ns.gen}, m)
	n.atime = 0
	t.ns.changeDirectory(n.parent).directories++
	return n
}

// newChild adds an inode to the tree. As in BSD and HDFS the group is the parent's.
func (t *txn) newChild(parent *Inode, name string, dir *directory, m modes) *Inode {
	ns := t.ns
	n := ns.inodes.Put(ns.nextInode, Inode{
		id:     ns.nextInode,
		name:   strings.Clone(name), // not the whole path
		parent: parent.id,
		mtime:  t.now(),
		atime:  t.now(),
		owner:  ns.intern(t.caller.User),
		group:  parent.group,
		dir:    dir,
	})
	n.inherit(parent, m)
	n.more = ns.lists.share(n.more)
	ns.nextInode++
	ns.changeDirectory(parent.id).names.Insert(ns.gen, n.name, n.id)
	ns.askAgain(parent.id)
	ns.inodes.Change(parent.id).mtime = t.now()
	if dir != nil && ns.counts(n.parent, n.name) {
		ns.usage[n.id] = quota.Counts{Names: 1}
	}
	ns.charge(n, &quota.Counts{Names: 1}, &quota.Counts{})
	return n
}

func (t *txn) mkdirs(op *nspb.Mkdirs) error {
	ns := t.ns
	if err := checkLength("mkdirs", op.GetPath()); err != nil {
		return err
	}
	r, err := ns.resolve(&t.caller, op.GetPath(), creating)
	if err != nil {
		return err
	}
	if n := r.last(); n != nil {
		if n.dir == nil {
			return exception.New(exception.FileAlreadyExists, "Path is not a directory: %s", op.GetPath())
		}
		t.res.OK, t.res.Inode = true, n.id
		return nil
	}
	if err := ns.needAncestor(&t.caller, r); err != nil {
		return err
	}
	if err := checkParent(r, op.GetCreateParent()); err != nil {
		return err
	}
	if err := t.checkNewNames(r); err != nil {
		return err
	}
	if err := ns.roomForNames(r.ancestor(), len(r.comps)+1-len(r.nodes), quota.Counts{}); err != nil {
		return err
	}
	if !t.write() {
		return nil
	}
	m := modes{masked: uint16(op.GetMode()), unmasked: op.Unmasked}
	n := t.newDirectory(t.makeParents(r, m), r.base(), m)
	t.res.OK, t.res.Inode = true, n.id
	return nil
}

// checkParent refuses to make the directories that r needs unless create is set.
func checkParent(r resolved, create bool) error {
	if !create && len(r.comps) > 1 && r.parent() == nil {
		return exception.New(exception.FileNotFound, "Parent directory doesn't exist: %s", r.parentString())
	}
	return nil
}

// checkNewNames checks the names of r that do not exist yet.
func (t *txn) checkNewNames(r resolved) error {
	missing := r.comps[len(r.nodes)-1:]
	if err := t.checkNewName(r.ancestor(), missing[0]); err != nil {
		return err
	}
	for _, name := range missing[1:] {
		if most := t.componentLength(); len(name) > most {
			return exception.New(exception.PathComponentTooLong, "The maximum path component name limit of %s in directory %s is exceeded: limit=%d length=%d", printable(name), printable(r.parentString()), most, len(name))
		}
		if err := checkNoSnapshot(name); err != nil {
			return err
		}
	}
	return nil
}

// makeParents makes the missing directories above r and returns its parent.
// Whatever mode says, their owner can go through them and write, and none is sticky. What
// they inherit may change that.
func (t *txn) makeParents(r resolved, m modes) *Inode {
	m.masked = m.masked&^sticky | 0o300
	at := r.ancestor()
	for i := len(r.nodes) - 1; i < len(r.comps)-1; i++ {
		at = t.newDirectory(at, r.comps[i], m)
	}
	return at
}

func (t *txn) delete(op *nspb.Delete) error {
	ns := t.ns
	if op.GetPath() == ReservedPath {
		return exception.New(exception.InvalidPath, "Invalid path name %s", op.GetPath())
	}
	r, err := ns.resolve(&t.caller, op.GetPath(), writing)
	if err != nil {
		return err
	}
	if err := ns.needParent(&t.caller, r); err != nil {
		return err
	}
	n := r.last()
	if n == nil {
		return nil
	}
	if err := t.needSubtree(n); err != nil {
		return err
	}
	if n.dir != nil && n.dir.names.Len() > 0 && !op.GetRecursive() {
		return exception.New(exception.PathIsNotEmptyDirectory, "`%s is non empty': Directory is not empty", r)
	}
	if n.id == rootID || !t.write() {
		return nil
	}
	t.remove(n.id)
	t.res.OK = true
	return nil
}

func (t *txn) rename(op *nspb.Rename) error {
	ns := t.ns
	if err := checkLength("rename", op.GetTo()); err != nil {
		return err
	}
	from, err := ns.resolve(&t.caller, op.GetFrom(), writing)
	if err != nil {
		return err
	}
	to, err := ns.resolve(&t.caller, op.GetTo(), creating)
	if err != nil {
		return err
	}
	if !op.GetStrict() {
		if to, err = ns.into(&t.caller, from, to); err != nil {
			return err
		}
	}
	if err := ns.needParent(&t.caller, from); err != nil {
		return err
	}
	if err := ns.needAncestor(&t.caller, to); err != nil {
		return err
	}
	if op.GetStrict() {
		return t.renameStrict(from, to, op.GetOverwrite())
	}
	n := from.last()
	if n == nil || n.id == rootID {
		return nil
	}
	if to.last() == n {
		t.res.OK = true
		return nil
	}
	if to.within(from) {
		return nil
	}
	if to.isReserved() {
		return exception.New(exception.InvalidPath, "Cannot rename to or from %s", ReservedPath)
	}
	if to.last() != nil || to.parent() == nil {
		return nil
	}
	if err := t.checkMove(from, to); err != nil {
		return err
	}
	if !t.write() {
		return nil
	}
	t.move(n.id, to.parent().id, to.base())
	t.res.OK = true
	return nil
}

// into is where the first kind of rename moves from: into to, if that is a
// directory.
func (ns *Namespace) into(c *caller, from, to resolved) (resolved, error) {
	d := to.last()
	if d == nil || d.dir == nil {
		return to, nil
	}
	if len(from.comps) == 0 { // nothing comes of it, but the rights are asked for
		return to, ns.need(c, d, Write|Execute)
	}
	to = ns.walk(append(to.comps[:len(to.comps):len(to.comps)], from.base()))
	_, err := ns.traverse(c, to)
	return to, err
}

func (t *txn) renameStrict(from, to resolved, overwrite bool) error {
	n, target, parent := from.last(), to.last(), to.parent()
	switch {
	case n == nil:
		return exception.New(exception.FileNotFound, "rename source %s is not found.", from)
	case n.id == rootID:
		return exception.New(exception.IO, "rename source cannot be the root")
	case n == target:
		return exception.New(exception.FileAlreadyExists, "The source %s and destination %s are the same", from, to)
	case to.within(from):
		return exception.New(exception.IO, "Rename destination %s is a directory or file under source %s", to, from)
	case to.isReserved():
		return exception.New(exception.InvalidPath, "Cannot rename to or from %s", ReservedPath)
	case target != nil && target.id == rootID:
		return exception.New(exception.IO, "rename destination cannot be the root")
	case target != nil && (target.dir == nil) != (n.dir == nil):
		return exception.New(exception.IO, "Source %s and destination %s must both be directories", from, to)
	case target != nil && !overwrite:
		return exception.New(exception.FileAlreadyExists, "rename destination %s already exists", to)
	case target != nil && target.dir != nil && target.dir.names.Len() > 0:
		return exception.New(exception.IO, "rename destination directory is not empty: %s", to)
	case parent == nil:
		return exception.New(exception.FileNotFound, "rename destination parent %s not found.", to.parentString())
	}
	if err := t.checkMove(from, to); err != nil {
		return err
	}
	if !t.write() {
		return nil
	}
	if target != nil {
		t.remove(target.id)
	}
	t.move(n.id, parent.id, to.base())
	t.res.OK = true
	return nil
}

// checkMove checks that the new name may be, and what moves with it.
func (t *txn) checkMove(from, to resolved) error {
	if to.last() == nil {
		if err := t.checkNewName(to.parent(), to.base()); err != nil {
			return err
		}
	}
	if err := t.checkDepth(from.last(), len(to.comps)); err != nil {
		return err
	}
	if t.ns.limited(to.parent().id) {
		if err := t.needCounted(from.last()); err != nil {
			return err
		}
	}
	return t.ns.roomForMove(from, to)
}

// checkDepth keeps every path that exists within the limit that resolving has,
// so that nothing can be moved out of reach.
func (t *txn) checkDepth(n *Inode, depth int) error {
	ns := t.ns
	if n.dir == nil || depth <= ns.depth(n) {
		return nil // the path of a file is checked by itself; otherwise nothing gets deeper
	}
	if depth >= MaxPathDepth {
		return errTooDeep
	}
	return t.askSubtree(n, question{depth: depth})
}

var errTooDeep = exception.New(exception.IO, "rename: Pathname too long.  Limit %d characters, %d levels.", MaxPathLength, MaxPathDepth)

func (t *txn) move(id, parent uint64, name string) {
	ns := t.ns
	n := ns.inodes.Change(id)
	if ns.counts(n.parent, n.name) {
		used := ns.usageOf(n, true)
		ns.charge(n, &quota.Counts{}, &used)
	}
	t.unlink(n)
	n.parent, n.name = parent, strings.Clone(name)
	if n.dir != nil && !ns.limited(n.id) {
		if ns.limited(parent) {
			ns.count(n)
		} else {
			ns.countAnew(parent, n.name)
		}
	}
	if ns.counts(parent, n.name) {
		used := ns.usageOf(n, true)
		ns.charge(n, &used, &quota.Counts{})
	}
	dir := ns.changeDirectory(parent)
	dir.names.Insert(ns.gen, n.name, id)
	if n.dir != nil {
		dir.directories++
		ns.askBelow(id)
	}
	ns.askAgain(parent)
	ns.inodes.Change(parent).mtime = t.now()
}

// unlink takes an inode out of its directory.
func (t *txn) unlink(n *Inode) {
	ns := t.ns
	dir := ns.changeDirectory(n.parent)
	dir.names.Delete(ns.gen, n.name)
	if n.dir != nil {
		dir.directories--
	}
	ns.inodes.Change(n.parent).mtime = t.now()
}

// existing resolves a path that must be there.
func (t *txn) existing(path string, intent intent) (*Inode, error) {
	r, err := t.ns.resolve(&t.caller, path, intent)
	if err != nil {
		return nil, err
	}
	return r.existing()
}

func (r resolved) existing() (*Inode, error) {
	if n := r.last(); n != nil {
		return n, nil
	}
	return nil, exception.New(exception.FileNotFound, "File does not exist: %s", r)
}

// existingFile is existing for a path that must be a file.
func (r resolved) existingFile() (*Inode, error) {
	n, err := r.existing()
	if err == nil && n.file == nil {
		err = exception.New(exception.FileNotFound, "Path is not a file: %s", r)
	}
	return n, err
}

// owned resolves a path that must be there and the caller's.
func (t *txn) owned(path string) (*Inode, error) {
	if path == ReservedPath {
		return nil, exception.New(exception.InvalidPath, "Invalid path name %s", path)
	}
	n, _, err := t.ownedInode(path)
	return n, err
}

// ownedInode is owned for what may be asked of any path, and tells how the path is shown.
func (t *txn) ownedInode(path string) (n *Inode, shown string, err error) {
	r, err := t.ns.resolve(&t.caller, path, writing)
	if err != nil {
		return nil, "", err
	}
	if n = r.last(); n == nil {
		return nil, "", exception.New(exception.FileNotFound, "Directory/File does not exist %s", r)
	}
	return n, r.String(), t.ns.needOwner(&t.caller, n)
}

func (t *txn) setPermission(op *nspb.SetPermission) error {
	n, err := t.owned(op.GetPath())
	if err != nil {
		return err
	}
	mode := uint16(op.GetMode()) & modeBits
	if n.mode != mode && t.write() {
		t.ns.inodes.Change(n.id).mode = mode
		t.ns.askAgain(n.id)
	}
	return nil
}

func (t *txn) setOwner(op *nspb.SetOwner) error {
	ns := t.ns
	n, err := t.owned(op.GetPath())
	if err != nil {
		return err
	}
	owner, group := op.GetOwner(), op.GetGroup()
	if len(owner) > maxNameLength || len(group) > maxNameLength {
		return exception.New(exception.IllegalArgument, "setOwner %s: names of %d and %d bytes; the limit is %d", ns.path(n), len(owner), len(group), maxNameLength)
	}
	if !t.caller.Superuser {
		if op.Owner != nil && owner != t.caller.User {
			return exception.New(exception.AccessControl, "User %s is not a super user (non-super user cannot change owner).", t.caller.User)
		}
		if op.Group != nil && !contains(t.caller.Groups, group) {
			return exception.New(exception.AccessControl, "User %s does not belong to %s", t.caller.User, group)
		}
	}
	if op.Owner == nil {
		owner = ns.names[n.owner]
	}
	if op.Group == nil {
		group = ns.names[n.group]
	}
	if owner == ns.names[n.owner] && group == ns.names[n.group] {
		return nil
	}
	if t.write() {
		n = ns.inodes.Change(n.id)
		n.owner, n.group = ns.intern(owner), ns.intern(group)
		ns.askAgain(n.id)
		ns.askAgain(n.parent) // which may be sticky
	}
	return nil
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

func (t *txn) setTimes(op *nspb.SetTimes) error {
	n, err := t.existing(op.GetPath(), writing)
	if err != nil {
		return err
	}
	if err := t.ns.need(&t.caller, n, Write); err != nil {
		return err
	}
	mtime, atime := n.mtime, n.atime
	if op.GetMtimeMs() >= 0 {
		mtime = op.GetMtimeMs()
	}
	if op.GetAtimeMs() >= 0 {
		atime = op.GetAtimeMs()
	}
	if (mtime != n.mtime || atime != n.atime) && t.write() {
		n = t.ns.inodes.Change(n.id)
		n.mtime, n.atime = mtime, atime
	}
	return nil
}

func (t *txn) setReplication(op *nspb.SetReplication) error {
	ns := t.ns
	if err := checkReplication(op.GetPath(), op.GetReplication()); err != nil {
		return err
	}
	r, err := ns.resolve(&t.caller, op.GetPath(), writing)
	if err != nil {
		return err
	}
	if err := ns.needLast(&t.caller, r, Write); err != nil {
		return err
	}
	n := r.last()
	if n == nil || n.file == nil {
		return nil
	}
	t.res.OK = true
	replication, limited := int(op.GetReplication()), ns.counts(n.parent, n.name)
	var before, after quota.Counts
	if limited {
		bytes, policy := ns.bytesOf(n.file), n.ownPolicy()
		before, after = quota.Blocks(bytes, int(n.file.replication), policy), quota.Blocks(bytes, replication, policy)
		more := after
		more.Sub(&before)
		if err := ns.room(ns.inodes.Get(n.parent), &more, &quota.Counts{}, 0); err != nil {
			t.res.OK = false
			return err
		}
	}
	if int(n.file.replication) == replication || !t.write() {
		return nil
	}
	ns.charge(n, &after, &before)
	ns.changeFile(n.id).replication = uint16(replication)
	t.touch(n.file.blocks)
	return nil
}

func checkReplication(path string, r uint32) error {
	if r < 1 {
		return exception.New(exception.IO, "Requested replication factor of %d is less than the required minimum of 1 for %s", r, printable(path))
	}
	if r > MaxReplication {
		return exception.New(exception.IO, "Requested replication factor of %d exceeds maximum of %d for %s", r, MaxReplication, printable(path))
	}
	return nil
}

func (t *txn) touch(blocks []uint64) { t.res.Touched = append(t.res.Touched, blocks...) }

func (t *txn) concat(op *nspb.Concat) error {
	ns := t.ns
	if err := checkConcatPaths(op); err != nil {
		return err
	}
	r, err := ns.resolve(&t.caller, op.GetPath(), writing)
	if err != nil {
		return err
	}
	if err := ns.needLast(&t.caller, r, Write); err != nil {
		return err
	}
	target, err := r.existingFile()
	if err != nil {
		return err
	}
	if target.file.open() {
		return exception.New(exception.IllegalArgument, "concat: target file %s is under construction", ns.path(target))
	}
	seen := make(map[uint64]bool)
	sources := make([]*Inode, 0, len(op.GetSources()))
	blocks := len(target.file.blocks)
	for _, path := range op.GetSources() {
		n, err := t.concatSource(path, target)
		if err != nil {
			return err
		}
		if !seen[n.id] {
			seen[n.id] = true
			sources = append(sources, n)
			blocks += len(n.file.blocks)
		}
	}
	if len(sources) < len(op.GetSources()) {
		return exception.New(exception.IllegalArgument, "concat: at least two of the source files are the same")
	}
	if blocks > MaxFileBlocks {
		return exception.New(exception.IO, "concat: %s would have %d blocks; the limit is %d", ns.path(target), blocks, MaxFileBlocks)
	}
	more, less := ns.concatUsage(target, sources)
	change := more
	for i := range less {
		change.Sub(&less[i])
	}
	change.Names = -int64(len(sources))
	if err := ns.room(ns.inodes.Get(target.parent), &change, &quota.Counts{}, 0); err != nil {
		return err
	}
	if !t.write() {
		return nil
	}
	ns.charge(target, &more, &quota.Counts{})
	for i := range less {
		ns.charge(sources[i], &quota.Counts{}, &less[i])
	}
	f := ns.changeFile(target.id)
	f.blocks = slices.Grow(slices.Clip(f.blocks), blocks-len(f.blocks))
	for _, n := range sources {
		moved := n.file.blocks
		for _, id := range moved {
			ns.blocks.Change(id).inode = target.id
		}
		f.blocks = append(f.blocks, moved...)
		t.touch(moved)
		ns.changeFile(n.id).blocks = nil
		t.remove(n.id)
	}
	ns.inodes.Change(target.id).mtime = t.now()
	t.res.OK = true
	return nil
}

// concatUsage is what the blocks of the sources will count for, and those of each do now.
func (ns *Namespace) concatUsage(target *Inode, sources []*Inode) (more quota.Counts, less []quota.Counts) {
	if len(ns.usage) == 0 && len(ns.subtrees) == 0 {
		return more, nil
	}
	for _, n := range sources {
		bytes := ns.bytesOf(n.file)
		theirs, ours := n.blocksOf(bytes), target.blocksOf(bytes)
		more.Add(&ours)
		less = append(less, theirs)
	}
	return more, less
}

func checkConcatPaths(op *nspb.Concat) error {
	if op.GetPath() == "" {
		return exception.New(exception.JavaIllegalArgument, "Target file name is empty")
	}
	if len(op.GetSources()) == 0 {
		return exception.New(exception.JavaIllegalArgument, "No sources given")
	}
	for _, path := range append([]string{op.GetPath()}, op.GetSources()...) {
		if strings.HasPrefix(path, ReservedPath+"/"+rawName) || strings.HasPrefix(path, ReservedPath+"/"+inodesName) {
			return exception.New(exception.IO, "Concat operation doesn't support %s relative path : %s", reservedName, printable(path))
		}
	}
	return nil
}

// concatSource finds a file that may become part of target.
func (t *txn) concatSource(path string, target *Inode) (*Inode, error) {
	ns := t.ns
	r, err := ns.resolve(&t.caller, path, writing)
	if err != nil {
		return nil, err
	}
	if err := ns.needLast(&t.caller, r, Read); err != nil {
		return nil, err
	}
	if err := ns.needParent(&t.caller, r); err != nil {
		return nil, err
	}
	n, err := r.existingFile()
	if err != nil {
		return nil, err
	}
	switch {
	case n.parent != target.parent:
		return nil, exception.New(exception.IllegalArgument, "Source file %s is not in the same directory with the target %s", ns.path(n), ns.path(target))
	case n == target:
		return nil, exception.New(exception.IllegalArgument, "concat: the src file %s is the same with the target file %s", ns.path(n), ns.path(target))
	case n.file.open() || len(n.file.blocks) == 0:
		return nil, exception.New(exception.IllegalArgument, "concat: source file %s is invalid or empty or underConstruction", ns.path(n))
	case n.file.blockSize > target.file.blockSize:
		return nil, exception.New(exception.IllegalArgument, "concat: source file %s has preferred block size %d which is greater than the target file's preferred block size %d", ns.path(n), n.file.blockSize, target.file.blockSize)
	}
	return n, nil
}
