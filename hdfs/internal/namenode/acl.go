package namenode

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/acl"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// unmasked is the mode before a client's umask, if it is to count.
func (nn *NameNode) unmasked(p *hdfspb.FsPermissionProto) *uint32 {
	if p == nil || nn.cfg.NoPosixACLInheritance {
		return nil
	}
	return p.Perm
}

func (nn *NameNode) checkACLs() error {
	if nn.cfg.NoACLs {
		return exception.New(exception.ACL, "The ACL operation has been rejected.  Support for ACLs has been disabled by setting %s to false.", "dfs.namenode.acls.enabled")
	}
	return nil
}

func (nn *NameNode) changeACL(ctx context.Context, src string, change nspb.SetAcl_Change, entries []*hdfspb.AclEntryProto) error {
	if err := nn.checkACLs(); err != nil {
		return err
	}
	op := &nspb.SetAcl{Path: &src, Change: change.Enum(), Entries: make([]*nspb.AclEntry, len(entries))}
	for i, e := range entries {
		op.Entries[i] = &nspb.AclEntry{
			Scope: proto.Uint32(uint32(e.GetScope())), Type: proto.Uint32(uint32(e.GetType())),
			Permissions: proto.Uint32(uint32(e.GetPermissions())), Name: e.Name,
		}
	}
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetAcl{SetAcl: op}})
	return err
}

func (nn *NameNode) setACL(ctx context.Context, req *hdfspb.SetAclRequestProto) (*hdfspb.SetAclResponseProto, error) {
	return &hdfspb.SetAclResponseProto{}, nn.changeACL(ctx, req.GetSrc(), nspb.SetAcl_REPLACE, req.GetAclSpec())
}

func (nn *NameNode) modifyACLEntries(ctx context.Context, req *hdfspb.ModifyAclEntriesRequestProto) (*hdfspb.ModifyAclEntriesResponseProto, error) {
	return &hdfspb.ModifyAclEntriesResponseProto{}, nn.changeACL(ctx, req.GetSrc(), nspb.SetAcl_MERGE, req.GetAclSpec())
}

func (nn *NameNode) removeACLEntries(ctx context.Context, req *hdfspb.RemoveAclEntriesRequestProto) (*hdfspb.RemoveAclEntriesResponseProto, error) {
	return &hdfspb.RemoveAclEntriesResponseProto{}, nn.changeACL(ctx, req.GetSrc(), nspb.SetAcl_FILTER, req.GetAclSpec())
}

func (nn *NameNode) removeDefaultACL(ctx context.Context, req *hdfspb.RemoveDefaultAclRequestProto) (*hdfspb.RemoveDefaultAclResponseProto, error) {
	return &hdfspb.RemoveDefaultAclResponseProto{}, nn.changeACL(ctx, req.GetSrc(), nspb.SetAcl_FILTER_DEFAULT, nil)
}

func (nn *NameNode) removeACL(ctx context.Context, req *hdfspb.RemoveAclRequestProto) (*hdfspb.RemoveAclResponseProto, error) {
	return &hdfspb.RemoveAclResponseProto{}, nn.changeACL(ctx, req.GetSrc(), nspb.SetAcl_REMOVE, nil)
}

func (nn *NameNode) getACLStatus(ctx context.Context, req *hdfspb.GetAclStatusRequestProto) (*hdfspb.GetAclStatusResponseProto, error) {
	if err := nn.checkACLs(); err != nil {
		return nil, err
	}
	c := nn.callFrom(ctx)
	var (
		a   namespace.ACL
		err error
	)
	nn.read(func(ns *namespace.Namespace) { a, err = ns.ACL(c.who(), req.GetSrc()) })
	if err != nil {
		return nil, err
	}
	out := &hdfspb.AclStatusProto{Owner: &a.Owner, Group: &a.Group, Sticky: proto.Bool(a.Mode&0o1000 != 0), Entries: aclPB(a.Entries)}
	if !a.Unset {
		out.Permission = &hdfspb.FsPermissionProto{Perm: proto.Uint32(uint32(a.Mode))}
	}
	return &hdfspb.GetAclStatusResponseProto{Result: out}, nil
}

func aclPB(entries []acl.Entry) []*hdfspb.AclEntryProto {
	out := make([]*hdfspb.AclEntryProto, len(entries))
	for i, e := range entries {
		out[i] = &hdfspb.AclEntryProto{
			Scope:       hdfspb.AclEntryProto_AclEntryScopeProto(e.Scope).Enum(),
			Type:        hdfspb.AclEntryProto_AclEntryTypeProto(e.Type).Enum(),
			Permissions: hdfspb.FsActionProto(e.Perm).Enum(),
		}
		if e.Name != "" {
			out[i].Name = &e.Name
		}
	}
	return out
}
