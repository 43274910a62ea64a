package namespace

import "github.com/verbena-data/verbena/hadoop/exception"

// CanRead checks the right to read what path names, if it names anything, and tells
// whether it does.
func (ns *Namespace) CanRead(c Caller, path string) (exists bool, err error) {
	r, err := ns.resolve(&c, path, reading)
	if err != nil {
		return false, err
	}
	return r.last() != nil, ns.needLast(&c, r, Read)
}

// CanWrite is CanRead for the right to write.
func (ns *Namespace) CanWrite(c Caller, path string) (exists bool, err error) {
	r, err := ns.resolve(&c, path, writing)
	if err != nil {
		return false, err
	}
	return r.last() != nil, ns.needLast(&c, r, Write)
}

// CanManage checks that the caller owns what path names.
func (ns *Namespace) CanManage(c Caller, path string) error {
	t := txn{ns: ns, caller: c}
	_, _, err := t.ownedInode(path)
	return err
}

// Directory tells why path names no directory. root says whether it names the root.
// Nobody's rights are checked.
func (ns *Namespace) Directory(path string) (root bool, err error) {
	comps, err := components(path)
	if err != nil {
		return false, err
	}
	if comps, err = ns.expand(comps); err != nil {
		return false, err
	}
	r := ns.walk(comps)
	switch n := r.last(); {
	case n == nil && r.nodes[len(r.nodes)-1].dir == nil:
		return false, exception.New(exception.ParentNotDirectory, "%s (is not a directory)", ns.path(r.nodes[len(r.nodes)-1]))
	case n == nil:
		return false, exception.New(exception.FileNotFound, "Directory does not exist: %s", r)
	case n.dir == nil:
		return false, exception.New(exception.PathIsNotDirectory, "`%s': Is not a directory", r)
	default:
		return n.id == rootID, nil
	}
}

// PathOf returns the path of an inode, empty if there is none.
func (ns *Namespace) PathOf(id uint64) string {
	if n := ns.inodes.Get(id); n != nil {
		return ns.path(n)
	}
	return ""
}
