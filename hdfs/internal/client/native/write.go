package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/fifo"
)

// A pipeline is the use of a connection for one block.
type pipeline struct {
	p      *Path
	req    *data.WriteRequest
	stream context.Context         // of who writes
	ctx    context.Context         // of what is sent: it ends with the pipeline
	cancel context.CancelCauseFunc // of ctx
	conn   *native.Conn
	id     uint32
	stop   func() bool
	wait   time.Duration // for what DataNodes owe

	header [native.PacketHeaderLen]byte // of Send
	reply  transfer.Ack                 // of Take

	mu       sync.Mutex
	changed  sync.Cond
	answered bool // the set-up is
	sent     fifo.Queue[int64]
	acked    int64           // all packets up to it are, -1 for none
	refused  []hdfspb.Status // what an acknowledgement says of a failure
	err      error           // the pipeline's end
	heard    time.Time       // of the DataNodes, or when they began to owe something
	timer    *time.Timer
	ended    bool // Close
}

var (
	_ data.Pipeline = (*pipeline)(nil)
	_ data.Lender   = (*pipeline)(nil)
	_ native.User   = (*pipeline)(nil)
)

// over is a context that has ended, for what must not wait.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Lend implements [data.Lender].
func (l *pipeline) Lend(size int) data.Memory {
	b, err := l.conn.Endpoint().Buffer(over, size)
	if err != nil {
		return nil
	}
	return b
}

// Packet implements [data.Lender].
func (l *pipeline) Packet() int {
	return cmp.Or(l.conn.Endpoint().Tuning().Packet, defaultPacket)
}

// defaultPacket is for transports that the tuning table says nothing of.
const defaultPacket = 256 << 10

// Send implements [data.Pipeline]. A packet in a buffer of the runtime goes from where it
// lies, with its header in front. One that is sent again leaves the header there alone,
// which another DataNode may still be reading.
func (l *pipeline) Send(k *data.Packet) error {
	if k.Seqno == transfer.HeartbeatSeqno {
		return nil // the endpoint tells when a DataNode is gone
	}
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return l.err
	}
	if l.sent.Len() == 0 {
		l.heard = time.Now()
	}
	l.sent.Push(k.Seqno)
	l.mu.Unlock()
	b, lent := k.Memory().(*verbena.Buffer)
	var err error
	switch ep := l.conn.Endpoint(); {
	case lent && k.Sent:
		native.PutPacketHeader(l.header[:], &k.PacketHeader, len(k.Sums()))
		from, to := k.Place(0)
		b.Retain()
		if err = ep.SendRange(l.ctx, l.id, l.header[:], b, from, to); err != nil {
			b.Release()
		}
	case lent:
		from, to := k.Place(native.PacketHeaderLen)
		native.PutPacketHeader(k.Bytes()[from:], &k.PacketHeader, len(k.Sums()))
		k.Sent = true
		b.Retain()
		if err = ep.SendRange(l.ctx, l.id, nil, b, from, to); err != nil {
			b.Release()
		}
	default:
		from, to := k.Place(native.PacketHeaderLen)
		native.PutPacketHeader(k.Bytes()[from:], &k.PacketHeader, len(k.Sums()))
		err = ep.Send(l.ctx, l.id, k.Bytes()[from:to])
	}
	return err
}

// Ack implements [data.Pipeline]: one packet at a time of those that an acknowledgement
// names together.
func (l *pipeline) Ack(a *transfer.Ack) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.sent.Len() > 0 && *l.sent.Front() <= l.acked:
			a.Seqno, a.Replies = l.sent.Pop(), a.Replies[:0]
			for range l.req.Nodes {
				a.Replies = append(a.Replies, hdfspb.Status_SUCCESS)
			}
			return nil
		case l.refused != nil:
			a.Seqno, a.Replies = 0, append(a.Replies[:0], l.refused...)
			return nil
		case l.err != nil:
			return l.err
		}
		l.changed.Wait()
	}
}

