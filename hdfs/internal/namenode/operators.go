package namenode

import (
	"context"
	"errors"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// operatorMethods are those of ClientProtocol that lists, operators and security ask for,
// and those of what is not there.
func (nn *NameNode) operatorMethods() []rpc.Methods {
	return []rpc.Methods{
		{
			"cancelDelegationToken": rpc.Handle(nn.cancelDelegationToken),
			"createSymlink":         rpc.Handle(createSymlink),
			"getBatchedListing":     rpc.Handle(nn.getBatchedListing),
			"getDelegationToken":    rpc.Handle(getDelegationToken),
			"getHAServiceState":     rpc.Handle(getHAServiceState),
			"getLinkTarget":         rpc.Handle(nn.getLinkTarget),
			"listCorruptFileBlocks": rpc.Handle(nn.listCorruptFileBlocks),
			"listOpenFiles":         rpc.Handle(nn.listOpenFiles),
			"metaSave":              rpc.Handle(nn.metaSave),
			"renewDelegationToken":  rpc.Handle(nn.renewDelegationToken),
			"setBalancerBandwidth":  rpc.Handle(nn.setBalancerBandwidth),
		},
		nn.erasureMethods(), nn.zoneMethods(), nn.snapshotMethods(), nn.cacheMethods(), nn.upgradeMethods(),
	}
}

// getDelegationToken gives none, as HDFS without security: clients go on without.
func getDelegationToken(context.Context, *hdfspb.GetDelegationTokenRequestProto) (*hdfspb.GetDelegationTokenResponseProto, error) {
	return &hdfspb.GetDelegationTokenResponseProto{}, nil
}

// unknownToken answers for a delegation token, of which none was given out.
func unknownToken(t *hdfspb.TokenProto) error {
	if id := t.GetIdentifier(); len(id) > 0 && id[0] != 0 {
		return exception.New(exception.IO, "Unknown version of delegation token %d", int8(id[0]))
	}
	return exception.New(exception.InvalidToken, "the delegation token can't be found: this NameNode has given out none")
}

func (nn *NameNode) renewDelegationToken(_ context.Context, req *hdfspb.RenewDelegationTokenRequestProto) (*hdfspb.RenewDelegationTokenResponseProto, error) {
	return nil, unknownToken(req.GetToken())
}

func (nn *NameNode) cancelDelegationToken(_ context.Context, req *hdfspb.CancelDelegationTokenRequestProto) (*hdfspb.CancelDelegationTokenResponseProto, error) {
	return nil, unknownToken(req.GetToken())
}

func getHAServiceState(context.Context, *hdfspb.HAServiceStateRequestProto) (*hdfspb.HAServiceStateResponseProto, error) {
	return nil, exception.New(exception.ServiceFailed, "HA for namenode is not enabled")
}

func createSymlink(context.Context, *hdfspb.CreateSymlinkRequestProto) (*hdfspb.CreateSymlinkResponseProto, error) {
	return nil, exception.New(exception.UnsupportedOperation, "Symlinks not supported")
}

func (nn *NameNode) getLinkTarget(ctx context.Context, req *hdfspb.GetLinkTargetRequestProto) (*hdfspb.GetLinkTargetResponseProto, error) {
	c := nn.callFrom(ctx)
	var (
		exists bool
		err    error
	)
	nn.read(func(ns *namespace.Namespace) { _, exists, err = ns.Stat(c.who(), req.GetPath()) })
	switch {
	case err != nil:
	case !exists:
		err = exception.New(exception.FileNotFound, "File does not exist: %s", req.GetPath())
	default:
		err = exception.New(exception.IO, "Path %s is not a symbolic link", req.GetPath())
	}
	return nil, err
}

// setBalancerBandwidth is for the copies of a balancer, which is not there.
func (nn *NameNode) setBalancerBandwidth(ctx context.Context, _ *hdfspb.SetBalancerBandwidthRequestProto) (*hdfspb.SetBalancerBandwidthResponseProto, error) {
	if err := nn.superuser(ctx, "setBalancerBandwidth"); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.UnsupportedOperation, "set the bandwidth of the balancer: there is no balancer")
}

// refusedAs tells whether an error is a refusal of this class.
func refusedAs(err error, class exception.Class) bool {
	var refused *exception.Error
	return errors.As(err, &refused) && refused.Class == class
}
