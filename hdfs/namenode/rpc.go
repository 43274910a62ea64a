package namenode

import (
	"context"
	"errors"
	"net"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/namenode/internal/namespace"
)

// ClientProtocol is the Java name of the protocol that clients speak.
const ClientProtocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// RegisterRPC has srv serve ClientProtocol from this NameNode.
func (nn *NameNode) RegisterRPC(srv *rpc.Server) {
	srv.Register(ClientProtocol, 1, rpc.Methods{
		"abandonBlock":           method(nn.abandonBlock),
		"addBlock":               method(nn.addBlock),
		"append":                 method(nn.append),
		"complete":               method(nn.complete),
		"concat":                 method(nn.concat),
		"create":                 method(nn.create),
		"delete":                 method(nn.delete),
		"fsync":                  method(nn.fsync),
		"getAdditionalDatanode":  method(nn.getAdditionalDatanode),
		"getBlockLocations":      method(nn.getBlockLocations),
		"getContentSummary":      method(nn.getContentSummary),
		"getDataEncryptionKey":   method(nn.getDataEncryptionKey),
		"getDatanodeReport":      method(nn.getDatanodeReport),
		"getFileInfo":            method(nn.getFileInfo),
		"getFileLinkInfo":        method(nn.getFileLinkInfo),
		"getFsStats":             method(nn.getFsStats),
		"getListing":             method(nn.getListing),
		"getPreferredBlockSize":  method(nn.getPreferredBlockSize),
		"getServerDefaults":      method(nn.getServerDefaults),
		"isFileClosed":           method(nn.isFileClosed),
		"mkdirs":                 method(nn.mkdirs),
		"recoverLease":           method(nn.recoverLease),
		"rename":                 method(nn.rename),
		"rename2":                method(nn.rename2),
		"renewLease":             method(nn.renewLease),
		"reportBadBlocks":        method(nn.reportBadBlocks),
		"setOwner":               method(nn.setOwner),
		"setPermission":          method(nn.setPermission),
		"setReplication":         method(nn.setReplication),
		"setSafeMode":            method(nn.setSafeMode),
		"setTimes":               method(nn.setTimes),
		"truncate":               method(nn.truncate),
		"updateBlockForPipeline": method(nn.updateBlockForPipeline),
		"updatePipeline":         method(nn.updatePipeline),
	})
}

type message[T any] interface {
	*T
	proto.Message
}

// method makes refusals go out under their Java class.
func method[Req, Resp any, PReq message[Req], PResp message[Resp]](fn func(context.Context, PReq) (PResp, error)) rpc.Method {
	return rpc.Handle(func(ctx context.Context, req PReq) (PResp, error) {
		resp, err := fn(ctx, req)
		var refused *namespace.Error
		if errors.As(err, &refused) {
			err = &rpc.Error{Class: refused.Class, Message: refused.Message}
		}
		return resp, err
	})
}

// callFrom says who calls. Without an RPC there is nobody, who has no rights
// but everybody's.
func (nn *NameNode) callFrom(ctx context.Context) *call {
	rc := rpc.FromContext(ctx)
	if rc == nil {
		return &call{caller: nn.callerFor("nobody")}
	}
	c := &call{caller: nn.callerFor(rc.User), id: callID{client: rc.ClientID, call: rc.CallID}}
	if rc.Peer != nil {
		if host, _, err := net.SplitHostPort(rc.Peer.String()); err == nil {
			c.host = host
		}
	}
	return c
}
