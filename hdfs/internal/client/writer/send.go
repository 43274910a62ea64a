package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// failure is why a pipeline can't go on.
type failure struct {
	bad        int  // index of the DataNode to blame
	restarting bool // it has said that it will be back
	setUp      bool // of a pipeline that was never set up
	blameless  bool // the DataNode has not failed
	err        error
}

// failWait is for how long the acknowledgements may tell which DataNode is to blame,
// after a packet could not be sent.
const failWait = time.Second

// run is the goroutine that sends.
func (s *Stream) run() {
	defer close(s.ended)
	stop := context.AfterFunc(s.ctx, func() {
		s.mu.Lock()
		s.work.Signal()
		s.mu.Unlock()
	})
	err := s.send()
	stop()
	s.pipe.close()
	s.cancel(ErrClosed)
	defer s.discard()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = ErrClosed
	}
	s.err = err
	for s.queue.Len() > 0 {
		s.cfg.Packets.Put(s.queue.Pop())
	}
	for s.unacked.Len() > 0 {
		s.cfg.Packets.Put(s.unacked.Pop())
	}
	s.room.Broadcast()
}

// step is what the goroutine that sends is to do next.
type step uint8

const (
	stepSend step = iota
	stepOpen
	stepRecover
	stepEndBlock
	stepHeartbeat
	stepFinish
)

func (s *Stream) send() error {
	for {
		next, k, err := s.next()
		if err != nil {
			return err
		}
		switch next {
		case stepSend:
			s.sendOne(k)
		case stepOpen:
			err = s.pipe.open()
		case stepRecover:
			err = s.recover()
		case stepEndBlock:
			s.pipe.end()
		case stepHeartbeat:
			s.heartbeat()
		case stepFinish:
			return nil
		}
		if err != nil {
			if s.ctx.Err() != nil {
				err = context.Cause(s.ctx)
			}
			return err
		}
	}
}

// next waits for something to do. A packet to send counts as sent.
func (s *Stream) next() (step, *data.Packet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.ctx.Err() != nil:
			return 0, nil, context.Cause(s.ctx)
		case s.failure != nil:
			return stepRecover, nil, nil
		case s.ackLast:
			return stepEndBlock, nil, nil
		case s.queue.Len() > 0 && s.pipe.line == nil:
			return stepOpen, nil, nil
		case s.queue.Len() > 0 && !s.sentLast && (!(*s.queue.Front()).Last || s.unacked.Len() == 0):
			// As in HDFS a block is ended when all else of it is acknowledged: then a
			// repair of its end has no data to send.
			k := s.queue.Pop()
			k.Busy = true
			s.sentLast = k.Last
			s.pipe.sent = max(s.pipe.sent, k.End())
			s.unacked.Push(k)
			return stepSend, k, nil
		case s.queue.Len() == 0 && s.unacked.Len() == 0 && s.finish:
			return stepFinish, nil, nil
		case s.beat:
			s.beat = false
			if s.pipe.line != nil && time.Since(s.pipe.lastSent) >= s.cfg.Heartbeat {
				return stepHeartbeat, nil, nil
			}
		}
		s.work.Wait()
	}
}

func (s *Stream) sendOne(k *data.Packet) {
	err := s.pipe.line.Send(k)
	s.pipe.lastSent = time.Now()
	s.mu.Lock()
	k.Busy = false
	if k.Acked {
		s.cfg.Packets.Put(k)
	}
	s.mu.Unlock()
	if err != nil {
		s.notSent(err)
	}
}

func (s *Stream) heartbeat() {
	k := s.cfg.Packets.Get(transfer.HeartbeatSeqno, 0, 0, nil)
	err := s.pipe.line.Send(k)
	s.cfg.Packets.Put(k)
	s.pipe.lastSent = time.Now()
	if err != nil {
		s.notSent(err)
	}
}

