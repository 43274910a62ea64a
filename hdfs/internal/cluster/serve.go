package cluster

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
)

// ServeNameNode has a mux answer the calls to a NameNode. Contexts of calls end
// when their callers give up, at the callers' deadlines and with the endpoints.
func ServeNameNode(mux *verbena.Mux, s NameNode) {
	handle(mux, methodRegister, s.Register)
	handle(mux, methodHeartbeat, s.Heartbeat)
	handle(mux, methodBlockReport, s.BlockReport)
	handle(mux, methodBlocksChanged, s.BlocksChanged)
	handle(mux, methodCommitRecovery, s.CommitRecovery)
}

// ServeDataNode has a mux answer the calls to a DataNode.
func ServeDataNode(mux *verbena.Mux, s DataNode) {
	handle(mux, methodInitRecovery, s.InitRecovery)
	handle(mux, methodUpdateRecovery, s.UpdateRecovery)
}

// handle makes f the handler of a method. It is a long one for every method: each of
// them may wait for a disk, or for a lock that a full report holds.
func handle[Req, Resp any, PReq interface {
	*Req
	proto.Message
}, PResp interface {
	*Resp
	proto.Message
}](mux *verbena.Mux, m method, f func(context.Context, PReq) (PResp, error)) {
	mux.Long(uint32(m), func(q verbena.Request) {
		answer, err := answer(q, f)
		// An error of these two is that of the endpoint, whose end tells more.
		if err != nil {
			_ = q.Fail(failure(err))
		} else {
			_ = q.Reply(answer)
		}
	})
}

func answer[Req, Resp any, PReq interface {
	*Req
	proto.Message
}, PResp interface {
	*Resp
	proto.Message
}](q verbena.Request, f func(context.Context, PReq) (PResp, error)) ([]byte, error) {
	req := PReq(new(Req))
	if err := proto.Unmarshal(q.Payload(), req); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	resp, err := f(q.Context(), req)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(resp)
}
