package namenode

import (
	"context"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/reconfigure"
)

// registerRefresh has srv serve the protocols beside ClientProtocol by which operators have
// things read again, and ask for users' groups. As in HDFS without service-level
// authorization everybody may.
func (nn *NameNode) registerRefresh(srv *rpc.Server) {
	srv.Register("org.apache.hadoop.tools.GetUserMappingsProtocol", 1, rpc.Methods{
		"getGroupsForUser": rpc.Handle(nn.getGroupsForUser),
	})
	srv.Register("org.apache.hadoop.security.RefreshUserMappingsProtocol", 1, rpc.Methods{
		"refreshUserToGroupsMappings":         rpc.Handle(nn.refreshUserToGroupsMappings),
		"refreshSuperUserGroupsConfiguration": rpc.Handle(nn.refreshSuperUserGroupsConfiguration),
	})
	srv.Register("org.apache.hadoop.security.authorize.RefreshAuthorizationPolicyProtocol", 1, rpc.Methods{
		"refreshServiceAcl": rpc.Handle(refreshServiceACL),
	})
	srv.Register("org.apache.hadoop.ipc.RefreshCallQueueProtocol", 1, rpc.Methods{
		"refreshCallQueue": rpc.Handle(refreshCallQueue),
	})
	srv.Register(reconfigure.Protocol, 1, nn.newReconfiguration().Methods())
	srv.Register("org.apache.hadoop.ipc.GenericRefreshProtocol", 1, rpc.Methods{
		"refresh": rpc.Handle(genericRefresh),
	})
}

// getGroupsForUser tells which groups the NameNode thinks a user to be in.
func (nn *NameNode) getGroupsForUser(_ context.Context, req *hdfspb.GetGroupsForUserRequestProto) (*hdfspb.GetGroupsForUserResponseProto, error) {
	if req.GetUser() == "" {
		return nil, exception.New(exception.JavaIllegalArgument, "Null user")
	}
	return &hdfspb.GetGroupsForUserResponseProto{Groups: nn.cfg.Groups(req.GetUser())}, nil
}

// refreshUserToGroupsMappings forgets which groups users are in: the operating system is
// asked again.
func (nn *NameNode) refreshUserToGroupsMappings(context.Context, *hdfspb.RefreshUserToGroupsMappingsRequestProto) (*hdfspb.RefreshUserToGroupsMappingsResponseProto, error) {
	if nn.cfg.forgetGroups != nil {
		nn.cfg.forgetGroups()
	}
	nn.log.Info("namenode: users' groups are looked up again")
	return &hdfspb.RefreshUserToGroupsMappingsResponseProto{}, nil
}

// refreshSuperUserGroupsConfiguration reads again who may act for others.
func (nn *NameNode) refreshSuperUserGroupsConfiguration(context.Context, *hdfspb.RefreshSuperUserGroupsConfigurationRequestProto) (*hdfspb.RefreshSuperUserGroupsConfigurationResponseProto, error) {
	if nn.cfg.ReadProxyUsers != nil {
		users, err := nn.cfg.ReadProxyUsers()
		if err != nil {
			return nil, exception.New(exception.IO, "read who may act for others: %v", err)
		}
		nn.proxyUsers.Store(&users)
	}
	nn.log.Info("namenode: who may act for others was read again")
	return &hdfspb.RefreshSuperUserGroupsConfigurationResponseProto{}, nil
}

// refreshServiceACL has nothing to read: there is no service-level authorization.
func refreshServiceACL(context.Context, *hdfspb.RefreshServiceAclRequestProto) (*hdfspb.RefreshServiceAclResponseProto, error) {
	return nil, exception.New(exception.Authorization, "Service Level Authorization not enabled!")
}

// refreshCallQueue has nothing to do: the queue of calls has no settings.
func refreshCallQueue(context.Context, *hdfspb.RefreshCallQueueRequestProto) (*hdfspb.RefreshCallQueueResponseProto, error) {
	return &hdfspb.RefreshCallQueueResponseProto{}, nil
}

// genericRefresh is for what registers itself to be refreshed, which nothing does.
func genericRefresh(_ context.Context, req *hdfspb.GenericRefreshRequestProto) (*hdfspb.GenericRefreshResponseCollectionProto, error) {
	return nil, exception.New(exception.JavaIllegalArgument, "Identifier '%s' does not exist in RefreshRegistry. Valid options are: ", req.GetIdentifier())
}
