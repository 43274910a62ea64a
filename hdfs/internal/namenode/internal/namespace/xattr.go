package namespace

import (
	"bytes"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/xattr"
)

func isRaw(path string) bool { return strings.HasPrefix(path, ReservedPath+"/"+rawName) }

func attrOf(rec *nspb.XAttr) (xattr.Attr, error) {
	a := xattr.Attr{Namespace: xattr.Namespace(min(rec.GetNamespace(), 255)), Name: rec.GetName(), Value: bytes.Clone(rec.GetValue())}
	return a, a.Check()
}

func (t *txn) setXAttr(op *nspb.SetXAttr) error {
	t.caller.operation = "setXAttr"
	n, a, err := t.attributed(op.GetPath(), op.GetAttr())
	if err != nil {
		return err
	}
	next, err := xattr.Set(n.xattrs(), a, xattr.Flags{Create: op.GetCreate(), Replace: op.GetReplace()}, int(op.GetLimit()), n.file != nil)
	if err == nil && t.write() {
		t.ns.inodes.Change(n.id).alter(func(a *attributes) { a.xattrs = next })
	}
	return err
}

func (t *txn) removeXAttr(op *nspb.RemoveXAttr) error {
	t.caller.operation = "removeXAttr"
	n, a, err := t.attributed(op.GetPath(), op.GetAttr())
	if err != nil {
		return err
	}
	next, err := xattr.Remove(n.xattrs(), a, n.dir != nil && n.ownPolicy() != storagepolicy.Unspecified)
	if err == nil && t.write() {
		t.ns.inodes.Change(n.id).alter(func(a *attributes) { a.xattrs = next })
	}
	return err
}

// attributed finds an inode of which the caller may change an attribute. Those of the user's
// namespace need the right to write; a sticky directory's belong to its owner.
func (t *txn) attributed(path string, rec *nspb.XAttr) (*Inode, xattr.Attr, error) {
	a, err := attrOf(rec)
	if err != nil {
		return nil, a, err
	}
	if err := xattr.Allowed(a, t.caller.Superuser, isRaw(path)); err != nil {
		return nil, a, err
	}
	r, err := t.ns.resolve(&t.caller, path, writing)
	if err != nil {
		return nil, a, err
	}
	n := r.last()
	if a.Namespace == xattr.User && n != nil {
		if n.dir != nil && n.mode&sticky != 0 {
			err = t.ns.needOwner(&t.caller, n)
		} else {
			err = t.ns.need(&t.caller, n, Write)
		}
	}
	if err == nil && n == nil {
		err = exception.New(exception.FileNotFound, "cannot find %s", r)
	}
	return n, a, err
}

// xattrs returns the inode's extended attributes.
func (n *Inode) xattrs() []xattr.Attr {
	if n.more == nil {
		return nil
	}
	return n.more.xattrs
}

// XAttrs returns the extended attributes of a path that the caller may know. With names it is
// those, and an error if one of them is not there. The values must not be changed.
func (ns *Namespace) XAttrs(c Caller, path string, names []xattr.Attr) ([]xattr.Attr, error) {
	raw := isRaw(path)
	for _, a := range names {
		if err := a.Check(); err != nil {
			return nil, err
		}
		if err := xattr.Allowed(a, c.Superuser, raw); err != nil {
			return nil, err
		}
	}
	r, err := ns.resolve(&c, path, reading)
	if err != nil {
		return nil, err
	}
	if err := ns.needLast(&c, r, Read); err != nil {
		return nil, err
	}
	n := r.last()
	if n == nil {
		return nil, exception.New(exception.FileNotFound, "cannot find %s", r)
	}
	all := xattr.Visible(n.xattrs(), c.Superuser, raw)
	if len(names) == 0 {
		return all, nil
	}
	out := make([]xattr.Attr, len(names))
	for i, name := range names {
		var ok bool
		if out[i], ok = xattr.Find(all, name); !ok {
			return nil, exception.New(exception.XAttrNotFound, "At least one of the attributes provided was not found.")
		}
	}
	return out, nil
}

// needReadable refuses the superuser what is kept from it.
func (ns *Namespace) needReadable(c *caller, n *Inode) error {
	if c.Superuser && xattr.Has(n.xattrs(), xattr.UnreadableBySuperuser) {
		return exception.New(exception.AccessControl, "Access is denied for %s since the superuser is not allowed to perform this operation.", c.User)
	}
	return nil
}

func xattrRecords(list []xattr.Attr) []*nspb.XAttr {
	out := make([]*nspb.XAttr, len(list))
	for i, a := range list {
		out[i] = &nspb.XAttr{Namespace: proto.Uint32(uint32(a.Namespace)), Name: proto.String(a.Name), Value: a.Value}
	}
	return out
}

func restoreXAttrs(rec []*nspb.XAttr) ([]xattr.Attr, error) {
	var out []xattr.Attr
	for _, each := range rec {
		a, err := attrOf(each)
		if err != nil {
			return nil, err
		}
		if len(a.Value) == 0 {
			a.Value = nil
		}
		out = append(out, a)
	}
	return out, xattr.CheckList(out)
}
