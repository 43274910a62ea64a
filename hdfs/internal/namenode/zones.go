package namenode

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// There are no encryption zones: the answers are those of an HDFS that has no key
// provider.
func (nn *NameNode) zoneMethods() rpc.Methods {
	return rpc.Methods{
		"createEncryptionZone":    rpc.Handle(nn.createEncryptionZone),
		"getEZForPath":            rpc.Handle(nn.getEZForPath),
		"listEncryptionZones":     rpc.Handle(nn.listEncryptionZones),
		"listReencryptionStatus":  rpc.Handle(nn.listReencryptionStatus),
		"reencryptEncryptionZone": rpc.Handle(nn.reencryptEncryptionZone),
	}
}

func (nn *NameNode) createEncryptionZone(ctx context.Context, req *hdfspb.CreateEncryptionZoneRequestProto) (*hdfspb.CreateEncryptionZoneResponseProto, error) {
	if err := nn.superuser(ctx, "createEncryptionZone"); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.IO, "Can't create an encryption zone for %s since no key provider is available.", req.GetSrc())
}

func (nn *NameNode) getEZForPath(ctx context.Context, req *hdfspb.GetEZForPathRequestProto) (*hdfspb.GetEZForPathResponseProto, error) {
	c := nn.callFrom(ctx)
	var err error
	nn.read(func(ns *namespace.Namespace) { _, err = ns.CanRead(c.who(), req.GetSrc()) })
	if err != nil {
		return nil, err
	}
	return &hdfspb.GetEZForPathResponseProto{}, nil
}

func (nn *NameNode) listEncryptionZones(ctx context.Context, _ *hdfspb.ListEncryptionZonesRequestProto) (*hdfspb.ListEncryptionZonesResponseProto, error) {
	if err := nn.superuser(ctx, "listEncryptionZones"); err != nil {
		return nil, err
	}
	return &hdfspb.ListEncryptionZonesResponseProto{HasMore: proto.Bool(false)}, nil
}

func (nn *NameNode) reencryptEncryptionZone(ctx context.Context, _ *hdfspb.ReencryptEncryptionZoneRequestProto) (*hdfspb.ReencryptEncryptionZoneResponseProto, error) {
	if err := nn.superuser(ctx, "reencryptEncryptionZone"); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.IO, "No key provider configured, re-encryption operation is rejected")
}

func (nn *NameNode) listReencryptionStatus(ctx context.Context, _ *hdfspb.ListReencryptionStatusRequestProto) (*hdfspb.ListReencryptionStatusResponseProto, error) {
	if err := nn.superuser(ctx, "listReencryptionStatus"); err != nil {
		return nil, err
	}
	return &hdfspb.ListReencryptionStatusResponseProto{HasMore: proto.Bool(false)}, nil
}
