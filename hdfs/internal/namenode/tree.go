package namenode

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// What changes are answered with.
var (
	madeDirectory = answerOf(&hdfspb.MkdirsResponseProto{Result: proto.Bool(true)}, &hdfspb.MkdirsResponseProto{Result: proto.Bool(false)})
	renamed       = answerOf(&hdfspb.RenameResponseProto{Result: proto.Bool(true)}, &hdfspb.RenameResponseProto{Result: proto.Bool(false)})
	renamed2      = answerOf(&hdfspb.Rename2ResponseProto{}, &hdfspb.Rename2ResponseProto{})
	deleted       = answerOf(&hdfspb.DeleteResponseProto{Result: proto.Bool(true)}, &hdfspb.DeleteResponseProto{Result: proto.Bool(false)})
)

func (nn *NameNode) mkdirs(ctx context.Context, req *hdfspb.MkdirsRequestProto) (*hdfspb.MkdirsResponseProto, error) {
	e := new(struct {
		nspb.Entry
		wrapper nspb.Entry_Mkdirs
		op      nspb.Mkdirs
	})
	e.Op, e.wrapper.Mkdirs = &e.wrapper, &e.op
	e.op.Path, e.op.Mode, e.op.CreateParent, e.op.Unmasked = req.Src, req.GetMasked().Perm, req.CreateParent, nn.unmasked(req.GetUnmasked())
	return changeAnd[*hdfspb.MkdirsResponseProto](ctx, nn, nn.callFrom(ctx), false, &e.Entry, madeDirectory)
}

// renameEntry is an entry of one allocation.
type renameEntry struct {
	nspb.Entry
	wrapper nspb.Entry_Rename
	op      nspb.Rename
}

func newRename(from, to *string) *renameEntry {
	e := new(renameEntry)
	e.Op, e.wrapper.Rename = &e.wrapper, &e.op
	e.op.From, e.op.To = from, to
	return e
}

func (nn *NameNode) rename(ctx context.Context, req *hdfspb.RenameRequestProto) (*hdfspb.RenameResponseProto, error) {
	e := newRename(req.Src, req.Dst)
	return changeAnd[*hdfspb.RenameResponseProto](ctx, nn, nn.callFrom(ctx), true, &e.Entry, renamed)
}

func (nn *NameNode) rename2(ctx context.Context, req *hdfspb.Rename2RequestProto) (*hdfspb.Rename2ResponseProto, error) {
	e := newRename(req.Src, req.Dst)
	e.op.Strict, e.op.Overwrite = proto.Bool(true), req.OverwriteDest
	return changeAnd[*hdfspb.Rename2ResponseProto](ctx, nn, nn.callFrom(ctx), true, &e.Entry, renamed2)
}

func (nn *NameNode) delete(ctx context.Context, req *hdfspb.DeleteRequestProto) (*hdfspb.DeleteResponseProto, error) {
	e := new(struct {
		nspb.Entry
		wrapper nspb.Entry_Delete
		op      nspb.Delete
	})
	e.Op, e.wrapper.Delete = &e.wrapper, &e.op
	e.op.Path, e.op.Recursive = req.Src, req.Recursive
	return changeAnd[*hdfspb.DeleteResponseProto](ctx, nn, nn.callFrom(ctx), true, &e.Entry, deleted)
}

func (nn *NameNode) concat(ctx context.Context, req *hdfspb.ConcatRequestProto) (*hdfspb.ConcatResponseProto, error) {
	_, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_Concat{Concat: &nspb.Concat{Path: req.Trg, Sources: req.GetSrcs()}}})
	if err != nil {
		return nil, err
	}
	return &hdfspb.ConcatResponseProto{}, nil
}
