package namenode

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

func (nn *NameNode) mkdirs(ctx context.Context, req *hdfspb.MkdirsRequestProto) (*hdfspb.MkdirsResponseProto, error) {
	res, err := nn.change(ctx, nn.callFrom(ctx), false, &nspb.Entry{Op: &nspb.Entry_Mkdirs{Mkdirs: &nspb.Mkdirs{
		Path: req.Src, Mode: req.GetMasked().Perm, CreateParent: req.CreateParent, Unmasked: nn.unmasked(req.GetUnmasked()),
	}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.MkdirsResponseProto{Result: proto.Bool(res.OK)}, nil
}

func (nn *NameNode) rename(ctx context.Context, req *hdfspb.RenameRequestProto) (*hdfspb.RenameResponseProto, error) {
	res, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{From: req.Src, To: req.Dst}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.RenameResponseProto{Result: proto.Bool(res.OK)}, nil
}

func (nn *NameNode) rename2(ctx context.Context, req *hdfspb.Rename2RequestProto) (*hdfspb.Rename2ResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{
		From: req.Src, To: req.Dst, Strict: proto.Bool(true), Overwrite: req.OverwriteDest,
	}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.Rename2ResponseProto{}, nil
}

func (nn *NameNode) delete(ctx context.Context, req *hdfspb.DeleteRequestProto) (*hdfspb.DeleteResponseProto, error) {
	res, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_Delete{Delete: &nspb.Delete{Path: req.Src, Recursive: req.Recursive}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.DeleteResponseProto{Result: proto.Bool(res.OK)}, nil
}

func (nn *NameNode) concat(ctx context.Context, req *hdfspb.ConcatRequestProto) (*hdfspb.ConcatResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_Concat{Concat: &nspb.Concat{Path: req.Trg, Sources: req.GetSrcs()}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.ConcatResponseProto{}, nil
}
