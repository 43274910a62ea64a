package hdfs

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"strings"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// ACLEntry is one entry of an access control list. An empty Name is the owner or the
// owning group.
type ACLEntry struct {
	Default bool // for what is made in the directory
	Type    ACLType
	Name    string      // of a user or a group
	Perm    fs.FileMode // 4 to read, 2 to write, 1 to execute, and sums of them
}

// ACLType is for whom an entry is.
type ACLType int

// The types of entries.
const (
	ACLUser  = ACLType(hdfspb.AclEntryProto_USER)
	ACLGroup = ACLType(hdfspb.AclEntryProto_GROUP)
	ACLMask  = ACLType(hdfspb.AclEntryProto_MASK)
	ACLOther = ACLType(hdfspb.AclEntryProto_OTHER)
)

var aclNames = map[ACLType]string{ACLUser: "user", ACLGroup: "group", ACLMask: "mask", ACLOther: "other"}

// String is the entry as setfacl has it: default:user:ada:r-x.
func (e ACLEntry) String() string {
	scope := ""
	if e.Default {
		scope = "default:"
	}
	return scope + aclNames[e.Type] + ":" + e.Name + ":" + letters(e.Perm)
}

func letters(p fs.FileMode) string {
	b := []byte("---")
	for i, c := range "rwx" {
		if p&(4>>i) != 0 {
			b[i] = byte(c)
		}
	}
	return string(b)
}

// ParseACL reads entries as setfacl has them: [default:]user|group|mask|other:[NAME]:rwx,
// separated by commas. To remove entries they have no permissions. As in Hadoop the types may
// be in capitals, and nothing else.
func ParseACL(text string, perms bool) ([]ACLEntry, error) {
	var out []ACLEntry
	for _, each := range strings.Split(text, ",") {
		bad := fmt.Errorf("%q is no entry of an ACL: want [default:]user|group|mask|other:[NAME]:rwx", each)
		parts := strings.Split(strings.TrimSpace(each), ":")
		var e ACLEntry
		if parts[0] == "default" {
			e.Default, parts = true, parts[1:]
		}
		want := 2
		if perms {
			want = 3
		}
		if len(parts) == 2 && !perms || len(parts) == 3 {
			parts = parts[:want]
		}
		if len(parts) != want {
			return nil, bad
		}
		known := false
		for t, name := range aclNames {
			if strings.EqualFold(name, parts[0]) {
				e.Type, known = t, true
			}
		}
		if !known {
			return nil, bad
		}
		e.Name = parts[1]
		if perms {
			if len(parts[2]) != 3 {
				return nil, bad
			}
			for i, c := range parts[2] {
				switch c {
				case rune("rwx"[i]):
					e.Perm |= 4 >> i
				case '-':
				default:
					return nil, bad
				}
			}
		}
		out = append(out, e)
	}
	return out, nil
}

func aclSpec(entries []ACLEntry) []*hdfspb.AclEntryProto {
	out := make([]*hdfspb.AclEntryProto, len(entries))
	for i, e := range entries {
		scope := hdfspb.AclEntryProto_ACCESS
		if e.Default {
			scope = hdfspb.AclEntryProto_DEFAULT
		}
		out[i] = &hdfspb.AclEntryProto{Scope: &scope, Type: hdfspb.AclEntryProto_AclEntryTypeProto(e.Type).Enum(), Permissions: hdfspb.FsActionProto(e.Perm & 7).Enum()}
		if e.Name != "" {
			out[i].Name = &entries[i].Name
		}
	}
	return out
}

// ACL is the access control list of a file or directory, without the entries that the
// mode has: the owner's, and of the group's and others' what the mode says.
type ACL struct {
	Owner, Group string
	Mode         fs.FileMode
	Entries      []ACLEntry
}

// ACL returns the access control list.
func (c *Client) ACL(ctx context.Context, name string) (*ACL, error) {
	name = c.Abs(name)
	var resp hdfspb.GetAclStatusResponseProto
	if err := c.call(ctx, "getacl", name, "getAclStatus", &hdfspb.GetAclStatusRequestProto{Src: &name}, &resp); err != nil {
		return nil, err
	}
	r := resp.GetResult()
	a := &ACL{Owner: r.GetOwner(), Group: r.GetGroup(), Mode: modeOf(r.GetPermission().GetPerm())}
	for _, e := range r.GetEntries() {
		a.Entries = append(a.Entries, ACLEntry{e.GetScope() == hdfspb.AclEntryProto_DEFAULT, ACLType(e.GetType()), e.GetName(), fs.FileMode(e.GetPermissions())})
	}
	return a, nil
}

