package writer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/internal/fifo"
)

// Replace tells when a DataNode that failed is replaced in a pipeline, as
// dfs.client.block.write.replace-datanode-on-failure.policy does.
type Replace uint8

const (
	// ReplaceDefault replaces if the file has three replicas or more and half of them
	// are lost, or its bytes were flushed or appended.
	ReplaceDefault Replace = iota
	// ReplaceAlways replaces each.
	ReplaceAlways
	// ReplaceNever replaces none.
	ReplaceNever
)

// wants tells whether a pipeline of so many DataNodes is to get another.
func (r Replace) wants(replication, nodes int, flushed bool) bool {
	switch {
	case nodes >= replication || r == ReplaceNever:
		return false
	case r == ReplaceAlways:
		return true
	}
	return replication >= 3 && (nodes <= replication/2 || flushed)
}

// recover goes on after a pipeline has failed: what was not acknowledged is sent again
// to the next one.
func (s *Stream) recover() error {
	p := &s.pipe
	p.close()
	s.mu.Lock()
	why := s.failure
	s.failure = nil
	if s.ackLast {
		s.mu.Unlock()
		return nil // the end of the block was acknowledged meanwhile
	}
	var all fifo.Queue[*data.Packet]
	for s.unacked.Len() > 0 {
		all.Push(s.unacked.Pop())
	}
	for s.queue.Len() > 0 {
		all.Push(s.queue.Pop())
	}
	s.queue = all
	stage := stageStreaming
	if s.sentLast {
		stage = stageClose // and nothing is sent, whether or not that succeeds
	}
	acked := s.acked
	p.block.NumBytes = proto.Uint64(uint64(s.length))
	if why.setUp {
		s.sentLast = false
	}
	s.mu.Unlock()

	if why.setUp {
		return p.anew(why)
	}
	if p.recoveries == 0 || p.stuckAt != acked {
		p.recoveries, p.stuckAt = 0, acked
	}
	if !why.restarting {
		if p.recoveries++; p.recoveries > maxRecoveries {
			return fmt.Errorf("write %s: %w: %w", s.file.Path, errTooOften, why.err)
		}
	}
	s.cfg.Logger.Warn("hdfs: a pipeline failed; it will be repaired", "file", s.file.Path, "block", p.block.GetBlockId(),
		"datanode", data.Name(p.nodes[min(why.bad, len(p.nodes)-1)]), "acknowledged", p.block.GetNumBytes(), "err", why.err)
	if err := p.rebuild(stage, why); err != nil {
		return err
	}
	if stage != stageClose {
		return nil
	}
	// The DataNodes have the end of the block: nothing of it needs to be sent.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unacked.Push(s.queue.Pop())
	s.takeAcked()
	return nil
}

// ErrNoneLeft is how a stream ends whose DataNodes have all failed in one block.
var ErrNoneLeft = errors.New("all DataNodes of a block have failed")

// rebuild sets up a pipeline for a block that DataNodes have already, with a new
// generation stamp, by which replicas that are left behind are known. why is nil when an
// append begins.
func (p *pipe) rebuild(stage hdfspb.OpWriteBlockProto_BlockConstructionStage, why *failure) error {
	s := p.s
	var back time.Time // until when a DataNode that restarts is waited for
	pause := firstRestartPause
	for {
		if why != nil {
			if why.restarting && p.worthWaiting(why.bad) {
				if back.IsZero() {
					back = time.Now().Add(s.cfg.RestartTimeout)
				}
				if time.Now().Before(back) {
					if !sleep(s.ctx, min(s.cfg.RestartTimeout, pause)) {
						return context.Cause(s.ctx)
					}
					pause = min(2*pause, mostRestartPause)
				} else {
					why.restarting = false
				}
			} else {
				why.restarting = false
			}
			if !why.restarting {
				if len(p.nodes) == 1 {
					return fmt.Errorf("write %s: %w: block %d, %s the last: %w", s.file.Path, ErrNoneLeft, p.block.GetBlockId(), data.Name(p.nodes[0]), why.err)
				}
				p.drop(min(why.bad, len(p.nodes)-1))
			}
		}
		if err := p.replace(stage); err != nil {
			return err
		}
		var resp hdfspb.UpdateBlockForPipelineResponseProto
		if err := s.cfg.Names.Call(s.ctx, "updateBlockForPipeline", &hdfspb.UpdateBlockForPipelineRequestProto{Block: p.block, ClientName: &s.cfg.Client}, &resp); err != nil {
			return err
		}
		p.token = resp.GetBlock().GetBlockToken()
		generation := resp.GetBlock().GetB().GetGenerationStamp()
		as := stage
		if why != nil {
			as = recoveryOf[stage]
		}
		var restarts *hdfspb.DatanodeInfoProto
		if why != nil && why.restarting {
			restarts = p.nodes[why.bad]
		}
		err := p.connectAny(as, generation)
		for began := time.Now(); data.Full(err) && (len(p.nodes) == 1 || time.Since(began) < s.cfg.RestartTimeout) && sleep(s.ctx, fullPause); {
			err = p.connectAny(as, generation)
		}
		if err == nil {
			return p.updated(generation)
		}
		var broken *data.PipelineError
		if !errors.As(err, &broken) || s.ctx.Err() != nil {
			return err
		}
		s.cfg.Logger.Warn("hdfs: a pipeline can't be repaired with all DataNodes that are left", "file", s.file.Path, "block", p.block.GetBlockId(), "datanode", data.Name(p.nodes[broken.Node]), "err", err)
		waits := restarts != nil && p.nodes[broken.Node] == restarts && time.Now().Before(back)
		why = &failure{bad: broken.Node, restarting: broken.Restarting || waits, err: err}
	}
}

