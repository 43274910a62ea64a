package cluster

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
)

// ServeNameNode has a mux answer the calls to a NameNode. Contexts of calls end
// when their callers give up, at the callers' deadlines and with the endpoints. A
// caller that has not proved that it knows the secret is answered [ErrUnproven].
func ServeNameNode(mux *verbena.Mux, s NameNode, secret *Secret) {
	g := newGate(secret, roleNameNode)
	greet(mux, g)
	handle(mux, g, methodRegister, s.Register)
	handle(mux, g, methodHeartbeat, s.Heartbeat)
	handle(mux, g, methodBlockReport, s.BlockReport)
	handle(mux, g, methodBlocksChanged, s.BlocksChanged)
	handle(mux, g, methodCommitRecovery, s.CommitRecovery)
}

// ServeDataNode has a mux answer the calls to a DataNode, as [ServeNameNode] does.
func ServeDataNode(mux *verbena.Mux, s DataNode, secret *Secret) {
	g := newGate(secret, roleDataNode)
	greet(mux, g)
	handle(mux, g, methodInitRecovery, s.InitRecovery)
	handle(mux, g, methodUpdateRecovery, s.UpdateRecovery)
	handle(mux, g, methodExtendRecovery, s.ExtendRecovery)
}

// greet answers the calls by which channels begin, the only ones that need none.
func greet(mux *verbena.Mux, g *gate) {
	handle(mux, nil, methodHello, g.hello)
	handle(mux, nil, methodProve, g.prove)
}

// handle makes f the handler of a method, behind a gate. It is a long one for every
// method: each of them may wait for a disk, or for a lock that a full report holds.
func handle[Req, Resp any, PReq interface {
	*Req
	proto.Message
}, PResp interface {
	*Resp
	proto.Message
}](mux *verbena.Mux, g *gate, m method, f func(context.Context, PReq) (PResp, error)) {
	mux.Long(uint32(m), func(q verbena.Request) {
		answer, err := answer(q, g, m, f)
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
}](q verbena.Request, g *gate, m method, f func(context.Context, PReq) (PResp, error)) ([]byte, error) {
	message, seal := q.Payload(), func(answer []byte) []byte { return answer }
	if g != nil {
		var err error
		if message, seal, err = g.open(m, message); err != nil {
			return nil, err
		}
	}
	req := PReq(new(Req))
	if err := proto.Unmarshal(message, req); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	resp, err := f(q.Context(), req)
	if err != nil {
		return nil, err
	}
	b, err := proto.Marshal(resp)
	if err != nil {
		return nil, err
	}
	return seal(b), nil
}
