package writer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Stages of a pipeline, by shorter names.
const (
	stageAppend            = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_APPEND
	stageAppendRecovery    = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_APPEND_RECOVERY
	stageStreaming         = hdfspb.OpWriteBlockProto_DATA_STREAMING
	stageStreamingRecovery = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_STREAMING_RECOVERY
	stageClose             = hdfspb.OpWriteBlockProto_PIPELINE_CLOSE
	stageCloseRecovery     = hdfspb.OpWriteBlockProto_PIPELINE_CLOSE_RECOVERY
	stageCreate            = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_CREATE
)

var recoveryOf = map[hdfspb.OpWriteBlockProto_BlockConstructionStage]hdfspb.OpWriteBlockProto_BlockConstructionStage{
	stageAppend: stageAppendRecovery, stageStreaming: stageStreamingRecovery, stageClose: stageCloseRecovery,
}

// pipe is the block that is being written and its pipeline. It is the matter of the
// goroutine that sends.
type pipe struct {
	s        *Stream
	line     data.Pipeline // nil between blocks
	reading  sync.WaitGroup
	beats    *time.Timer
	lastSent time.Time

	appends bool                       // the block was there before the stream
	last    *hdfspb.ExtendedBlockProto // the block before, complete
	block   *hdfspb.ExtendedBlockProto // nil between blocks
	sent    int64                      // of the block, at most
	token   *hdfspb.TokenProto
	nodes   []*hdfspb.DatanodeInfoProto
	types   []hdfspb.StorageTypeProto
	stores  []string
	failed  []*hdfspb.DatanodeInfoProto // in pipelines of this block

	excluded   []exclusion // from the next blocks
	recoveries int         // in a row
	begun      int         // how often the block was begun anew after packets had been sent, for a DataNode had failed
	refused    int         // and how often though none had
	stuckAt    int64       // what was acknowledged at the last of them
}

// exclusion is a DataNode on which no block is wanted for some time.
type exclusion struct {
	node  *hdfspb.DatanodeInfoProto
	until time.Time
}

// take makes a located block the pipeline's.
func (p *pipe) take(lb *hdfspb.LocatedBlockProto) {
	p.token = lb.GetBlockToken()
	p.nodes = append([]*hdfspb.DatanodeInfoProto(nil), lb.GetLocs()...)
	p.types, p.stores = nil, nil
	if len(lb.GetStorageTypes()) == len(p.nodes) {
		p.types = append(p.types, lb.GetStorageTypes()...)
	}
	if len(lb.GetStorageIDs()) == len(p.nodes) {
		p.stores = append(p.stores, lb.GetStorageIDs()...)
	}
}

// drop takes a DataNode out of the pipeline.
func (p *pipe) drop(i int) {
	p.failed = append(p.failed, p.nodes[i])
	p.nodes = append(p.nodes[:i:i], p.nodes[i+1:]...)
	if p.types != nil {
		p.types = append(p.types[:i:i], p.types[i+1:]...)
	}
	if p.stores != nil {
		p.stores = append(p.stores[:i:i], p.stores[i+1:]...)
	}
}

// open sets up the pipeline of the next block, or of the block that is appended to.
func (p *pipe) open() error {
	if p.block != nil {
		return p.rebuild(stageAppend, nil)
	}
	s := p.s
	var err error
	pause := s.cfg.LocatePause
	for tried := 0; tried <= s.cfg.BlockRetries; {
		var lb *hdfspb.LocatedBlockProto
		if lb, err = p.locate(); err != nil {
			return err
		}
		p.block, p.sent, p.failed = lb.GetB(), 0, nil
		p.block.NumBytes = proto.Uint64(0)
		p.take(lb)
		if len(p.nodes) == 0 {
			// A NameNode that has just started may not know yet who is up.
			err = errors.New("the NameNode gives a block without a DataNode")
			if aerr := p.abandon(); aerr != nil {
				return aerr
			}
			if !sleep(s.ctx, pause) {
				return context.Cause(s.ctx)
			}
			pause = longer(pause)
			tried++
			continue
		}
		p.s.mu.Lock()
		p.s.length, p.s.persist = 0, true
		p.s.mu.Unlock()
		if err = p.connectAny(stageCreate, 0); err == nil {
			return nil
		}
		if p.s.ctx.Err() != nil {
			return err
		}
		bad := 0
		var broken *data.PipelineError
		if errors.As(err, &broken) {
			bad = broken.Node
		}
		p.s.cfg.Logger.Warn("hdfs: a pipeline can't be set up; another one will be", "file", p.s.file.Path, "block", p.block.GetBlockId(), "without", data.Name(p.nodes[bad]), "err", err)
		if !data.Full(err) {
			tried++
			p.exclude(p.nodes[bad])
		} else if !sleep(s.ctx, fullPause) {
			return err
		}
		if err := p.abandon(); err != nil {
			return err
		}
	}
	return fmt.Errorf("write %s: no pipeline of DataNodes for its next block: %w", p.s.file.Path, err)
}

// connectAny is connect. While the first DataNode has no room for an endpoint more, or one of
// the others has none for the one before it, the next one comes first: in which order they
// stand matters to nobody.
func (p *pipe) connectAny(stage hdfspb.OpWriteBlockProto_BlockConstructionStage, generation uint64) error {
	for left := len(p.nodes) - 1; ; left-- {
		err := p.connect(stage, generation)
		if !data.Full(err) || p.s.ctx.Err() != nil || left == 0 {
			return err
		}
		p.rotate()
	}
}

