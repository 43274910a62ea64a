package namespace

import (
	"slices"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// Access is a set of rights on an inode, as in a permission's octal digit.
type Access uint16

const (
	Execute Access = 1
	Write   Access = 2
	Read    Access = 4
)

var accessNames = [8]string{"NONE", "EXECUTE", "WRITE", "WRITE_EXECUTE", "READ", "READ_EXECUTE", "READ_WRITE", "ALL"}

const (
	sticky   = 0o1000
	modeBits = 0o1777
)

// Caller is who asks. The zero Caller has no name, no group and no right but others'.
type Caller struct {
	User      string
	Groups    []string
	Superuser bool
}

type caller = Caller

func callerOf(e *nspb.Entry) caller {
	c := e.GetCaller()
	if c == nil {
		return caller{Superuser: true}
	}
	return caller{User: c.GetUser(), Groups: c.GetGroups(), Superuser: c.GetSuperuser()}
}

func (ns *Namespace) allowed(c *caller, n *Inode, want Access) bool {
	if c.Superuser {
		return true
	}
	mode := Access(n.mode)
	switch {
	case ns.names[n.owner] == c.User:
		mode >>= 6
	case slices.Contains(c.Groups, ns.names[n.group]):
		mode >>= 3
	}
	return mode&want == want
}

func (ns *Namespace) need(c *caller, n *Inode, want Access) error {
	if ns.allowed(c, n, want) {
		return nil
	}
	return exception.New(exception.AccessControl, "Permission denied: user=%s, access=%s, inode=\"%s\":%s", c.User, accessNames[want], n.Path(), ns.describe(n))
}

func (ns *Namespace) describe(n *Inode) string {
	buf := []byte("drwxrwxrwx")
	if n.dir == nil {
		buf[0] = '-'
	}
	for i := range 9 {
		if n.mode&(1<<(8-i)) == 0 {
			buf[1+i] = '-'
		}
	}
	if n.mode&sticky != 0 {
		buf[9] = 't'
		if n.mode&1 == 0 {
			buf[9] = 'T'
		}
	}
	return ns.names[n.owner] + ":" + ns.names[n.group] + ":" + string(buf)
}

// reach is resolve for a caller that may search every directory on the way.
func (ns *Namespace) reach(c *caller, path string) (resolved, error) {
	r, err := ns.resolve(path)
	if err == nil {
		err = ns.traverse(c, r)
	}
	return r, err
}

// traverse checks that every inode before the path's last component is a
// directory that the caller may search.
func (ns *Namespace) traverse(c *caller, r resolved) error {
	for i, n := range r.nodes {
		if i == len(r.comps) {
			break
		}
		if n.dir == nil {
			return exception.New(exception.ParentNotDirectory, "%s (is not a directory)", n.Path())
		}
		if err := ns.need(c, n, Execute); err != nil {
			return err
		}
	}
	return nil
}

// needParent is for taking a name out of a directory or putting one in.
func (ns *Namespace) needParent(c *caller, r resolved) error {
	parent := r.parent()
	if parent == nil {
		return nil
	}
	if err := ns.need(c, parent, Write); err != nil {
		return err
	}
	n := r.last()
	if n == nil || c.Superuser || parent.mode&sticky == 0 {
		return nil
	}
	if owner := ns.names[n.owner]; owner == c.User || ns.names[parent.owner] == c.User {
		return nil
	}
	return exception.New(exception.AccessControl, "Permission denied by sticky bit: user=%s, path=\"%s\":%s, parent=\"%s\":%s", c.User, n.Path(), ns.describe(n), parent.Path(), ns.describe(parent))
}

func (ns *Namespace) needOwner(c *caller, n *Inode) error {
	if c.Superuser || ns.names[n.owner] == c.User {
		return nil
	}
	return exception.New(exception.AccessControl, "Permission denied. user=%s is not the owner of inode=%s", c.User, n.Path())
}

// needSubtree checks every directory at or below n that has children, or
// every one if empty ones count.
func (ns *Namespace) needSubtree(c *caller, n *Inode, want Access, skipEmpty bool) error {
	if c.Superuser {
		return nil
	}
	return eachDirectory(n, func(d *Inode) error {
		if skipEmpty && d.dir.count == 0 {
			return nil
		}
		return ns.need(c, d, want)
	})
}

// eachDirectory does not recurse: a path may be a thousand levels deep, but the
// stack of a state machine should not depend on its input.
func eachDirectory(n *Inode, visit func(*Inode) error) error {
	if n.dir == nil {
		return nil
	}
	stack := []*Inode{n}
	for len(stack) > 0 {
		d := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if err := visit(d); err != nil {
			return err
		}
		for _, chunk := range d.dir.chunks {
			for _, child := range chunk {
				if child.dir != nil {
					stack = append(stack, child)
				}
			}
		}
	}
	return nil
}
