package namenode

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/acl"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
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
	"getStoragePolicies": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getStoragePolicies(ctx, &hdfspb.GetStoragePoliciesRequestProto{})
		out := ""
		for _, p := range r.GetPolicies() {
			out += policyText(p) + " "
		}
		return out, err
	},
	"getStoragePolicy": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getStoragePolicy(ctx, &hdfspb.GetStoragePolicyRequestProto{Path: l.path(f[2])})
		return policyText(r.GetStoragePolicy()), err
	},
	"setStoragePolicy": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.setStoragePolicy(ctx, &hdfspb.SetStoragePolicyRequestProto{Src: l.path(f[2]), PolicyName: &f[3]}))
	},
	"unsetStoragePolicy": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.unsetStoragePolicy(ctx, &hdfspb.UnsetStoragePolicyRequestProto{Src: l.path(f[2])}))
	},
	"satisfyStoragePolicy": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.satisfyStoragePolicy(ctx, &hdfspb.SatisfyStoragePolicyRequestProto{Src: l.path(f[2])}))
	},
	"setQuota": func(l *letter, ctx context.Context, f []string) (string, error) {
		req := &hdfspb.SetQuotaRequestProto{Path: l.path(f[2]), NamespaceQuota: l.unsigned(f[3]), StoragespaceQuota: l.unsigned(f[4])}
		if f[5] != "-" {
			req.StorageType = hdfspb.StorageTypeProto(hdfspb.StorageTypeProto_value[f[5]]).Enum()
		}
		return ok(l.nn.setQuota(ctx, req))
	},
	"getQuotaUsage": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.getQuotaUsage(ctx, &hdfspb.GetQuotaUsageRequestProto{Path: l.path(f[2])})
		u := r.GetUsage()
		return fmt.Sprint(u.GetFileAndDirectoryCount(), u.GetSpaceConsumed(), int64(u.GetQuota()), int64(u.GetSpaceQuota())) + typesText(u.GetTypeQuotaInfos()), err
	},
	"setXAttr": func(l *letter, ctx context.Context, f []string) (string, error) {
		var flag uint32
		if strings.Contains(f[5], "c") {
			flag |= flagXAttrCreate
		}
		if strings.Contains(f[5], "r") {
			flag |= flagXAttrReplace
		}
		return ok(l.nn.setXAttr(ctx, &hdfspb.SetXAttrRequestProto{Src: l.path(f[2]), XAttr: l.xattr(f[3], f[4]), Flag: &flag}))
	},
	"removeXAttr": func(l *letter, ctx context.Context, f []string) (string, error) {
		return ok(l.nn.removeXAttr(ctx, &hdfspb.RemoveXAttrRequestProto{Src: l.path(f[2]), XAttr: l.xattr(f[3], "-")}))
	},
	"getXAttrs": func(l *letter, ctx context.Context, f []string) (string, error) {
		req := &hdfspb.GetXAttrsRequestProto{Src: l.path(f[2])}
		for _, name := range f[3:] {
			req.XAttrs = append(req.XAttrs, l.xattr(name, "-"))
		}
		r, err := l.nn.getXAttrs(ctx, req)
		return xattrsText(r.GetXAttrs()), err
	},
	"listXAttrs": func(l *letter, ctx context.Context, f []string) (string, error) {
		r, err := l.nn.listXAttrs(ctx, &hdfspb.ListXAttrsRequestProto{Src: l.path(f[2])})
		return xattrsText(r.GetXAttrs()), err
	},
}

// xattr has for a value a letter and how often it comes; "-" is none.
func (l *letter) xattr(name, value string) *hdfspb.XAttrProto {
	space, rest, _ := strings.Cut(name, ".")
	a := &hdfspb.XAttrProto{Namespace: hdfspb.XAttrProto_XAttrNamespaceProto(hdfspb.XAttrProto_XAttrNamespaceProto_value[strings.ToUpper(space)]).Enum(), Name: &rest}
	if value != "-" {
		a.Value = bytes.Repeat([]byte(value[:1]), int(l.number(value[1:])))
	}
	return a
}

func typesText(infos *hdfspb.StorageTypeQuotaInfosProto) (out string) {
	for _, i := range infos.GetTypeQuotaInfo() {
		out += fmt.Sprintf(" %v=%d/%d", i.GetType(), int64(i.GetConsumed()), int64(i.GetQuota()))
	}
	return out
}

func policyText(p *hdfspb.BlockStoragePolicyProto) string {
	types := func(list *hdfspb.StorageTypesProto) string {
		return strings.ReplaceAll(fmt.Sprint(list.GetStorageTypes()), " ", ", ")
	}
	return fmt.Sprintf("BlockStoragePolicy{%s:%d, storageTypes=%s, creationFallbacks=%s, replicationFallbacks=%s}",
		p.GetName(), p.GetPolicyId(), types(p.GetCreationPolicy()), types(p.GetCreationFallbackPolicy()), types(p.GetReplicationFallbackPolicy()))
}

func xattrsText(list []*hdfspb.XAttrProto) string {
	out := make([]string, len(list))
	for i, a := range list {
		value := "-"
		switch {
		case len(a.Value) > 0:
			value = string(a.Value[:1]) + strconv.Itoa(len(a.Value))
		case a.Value != nil:
			value = "empty"
		}
		out[i] = strings.ToLower(a.GetNamespace().String()) + "." + a.GetName() + "=" + value
	}
	return strings.Join(out, " ")
}

// resetAttributes takes from the root what operations gave it.
func (l *letter) resetAttributes(ctx context.Context) error {
	root, raw := "/", "/.reserved/raw"
	if _, err := l.nn.removeACL(ctx, &hdfspb.RemoveAclRequestProto{Src: &root}); err != nil {
		return err
	}
	if _, err := l.nn.unsetStoragePolicy(ctx, &hdfspb.UnsetStoragePolicyRequestProto{Src: &root}); err != nil {
		return err
	}
	reset, keep := proto.Uint64(math.MaxUint64), proto.Uint64(math.MaxInt64)
	requests := []*hdfspb.SetQuotaRequestProto{{Path: &root, NamespaceQuota: reset, StoragespaceQuota: reset}}
	for _, typ := range storagepolicy.Counted {
		requests = append(requests, &hdfspb.SetQuotaRequestProto{Path: &root, NamespaceQuota: keep, StoragespaceQuota: reset, StorageType: hdfspb.StorageTypeProto(typ).Enum()})
	}
	for _, req := range requests {
		if _, err := l.nn.setQuota(ctx, req); err != nil {
			return err
		}
	}
	r, err := l.nn.listXAttrs(ctx, &hdfspb.ListXAttrsRequestProto{Src: &raw})
	for _, a := range r.GetXAttrs() {
		if err == nil {
			_, err = l.nn.removeXAttr(l.as("root"), &hdfspb.RemoveXAttrRequestProto{Src: &raw, XAttr: a})
		}
	}
	return err
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
