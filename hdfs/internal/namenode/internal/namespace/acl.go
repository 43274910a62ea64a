package namespace

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/acl"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// aclChanges are the operations on a list, and what they make of the whole list by the
// entries of a change.
var aclChanges = map[nspb.SetAcl_Change]struct {
	operation string
	change    func(full, spec []acl.Entry) ([]acl.Entry, error) // nil: nothing is left
}{
	nspb.SetAcl_REPLACE:        {"setAcl", acl.Replace},
	nspb.SetAcl_MERGE:          {"modifyAclEntries", acl.Merge},
	nspb.SetAcl_FILTER:         {"removeAclEntries", acl.Filter},
	nspb.SetAcl_FILTER_DEFAULT: {"removeDefaultAcl", func(full, _ []acl.Entry) ([]acl.Entry, error) { return acl.FilterDefault(full) }},
	nspb.SetAcl_REMOVE:         {"removeAcl", nil},
}

func (t *txn) setACL(op *nspb.SetAcl) error {
	by, known := aclChanges[op.GetChange()]
	if !known {
		return fmt.Errorf("namespace: log entry with a change of an access control list that this version does not know (%v): run a version at least as new as the one that wrote it", op.GetChange())
	}
	t.caller.operation = by.operation
	n, shown, err := t.ownedInode(op.GetPath())
	if err != nil {
		return err
	}
	if op.GetChange() == nspb.SetAcl_REPLACE { // as HDFS shows it
		shown = printable(op.GetPath())
	}
	spec, err := aclEntries(op.GetEntries())
	if err != nil {
		return err
	}
	var (
		mode uint16
		kept []acl.Entry
	)
	if by.change == nil || op.GetChange() == nspb.SetAcl_REPLACE && len(spec) == 0 {
		mode = acl.Remove(n.mode, n.acl())
	} else {
		full, err := by.change(acl.Full(n.mode, n.acl()), spec)
		if err == nil && n.dir == nil && full[len(full)-1].Scope == acl.Default {
			return exception.New(exception.ACL, "Invalid ACL: only directories may have a default ACL. Path: %s Path: %s", t.ns.path(n), shown)
		}
		if err != nil {
			return aclError(err, shown)
		}
		mode, kept = acl.Split(n.mode, full)
	}
	if t.write() {
		n = t.ns.inodes.Change(n.id)
		n.mode = mode
		n.alter(func(a *attributes) { a.acl = kept })
		n.more = t.ns.lists.share(n.more)
		t.ns.askAgain(n.id)
	}
	return nil
}

func aclError(err error, shown string) error {
	var invalid *acl.Error
	if errors.As(err, &invalid) {
		return exception.New(exception.ACL, "%v Path: %s", invalid, shown)
	}
	return err
}

// aclEntries checks what a client has sent as far as each entry goes.
func aclEntries(in []*nspb.AclEntry) ([]acl.Entry, error) {
	out := make([]acl.Entry, len(in))
	for i, e := range in {
		if e.GetScope() > uint32(acl.Default) || e.GetType() > uint32(acl.Other) || e.GetPermissions() > 7 {
			return nil, exception.New(exception.ACL, "Invalid ACL: an entry of scope %d, type %d and permissions %d.", e.GetScope(), e.GetType(), e.GetPermissions())
		}
		if len(e.GetName()) > maxNameLength {
			return nil, exception.New(exception.ACL, "Invalid ACL: a name of %d bytes, which exceeds maximum of %d.", len(e.GetName()), maxNameLength)
		}
		out[i] = acl.Entry{Scope: acl.Scope(e.GetScope()), Type: acl.Type(e.GetType()), Perm: uint8(e.GetPermissions()), Name: e.GetName()}
	}
	return out, nil
}

func aclRecords(entries []acl.Entry) []*nspb.AclEntry {
	out := make([]*nspb.AclEntry, len(entries))
	for i, e := range entries {
		out[i] = &nspb.AclEntry{Scope: proto.Uint32(uint32(e.Scope)), Type: proto.Uint32(uint32(e.Type)), Permissions: proto.Uint32(uint32(e.Perm))}
		if e.Name != "" {
			out[i].Name = proto.String(e.Name)
		}
	}
	return out
}

func restoreACL(rec []*nspb.AclEntry, directory bool) ([]acl.Entry, error) {
	if len(rec) == 0 {
		return nil, nil
	}
	entries, err := aclEntries(rec)
	if err != nil {
		return nil, err
	}
	if err := acl.Check(entries); err != nil {
		return nil, err
	}
	if !directory && len(acl.DefaultsOf(entries)) > 0 {
		return nil, errors.New("a file with a default access control list")
	}
	return entries, nil
}

// modes are the permissions that a client asks for.
type modes struct {
	masked   uint16
	unmasked *uint32 // before its umask, if it tells
}

// inherit gives a new inode its mode, and what it inherits of its parent's access
// control list. Of a client's umask the list takes the place, as POSIX has it.
func (n *Inode) inherit(parent *Inode, m modes) {
	n.mode = m.masked & modeBits
	asked := n.mode
	if m.unmasked != nil {
		asked = uint16(*m.unmasked) & modeBits
	}
	mode, kept, ok := acl.Inherit(parent.acl(), asked, n.dir != nil)
	if ok {
		n.mode = mode
		n.alter(func(a *attributes) { a.acl = kept })
	}
}

// ACL is an access control list as getAclStatus tells it.
type ACL struct {
	Owner, Group string
	Mode         uint16
	Entries      []acl.Entry // what the mode can't say; read only
	// Unset: there is no inode, and no mode.
	Unset bool
}

// ACL returns the access control list of a path. Who may reach it may know it.
func (ns *Namespace) ACL(c Caller, path string) (ACL, error) {
	r, err := ns.resolve(&c, path, reading)
	if err != nil {
		return ACL{}, err
	}
	if r.isSnapshots() {
		return ACL{Unset: true}, nil
	}
	n := r.last()
	if n == nil {
		return ACL{}, exception.New(exception.FileNotFound, "cannot find %s", r)
	}
	return ACL{Owner: ns.names[n.owner], Group: ns.names[n.group], Mode: n.mode, Entries: n.acl()}, nil
}
