package namenode

import (
	"context"
	"maps"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// ClientProtocol is the Java name of the protocol that clients speak.
const ClientProtocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// RegisterRPC has srv serve ClientProtocol, and what operators use beside it, from this
// NameNode.
func (nn *NameNode) RegisterRPC(srv *rpc.Server) {
	methods := rpc.Methods{
		"abandonBlock":              rpc.Handle(nn.abandonBlock),
		"addBlock":                  rpc.Handle(nn.addBlock),
		"append":                    rpc.Handle(nn.append),
		"checkAccess":               rpc.Handle(nn.checkAccess),
		"complete":                  rpc.Handle(nn.complete),
		"concat":                    rpc.Handle(nn.concat),
		"create":                    rpc.Handle(nn.create).Short(),
		"delete":                    rpc.Handle(nn.delete).Short(),
		"fsync":                     rpc.Handle(nn.fsync),
		"getAclStatus":              rpc.Handle(nn.getACLStatus),
		"getAdditionalDatanode":     rpc.Handle(nn.getAdditionalDatanode),
		"getBlockLocations":         rpc.Handle(nn.getBlockLocations).Short(),
		"getContentSummary":         rpc.Handle(nn.getContentSummary),
		"getDataEncryptionKey":      rpc.Handle(nn.getDataEncryptionKey),
		"getDatanodeReport":         rpc.Handle(nn.getDatanodeReport),
		"getDatanodeStorageReport":  rpc.Handle(nn.getDatanodeStorageReport),
		"getEnclosingRoot":          rpc.Handle(nn.getEnclosingRoot),
		"getFileInfo":               rpc.Handle(nn.getFileInfo).Short(),
		"getFileLinkInfo":           rpc.Handle(nn.getFileLinkInfo).Short(),
		"getFsECBlockGroupStats":    rpc.Handle(nn.getFsECBlockGroupStats),
		"getFsReplicatedBlockStats": rpc.Handle(nn.getFsReplicatedBlockStats),
		"getFsStats":                rpc.Handle(nn.getFsStats),
		"getListing":                rpc.Handle(nn.getListing),
		"getLocatedFileInfo":        rpc.Handle(nn.getLocatedFileInfo),
		"getPreferredBlockSize":     rpc.Handle(nn.getPreferredBlockSize),
		"getQuotaUsage":             rpc.Handle(nn.getQuotaUsage),
		"getServerDefaults":         rpc.Handle(nn.getServerDefaults).Short(),
		"getSlowDatanodeReport":     rpc.Handle(nn.getSlowDatanodeReport),
		"getStoragePolicies":        rpc.Handle(nn.getStoragePolicies).Short(),
		"getStoragePolicy":          rpc.Handle(nn.getStoragePolicy),
		"getXAttrs":                 rpc.Handle(nn.getXAttrs),
		"isFileClosed":              rpc.Handle(nn.isFileClosed),
		"listXAttrs":                rpc.Handle(nn.listXAttrs),
		"mkdirs":                    rpc.Handle(nn.mkdirs).Short(),
		"modifyAclEntries":          rpc.Handle(nn.modifyACLEntries),
		"msync":                     rpc.Handle(nn.msync).Short(),
		"recoverLease":              rpc.Handle(nn.recoverLease),
		"refreshNodes":              rpc.Handle(nn.refreshNodes),
		"removeAcl":                 rpc.Handle(nn.removeACL),
		"removeAclEntries":          rpc.Handle(nn.removeACLEntries),
		"removeDefaultAcl":          rpc.Handle(nn.removeDefaultACL),
		"removeXAttr":               rpc.Handle(nn.removeXAttr),
		"rename":                    rpc.Handle(nn.rename).Short(),
		"rename2":                   rpc.Handle(nn.rename2).Short(),
		"renewLease":                rpc.Handle(nn.renewLease),
		"reportBadBlocks":           rpc.Handle(nn.reportBadBlocks),
		"satisfyStoragePolicy":      rpc.Handle(nn.satisfyStoragePolicy),
		"saveNamespace":             rpc.Handle(nn.saveNamespace),
		"setAcl":                    rpc.Handle(nn.setACL),
		"setOwner":                  rpc.Handle(nn.setOwner),
		"setPermission":             rpc.Handle(nn.setPermission),
		"setQuota":                  rpc.Handle(nn.setQuota),
		"setReplication":            rpc.Handle(nn.setReplication),
		"setSafeMode":               rpc.Handle(nn.setSafeMode),
		"setStoragePolicy":          rpc.Handle(nn.setStoragePolicy),
		"setTimes":                  rpc.Handle(nn.setTimes),
		"setXAttr":                  rpc.Handle(nn.setXAttr),
		"truncate":                  rpc.Handle(nn.truncate),
		"unsetStoragePolicy":        rpc.Handle(nn.unsetStoragePolicy),
		"updateBlockForPipeline":    rpc.Handle(nn.updateBlockForPipeline),
		"updatePipeline":            rpc.Handle(nn.updatePipeline),
	}
	for _, more := range nn.operatorMethods() {
		maps.Copy(methods, more)
	}
	srv.Register(ClientProtocol, 1, methods)
	nn.registerRefresh(srv)
}

// call is one client's call: who, from where, and which.
type call struct {
	caller *nspb.Caller
	host   string // the peer's IP address, empty if it has none
	id     callID
	short  bool // it may answer rpc.ErrLong

	memory nspb.Caller // of caller
	super  bool
}

func (c *call) who() namespace.Caller {
	return namespace.Caller{User: c.caller.GetUser(), Groups: c.caller.GetGroups(), Superuser: c.caller.GetSuperuser()}
}

// callFrom tells who calls. Outside an RPC it is the user "nobody", who may do
// what everybody may.
func (nn *NameNode) callFrom(ctx context.Context) *call {
	rc := rpc.FromContext(ctx)
	if rc == nil {
		rc = &rpc.Call{User: "nobody"}
	}
	c := &call{host: rc.Host, short: rc.Short, id: callID{client: rc.ClientID, call: rc.CallID}}
	c.caller = &c.memory
	c.memory.User, c.memory.Superuser = &rc.User, &c.super
	c.memory.Groups, c.super = nn.rights(rc.User)
	return c
}

// readerFrom tells only who calls.
func (nn *NameNode) readerFrom(ctx context.Context) namespace.Caller {
	user := "nobody"
	if rc := rpc.FromContext(ctx); rc != nil {
		user = rc.User
	}
	groups, super := nn.rights(user)
	return namespace.Caller{User: user, Groups: groups, Superuser: super}
}
