package namenode

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

func (nn *NameNode) setPermission(ctx context.Context, req *hdfspb.SetPermissionRequestProto) (*hdfspb.SetPermissionResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetPermission{SetPermission: &nspb.SetPermission{Path: req.Src, Mode: req.GetPermission().Perm}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.SetPermissionResponseProto{}, nil
}

func (nn *NameNode) setOwner(ctx context.Context, req *hdfspb.SetOwnerRequestProto) (*hdfspb.SetOwnerResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetOwner{SetOwner: &nspb.SetOwner{Path: req.Src, Owner: req.Username, Group: req.Groupname}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.SetOwnerResponseProto{}, nil
}

func (nn *NameNode) setTimes(ctx context.Context, req *hdfspb.SetTimesRequestProto) (*hdfspb.SetTimesResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetTimes{SetTimes: &nspb.SetTimes{
		Path: req.Src, MtimeMs: proto.Int64(int64(req.GetMtime())), AtimeMs: proto.Int64(int64(req.GetAtime())),
	}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.SetTimesResponseProto{}, nil
}

func (nn *NameNode) setReplication(ctx context.Context, req *hdfspb.SetReplicationRequestProto) (*hdfspb.SetReplicationResponseProto, error) {
	res, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_SetReplication{SetReplication: &nspb.SetReplication{Path: req.Src, Replication: req.Replication}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.SetReplicationResponseProto{Result: proto.Bool(res.OK)}, nil
}