// Between attempts to set a pipeline up with a DataNode that restarts there are pauses that
// double up to the one that HDFS's client always makes.
const (
	firstRestartPause = 500 * time.Millisecond
	mostRestartPause  = 4 * time.Second
)

// updated tells the NameNode of the pipeline's new stamp and DataNodes.
func (p *pipe) updated(generation uint64) error {
	s := p.s
	block := proto.CloneOf(p.block)
	block.GenerationStamp = &generation
	req := &hdfspb.UpdatePipelineRequestProto{ClientName: &s.cfg.Client, OldBlock: p.block, NewBlock: block, StorageIDs: p.stores}
	for _, n := range p.nodes {
		req.NewNodes = append(req.NewNodes, n.GetId())
	}
	if err := s.cfg.Names.Call(s.ctx, "updatePipeline", req, &hdfspb.UpdatePipelineResponseProto{}); err != nil {
		return err
	}
	p.block = block
	return nil
}

// worthWaiting tells whether a DataNode that restarts is better waited for than left
// out: one that is alone, or on this host.
func (p *pipe) worthWaiting(i int) bool {
	return len(p.nodes) == 1 || i < len(p.nodes) && isLocal(p.nodes[i].GetId().GetIpAddr())
}

func isLocal(address string) bool {
	ip := net.ParseIP(address)
	if ip == nil {
		return false
	}
	if ip.IsLoopback() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// transferTries is with how many DataNodes a replacement is tried.
const transferTries = 3

// replace adds a DataNode to the pipeline if the policy wants that.
func (p *pipe) replace(stage hdfspb.OpWriteBlockProto_BlockConstructionStage) error {
	s := p.s
	s.mu.Lock()
	flushed := s.flushed
	s.mu.Unlock()
	if stage == stageClose || !s.cfg.Replace.wants(s.file.Replication, len(p.nodes), flushed || p.appends) {
		return nil
	}
	err := p.add()
	if err == nil || s.ctx.Err() != nil {
		return err
	}
	if s.cfg.BestEffort || s.cfg.MinReplication > 0 && len(p.nodes) >= s.cfg.MinReplication {
		s.cfg.Logger.Warn("hdfs: a DataNode that failed can't be replaced; the write goes on without", "file", s.file.Path, "block", p.block.GetBlockId(), "left", len(p.nodes), "err", err)
		return nil
	}
	return fmt.Errorf("write %s: no DataNode can be had in place of one that failed (dfs.client.block.write.replace-datanode-on-failure.policy tells when one must): %w", s.file.Path, err)
}

// add has the NameNode name one more DataNode and another one copy the replica to it.
func (p *pipe) add() error {
	s := p.s
	original := pipe{nodes: p.nodes, types: p.types, stores: p.stores, token: p.token}
	exclude := append([]*hdfspb.DatanodeInfoProto(nil), p.failed...)
	var last error
	for try := range transferTries {
		var resp hdfspb.GetAdditionalDatanodeResponseProto
		err := s.cfg.Names.Call(s.ctx, "getAdditionalDatanode", &hdfspb.GetAdditionalDatanodeRequestProto{
			Src: &s.file.Path, Blk: p.block, Existings: original.nodes, Excludes: exclude, NumAdditionalNodes: proto.Uint32(1),
			ClientName: &s.cfg.Client, ExistingStorageUuids: original.stores, FileId: &s.file.ID,
		}, &resp)
		if err != nil {
			return errors.Join(err, last)
		}
		lb := resp.GetBlock()
		at := slices.IndexFunc(lb.GetLocs(), func(n *hdfspb.DatanodeInfoProto) bool {
			return !slices.ContainsFunc(original.nodes, func(o *hdfspb.DatanodeInfoProto) bool {
				return o.GetId().GetDatanodeUuid() == n.GetId().GetDatanodeUuid()
			})
		})
		if at < 0 {
			return errors.Join(errors.New("the NameNode knows no other DataNode"), last)
		}
		p.take(lb)
		req := &data.TransferRequest{Client: s.cfg.Client, Block: p.block, Token: lb.GetBlockToken(), From: original.nodes[try%len(original.nodes)], To: p.nodes[at : at+1]}
		if p.types != nil {
			req.Types = p.types[at : at+1]
		}
		if p.stores != nil {
			req.Storages = p.stores[at : at+1]
		}
		// A DataNode that has the replica of a file which was closed just now, and has not
		// told the NameNode yet, needs no copy. Setting the pipeline up tells whether its
		// replica is as long as it must be.
		if last = s.cfg.Path.Transfer(s.ctx, req); last == nil || errors.Is(last, data.ErrExists) {
			return nil
		}
		exclude = append(exclude, p.nodes[at])
		p.nodes, p.types, p.stores, p.token = original.nodes, original.types, original.stores, original.token
		if s.ctx.Err() != nil {
			return last
		}
	}
	return last
}
