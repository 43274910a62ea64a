package namenode

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// message is a pointer to a T that is a protobuf message.
type message[T any] interface {
	*T
	proto.Message
}

// decoded makes of a handler one that takes the bytes of its request.
func decoded[Req, Resp any, PReq message[Req], PResp message[Resp]](fn func(context.Context, PReq) (PResp, error)) func(context.Context, []byte) {
	return func(ctx context.Context, data []byte) {
		req := PReq(new(Req))
		if proto.Unmarshal(data, req) == nil {
			resp, err := fn(ctx, req)
			if err == nil {
				if _, err := proto.Marshal(resp); err != nil {
					panic(err) // a response that a client could not decode
				}
			}
		}
	}
}

// FuzzRequests gives every handler whatever decodes as its request, from clients and
// from DataNodes.
func FuzzRequests(f *testing.F) {
	nn, err := Open(context.Background(), Config{Dir: "/nn", FS: vfs.NewMem(), Superuser: "root", MinBlockSize: 1, CompleteWait: time.Nanosecond, manual: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { nn.Close() })
	// next is what stands in the next report of a DataNode, which no fuzzer finds.
	next := func(uuid string) (session, sequence *uint64) {
		nn.blocks.mu.Lock()
		defer nn.blocks.mu.Unlock()
		if n := nn.blocks.nodes[uuid]; n != nil {
			session, sequence = proto.Uint64(n.session), proto.Uint64(n.sequence+1)
		}
		return session, sequence
	}
	handlers := []func(context.Context, []byte){
		decoded(nn.abandonBlock), decoded(nn.addBlock), decoded(nn.append), decoded(nn.complete), decoded(nn.concat),
		decoded(nn.create), decoded(nn.delete), decoded(nn.fsync), decoded(nn.getAdditionalDatanode), decoded(nn.getBlockLocations),
		decoded(nn.getContentSummary), decoded(nn.getDatanodeReport), decoded(nn.getFileInfo), decoded(nn.getListing),
		decoded(nn.getPreferredBlockSize), decoded(nn.isFileClosed), decoded(nn.mkdirs), decoded(nn.recoverLease), decoded(nn.rename),
		decoded(nn.rename2), decoded(nn.renewLease), decoded(nn.reportBadBlocks), decoded(nn.setOwner), decoded(nn.setPermission),
		decoded(nn.setReplication), decoded(nn.setSafeMode), decoded(nn.setTimes), decoded(nn.truncate),
		decoded(nn.updateBlockForPipeline), decoded(nn.updatePipeline),
		decoded(func(ctx context.Context, req *clusterpb.RegisterRequest) (*clusterpb.RegisterResponse, error) {
			if net.ParseIP(req.GetDatanode().GetHost()) == nil {
				return nil, errors.New("no names to look up in a fuzz test")
			}
			return nn.Register(ctx, req)
		}),
		decoded(func(ctx context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
			req.Session, _ = next(req.GetUuid())
			return nn.Heartbeat(ctx, req)
		}),
		decoded(func(ctx context.Context, req *clusterpb.BlockReportRequest) (*clusterpb.BlockReportResponse, error) {
			req.Session, req.Sequence = next(req.GetUuid())
			return nn.BlockReport(ctx, req)
		}),
		decoded(func(ctx context.Context, req *clusterpb.BlocksChangedRequest) (*clusterpb.BlocksChangedResponse, error) {
			req.Session, req.Sequence = next(req.GetUuid())
			return nn.BlocksChanged(ctx, req)
		}),
		decoded(nn.CommitRecovery),
	}
	add := func(i int, m proto.Message) {
		data, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), data)
	}
	path, client := "/a/b", "c"
	block := &hdfspb.ExtendedBlockProto{PoolId: proto.String(nn.BlockPoolID()), BlockId: proto.Uint64(1 << 30), GenerationStamp: proto.Uint64(1000), NumBytes: proto.Uint64(5)}
	add(5, createRequest(path, client, 1, 3))
	add(1, &hdfspb.AddBlockRequestProto{Src: &path, ClientName: &client})
	add(3, &hdfspb.CompleteRequestProto{Src: &path, ClientName: &client, Last: block})
	add(9, &hdfspb.GetBlockLocationsRequestProto{Src: &path, Offset: proto.Uint64(0), Length: proto.Uint64(1)})
	add(13, &hdfspb.GetListingRequestProto{Src: proto.String("/"), StartAfter: []byte{}, NeedLocation: proto.Bool(true)})
	add(16, &hdfspb.MkdirsRequestProto{Src: &path, Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true)})
	add(27, &hdfspb.TruncateRequestProto{Src: &path, NewLength: proto.Uint64(3), ClientName: &client})
	add(28, &hdfspb.UpdateBlockForPipelineRequestProto{Block: block, ClientName: &client})
	dn := &clusterpb.Datanode{Uuid: proto.String("d"), Host: proto.String("10.0.0.1"), Port: proto.Uint32(1)}
	replica := &clusterpb.Replica{Block: blockPB(1<<30, 1000, 5), State: clusterpb.ReplicaState_FINALIZED.Enum()}
	add(30, &clusterpb.RegisterRequest{Datanode: dn})
	add(31, &clusterpb.HeartbeatRequest{Uuid: dn.Uuid, Storages: []*clusterpb.Storage{{Remaining: proto.Uint64(1 << 40)}}})
	add(32, &clusterpb.BlockReportRequest{Uuid: dn.Uuid, Parts: proto.Uint32(1), Replicas: []*clusterpb.Replica{replica}})
	add(33, &clusterpb.BlocksChangedRequest{Uuid: dn.Uuid, Changes: []*clusterpb.ReplicaChange{{Kind: clusterpb.ReplicaChange_RECEIVED.Enum(), Replica: replica}}})
	add(34, &clusterpb.CommitRecoveryRequest{Uuid: dn.Uuid, Block: replica.Block, NewGeneration: proto.Uint64(1001), Datanodes: []*clusterpb.Datanode{dn}})
	ctx := rpc.WithCall(context.Background(), &rpc.Call{User: "root"})
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		handlers[int(which)%len(handlers)](ctx, data)
		nn.check(ctx)
		if err := nn.state.failure(); err != nil {
			t.Fatal(err)
		}
	})
}
