package namespace

import (
	"slices"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/internal/cow"
)

// Inode is a file or a directory. It lies in a page that versions may share: what is
// to be changed is asked for by cow.Map.Change, and pointers from before that, to it or
// to others, are to be read for what does not change alone. Those outside this package
// read it under the caller's lock and keep none.
type Inode struct {
	id     uint64
	parent uint64 // 0: of the root, and of a directory that was deleted
	name   string
	mtime  int64
	atime  int64
	owner  uint32
	group  uint32
	mode   uint16
	dir    *directory // nil: a file
	file   *file      // nil: a directory
	more   *attributes
}

type directory struct {
	gen         uint64 // in which it may be changed
	names       cow.Names
	directories int // among the children
}

// file is what files have beside directories. It never changes: a change puts another
// one in its place. Elements of blocks never change either; more may be appended, so
// whoever shortens it clips it.
type file struct {
	blockSize   uint64
	blocks      []uint64
	holder      *string // of the lease, nil: the file is closed
	replication uint16
}

func (f *file) open() bool { return f.holder != nil }

// heldBy returns who has the lease, "" if nobody has.
func (f *file) heldBy() string {
	if f.holder == nil {
		return ""
	}
	return *f.holder
}

func (ns *Namespace) root() *Inode { return ns.inodes.Get(rootID) }

// changeDirectory returns a directory's children for changing them.
func (ns *Namespace) changeDirectory(id uint64) *directory {
	n := ns.inodes.Change(id)
	if n.dir.gen != ns.gen {
		d := *n.dir
		d.gen = ns.gen
		n.dir = &d
	}
	return n.dir
}

// changeFile returns a file's properties for changing them in the entry that is applied.
func (ns *Namespace) changeFile(id uint64) *file {
	n := ns.inodes.Change(id)
	f := *n.file
	n.file = &f
	return &f
}

// byID returns an inode that somebody knows by its id, nil if there is none: what was
// deleted is none, whether it has been taken apart or not.
func (ns *Namespace) byID(id uint64) *Inode {
	n := ns.inodes.Get(id)
	if n == nil || !ns.attached(n) {
		return nil
	}
	return n
}

// blockByID is byID for a block.
func (ns *Namespace) blockByID(id uint64) *Block {
	b := ns.blocks.Get(id)
	if b == nil || len(ns.detached) > 0 && ns.byID(b.inode) == nil {
		return nil
	}
	return b
}

// attached tells whether an inode hangs together with the root.
func (ns *Namespace) attached(n *Inode) bool {
	if len(ns.detached) == 0 {
		return true
	}
	for n != nil && n.id != rootID {
		n = ns.inodes.Get(n.parent)
	}
	return n != nil
}

func (ns *Namespace) depth(n *Inode) int {
	d := 0
	for ; n.id != rootID; n = ns.inodes.Get(n.parent) {
		d++
	}
	return d
}

// path returns an inode's full path.
func (ns *Namespace) path(n *Inode) string { return pathOf(&ns.inodes, n) }

func pathOf(inodes *cow.Map[Inode], n *Inode) string {
	if n.id == rootID {
		return "/"
	}
	size := 0
	for at := n; at.id != rootID; at = inodes.Get(at.parent) {
		size += len(at.name) + 1
	}
	buf := make([]byte, size)
	for at := n; at.id != rootID; at = inodes.Get(at.parent) {
		size -= len(at.name)
		copy(buf[size:], at.name)
		size--
		buf[size] = '/'
	}
	return string(buf)
}

// pushDirectories appends the directories in d. It looks no further than the last of
// them.
func (ns *Namespace) pushDirectories(stack []*Inode, d *Inode) []*Inode {
	left := d.dir.directories
	if left == 0 {
		return stack
	}
	d.dir.names.After("", func(_ string, id uint64) bool {
		if child := ns.inodes.Get(id); child.dir != nil {
			stack = append(stack, child)
			left--
		}
		return left > 0
	})
	return stack
}

// How much of a deleted tree goes with one entry. The rest is Reap's.
const (
	reapNow    = 1000 // inodes, by the entry that deletes
	reapBehind = 100  // inodes, by each entry that follows
)

// detached is a deleted directory: its children up to a name are gone.
type detached struct {
	id    uint64
	after string
}

// remove takes a subtree out of its directory, in one step whatever its size. What
// was below is gone for every operation from now on, and taken apart bit by bit.
func (t *txn) remove(id uint64) {
	ns := t.ns
	n := ns.inodes.Change(id)
	if ns.counts(n.parent, n.name) {
		used := ns.usageOf(n, true)
		ns.charge(n, &quota.Counts{}, &used)
	}
	t.unlink(n)
	if n.file != nil {
		t.res.Removed = ns.forget(n, t.res.Removed)
		return
	}
	n.parent = 0
	ns.detached = append(ns.detached, detached{id: id})
	t.res.Removed = append(t.res.Removed, ns.Reap(ns.reapNow)...)
}

// Reap takes up to about limit inodes of deleted trees apart and returns their
// blocks. It is no operation: when it runs, and whether, changes no result.
func (ns *Namespace) Reap(limit int) (removed []uint64) {
	for limit > 0 && len(ns.detached) > 0 {
		top := &ns.detached[0]
		var below []detached
		done := true
		ns.inodes.Get(top.id).dir.names.After(top.after, func(name string, id uint64) bool {
			if limit <= 0 {
				done = false
				return false
			}
			limit--
			top.after = name
			if n := ns.inodes.Get(id); n.dir != nil {
				below = append(below, detached{id: id})
			} else {
				removed = ns.forget(n, removed)
			}
			return true
		})
		if done {
			limit--
			// Its subdirectories hang in the air from here on, and are in the list.
			bound := ns.inodes.Get(top.id).bound()
			ns.inodes.Delete(top.id)
			delete(ns.usage, top.id)
			if bound {
				ns.unbound()
			}
			ns.detached = ns.detached[1:]
		}
		ns.detached = append(ns.detached, below...)
	}
	if len(ns.detached) == 0 {
		ns.detached = nil
	}
	return removed
}

// Reaping tells whether Reap has something left to do.
func (ns *Namespace) Reaping() bool { return len(ns.detached) > 0 }

// forget drops a file that no directory names any more.
func (ns *Namespace) forget(n *Inode, removed []uint64) []uint64 {
	ns.release(n.id)
	n = ns.inodes.Get(n.id)
	for _, id := range n.file.blocks {
		ns.forgetBlock(id)
	}
	removed = append(removed, n.file.blocks...)
	ns.files--
	ns.inodes.Delete(n.id)
	return removed
}

func (ns *Namespace) forgetBlock(id uint64) {
	ns.blocks.Delete(id)
	delete(ns.recovering, id)
}

// dropLast takes the last block off a file.
func (t *txn) dropLast(id uint64) {
	f := t.ns.changeFile(id)
	last := f.blocks[len(f.blocks)-1]
	t.ns.chargeBytes(id, -f.counted(t.ns.blocks.Get(last)))
	f.blocks = slices.Clip(f.blocks[:len(f.blocks)-1])
	t.ns.forgetBlock(last)
	t.res.Removed = append(t.res.Removed, last)
}