// rotate puts the first DataNode last.
func (p *pipe) rotate() {
	p.nodes = append(p.nodes[1:len(p.nodes):len(p.nodes)], p.nodes[0])
	if p.types != nil {
		p.types = append(p.types[1:len(p.types):len(p.types)], p.types[0])
	}
	if p.stores != nil {
		p.stores = append(p.stores[1:len(p.stores):len(p.stores)], p.stores[0])
	}
}

// fullPause is the pause before a DataNode is dialled again that had no memory for an endpoint
// more, for as long as the dial might wait.
const fullPause = 250 * time.Millisecond

// anew gives up a block whose pipeline was never set up, though packets were sent: the
// next one gets them.
func (p *pipe) anew(why *failure) error {
	s := p.s
	bad := p.nodes[min(why.bad, len(p.nodes)-1)]
	s.cfg.Logger.Warn("hdfs: a pipeline was not set up; another one will be", "file", s.file.Path, "block", p.block.GetBlockId(), "datanode", data.Name(bad), "err", why.err)
	if why.blameless {
		p.refused++
		if !sleep(s.ctx, s.cfg.LocatePause>>4<<min(p.refused, 6)) {
			return context.Cause(s.ctx)
		}
	} else {
		p.begun++
		p.exclude(bad)
	}
	if p.begun > s.cfg.BlockRetries || p.refused > maxRefused {
		return fmt.Errorf("write %s: no pipeline of DataNodes for its next block: %w", s.file.Path, why.err)
	}
	return p.abandon()
}

// maxRefused is how often a block is begun anew although no DataNode has failed.
const maxRefused = 20

// abandon gives a block back that was not begun.
func (p *pipe) abandon() error {
	s := p.s
	req := &hdfspb.AbandonBlockRequestProto{B: p.block, Src: &s.file.Path, Holder: &s.cfg.Client, FileId: &s.file.ID}
	p.block = nil
	return s.cfg.Names.Call(s.ctx, "abandonBlock", req, &hdfspb.AbandonBlockResponseProto{})
}

func (p *pipe) exclude(n *hdfspb.DatanodeInfoProto) {
	p.excluded = append(p.excluded, exclusion{n, time.Now().Add(p.s.cfg.ExcludeFor)})
}

// locate asks the NameNode for a block. It waits while the block before has too few
// replicas, and asks for any DataNode if there is none but those that have failed.
func (p *pipe) locate() (*hdfspb.LocatedBlockProto, error) {
	s := p.s
	pause := s.cfg.LocatePause
	for try := 0; ; try++ {
		req := &hdfspb.AddBlockRequestProto{Src: &s.file.Path, ClientName: &s.cfg.Client, Previous: p.last, FileId: &s.file.ID}
		kept := p.excluded[:0]
		for _, e := range p.excluded {
			if time.Now().Before(e.until) {
				kept = append(kept, e)
				req.ExcludeNodes = append(req.ExcludeNodes, e.node)
			}
		}
		p.excluded = kept
		var resp hdfspb.AddBlockResponseProto
		err := s.cfg.Names.Call(s.ctx, "addBlock", req, &resp)
		if err == nil {
			return resp.GetBlock(), nil
		}
		var refused *exception.Error
		if !errors.As(err, &refused) || try >= s.cfg.LocateRetries {
			return nil, err
		}
		switch {
		case refused.Class == exception.NotReplicatedYet:
			if !sleep(s.ctx, pause) {
				return nil, context.Cause(s.ctx)
			}
			pause = longer(pause)
		case refused.Class == exception.IO && len(p.excluded) > 0:
			p.excluded = nil
		default:
			return nil, err
		}
	}
}

// connect sets up the pipeline and starts the goroutine of its acknowledgements.
func (p *pipe) connect(stage hdfspb.OpWriteBlockProto_BlockConstructionStage, generation uint64) error {
	s := p.s
	line, err := s.cfg.Path.Write(s.ctx, &data.WriteRequest{
		Client: s.cfg.Client, Block: p.block, Token: p.token, Nodes: p.nodes, Types: p.types, Storages: p.stores,
		Stage: stage, Sent: p.sent, Generation: generation, BlockSize: s.file.BlockSize, Checksum: s.cfg.Packets.Checksum(),
		Window: s.cfg.Window,
	})
	if err != nil {
		return err
	}
	if stage == stageCloseRecovery {
		line.Close() // nothing follows
		return nil
	}
	p.line, p.lastSent = line, time.Now()
	s.mu.Lock()
	s.live = line
	s.mu.Unlock()
	nodes := p.nodes
	p.reading.Go(func() { s.respond(line, nodes) })
	if p.beats == nil {
		const never = 1 << 62
		p.beats = time.AfterFunc(never, p.tick)
	}
	p.beats.Reset(s.cfg.Heartbeat)
	return nil
}

// tick has the goroutine that sends look whether a heartbeat is due.
func (p *pipe) tick() {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil {
		return
	}
	s.beat = true
	s.work.Signal()
	p.beats.Reset(max(s.cfg.Heartbeat/2, time.Millisecond))
}

// close closes the pipeline and waits for the goroutine of its acknowledgements.
func (p *pipe) close() {
	p.s.mu.Lock()
	p.s.live = nil
	p.s.mu.Unlock()
	if p.beats != nil {
		p.beats.Stop()
	}
	if p.line != nil {
		p.line.Close()
		p.line = nil
	}
	p.reading.Wait()
}

// end leaves a block that is complete.
func (p *pipe) end() {
	p.close()
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	p.block.NumBytes = proto.Uint64(uint64(s.length))
	p.last, p.block = p.block, nil
	p.appends, p.failed, p.recoveries, p.begun, p.refused = false, nil, 0, 0, 0
	s.ackLast, s.sentLast, s.failure = false, false, nil
}
