package namenode

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// DataNodes keep no blocks in locked memory: there are no pools to put directives in, and
// none can be made.
func (nn *NameNode) cacheMethods() rpc.Methods {
	return rpc.Methods{
		"addCacheDirective":    rpc.Handle(addCacheDirective),
		"addCachePool":         rpc.Handle(nn.addCachePool),
		"listCacheDirectives":  rpc.Handle(listCacheDirectives),
		"listCachePools":       rpc.Handle(listCachePools),
		"modifyCacheDirective": rpc.Handle(modifyCacheDirective),
		"modifyCachePool":      rpc.Handle(nn.modifyCachePool),
		"removeCacheDirective": rpc.Handle(removeCacheDirective),
		"removeCachePool":      rpc.Handle(nn.removeCachePool),
	}
}

func invalidRequest(format string, args ...any) error {
	return exception.New(exception.InvalidRequest, format, args...)
}

func addCacheDirective(_ context.Context, req *hdfspb.AddCacheDirectiveRequestProto) (*hdfspb.AddCacheDirectiveResponseProto, error) {
	switch pool := req.GetInfo().Pool; {
	case pool == nil:
		return nil, invalidRequest("No pool specified.")
	case *pool == "":
		return nil, invalidRequest("Invalid empty pool name.")
	default:
		return nil, invalidRequest("Unknown pool %s", *pool)
	}
}

// noDirective answers for the id of a directive.
func noDirective(id int64) error {
	if id <= 0 {
		return invalidRequest("Invalid negative ID.")
	}
	return invalidRequest("No directive with ID %d found.", id)
}

func modifyCacheDirective(_ context.Context, req *hdfspb.ModifyCacheDirectiveRequestProto) (*hdfspb.ModifyCacheDirectiveResponseProto, error) {
	if req.GetInfo().Id == nil {
		return nil, invalidRequest("Must supply an ID.")
	}
	return nil, noDirective(req.GetInfo().GetId())
}

func removeCacheDirective(_ context.Context, req *hdfspb.RemoveCacheDirectiveRequestProto) (*hdfspb.RemoveCacheDirectiveResponseProto, error) {
	return nil, noDirective(req.GetId())
}

func listCacheDirectives(_ context.Context, req *hdfspb.ListCacheDirectivesRequestProto) (*hdfspb.ListCacheDirectivesResponseProto, error) {
	switch f := req.GetFilter(); {
	case f.Replication != nil:
		return nil, invalidRequest("Filtering by replication is unsupported.")
	case f.Id != nil:
		return nil, invalidRequest("Did not find requested id %d", f.GetId())
	}
	return &hdfspb.ListCacheDirectivesResponseProto{HasMore: proto.Bool(false)}, nil
}

func listCachePools(context.Context, *hdfspb.ListCachePoolsRequestProto) (*hdfspb.ListCachePoolsResponseProto, error) {
	return &hdfspb.ListCachePoolsResponseProto{HasMore: proto.Bool(false)}, nil
}

// poolNamed is for operators, who name a pool.
func (nn *NameNode) poolNamed(ctx context.Context, operation, pool string) error {
	if err := nn.superuser(ctx, operation); err != nil {
		return err
	}
	if pool == "" {
		return exception.New(exception.IO, "invalid empty cache pool name")
	}
	return nil
}

func (nn *NameNode) addCachePool(ctx context.Context, req *hdfspb.AddCachePoolRequestProto) (*hdfspb.AddCachePoolResponseProto, error) {
	if err := nn.poolNamed(ctx, "addCachePool", req.GetInfo().GetPoolName()); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.UnsupportedOperation, "add the cache pool %s: DataNodes have no cache of blocks", req.GetInfo().GetPoolName())
}

func (nn *NameNode) modifyCachePool(ctx context.Context, req *hdfspb.ModifyCachePoolRequestProto) (*hdfspb.ModifyCachePoolResponseProto, error) {
	if err := nn.poolNamed(ctx, "modifyCachePool", req.GetInfo().GetPoolName()); err != nil {
		return nil, err
	}
	return nil, invalidRequest("Cache pool %s does not exist.", req.GetInfo().GetPoolName())
}

func (nn *NameNode) removeCachePool(ctx context.Context, req *hdfspb.RemoveCachePoolRequestProto) (*hdfspb.RemoveCachePoolResponseProto, error) {
	if err := nn.poolNamed(ctx, "removeCachePool", req.GetPoolName()); err != nil {
		return nil, err
	}
	return nil, invalidRequest("Cannot remove non-existent cache pool %s", req.GetPoolName())
}
