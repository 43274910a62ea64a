//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// PostRecv implements [rdma.QueuePair].
func (p *queuePair) PostRecv(requests []rdma.RecvRequest) (int, error) {
	if p.shared != nil {
		return 0, fmt.Errorf("ibverbs: post a receive to queue pair %d: %w: its receives come from the shared receive queue", p.number, rdma.ErrInvalid)
	}
	p.recvMu.Lock()
	defer p.recvMu.Unlock()
	taken := 0
	for taken < len(requests) {
		if rdma.State(p.state.Load()) > rdma.StateConnected {
			return taken, p.stateError("post a receive to")
		}
		n, wrong := p.prepareRecvs(requests[taken:])
		if n > 0 {
			tail := p.recvs.tail.Load()
			p.recvs.tail.Store(tail + uint32(n))
			posted, err := p.hw.PostRecv(p.recvList, n)
			taken += posted
			if err != nil {
				p.recvs.tail.Store(tail + uint32(posted))
				return taken, p.refused("post a receive to", err, p.errRecvFull)
			}
		}
		if wrong != nil {
			return taken, wrong
		}
	}
	if taken == 0 && rdma.State(p.state.Load()) > rdma.StateConnected {
		return 0, p.stateError("post a receive to")
	}
	return taken, nil
}

func (p *queuePair) prepareRecvs(requests []rdma.RecvRequest) (int, error) {
	room, tail := p.recvs.room(), p.recvs.tail.Load()
	n := min(len(requests), p.recvList.Len())
	for i := range n {
		if room == 0 {
			return i, p.errRecvFull
		}
		r := &requests[i]
		wr := p.recvList.At(i)
		if len(r.SGEs) > p.config.MaxSGE {
			return i, p.invalid(rdma.OpRecv, "it has too many entries")
		}
		entries := p.recvList.SGEs(i)
		_, used, wrong := p.entries(entries, r.SGEs, true)
		if wrong != "" {
			return i, p.invalid(rdma.OpRecv, wrong)
		}
		used = p.domain.atLeastOne(entries, used)
		seq := tail + uint32(i)
		wr.ID = kindRecv | p.tag | uint64(seq)
		wr.NumSGE = int32(used)
		p.recvs.ids[seq&p.recvs.mask] = r.ID
		room--
	}
	return n, nil
}