// notSent waits a moment for an acknowledgement to tell which DataNode has failed.
// Without one it is the first.
func (s *Stream) notSent(err error) {
	line := s.pipe.line
	t := time.AfterFunc(failWait, func() { s.fail(line, &failure{err: err}) })
	defer t.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.failure == nil && s.ctx.Err() == nil {
		s.work.Wait()
	}
}

// fail notes why a pipeline can't go on, unless that is known, and closes it.
func (s *Stream) fail(line data.Pipeline, f *failure) {
	s.mu.Lock()
	if s.live == line && s.failure == nil && !s.ackLast {
		s.failure = f
	}
	s.work.Signal()
	s.mu.Unlock()
	line.Close()
}

// respond is the goroutine that takes the acknowledgements of one pipeline.
func (s *Stream) respond(line data.Pipeline, nodes []*hdfspb.DatanodeInfoProto) {
	ack := transfer.Ack{Replies: make([]hdfspb.Status, 0, len(nodes))}
	for {
		if err := line.Ack(&ack); err != nil {
			f := &failure{err: err}
			var broken *data.PipelineError
			if errors.As(err, &broken) {
				f.bad, f.restarting, f.setUp, f.blameless = broken.Node, broken.Restarting, broken.SetUp, broken.Blameless
			}
			s.fail(line, f)
			return
		}
		if f := blame(&ack, nodes); f != nil {
			s.fail(line, f)
			return
		}
		if ack.Seqno == transfer.HeartbeatSeqno {
			continue
		}
		last, err := s.acknowledge(ack.Seqno)
		if err != nil {
			s.fail(line, &failure{err: err})
			return
		}
		if last {
			return
		}
	}
}

// blame tells which DataNode an acknowledgement says has failed: the last that does.
func blame(ack *transfer.Ack, nodes []*hdfspb.DatanodeInfoProto) *failure {
	for i := min(len(ack.Replies), len(nodes)) - 1; i >= 0; i-- {
		switch reply := ack.Replies[i]; reply {
		case hdfspb.Status_SUCCESS:
		case hdfspb.Status_OOB_RESTART:
			return &failure{bad: i, restarting: true, err: fmt.Errorf("DataNode %s restarts", data.Name(nodes[i]))}
		default:
			return &failure{bad: i, err: fmt.Errorf("DataNode %s answers %v", data.Name(nodes[i]), reply)}
		}
	}
	if n := len(ack.Replies); n != len(nodes) {
		return &failure{bad: min(n, len(nodes)-1), err: fmt.Errorf("%w: acknowledgement of %d DataNodes, there are %d", transfer.ErrMalformed, n, len(nodes))}
	}
	return nil
}

// acknowledge takes the packet out for which an acknowledgement has come, and tells
// whether it was the last of its block.
func (s *Stream) acknowledge(seqno int64) (last bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unacked.Len() == 0 {
		return false, fmt.Errorf("%w: packet %d is acknowledged, none was sent", transfer.ErrMalformed, seqno)
	}
	if due := (*s.unacked.Front()).Seqno; due != seqno {
		return false, fmt.Errorf("%w: packet %d is acknowledged, due is %d", transfer.ErrMalformed, seqno, due)
	}
	s.takeAcked()
	return s.ackLast, nil
}

// takeAcked takes the first unacknowledged packet as acknowledged.
func (s *Stream) takeAcked() {
	k := s.unacked.Pop()
	s.held -= k.Cost()
	s.acked = k.Seqno
	s.length = max(s.length, k.End())
	if k.Last {
		s.ackLast = true
	}
	if k.Busy {
		k.Acked = true // who sends it gives it back
	} else {
		s.cfg.Packets.Put(k)
	}
	if s.ackLast || s.unacked.Len() == 0 && (s.finish || s.queue.Len() > 0) {
		s.work.Signal()
	}
	s.room.Signal()
}

// errTooOften is how a stream ends whose pipelines fail again and again.
var errTooOften = errors.New("the pipeline has failed several times in a row at the same packet; something may corrupt it")
