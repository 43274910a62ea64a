package data

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Header is what operations on a block begin with.
func Header(block *hdfspb.ExtendedBlockProto, token *hdfspb.TokenProto, client string) *hdfspb.ClientOperationHeaderProto {
	return &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: block, Token: token}, ClientName: &client}
}

// EncodeHeader encodes a Header.
func EncodeHeader(block *hdfspb.ExtendedBlockProto, token *hdfspb.TokenProto, client string) ([]byte, error) {
	return proto.Marshal(Header(block, token, client))
}

// Op is the request as the first DataNode of the pipeline gets it.
func (req *WriteRequest) Op() *hdfspb.OpWriteBlockProto {
	block := proto.CloneOf(req.Block)
	acked := block.GetNumBytes()
	block.NumBytes = proto.Uint64(uint64(req.BlockSize)) // what DataNodes reserve room for
	op := &hdfspb.OpWriteBlockProto{
		Header:                Header(block, req.Token, req.Client),
		Targets:               req.Nodes[1:],
		Stage:                 req.Stage.Enum(),
		PipelineSize:          proto.Uint32(uint32(len(req.Nodes))),
		MinBytesRcvd:          proto.Uint64(acked),
		MaxBytesRcvd:          proto.Uint64(uint64(req.Sent)),
		LatestGenerationStamp: proto.Uint64(req.Generation),
		RequestedChecksum:     req.Checksum.Proto(),
		CachingStrategy:       &hdfspb.CachingStrategyProto{},
		TargetPinnings:        make([]bool, len(req.Nodes)-1),
	}
	if len(req.Types) == len(req.Nodes) {
		op.StorageType, op.TargetStorageTypes = req.Types[0].Enum(), req.Types[1:]
	}
	if len(req.Storages) == len(req.Nodes) {
		op.StorageId, op.TargetStorageIds = &req.Storages[0], req.Storages[1:]
	}
	return op
}

// Refused tells from the response to a set-up, and the error that it stands for, which
// DataNode can't take part.
func (req *WriteRequest) Refused(resp *hdfspb.BlockOpResponseProto, err error) *PipelineError {
	bad := &PipelineError{Restarting: resp.GetStatus() == hdfspb.Status_OOB_RESTART, Err: err}
	if link := resp.GetFirstBadLink(); link != "" {
		for i, n := range req.Nodes {
			// DataNodes name each other as the NameNode does, by address or by name.
			if Name(n) == link || fmt.Sprintf("%s:%d", n.GetId().GetHostName(), n.GetId().GetXferPort()) == link {
				bad.Node = i
				break
			}
		}
	}
	return bad
}