// accepted waits for the answer to the set-up.
func (l *pipeline) accepted() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.answered && l.err == nil {
		l.changed.Wait()
	}
	return l.err
}

// Take implements [native.User].
func (l *pipeline) Take(m *verbena.Message) {
	defer m.Release()
	switch native.KindOf(m.Bytes()) {
	case native.Ack:
		if err := native.ParseAck(m.Bytes(), &l.reply); err != nil {
			l.fail(err)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.heard = time.Now()
		if l.reply.OK() && len(l.reply.Replies) == len(l.req.Nodes) {
			l.acked = max(l.acked, l.reply.Seqno)
		} else if l.refused == nil {
			l.refused = append([]hdfspb.Status{}, l.reply.Replies...)
		}
		l.changed.Broadcast()
	case native.Answer:
		v, resp, err := native.ParseAnswer(m.Bytes())
		if err != nil {
			l.fail(err)
			return
		}
		if v != native.Accepted {
			l.fail(l.refusal(v, resp))
			return
		}
		l.mu.Lock()
		l.answered, l.heard = true, time.Now()
		l.changed.Broadcast()
		l.mu.Unlock()
	default:
		l.fail(fmt.Errorf("%w: kind %d", native.ErrMalformed, native.KindOf(m.Bytes())))
	}
}

// refusal is the answer no.
func (l *pipeline) refusal(v native.Verdict, resp *hdfspb.BlockOpResponseProto) error {
	status := resp.GetStatus()
	if status == hdfspb.Status_SUCCESS {
		status = hdfspb.Status_ERROR
	}
	err := fmt.Errorf("DataNode %s: %w", l.conn.Address(), &data.StatusError{Status: status, Message: resp.GetMessage()})
	if v == native.Busy && status == native.StatusNoRoom {
		err = fmt.Errorf("%w: %w", data.ErrNoRoom, err)
	}
	bad := l.req.Refused(resp, err)
	bad.SetUp, bad.Blameless = true, v == native.Busy || v == native.Unreachable
	if bad.Blameless {
		l.p.forget(l.req.Nodes)
	}
	if v == native.Unreachable {
		l.p.deny(resp.GetFirstBadLink(), errors.New(resp.GetMessage()))
	}
	return bad
}

// End implements [native.User].
func (l *pipeline) End(err error) { l.fail(err) }

// fail ends the pipeline.
func (l *pipeline) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	var broken *data.PipelineError
	if !errors.As(err, &broken) && l.stream.Err() == nil {
		// Without an answer no DataNode has acknowledged anything.
		err = &data.PipelineError{SetUp: !l.answered && l.acked < 0, Err: err}
	}
	l.err = err
	l.cancel(err)
	l.changed.Broadcast()
}

// failed is the pipeline's end, nil before it.
func (l *pipeline) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// silent looks whether DataNodes have owed something for too long. The connection may be
// what holds them up, or take nothing more: other pipelines get another one.
func (l *pipeline) silent() {
	l.mu.Lock()
	left := l.wait
	if !l.answered || l.sent.Len() > 0 {
		left -= time.Since(l.heard)
	}
	if l.err != nil || l.ended {
		l.mu.Unlock()
		return
	}
	if left > 0 {
		l.timer.Reset(left)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	l.fail(fmt.Errorf("DataNode %s has been silent for %v", l.conn.Address(), l.wait))
	l.p.cfg.Table.Retire(l.conn)
}

var errClosed = errors.New("the pipeline is closed")

// Close implements [data.Pipeline].
func (l *pipeline) Close() error {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return nil
	}
	l.ended = true
	l.timer.Stop()
	if l.err == nil {
		l.err = errClosed
	}
	l.cancel(l.err)
	l.changed.Broadcast()
	l.mu.Unlock()
	l.stop()
	l.conn.Leave(l.id)
	l.conn.Post(l.id, native.AppendAbort(nil)) // which means nothing to a block that is over
	return nil
}
