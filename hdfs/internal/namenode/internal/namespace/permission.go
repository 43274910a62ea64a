package namespace

import (
	"slices"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/acl"
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

	operation string // as HDFS names it, empty: untold
}

type caller = Caller

func callerOf(e *nspb.Entry) caller {
	c := e.GetCaller()
	if c == nil {
		return caller{Superuser: true}
	}
	return caller{User: c.GetUser(), Groups: c.GetGroups(), Superuser: c.GetSuperuser(), operation: operationOf(e)}
}

// operationOf is how HDFS names the operations that may be refused below /.reserved/raw.
func operationOf(e *nspb.Entry) string {
	switch e.GetOp().(type) {
	case *nspb.Entry_Mkdirs:
		return "mkdirs"
	case *nspb.Entry_Create:
		return "create"
	case *nspb.Entry_Append:
		return "append"
	case *nspb.Entry_Truncate:
		return "truncate"
	case *nspb.Entry_Rename:
		return "rename"
	case *nspb.Entry_Delete:
		return "delete"
	case *nspb.Entry_SetPermission:
		return "setPermission"
	case *nspb.Entry_SetOwner:
		return "setOwner"
	case *nspb.Entry_SetTimes:
		return "setTimes"
	case *nspb.Entry_SetReplication:
		return "setReplication"
	case *nspb.Entry_Concat:
		return "concat"
	}
	return ""
}

// needSuperuser refuses everybody else.
func needSuperuser(c *caller) error {
	switch {
	case c.Superuser:
		return nil
	case c.operation != "":
		return exception.New(exception.AccessControl, "Access denied for user %s. Superuser privilege is required for operation %s", c.User, c.operation)
	}
	return exception.New(exception.AccessControl, "Access denied for user %s. Superuser privilege is required", c.User)
}

func (ns *Namespace) allowed(c *caller, n *Inode, want Access) bool {
	if c.Superuser {
		return true
	}
	if kept := n.acl(); acl.HasAccess(kept) {
		return acl.Allows(n.mode, kept, ns.names[n.owner] == c.User, c.User, ns.names[n.group], c.Groups, uint8(want))
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
	return exception.New(exception.AccessControl, "Permission denied: user=%s, access=%s, inode=\"%s\":%s", c.User, accessNames[want], ns.path(n), ns.describe(n))
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

// traverse checks that the caller may search every directory before the path's
// last component, and returns the first inode there that is none.
func (ns *Namespace) traverse(c *caller, r resolved) (file *Inode, err error) {
	for i, n := range r.nodes {
		if i == len(r.comps) {
			break
		}
		if n.dir == nil {
			return n, nil
		}
		if err := ns.need(c, n, Execute); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// needParent is for taking a name out of a directory.
func (ns *Namespace) needParent(c *caller, r resolved) error {
	parent, n := r.parent(), r.last()
	if parent == nil {
		return nil
	}
	if n != nil {
		if err := ns.needSticky(c, parent, n); err != nil {
			return err
		}
	}
	return ns.need(c, parent, Write)
}

// needAncestor is for making a name, and the directories that it needs.
func (ns *Namespace) needAncestor(c *caller, r resolved) error {
	if len(r.comps) == 0 {
		return nil
	}
	return ns.need(c, r.ancestor(), Write)
}

// needSticky keeps a sticky directory's names for those who own the directory or
// what they name.
func (ns *Namespace) needSticky(c *caller, parent, n *Inode) error {
	if c.Superuser || parent.mode&sticky == 0 || ns.names[n.owner] == c.User || ns.names[parent.owner] == c.User {
		return nil
	}
	return exception.New(exception.AccessControl, "Permission denied by sticky bit: user=%s, path=\"%s\":%s, parent=\"%s\":%s", c.User, ns.path(n), ns.describe(n), ns.path(parent), ns.describe(parent))
}

// needLast is for what the path names, if it names anything.
func (ns *Namespace) needLast(c *caller, r resolved, want Access) error {
	if n := r.last(); n != nil {
		return ns.need(c, n, want)
	}
	return nil
}

func (ns *Namespace) needOwner(c *caller, n *Inode) error {
	if c.Superuser || ns.names[n.owner] == c.User {
		return nil
	}
	return exception.New(exception.AccessControl, "Permission denied. user=%s is not the owner of inode=%s", c.User, ns.path(n))
}
