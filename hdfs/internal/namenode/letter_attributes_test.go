package namenode

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/acl"
)

// attributeOperations are those of which also the texts of refusals are compared.
var attributeOperations = map[string]func(*letter, context.Context, []string) (string, error){
	"setAcl": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.setACL(ctx, &hdfspb.SetAclRequestProto{Src: l.path(f[2]), AclSpec: l.acl(f[3])}))
	},
	"modifyAclEntries": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.modifyACLEntries(ctx, &hdfspb.ModifyAclEntriesRequestProto{Src: l.path(f[2]), AclSpec: l.acl(f[3])}))
	},
	"removeAclEntries": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.removeACLEntries(ctx, &hdfspb.RemoveAclEntriesRequestProto{Src: l.path(f[2]), AclSpec: l.acl(f[3])}))
	},
	"removeDefaultAcl": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.removeDefaultACL(ctx, &hdfspb.RemoveDefaultAclRequestProto{Src: l.path(f[2])}))
	},
	"removeAcl": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.removeACL(ctx, &hdfspb.RemoveAclRequestProto{Src: l.path(f[2])}))
	},
	"getAclStatus": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getACLStatus(ctx, &hdfspb.GetAclStatusRequestProto{Src: l.path(f[2])})
		if err != nil {
			return "", err
		}
		s := r.GetResult()
		out := fmt.Sprintf("%s,%s,%t,", s.GetOwner(), s.GetGroup(), s.GetSticky())
		if s.Permission == nil {
			out += "null"
		} else {
			out += strconv.FormatUint(uint64(s.GetPermission().GetPerm()), 8)
		}
		for _, e := range s.GetEntries() {
			out += " " + acl.Entry{Scope: acl.Scope(e.GetScope()), Type: acl.Type(e.GetType()), Perm: uint8(e.GetPermissions()), Name: e.GetName()}.String()
		}
		return out, nil
	},
}

// acl reads a list of entries as the shell takes it.
func (l *letter) acl(spec string) (out []*hdfspb.AclEntryProto) {
	for entry := range strings.SplitSeq(spec, ",") {
		if entry == "" {
			continue
		}
		e := &hdfspb.AclEntryProto{Scope: hdfspb.AclEntryProto_ACCESS.Enum()}
		if rest, ok := strings.CutPrefix(entry, "default:"); ok {
			entry, e.Scope = rest, hdfspb.AclEntryProto_DEFAULT.Enum()
		}
		f := strings.Split(entry, ":")
		e.Type = hdfspb.AclEntryProto_AclEntryTypeProto(hdfspb.AclEntryProto_AclEntryTypeProto_value[strings.ToUpper(f[0])]).Enum()
		if f[1] != "" {
			e.Name = proto.String(f[1])
		}
		var perm int32
		for i, c := range f[2] {
			if c != '-' {
				perm |= 4 >> i
			}
		}
		e.Permissions = hdfspb.FsActionProto(perm).Enum()
		out = append(out, e)
	}
	return out
}
