package legacy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// pipeline is a connection to the first DataNode of a pipeline.
type pipeline struct {
	c    *conn
	stop func() bool

	mu      sync.Mutex
	reading bool
	closed  bool
}

// Write is [data.Path].Write.
func (p *Path) Write(ctx context.Context, req *data.WriteRequest) (data.Pipeline, error) {
	wait := p.cfg.SocketTimeout + perNode*time.Duration(len(req.Nodes))
	var resp hdfspb.BlockOpResponseProto
	c, stop, err := p.operate(ctx, req.Nodes[0], transfer.OpWriteBlock, writeOp(req), false, wait, &resp)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, &data.PipelineError{Err: err}
	}
	if err := p.refusedWrite(req, c.address, &resp); err != nil {
		stop()
		c.discard()
		return nil, err
	}
	return &pipeline{c: c, stop: stop}, nil
}

// refusedWrite tells from an answer which DataNode can't take part.
func (p *Path) refusedWrite(req *data.WriteRequest, address string, resp *hdfspb.BlockOpResponseProto) error {
	err := refusal(address, resp)
	if err == nil {
		return nil
	}
	bad := &data.PipelineError{Restarting: resp.GetStatus() == hdfspb.Status_OOB_RESTART, Err: err}
	if link := resp.GetFirstBadLink(); link != "" {
		for i, n := range req.Nodes {
			// DataNodes name each other as the NameNode does, by address or by name.
			if data.Name(n) == link || fmt.Sprintf("%s:%d", n.GetId().GetHostName(), n.GetId().GetXferPort()) == link {
				bad.Node = i
				break
			}
		}
	}
	return bad
}

func writeOp(req *data.WriteRequest) *hdfspb.OpWriteBlockProto {
	block := proto.CloneOf(req.Block)
	acked := block.GetNumBytes()
	block.NumBytes = proto.Uint64(uint64(req.BlockSize)) // what DataNodes reserve room for
	op := &hdfspb.OpWriteBlockProto{
		Header:                header(block, req.Token, req.Client),
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

func (l *pipeline) Send(k *data.Packet) error {
	_, err := l.c.Write(k.Frame())
	return err
}

func (l *pipeline) Ack(a *transfer.Ack) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errClosed
	}
	l.reading = true
	l.mu.Unlock()
	if l.c.r.Buffered() == 0 {
		l.c.readSet = time.Time{} // it may have been a while since the last one
	}
	err := l.c.r.ReadAck(a)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	l.mu.Lock()
	l.reading = false
	if l.closed {
		l.c.r.Release()
		err = errors.Join(err, errClosed)
	}
	l.mu.Unlock()
	if err != nil {
		return fmt.Errorf("acknowledgement of DataNode %s: %w", l.c.address, err)
	}
	return nil
}

var errClosed = errors.New("the pipeline is closed")

// Close closes the connection. Who reads from it gives the reader's memory back.
func (l *pipeline) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.stop()
	err := l.c.Close()
	if !l.reading {
		l.c.r.Release()
	}
	return err
}
