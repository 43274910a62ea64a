package data

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

func request(nodes int) *WriteRequest {
	req := &WriteRequest{
		Client: "client", Block: &hdfspb.ExtendedBlockProto{PoolId: proto.String("pool"), BlockId: proto.Uint64(7), GenerationStamp: proto.Uint64(1000), NumBytes: proto.Uint64(500)},
		Stage: hdfspb.OpWriteBlockProto_PIPELINE_SETUP_STREAMING_RECOVERY, Sent: 900, Generation: 1001, BlockSize: 4096, Checksum: transfer.CRC32C(),
	}
	for i := range nodes {
		ip, name := fmt.Sprintf("192.0.2.%d", i+1), fmt.Sprintf("host-%d", i+1)
		req.Nodes = append(req.Nodes, &hdfspb.DatanodeInfoProto{Id: &hdfspb.DatanodeIDProto{IpAddr: &ip, HostName: &name, XferPort: proto.Uint32(9866)}})
		req.Types, req.Storages = append(req.Types, hdfspb.StorageTypeProto_SSD), append(req.Storages, "storage of "+name)
	}
	return req
}

// The first DataNode gets its own storage and the others as targets; the block's length
// is what to reserve, and the acknowledged bytes are the least that it must have.
func TestWriteRequests(t *testing.T) {
	req := request(3)
	op := req.Op()
	if op.GetHeader().GetBaseHeader().GetBlock().GetNumBytes() != 4096 || op.GetMinBytesRcvd() != 500 || op.GetMaxBytesRcvd() != 900 || op.GetLatestGenerationStamp() != 1001 ||
		op.GetPipelineSize() != 3 || len(op.GetTargets()) != 2 || len(op.GetTargetPinnings()) != 2 || op.GetStorageType() != hdfspb.StorageTypeProto_SSD ||
		len(op.GetTargetStorageTypes()) != 2 || op.GetStorageId() != "storage of host-1" || len(op.GetTargetStorageIds()) != 2 {
		t.Errorf("%v", op)
	}
	if req.Block.GetNumBytes() != 500 {
		t.Error("the request has changed")
	}
	req.Types, req.Storages = nil, nil
	if op := req.Op(); op.StorageType != nil || op.StorageId != nil || op.TargetStorageTypes != nil {
		t.Errorf("%v", op)
	}
}

// Whom a refusal names, by address or by name; without a name it is the first.
func TestRefusals(t *testing.T) {
	why := errors.New("no")
	for link, want := range map[string]int{"": 0, "192.0.2.1:9866": 0, "192.0.2.3:9866": 2, "host-2:9866": 1, "192.0.2.3:9867": 0, "elsewhere": 0} {
		bad := request(3).Refused(&hdfspb.BlockOpResponseProto{Status: hdfspb.Status_ERROR.Enum(), FirstBadLink: &link}, why)
		if bad.Node != want || bad.Restarting || !errors.Is(bad, why) {
			t.Errorf("%q: %+v", link, bad)
		}
	}
	if bad := request(1).Refused(&hdfspb.BlockOpResponseProto{Status: hdfspb.Status_OOB_RESTART.Enum()}, why); !bad.Restarting {
		t.Errorf("%+v", bad)
	}
	for status, want := range map[hdfspb.Status]error{hdfspb.Status_ERROR_ACCESS_TOKEN: ErrToken, hdfspb.Status_ERROR_EXISTS: ErrExists} {
		err := fmt.Errorf("DataNode: %w", &StatusError{Status: status, Message: "m"})
		for _, e := range []error{ErrToken, ErrExists} {
			if errors.Is(err, e) != (e == want) {
				t.Errorf("%v is %v", err, e)
			}
		}
	}
}
