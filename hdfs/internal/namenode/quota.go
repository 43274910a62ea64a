package namenode

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/quota"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

func (nn *NameNode) setQuota(ctx context.Context, req *hdfspb.SetQuotaRequestProto) (*hdfspb.SetQuotaResponseProto, error) {
	op := &nspb.SetQuota{Path: req.Path, Names: proto.Int64(int64(req.GetNamespaceQuota())), Space: proto.Int64(int64(req.GetStoragespaceQuota()))}
	if nn.cfg.QuotasByOwner {
		op.ByOwner = proto.Bool(true)
	}
	if nn.cfg.NoTypeQuotas {
		op.NoTypes = proto.Bool(true)
	}
	if req.StorageType != nil {
		op.Type = proto.Uint32(uint32(req.GetStorageType()))
	}
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetQuota{SetQuota: op}})
	return &hdfspb.SetQuotaResponseProto{}, err
}

func (nn *NameNode) getQuotaUsage(ctx context.Context, req *hdfspb.GetQuotaUsageRequestProto) (*hdfspb.GetQuotaUsageResponseProto, error) {
	c := nn.callFrom(ctx)
	var (
		q   *namespace.UsageQuestion
		u   namespace.QuotaUsage
		err error
	)
	nn.read(func(ns *namespace.Namespace) { q, err = ns.QuotaUsage(c.who(), req.GetPath()) })
	for done := false; q != nil && !done && err == nil; giveWay() {
		nn.read(func(ns *namespace.Namespace) { u, done, err = q.Step(ns, summaryStep) })
		if err == nil && ctx.Err() != nil {
			err = fmt.Errorf("namenode: ask for the rights below a directory: %w", context.Cause(ctx))
		}
	}
	if err != nil {
		return nil, err
	}
	if q == nil || !q.Limited {
		sum, err := nn.summary(ctx, req.GetPath())
		if err != nil {
			return nil, err
		}
		u = namespace.QuotaUsage{Limits: sum.Limits, Used: quota.Counts{
			Names: int64(sum.Total.Files + sum.Total.Directories), Space: int64(sum.Total.Space), Types: sum.Total.TypeLengths,
		}}
		if sum.Root {
			u.Used.Types = sum.Total.TypeSpaces
		}
	}
	return &hdfspb.GetQuotaUsageResponseProto{Usage: &hdfspb.QuotaUsageProto{
		FileAndDirectoryCount: proto.Uint64(uint64(u.Used.Names)), Quota: proto.Uint64(uint64(u.Limits.Names)),
		SpaceConsumed: proto.Uint64(uint64(u.Used.Space)), SpaceQuota: proto.Uint64(uint64(u.Limits.Space)),
		TypeQuotaInfos: typeQuotasPB(&u.Limits, &u.Used.Types),
	}}, nil
}

// typeQuotasPB is nothing if there is no limit and nothing used.
func typeQuotasPB(l *quota.Limits, used *[storagepolicy.Types]int64) *hdfspb.StorageTypeQuotaInfosProto {
	some := false
	out := &hdfspb.StorageTypeQuotaInfosProto{}
	for _, t := range storagepolicy.Counted {
		some = some || l.Types[t] > 0 || used[t] > 0
		out.TypeQuotaInfo = append(out.TypeQuotaInfo, &hdfspb.StorageTypeQuotaInfoProto{
			Type: hdfspb.StorageTypeProto(t).Enum(), Quota: proto.Uint64(uint64(l.Types[t])), Consumed: proto.Uint64(uint64(used[t])),
		})
	}
	if !some {
		return nil
	}
	return out
}
