package namenode

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// placeSoon is place, but after a start it gives the DataNodes a moment to come.
func (nn *NameNode) placeSoon(ctx context.Context, req *hdfspb.AddBlockRequestProto, s namespace.Status, host string) ([]string, error) {
	limit := time.NewTimer(nn.cfg.CompleteWait)
	defer limit.Stop()
	for {
		targets, grown, err := nn.place(req, int(s.Replication), s.BlockSize, host)
		if err == nil || !nn.InSafeMode() {
			return targets, err
		}
		select {
		case <-grown:
		case <-limit.C:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// place chooses DataNodes for a new block. With an error it returns grown, which
// closes when another DataNode can take blocks.
func (nn *NameNode) place(req *hdfspb.AddBlockRequestProto, replication int, blockSize uint64, host string) (targets []string, grown chan struct{}, err error) {
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	excluded := exclusion(m.nodesNamed(req.GetExcludeNodes()))
	for _, f := range req.GetFlags() {
		if f == hdfspb.AddBlockFlagProto_IGNORE_CLIENT_LOCALITY {
			host = ""
		}
		if f == hdfspb.AddBlockFlagProto_NO_LOCAL_WRITE {
			for _, n := range m.nodes {
				if n.dn.Host == host {
					excluded[n] = true
				}
			}
		}
	}
	nodes := m.choose(replication, excluded, host, blockSize)
	if len(nodes) > 0 {
		return uuids(nodes), nil, nil
	}
	live, full := 0, 0
	for _, n := range m.nodes {
		if n.alive && n.registered {
			live++
			if n.remaining < blockSize {
				full++
			}
		}
	}
	return nil, m.grown, exception.New(exception.IO, "File %s could only be written to 0 of the 1 minReplication nodes. There are %d datanode(s) running, %d node(s) are excluded in this operation and %d have less room than a block of %d bytes.", req.GetSrc(), live, len(excluded), full, blockSize)
}

// choose picks up to want live DataNodes with room, at random, the emptier ones
// more often. The first one is on the host local if one is there.
func (m *blockMap) choose(want int, exclude map[*node]bool, local string, room uint64) []*node {
	var candidates []*node
	for _, n := range m.byIndex {
		if n.alive && n.registered && !exclude[n] && n.remaining >= room && m.nodes[n.dn.UUID] == n {
			candidates = append(candidates, n)
		}
	}
	var out []*node
	take := func(i int) {
		out = append(out, candidates[i])
		candidates[i] = candidates[len(candidates)-1]
		candidates = candidates[:len(candidates)-1]
	}
	if local != "" && want > 0 {
		var here []int
		for i, n := range candidates {
			if n.dn.Host == local {
				here = append(here, i)
			}
		}
		if len(here) > 0 {
			take(here[rand.IntN(len(here))])
		}
	}
	for len(out) < want && len(candidates) > 0 {
		// Taking the emptier of two at random fills DataNodes evenly, and does
		// not send every writer to the emptiest one.
		i, j := rand.IntN(len(candidates)), rand.IntN(len(candidates))
		if candidates[j].remaining > candidates[i].remaining {
			i = j
		}
		take(i)
	}
	return out
}

// nodesNamed finds DataNodes that a client names. The caller has m.mu.
func (m *blockMap) nodesNamed(infos []*hdfspb.DatanodeInfoProto) []*node {
	var out []*node
	for _, info := range infos {
		if n := m.nodes[info.GetId().GetDatanodeUuid()]; n != nil {
			out = append(out, n)
		}
	}
	return out
}

func exclusion(lists ...[]*node) map[*node]bool {
	out := make(map[*node]bool)
	for _, l := range lists {
		for _, n := range l {
			out[n] = true
		}
	}
	return out
}

func uuids(nodes []*node) []string {
	out := make([]string, len(nodes))
	for i, n := range nodes {
		out[i] = n.dn.UUID
	}
	return out
}
