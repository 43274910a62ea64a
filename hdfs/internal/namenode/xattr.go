package namenode

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/xattr"
)

// Bits of SetXAttrRequestProto.flag.
const (
	flagXAttrCreate  = 1
	flagXAttrReplace = 2
)

func (nn *NameNode) checkXAttrs() error {
	if nn.cfg.NoXAttrs {
		return exception.New(exception.IO, "The XAttr operation has been rejected.  Support for XAttrs has been disabled by setting %s to false.", "dfs.namenode.xattrs.enabled")
	}
	return nil
}

func attrOf(p *hdfspb.XAttrProto) xattr.Attr {
	return xattr.Attr{Namespace: xattr.Namespace(p.GetNamespace()), Name: p.GetName(), Value: p.GetValue()}
}

func attrRecord(p *hdfspb.XAttrProto) *nspb.XAttr {
	return &nspb.XAttr{Namespace: proto.Uint32(uint32(p.GetNamespace())), Name: proto.String(p.GetName()), Value: p.GetValue()}
}

func (nn *NameNode) setXAttr(ctx context.Context, req *hdfspb.SetXAttrRequestProto) (*hdfspb.SetXAttrResponseProto, error) {
	if err := nn.checkXAttrs(); err != nil {
		return nil, err
	}
	if err := xattr.CheckSize(attrOf(req.GetXAttr()), nn.cfg.MaxXAttrSize); err != nil {
		return nil, err
	}
	_, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_SetXattr{SetXattr: &nspb.SetXAttr{
		Path: req.Src, Attr: attrRecord(req.GetXAttr()), Limit: proto.Uint32(uint32(nn.cfg.MaxXAttrs)),
		Create: proto.Bool(req.GetFlag()&flagXAttrCreate != 0), Replace: proto.Bool(req.GetFlag()&flagXAttrReplace != 0),
	}}})
	return &hdfspb.SetXAttrResponseProto{}, err
}

func (nn *NameNode) removeXAttr(ctx context.Context, req *hdfspb.RemoveXAttrRequestProto) (*hdfspb.RemoveXAttrResponseProto, error) {
	if err := nn.checkXAttrs(); err != nil {
		return nil, err
	}
	_, err := nn.change(ctx, nn.callFrom(ctx), true, &nspb.Entry{Op: &nspb.Entry_RemoveXattr{RemoveXattr: &nspb.RemoveXAttr{
		Path: req.Src, Attr: attrRecord(req.GetXAttr()),
	}}})
	return &hdfspb.RemoveXAttrResponseProto{}, err
}

func (nn *NameNode) getXAttrs(ctx context.Context, req *hdfspb.GetXAttrsRequestProto) (*hdfspb.GetXAttrsResponseProto, error) {
	names := make([]xattr.Attr, len(req.GetXAttrs()))
	for i, p := range req.GetXAttrs() {
		names[i] = attrOf(p)
	}
	list, err := nn.xattrs(ctx, req.GetSrc(), names)
	return &hdfspb.GetXAttrsResponseProto{XAttrs: list}, err
}

// listXAttrs tells values too, as HDFS does.
func (nn *NameNode) listXAttrs(ctx context.Context, req *hdfspb.ListXAttrsRequestProto) (*hdfspb.ListXAttrsResponseProto, error) {
	list, err := nn.xattrs(ctx, req.GetSrc(), nil)
	return &hdfspb.ListXAttrsResponseProto{XAttrs: list}, err
}

func (nn *NameNode) xattrs(ctx context.Context, src string, names []xattr.Attr) ([]*hdfspb.XAttrProto, error) {
	if err := nn.checkXAttrs(); err != nil {
		return nil, err
	}
	c := nn.callFrom(ctx)
	var (
		list []xattr.Attr
		err  error
	)
	nn.read(func(ns *namespace.Namespace) { list, err = ns.XAttrs(c.who(), src, names) })
	out := make([]*hdfspb.XAttrProto, len(list))
	for i, a := range list {
		out[i] = &hdfspb.XAttrProto{Namespace: hdfspb.XAttrProto_XAttrNamespaceProto(a.Namespace).Enum(), Name: proto.String(a.Name), Value: a.Value}
	}
	return out, err
}
