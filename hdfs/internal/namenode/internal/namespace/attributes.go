package namespace

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/acl"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/xattr"
)

// attributes are what few inodes have beside their mode. A value is never changed: a
// change makes another one, so that copies of an inode may share it.
type attributes struct {
	acl    []acl.Entry // what the mode can't say, in order
	xattrs []xattr.Attr
	policy uint8         // for the kinds of storage, see package storagepolicy
	limits *quota.Limits // what a directory may hold, nil: anything
}

// acl returns what the mode of an inode can't say of its access control list.
func (n *Inode) acl() []acl.Entry {
	if n.more == nil {
		return nil
	}
	return n.more.acl
}

// alter gives the inode other attributes, none if nothing is left.
func (n *Inode) alter(change func(*attributes)) {
	var next attributes
	if n.more != nil {
		next = *n.more
	}
	change(&next)
	n.more = nil
	if !next.empty() {
		n.more = &next
	}
}

func (a *attributes) empty() bool {
	return len(a.acl) == 0 && len(a.xattrs) == 0 && a.policy == storagepolicy.Unspecified && a.limits == nil
}

func snapshotAttributes(a *attributes) *nspb.SnapshotAttributes {
	if a == nil {
		return nil
	}
	out := &nspb.SnapshotAttributes{Acl: aclRecords(a.acl), Xattrs: xattrRecords(a.xattrs), Limits: limitsRecord(a.limits)}
	if a.policy != storagepolicy.Unspecified {
		out.StoragePolicy = proto.Uint32(uint32(a.policy))
	}
	return out
}

// restoreAttributes checks what a snapshot says, and returns nil for nothing.
func restoreAttributes(rec *nspb.SnapshotAttributes, directory bool) (*attributes, error) {
	if rec == nil {
		return nil, nil
	}
	var (
		a   attributes
		err error
	)
	if a.acl, err = restoreACL(rec.GetAcl(), directory); err != nil {
		return nil, err
	}
	if a.xattrs, err = restoreXAttrs(rec.GetXattrs()); err != nil {
		return nil, err
	}
	if a.limits, err = restoreLimits(rec.GetLimits()); err != nil {
		return nil, err
	}
	if a.limits != nil && !directory {
		return nil, errors.New("a file with a quota")
	}
	policy, ok := storagepolicy.ByID(uint8(min(rec.GetStoragePolicy(), 255)))
	if !ok {
		return nil, fmt.Errorf("a storage policy numbered %d", rec.GetStoragePolicy())
	}
	if rec.GetStoragePolicy() != storagepolicy.Unspecified {
		a.policy = policy.ID
	}
	if a.empty() {
		return nil, nil
	}
	return &a, nil
}
