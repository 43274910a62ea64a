package namespace

import (
	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

// ownPolicy is the storage policy that the inode itself was given.
func (n *Inode) ownPolicy() uint8 {
	if n.more == nil {
		return storagepolicy.Unspecified
	}
	return n.more.policy
}

// policy is the storage policy that counts for an inode: its own, or that of the
// nearest directory above that has one.
func (ns *Namespace) policy(n *Inode) uint8 {
	if !ns.policies {
		return storagepolicy.Unspecified
	}
	for ; n != nil; n = ns.inodes.Get(n.parent) {
		if own := n.ownPolicy(); own != storagepolicy.Unspecified {
			return own
		}
	}
	return storagepolicy.Unspecified
}

// givePolicy gives an inode a storage policy, or takes it away.
func (ns *Namespace) givePolicy(id uint64, policy uint8) {
	ns.inodes.Change(id).alter(func(a *attributes) { a.policy = policy })
	if policy != storagepolicy.Unspecified {
		ns.policies = true
	}
}

// lazy tells whether a file is meant for memory first. As in HDFS it is written once.
func (ns *Namespace) lazy(n *Inode) bool {
	return ns.policies && ns.policy(n) == storagepolicy.LazyPersist().ID
}

func (t *txn) setStoragePolicy(op *nspb.SetStoragePolicy) error {
	ns := t.ns
	t.caller.operation = "setStoragePolicy"
	wanted := uint8(min(op.GetPolicy(), 255))
	if wanted == storagepolicy.Unspecified {
		t.caller.operation = "unsetStoragePolicy"
	}
	policy, ok := storagepolicy.ByID(wanted)
	if !ok {
		return exception.New(exception.IllegalArgument, "Cannot find a block policy with the number %d", op.GetPolicy())
	}
	r, err := ns.resolve(&t.caller, op.GetPath(), writing)
	if err != nil {
		return err
	}
	if err := ns.needLast(&t.caller, r, Write); err != nil {
		return err
	}
	n := r.last()
	if n == nil {
		return exception.New(exception.FileNotFound, "File/Directory does not exist: %s", r)
	}
	if n.file != nil {
		if policy.CopiedOnCreate {
			return exception.New(exception.IllegalArgument, "Policy %s cannot be set after file creation.", policy)
		}
		if own, _ := storagepolicy.ByID(n.ownPolicy()); own.CopiedOnCreate {
			return exception.New(exception.IllegalArgument, "Existing policy %s cannot be changed after file creation.", own.Name)
		}
	}
	if !t.write() {
		return nil
	}
	// What is counted by kinds of storage changes with the policy in all directories above. What is
	// counted below leaves open which policy comes from here.
	counted := ns.counts(n.parent, n.name)
	var before quota.Counts
	if counted {
		before = ns.usageOf(n, true)
	}
	ns.givePolicy(n.id, wanted)
	if counted {
		n = ns.inodes.Get(n.id)
		after := ns.usageOf(n, true)
		ns.charge(n, &after, &before)
	}
	return nil
}

// newFilePolicy gives a new file the policy that it was created with, or one that new
// files keep.
func (t *txn) newFilePolicy(n *Inode, wanted uint8) {
	if wanted == storagepolicy.Unspecified {
		wanted = t.ns.policy(n)
		if p, _ := storagepolicy.ByID(wanted); !p.CopiedOnCreate {
			return
		}
	}
	t.ns.givePolicy(n.id, wanted)
}

// StoragePolicy returns the storage policy that counts for a path, HOT if there is none.
func (ns *Namespace) StoragePolicy(c Caller, path string) (storagepolicy.Policy, error) {
	r, err := ns.resolve(&c, path, reading)
	if err != nil {
		return storagepolicy.Policy{}, err
	}
	if err := ns.needLast(&c, r, Read); err != nil {
		return storagepolicy.Policy{}, err
	}
	n := r.last()
	if n == nil {
		return storagepolicy.Policy{}, exception.New(exception.FileNotFound, "File/Directory does not exist: %s", r)
	}
	p, _ := storagepolicy.ByID(ns.policy(n))
	return p, nil
}
