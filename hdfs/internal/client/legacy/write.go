package legacy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

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
	c, stop, err := p.operate(ctx, req.Nodes[0], transfer.OpWriteBlock, req.Op(), false, wait, &resp)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, &data.PipelineError{Err: err}
	}
	if err := refusal(c.address, &resp); err != nil {
		stop()
		c.discard()
		return nil, req.Refused(&resp, err)
	}
	return &pipeline{c: c, stop: stop}, nil
}

func (l *pipeline) Send(k *data.Packet) error {
	head, body := k.Frame()
	if len(head) > 0 {
		if _, err := l.c.Write(head); err != nil {
			return err
		}
	}
	_, err := l.c.Write(body)
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