// SetACL replaces the access control list; entries for the owner, the group and others
// must be among the new ones.
func (c *Client) SetACL(ctx context.Context, name string, entries []ACLEntry) error {
	name = c.Abs(name)
	return c.call(ctx, "setacl", name, "setAcl", &hdfspb.SetAclRequestProto{Src: &name, AclSpec: aclSpec(entries)}, &hdfspb.SetAclResponseProto{})
}

// ModifyACL adds and changes entries.
func (c *Client) ModifyACL(ctx context.Context, name string, entries []ACLEntry) error {
	name = c.Abs(name)
	return c.call(ctx, "setacl", name, "modifyAclEntries", &hdfspb.ModifyAclEntriesRequestProto{Src: &name, AclSpec: aclSpec(entries)}, &hdfspb.ModifyAclEntriesResponseProto{})
}

// RemoveACLEntries removes entries; their permissions do not matter.
func (c *Client) RemoveACLEntries(ctx context.Context, name string, entries []ACLEntry) error {
	name = c.Abs(name)
	return c.call(ctx, "setacl", name, "removeAclEntries", &hdfspb.RemoveAclEntriesRequestProto{Src: &name, AclSpec: aclSpec(entries)}, &hdfspb.RemoveAclEntriesResponseProto{})
}

// RemoveDefaultACL removes the entries for what is made in a directory.
func (c *Client) RemoveDefaultACL(ctx context.Context, name string) error {
	name = c.Abs(name)
	return c.call(ctx, "setacl", name, "removeDefaultAcl", &hdfspb.RemoveDefaultAclRequestProto{Src: &name}, &hdfspb.RemoveDefaultAclResponseProto{})
}

// RemoveACL removes all that the mode does not have.
func (c *Client) RemoveACL(ctx context.Context, name string) error {
	name = c.Abs(name)
	return c.call(ctx, "setacl", name, "removeAcl", &hdfspb.RemoveAclRequestProto{Src: &name}, &hdfspb.RemoveAclResponseProto{})
}

// XAttr is an extended attribute. Its name begins with its name space: user., trusted.,
// security., system. or raw.
type XAttr struct {
	Name  string
	Value []byte
}

func xattrOf(p *hdfspb.XAttrProto) XAttr {
	return XAttr{strings.ToLower(p.GetNamespace().String()) + "." + p.GetName(), p.GetValue()}
}

func xattrProto(name string, value []byte) (*hdfspb.XAttrProto, error) {
	space, rest, ok := strings.Cut(name, ".")
	n, known := hdfspb.XAttrProto_XAttrNamespaceProto_value[strings.ToUpper(space)]
	if !ok || !known || rest == "" {
		return nil, fmt.Errorf("extended attribute %q: a name begins with user., trusted., security., system. or raw.: %w", name, fs.ErrInvalid)
	}
	return &hdfspb.XAttrProto{Namespace: hdfspb.XAttrProto_XAttrNamespaceProto(n).Enum(), Name: &rest, Value: value}, nil
}

// XAttrs returns extended attributes: those that are named, which must be there, or all
// that the user may see.
func (c *Client) XAttrs(ctx context.Context, name string, names ...string) ([]XAttr, error) {
	name = c.Abs(name)
	req := &hdfspb.GetXAttrsRequestProto{Src: &name}
	for _, n := range names {
		x, err := xattrProto(n, nil)
		if err != nil {
			return nil, c.fail("getxattr", name, err)
		}
		req.XAttrs = append(req.XAttrs, x)
	}
	var resp hdfspb.GetXAttrsResponseProto
	if err := c.call(ctx, "getxattr", name, "getXAttrs", req, &resp); err != nil {
		return nil, err
	}
	var out []XAttr
	for _, x := range resp.GetXAttrs() {
		out = append(out, xattrOf(x))
	}
	return out, nil
}

// Flags of setXAttr: Hadoop's XAttrSetFlagProto.
const (
	xattrCreate  = 1
	xattrReplace = 2
)

// SetXAttr makes or replaces an extended attribute.
func (c *Client) SetXAttr(ctx context.Context, name, attribute string, value []byte) error {
	return c.setXAttr(ctx, name, attribute, value, xattrCreate|xattrReplace)
}

