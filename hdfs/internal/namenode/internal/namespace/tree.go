package namespace

import (
	"strings"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// newDirectory adds a directory. Its access time is 0 until it is set.
func (t *txn) newDirectory(parent *Inode, name string, m modes) *Inode {
	n := t.newChild(parent, name, &children{}, m)
	n.atime = 0
	return n
}

// newChild adds an inode to the tree. As in BSD and HDFS the group is the parent's.
func (t *txn) newChild(parent *Inode, name string, dir *children, m modes) *Inode {
	ns := t.ns
	n := &Inode{
		id:     ns.nextInode,
		name:   name,
		parent: parent,
		mtime:  t.now(),
		atime:  t.now(),
		owner:  ns.intern(t.caller.User),
		group:  parent.group,
		dir:    dir,
	}
	n.inherit(m)
	ns.nextInode++
	ns.inodes[n.id] = n
	parent.dir.insert(n)
	parent.mtime = t.now()
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
			return exception.New(exception.FileAlreadyExists, "Path is not a directory: %s", r)
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
	if err := checkNewNames(r); err != nil {
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
func checkNewNames(r resolved) error {
	missing := r.comps[len(r.nodes)-1:]
	if err := checkNewName(r.ancestor(), missing[0]); err != nil {
		return err
	}
	for _, name := range missing[1:] {
		if len(name) > MaxComponentLength {
			return exception.New(exception.PathComponentTooLong, "The maximum path component name limit of %s in directory %s is exceeded: limit=%d length=%d", printable(name), printable(r.parentString()), MaxComponentLength, len(name))
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
	if op.GetPath() == reservedPath {
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
	if err := ns.needSubtree(&t.caller, n); err != nil {
		return err
	}
	if n.dir != nil && n.dir.count > 0 && !op.GetRecursive() {
		return exception.New(exception.PathIsNotEmptyDirectory, "%s is non empty", r)
	}
	if n == ns.root || !t.write() {
		return nil
	}
	t.remove(n)
	t.res.OK = true
	return nil
}

// remove takes a whole subtree away, with its blocks and leases.
func (t *txn) remove(n *Inode) {
	n.parent.dir.remove(n.name)
	n.parent.mtime = t.now()
	t.forget(n)
	_ = eachDirectory(n, func(d *Inode) error {
		for _, chunk := range d.dir.chunks {
			for _, child := range chunk {
				t.forget(child)
			}
		}
		return nil
	})
}

func (t *txn) forget(n *Inode) {
	ns := t.ns
	delete(ns.inodes, n.id)
	if n.file == nil {
		return
	}
	ns.files--
	ns.release(n)
	for _, b := range n.file.blocks {
		t.forgetBlock(b)
	}
}

func (t *txn) forgetBlock(b *Block) {
	delete(t.ns.blocks, b.ID)
	delete(t.ns.recovering, b.ID)
	t.res.Removed = append(t.res.Removed, b.ID)
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
	if n == nil || n == ns.root {
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
		return exception.New(exception.InvalidPath, "Cannot rename to or from %s", reservedPath)
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
	t.move(n, to.parent(), to.base())
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
	ns := t.ns
	n, target, parent := from.last(), to.last(), to.parent()
	switch {
	case n == nil:
		return exception.New(exception.FileNotFound, "rename source %s is not found.", from)
	case n == ns.root:
		return exception.New(exception.IO, "rename source cannot be the root")
	case n == target:
		return exception.New(exception.FileAlreadyExists, "The source %s and destination %s are the same", from, to)
	case to.within(from):
		return exception.New(exception.IO, "Rename destination %s is a directory or file under source %s", to, from)
	case to.isReserved():
		return exception.New(exception.InvalidPath, "Cannot rename to or from %s", reservedPath)
	case target == ns.root:
		return exception.New(exception.IO, "rename destination cannot be the root")
	case target != nil && (target.dir == nil) != (n.dir == nil):
		return exception.New(exception.IO, "Source %s and destination %s must both be directories", from, to)
	case target != nil && !overwrite:
		return exception.New(exception.FileAlreadyExists, "rename destination %s already exists", to)
	case target != nil && target.dir != nil && target.dir.count > 0:
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
		t.remove(target)
	}
	t.move(n, parent, to.base())
	t.res.OK = true
	return nil
}

// checkMove checks that the new name may be, and what moves with it.
func (t *txn) checkMove(from, to resolved) error {
	if to.last() == nil {
		if err := checkNewName(to.parent(), to.base()); err != nil {
			return err
		}
	}
	return t.checkDepth(from.last(), len(to.comps))
}

// checkDepth keeps every path that exists within the limit that resolving has,
// so that nothing can be moved out of reach.
func (t *txn) checkDepth(n *Inode, depth int) error {
	if n.dir == nil || depth <= n.depth() {
		return nil // the path of a file is checked by itself; otherwise nothing gets deeper
	}
	return eachDirectory(n, func(d *Inode) error {
		if d.depth()-n.depth()+depth >= MaxPathDepth {
			return exception.New(exception.IO, "rename: Pathname too long.  Limit %d characters, %d levels.", MaxPathLength, MaxPathDepth)
		}
		return nil
	})
}

func (n *Inode) depth() int {
	d := 0
	for at := n; at.parent != nil; at = at.parent {
		d++
	}
	return d
}

func (t *txn) move(n, parent *Inode, name string) {
	n.parent.dir.remove(n.name)
	n.parent.mtime = t.now()
	n.parent, n.name = parent, name
	parent.dir.insert(n)
	parent.mtime = t.now()
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
	if path == reservedPath {
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
		n.mode = mode
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
		return exception.New(exception.IllegalArgument, "setOwner %s: names of %d and %d bytes; the limit is %d", n.Path(), len(owner), len(group), maxNameLength)
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
		n.owner, n.group = ns.intern(owner), ns.intern(group)
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
	if n.file.replication == uint16(op.GetReplication()) || !t.write() {
		return nil
	}
	n.file.replication = uint16(op.GetReplication())
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

func (t *txn) touch(blocks []*Block) {
	for _, b := range blocks {
		t.res.Touched = append(t.res.Touched, b.ID)
	}
}

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
	if target.file.open {
		return exception.New(exception.IllegalArgument, "concat: target file %s is under construction", target.Path())
	}
	seen := make(map[*Inode]bool)
	sources := make([]*Inode, 0, len(op.GetSources()))
	blocks := len(target.file.blocks)
	for _, path := range op.GetSources() {
		n, err := t.concatSource(path, target)
		if err != nil {
			return err
		}
		if !seen[n] {
			seen[n] = true
			sources = append(sources, n)
			blocks += len(n.file.blocks)
		}
	}
	if len(sources) < len(op.GetSources()) {
		return exception.New(exception.IllegalArgument, "concat: at least two of the source files are the same")
	}
	if blocks > MaxFileBlocks {
		return exception.New(exception.IO, "concat: %s would have %d blocks; the limit is %d", target.Path(), blocks, MaxFileBlocks)
	}
	if !t.write() {
		return nil
	}
	for _, n := range sources {
		for _, b := range n.file.blocks {
			b.inode = target
		}
		target.file.blocks = append(target.file.blocks, n.file.blocks...)
		t.touch(n.file.blocks)
		n.file.blocks = nil
		t.remove(n)
	}
	target.mtime = t.now()
	t.res.OK = true
	return nil
}

func checkConcatPaths(op *nspb.Concat) error {
	if op.GetPath() == "" {
		return exception.New(exception.JavaIllegalArgument, "Target file name is empty")
	}
	if len(op.GetSources()) == 0 {
		return exception.New(exception.JavaIllegalArgument, "No sources given")
	}
	for _, path := range append([]string{op.GetPath()}, op.GetSources()...) {
		if strings.HasPrefix(path, reservedPath+"/"+rawName) || strings.HasPrefix(path, reservedPath+"/"+inodesName) {
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
		return nil, exception.New(exception.IllegalArgument, "Source file %s is not in the same directory with the target %s", n.Path(), target.Path())
	case n == target:
		return nil, exception.New(exception.IllegalArgument, "concat: the src file %s is the same with the target file %s", n.Path(), target.Path())
	case n.file.open || len(n.file.blocks) == 0:
		return nil, exception.New(exception.IllegalArgument, "concat: source file %s is invalid or empty or underConstruction", n.Path())
	case n.file.blockSize > target.file.blockSize:
		return nil, exception.New(exception.IllegalArgument, "concat: source file %s has preferred block size %d which is greater than the target file's preferred block size %d", n.Path(), n.file.blockSize, target.file.blockSize)
	}
	return n, nil
}
