package namenode

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

// policyNamed returns the number of a policy.
func policyNamed(name string) (uint32, error) {
	p, ok := storagepolicy.ByName(name)
	if !ok {
		return 0, exception.New(exception.IllegalArgument, "Cannot find a block policy with the name %s", name)
	}
	return uint32(p.ID), nil
}

// createdPolicy is the policy that a file is to be created with, nil if it is to have its
// directory's.
func createdPolicy(req *hdfspb.CreateRequestProto) (*uint32, error) {
	switch {
	case req.GetCreateFlag()&flagLazyPersist != 0:
		return proto.Uint32(uint32(storagepolicy.LazyPersist().ID)), nil
	case req.GetStoragePolicy() == "":
		return nil, nil
	}
	id, err := policyNamed(req.GetStoragePolicy())
	return &id, err
}

// checkStorage refuses a block whose policy wants storage that no DataNode has, as HDFS does
// where there are only disks.
func checkStorage(src string, file namespace.Status) error {
	if p, ok := storagepolicy.ByID(file.Policy); ok && p.NeedsMoreThan(storagepolicy.Disk) {
		return exception.New(exception.IO, "File %s could only be written to 0 of the 1 minReplication nodes: its storage policy %s wants %v, and the DataNodes have only %s.", src, p.Name, p.Creation, storagepolicy.Disk)
	}
	return nil
}

// mayChangePolicies refuses what the configuration does, before anything else is looked at.
func (nn *NameNode) mayChangePolicies(ctx context.Context, what, method string) error {
	if nn.cfg.NoStoragePolicies {
		return exception.New(exception.IO, "Failed to %s since dfs.storage.policy.enabled is set to false.", what)
	}
	if method != "" && nn.cfg.StoragePoliciesBySuperuser {
		return nn.superuser(ctx, method)
	}
	return nil
}

func (nn *NameNode) changePolicy(ctx context.Context, src string, id uint32) error {
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetStoragePolicy{SetStoragePolicy: &nspb.SetStoragePolicy{Path: &src, Policy: &id}}})
	return err
}

func (nn *NameNode) setStoragePolicy(ctx context.Context, req *hdfspb.SetStoragePolicyRequestProto) (*hdfspb.SetStoragePolicyResponseProto, error) {
	if err := nn.mayChangePolicies(ctx, "set storage policy", "setStoragePolicy"); err != nil {
		return nil, err
	}
	id, err := policyNamed(req.GetPolicyName())
	if err == nil {
		err = nn.changePolicy(ctx, req.GetSrc(), id)
	}
	return &hdfspb.SetStoragePolicyResponseProto{}, err
}

func (nn *NameNode) unsetStoragePolicy(ctx context.Context, req *hdfspb.UnsetStoragePolicyRequestProto) (*hdfspb.UnsetStoragePolicyResponseProto, error) {
	if err := nn.mayChangePolicies(ctx, "unset storage policy", "unsetStoragePolicy"); err != nil {
		return nil, err
	}
	return &hdfspb.UnsetStoragePolicyResponseProto{}, nn.changePolicy(ctx, req.GetSrc(), storagepolicy.Unspecified)
}

func (nn *NameNode) getStoragePolicy(ctx context.Context, req *hdfspb.GetStoragePolicyRequestProto) (*hdfspb.GetStoragePolicyResponseProto, error) {
	c := nn.callFrom(ctx)
	var (
		p   storagepolicy.Policy
		err error
	)
	nn.read(func(ns *namespace.Namespace) { p, err = ns.StoragePolicy(c.who(), req.GetPath()) })
	if err != nil {
		return nil, err
	}
	return &hdfspb.GetStoragePolicyResponseProto{StoragePolicy: policyPB(p)}, nil
}

func (nn *NameNode) getStoragePolicies(context.Context, *hdfspb.GetStoragePoliciesRequestProto) (*hdfspb.GetStoragePoliciesResponseProto, error) {
	out := &hdfspb.GetStoragePoliciesResponseProto{}
	for _, p := range storagepolicy.All() {
		out.Policies = append(out.Policies, policyPB(p))
	}
	return out, nil
}

// satisfyStoragePolicy answers as HDFS does where nothing moves blocks between kinds of
// storage, which is its default.
func (nn *NameNode) satisfyStoragePolicy(ctx context.Context, _ *hdfspb.SatisfyStoragePolicyRequestProto) (*hdfspb.SatisfyStoragePolicyResponseProto, error) {
	if err := nn.mayChangePolicies(ctx, "satisfy storage policy", ""); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.UnsupportedAction, "Cannot request to satisfy storage policy when storage policy satisfier feature has been disabled by admin. Seek for an admin help to enable it or use Mover tool.")
}

func policyPB(p storagepolicy.Policy) *hdfspb.BlockStoragePolicyProto {
	return &hdfspb.BlockStoragePolicyProto{
		PolicyId: proto.Uint32(uint32(p.ID)), Name: &p.Name, CreationPolicy: storageTypesPB(p.Creation),
		CreationFallbackPolicy: storageTypesPB(p.CreationFallback), ReplicationFallbackPolicy: storageTypesPB(p.ReplicationFallback),
	}
}

func storageTypesPB(types []storagepolicy.Type) *hdfspb.StorageTypesProto {
	if len(types) == 0 {
		return nil
	}
	out := &hdfspb.StorageTypesProto{}
	for _, t := range types {
		out.StorageTypes = append(out.StorageTypes, hdfspb.StorageTypeProto(t))
	}
	return out
}