// CreateXAttr makes an extended attribute. One that is there is left as it is, and an
// error returned.
func (c *Client) CreateXAttr(ctx context.Context, name, attribute string, value []byte) error {
	return c.setXAttr(ctx, name, attribute, value, xattrCreate)
}

// ReplaceXAttr replaces the value of an extended attribute, which must be there.
func (c *Client) ReplaceXAttr(ctx context.Context, name, attribute string, value []byte) error {
	return c.setXAttr(ctx, name, attribute, value, xattrReplace)
}

func (c *Client) setXAttr(ctx context.Context, name, attribute string, value []byte, flag uint32) error {
	name = c.Abs(name)
	x, err := xattrProto(attribute, value)
	if err != nil {
		return c.fail("setxattr", name, err)
	}
	return c.call(ctx, "setxattr", name, "setXAttr", &hdfspb.SetXAttrRequestProto{Src: &name, XAttr: x, Flag: &flag}, &hdfspb.SetXAttrResponseProto{})
}

// RemoveXAttr removes an extended attribute.
func (c *Client) RemoveXAttr(ctx context.Context, name, attribute string) error {
	name = c.Abs(name)
	x, err := xattrProto(attribute, nil)
	if err != nil {
		return c.fail("removexattr", name, err)
	}
	return c.call(ctx, "removexattr", name, "removeXAttr", &hdfspb.RemoveXAttrRequestProto{Src: &name, XAttr: x}, &hdfspb.RemoveXAttrResponseProto{})
}

// Values of [Client.SetQuota] beside numbers.
const (
	QuotaUnchanged = math.MaxInt64
	QuotaNone      = -1
)

// SetQuota sets how many files and directories may be in a directory, itself included,
// and how many bytes with all replicas.
func (c *Client) SetQuota(ctx context.Context, name string, files, bytes int64) error {
	name = c.Abs(name)
	n, b := uint64(files), uint64(bytes)
	return c.call(ctx, "setquota", name, "setQuota", &hdfspb.SetQuotaRequestProto{Path: &name, NamespaceQuota: &n, StoragespaceQuota: &b}, &hdfspb.SetQuotaResponseProto{})
}

// SetTypeQuota sets how many bytes may be on storages of a type: SSD, DISK, ARCHIVE ...
func (c *Client) SetTypeQuota(ctx context.Context, name, storage string, bytes int64) error {
	name = c.Abs(name)
	t, known := hdfspb.StorageTypeProto_value[strings.ToUpper(storage)]
	if !known {
		return c.fail("setquota", name, fmt.Errorf("there is no type of storage %q: %w", storage, fs.ErrInvalid))
	}
	files, b := uint64(QuotaUnchanged), uint64(bytes)
	return c.call(ctx, "setquota", name, "setQuota", &hdfspb.SetQuotaRequestProto{Path: &name, NamespaceQuota: &files, StoragespaceQuota: &b, StorageType: hdfspb.StorageTypeProto(t).Enum()}, &hdfspb.SetQuotaResponseProto{})
}

// SetStoragePolicy sets the storage policy by its name: HOT, COLD, ALL_SSD ...
func (c *Client) SetStoragePolicy(ctx context.Context, name, policy string) error {
	name = c.Abs(name)
	return c.call(ctx, "setpolicy", name, "setStoragePolicy", &hdfspb.SetStoragePolicyRequestProto{Src: &name, PolicyName: &policy}, &hdfspb.SetStoragePolicyResponseProto{})
}

// UnsetStoragePolicy has the policy be that of the directory above.
func (c *Client) UnsetStoragePolicy(ctx context.Context, name string) error {
	name = c.Abs(name)
	return c.call(ctx, "setpolicy", name, "unsetStoragePolicy", &hdfspb.UnsetStoragePolicyRequestProto{Src: &name}, &hdfspb.UnsetStoragePolicyResponseProto{})
}

// StoragePolicy is the name of the policy that a file or directory has.
func (c *Client) StoragePolicy(ctx context.Context, name string) (string, error) {
	name = c.Abs(name)
	var resp hdfspb.GetStoragePolicyResponseProto
	err := c.call(ctx, "getpolicy", name, "getStoragePolicy", &hdfspb.GetStoragePolicyRequestProto{Path: &name}, &resp)
	return resp.GetStoragePolicy().GetName(), err
}
