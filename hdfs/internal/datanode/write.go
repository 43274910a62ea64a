package datanode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

const (
	maxPipeline = 32 // DataNodes behind this one
	// maxBatch is how many packets are sent on, written and acknowledged together, if
	// they have come together.
	maxBatch = 8
	// pendingAcks bounds the packets on their way down the pipeline.
	pendingAcks = 256
	// perHop is added to a timeout for each DataNode that it waits for.
	perHop = 5 * time.Second
	// lingering is how long a writer may go on after it was sent an error.
	lingering = 3 * time.Second
)

// writeStage is what a stage of WRITE_BLOCK asks of the replica.
type writeStage struct {
	create   bool
	transfer bool // a copy from another DataNode: one answer at the end instead of acknowledgements
	noData   bool
	mode     store.Mode
}

var stages = map[hdfspb.OpWriteBlockProto_BlockConstructionStage]writeStage{
	hdfspb.OpWriteBlockProto_PIPELINE_SETUP_CREATE:             {create: true},
	hdfspb.OpWriteBlockProto_TRANSFER_RBW:                      {create: true, transfer: true},
	hdfspb.OpWriteBlockProto_TRANSFER_FINALIZED:                {create: true, transfer: true},
	hdfspb.OpWriteBlockProto_PIPELINE_SETUP_APPEND:             {mode: store.Append},
	hdfspb.OpWriteBlockProto_PIPELINE_SETUP_APPEND_RECOVERY:    {mode: store.RecoverAppend},
	hdfspb.OpWriteBlockProto_PIPELINE_SETUP_STREAMING_RECOVERY: {mode: store.RecoverWriting},
	hdfspb.OpWriteBlockProto_PIPELINE_CLOSE_RECOVERY:           {mode: store.RecoverClose, noData: true},
}

func (dn *DataNode) writeBlock(p *peer, op *hdfspb.OpWriteBlockProto) error {
	none := ""
	bw, link, err := dn.admitWrite(op)
	if err != nil {
		return dn.answered(p, link, err)
	}
	rc := &receiver{blockWriter: bw, p: p}
	stage := bw.stage
	if stage.create {
		// The DataNodes behind make their files while this one does. If it
		// fails here, the NameNode has theirs deleted when it drops the block.
		if err := rc.requestMirror(); err != nil {
			bad := rc.firstBadLink
			return dn.answered(p, &bad, err)
		}
	}
	if err := rc.openInTime(); err != nil {
		rc.closeMirror()
		if errors.Is(err, errAnswered) {
			return err
		}
		return dn.answered(p, &none, err)
	}
	setUp := false // all of the pipeline, and the NameNode is told
	defer func() {
		// From its set-up on a replica lives, empty or not, until a recovery or the
		// NameNode decides: as in HDFS the client's next pipeline goes on with it.
		rc.close(stage.create && !setUp)
	}()
	defer rc.closeMirror()
	if !stage.create {
		err = rc.requestMirror()
	}
	if err == nil {
		err = rc.mirrorAccepted()
	}
	if err != nil {
		bad := rc.firstBadLink
		return dn.answered(p, &bad, err)
	}
	if stage.noData {
		if err := rc.finish(false, rc.mirror == nil); err != nil {
			return dn.answered(p, &none, err)
		}
		return rc.accept()
	}
	setUp = true
	if !stage.transfer {
		dn.changed(clusterpb.ReplicaChange_RECEIVING, rc.w.Info(), false)
	}
	if err := rc.accept(); err != nil {
		return err
	}
	if stage.transfer {
		return rc.receiveCopy()
	}
	return rc.receive()
}

// A receiver is one WRITE_BLOCK: packets come from p and go to the replica and
// to the mirror, the next DataNode of the pipeline, if there is one.
type receiver struct {
	blockWriter
	p            *peer
	firstBadLink string

	mirrorAddr string
	mirror     *peer
	mirrorConn atomic.Pointer[peer] // mirror, for interrupt

	batch    [maxBatch]transfer.Packet
	taken    [maxBatch]pendingAck
	pieces   [maxBatch]store.Piece
	acks     chan pendingAck
	ackBuf   []byte     // acknowledgements that are still to be sent
	sending  sync.Mutex // held by whoever sends acknowledgements
	gathered int        // in ackBuf, at the end of a pipeline
	ack      transfer.Ack
	failed   atomic.Bool // the responder gave up, and told upstream
	failure  error       // why; read after the responder has ended
}

// A pendingAck is a packet that has been dealt with here.
type pendingAck struct {
	seqno  int64
	end    int64 // offset behind the packet's data, 0 if it brings none
	tail   uint32
	last   bool
	sync   bool
	status hdfspb.Status
	cause  error // of a status that is not SUCCESS
	mirror error // the packet could not be sent on
	at     time.Time
}

// endOfAcks in place of an offset says that no packet follows. The queue is not
// closed, because another block uses it again.
const endOfAcks = -1

// ackQueues keeps empty queues: making one costs more than everything else that
// a block of one packet needs.
var ackQueues = sync.Pool{New: func() any { return make(chan pendingAck, pendingAcks) }}

// interrupt ends the operation from outside: another writer takes over.
func (rc *receiver) interrupt() {
	rc.p.Close()
	if m := rc.mirrorConn.Load(); m != nil {
		m.Close()
	}
}

// openInTime opens the replica. A peer that would have to wait for a disk that hangs is told so: it goes on
// without this DataNode.
func (rc *receiver) openInTime() error {
	none := ""
	var answered error
	wasLate := rc.dn.whenLate(func(err error) {
		answered = rc.dn.answered(rc.p, &none, err)
		if m := rc.mirrorConn.Load(); m != nil {
			m.Close()
		}
	})
	err := rc.open(rc.interrupt)
	if !wasLate() {
		return err
	}
	if err == nil {
		rc.close(rc.stage.create)
	}
	return answered
}

func (rc *receiver) accept() error {
	none := ""
	return transfer.WriteMessage(rc.p, &hdfspb.BlockOpResponseProto{Status: hdfspb.Status_SUCCESS.Enum(), FirstBadLink: &none})
}

// requestMirror begins to set up the rest of the pipeline, if there is one. On
// failure firstBadLink is the address of the DataNode that could not be reached.
func (rc *receiver) requestMirror() error {
	targets := rc.op.GetTargets()
	if len(targets) == 0 {
		return nil
	}
	id := targets[0].GetId()
	rc.mirrorAddr = address(id.GetIpAddr(), id.GetXferPort())
	rc.firstBadLink = rc.mirrorAddr
	m, err := rc.dn.requestWrite(rc.dn.ctx, rc.mirrorAddr, nextOp(rc.op))
	if err != nil {
		return fmt.Errorf("pipeline: %w", err)
	}
	rc.mirror = m
	rc.mirrorConn.Store(m)
	return nil
}

// mirrorAccepted waits until the rest of the pipeline is set up; see
// requestMirror.
func (rc *receiver) mirrorAccepted() error {
	if rc.mirror == nil {
		return nil
	}
	resp, err := rc.mirror.accepted()
	if err != nil {
		if resp.GetFirstBadLink() != "" {
			rc.firstBadLink = resp.GetFirstBadLink()
		}
		return fmt.Errorf("pipeline: write block %d to DataNode %s: %w", rc.op.GetHeader().GetBaseHeader().GetBlock().GetBlockId(), rc.mirrorAddr, err)
	}
	return nil
}

func (rc *receiver) closeMirror() {
	if rc.mirror != nil {
		rc.mirror.r.Release()
		rc.dn.untrack(rc.mirror.Conn)
		rc.mirror = nil
	}
}

// requestWrite asks another DataNode for a WRITE_BLOCK. The caller untracks the
// connection.
func (dn *DataNode) requestWrite(ctx context.Context, addr string, op *hdfspb.OpWriteBlockProto) (*peer, error) {
	dialCtx, cancel := context.WithTimeout(ctx, dn.cfg.DialTimeout)
	nc, err := dn.cfg.Dial(dialCtx, addr)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("connect to DataNode %s: %w", addr, err)
	}
	if !dn.track(nc) {
		return nil, ErrClosed
	}
	m := dn.newPeer(nc, dn.cfg.ReadTimeout+perHop*time.Duration(1+len(op.GetTargets())))
	if err := transfer.WriteRequest(m, transfer.OpWriteBlock, op); err != nil {
		m.r.Release()
		dn.untrack(nc)
		return nil, fmt.Errorf("write block %d to DataNode %s: %w", op.GetHeader().GetBaseHeader().GetBlock().GetBlockId(), addr, err)
	}
	return m, nil
}

// accepted waits for the answer to a WRITE_BLOCK, which is returned if there was
// one, also with an error.
func (p *peer) accepted() (*hdfspb.BlockOpResponseProto, error) {
	resp := &hdfspb.BlockOpResponseProto{}
	err := p.r.ReadMessage(resp)
	switch {
	case err != nil || resp.GetStatus() == hdfspb.Status_SUCCESS:
	case resp.GetStatus() == hdfspb.Status_ERROR_EXISTS: // who asked for a copy is to know
		err = fmt.Errorf("%w: %s", store.ErrExists, resp.GetMessage())
	default:
		err = fmt.Errorf("%v: %s", resp.GetStatus(), resp.GetMessage())
	}
	return resp, err
}

// openWrite begins a WRITE_BLOCK at another DataNode. The caller untracks the
// connection.
func (dn *DataNode) openWrite(ctx context.Context, addr string, op *hdfspb.OpWriteBlockProto) (*peer, error) {
	m, err := dn.requestWrite(ctx, addr, op)
	if err != nil {
		return nil, err
	}
	if _, err := m.accepted(); err != nil {
		m.r.Release()
		dn.untrack(m.Conn)
		return nil, fmt.Errorf("write block %d to DataNode %s: %w", op.GetHeader().GetBaseHeader().GetBlock().GetBlockId(), addr, err)
	}
	return m, nil
}

// take reads packets, at least one, forwards and stores them. It returns what has
// become of them, as far as the first that was not stored.
func (rc *receiver) take() ([]pendingAck, error) {
	n, raw, err := rc.p.r.ReadPackets(rc.sum, rc.batch[:], !rc.stage.transfer)
	if err != nil {
		return nil, err
	}
	if rc.failed.Load() {
		return nil, errAnswered
	}
	var (
		mirror error
		at     time.Time
	)
	if rc.mirror != nil {
		if _, err := rc.mirror.Write(raw); err != nil {
			mirror = fmt.Errorf("send to DataNode %s: %w", rc.mirrorAddr, err)
		}
		at = time.Now()
	}
	packets, taken := rc.batch[:n], rc.taken[:n]
	for i := range packets {
		pkt := &packets[i]
		taken[i] = pendingAck{seqno: pkt.Seqno, last: pkt.Last, sync: pkt.Sync, mirror: mirror, at: at}
	}
	// The last DataNode verifies for all, as in HDFS, but each one what it copies.
	verify := rc.mirror == nil || rc.stage.transfer
	return taken[:rc.storePackets(packets, rc.pieces[:n], verify, taken)], nil
}

// receive takes packets from a client, or from the DataNode before in its
// pipeline, until the last one or a failure.
func (rc *receiver) receive() error {
	rc.ack.Replies = make([]hdfspb.Status, 0, 1+len(rc.op.GetTargets()))
	if !rc.dn.beginReceiving(rc) {
		rc.announceRestart()
	}
	defer rc.dn.endReceiving(rc)
	respond := rc.respondLast
	var responder chan struct{}
	if rc.mirror != nil {
		rc.acks = ackQueues.Get().(chan pendingAck)
		responder = make(chan struct{})
		go func() {
			defer close(responder)
			rc.respond()
		}()
		respond = func(pa pendingAck, _ bool) error {
			rc.acks <- pa
			return nil
		}
	}
	err := rc.packets(respond)
	if responder != nil {
		if err != nil && !errors.Is(err, errAnswered) {
			// The client is gone: nobody waits for the mirror's acknowledgements.
			rc.mirror.Close()
		}
		rc.acks <- pendingAck{end: endOfAcks}
		<-responder
		ackQueues.Put(rc.acks)
		if rc.failure != nil {
			return fmt.Errorf("%w: %w", errAnswered, rc.failure)
		}
	}
	return err
}

func (rc *receiver) packets(respond func(pa pendingAck, more bool) error) error {
	for {
		taken, err := rc.take()
		if err != nil {
			return fmt.Errorf("block %d: take a packet: %w", rc.w.Info().ID, err)
		}
		for i, pa := range taken {
			// A packet that has come in part will come in whole: senders wait between
			// packets alone.
			more := i < len(taken)-1 || rc.p.r.Buffered() > 0
			if err := respond(pa, more); err != nil {
				return err
			}
			if pa.status != hdfspb.Status_SUCCESS {
				return fmt.Errorf("%w: %w", errAnswered, pa.cause)
			}
			if pa.last {
				return nil
			}
		}
	}
}

// complete makes an acknowledged packet visible, or the block final.
func (rc *receiver) complete(pa *pendingAck) {
	if pa.seqno == transfer.HeartbeatSeqno {
		return
	}
	if !pa.last {
		rc.w.Acked(pa.end, pa.tail)
		return
	}
	if err := rc.finish(pa.sync, rc.mirror == nil); err != nil {
		pa.status, pa.cause = hdfspb.Status_ERROR, err
		return
	}
	rc.written(byLegacy)
}

// respondLast acknowledges at the end of a pipeline. Acknowledgements are gathered, as
// many as maxBatch, as long as more packets are sure to follow: each message of them
// wakes every process of the pipeline.
func (rc *receiver) respondLast(pa pendingAck, more bool) error {
	if pa.status == hdfspb.Status_SUCCESS {
		rc.complete(&pa)
	}
	rc.ack.Seqno = pa.seqno
	rc.ack.Replies = append(rc.ack.Replies[:0], pa.status)
	rc.ackBuf = transfer.AppendAck(rc.ackBuf, &rc.ack)
	if rc.gathered++; pa.status == hdfspb.Status_SUCCESS && more && !pa.last && rc.gathered < maxBatch {
		return nil
	}
	rc.gathered = 0
	err := rc.acknowledge()
	if err == nil && pa.status != hdfspb.Status_SUCCESS {
		return fmt.Errorf("%w: %w", errAnswered, pa.cause)
	}
	return err
}

// acknowledge sends the acknowledgements that have been gathered.
func (rc *receiver) acknowledge() error {
	rc.sending.Lock()
	_, err := rc.p.Write(rc.ackBuf)
	rc.sending.Unlock()
	rc.ackBuf = rc.ackBuf[:0]
	if err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}

// respond is the responder of a DataNode with others behind it.
func (rc *receiver) respond() {
	var down transfer.Ack
	for {
		pa := <-rc.acks
		if pa.end == endOfAcks {
			if rc.failure == nil && len(rc.ackBuf) > 0 {
				rc.failure = rc.acknowledge()
			}
			return
		}
		if rc.failure != nil {
			continue // the receiver must not wait for us
		}
		if err := rc.respondOne(&pa, &down); err != nil {
			rc.failure = err
			// The client will leave when it has read the error; the receiver
			// sees that, or the deadline.
			rc.failed.Store(true)
			_ = rc.p.SetReadDeadline(time.Now().Add(lingering))
		}
	}
}

func (rc *receiver) respondOne(pa *pendingAck, down *transfer.Ack) error {
	failure := rc.readDown(pa, down)
	if errors.Is(failure, errRestarts) {
		rc.ack.Seqno, rc.ack.DownstreamNanos = transfer.UnknownSeqno, 0
		rc.ack.Replies = append(append(rc.ack.Replies[:0], hdfspb.Status_SUCCESS), down.Replies...)
		rc.ackBuf = transfer.AppendAck(rc.ackBuf, &rc.ack)
		return errors.Join(failure, rc.acknowledge())
	}
	if failure != nil && rc.dn.ctx.Err() != nil {
		// This DataNode closes, and so do its connections: the next one is not to blame.
		rc.p.Close()
		return failure
	}
	rc.ack.Seqno, rc.ack.DownstreamNanos = pa.seqno, uint64(max(0, time.Since(pa.at)))
	rc.ack.Replies = append(rc.ack.Replies[:0], hdfspb.Status_SUCCESS)
	if failure != nil {
		rc.ack.Replies = append(rc.ack.Replies, hdfspb.Status_ERROR)
	} else {
		rc.ack.Replies = append(rc.ack.Replies, down.Replies...)
		if !down.OK() {
			failure = fmt.Errorf("DataNode %s or one behind it: %v", rc.mirrorAddr, down.Replies)
		}
	}
	if failure == nil && pa.status == hdfspb.Status_SUCCESS {
		rc.complete(pa)
	}
	if pa.status != hdfspb.Status_SUCCESS {
		failure = pa.cause
	}
	rc.ack.Replies[0] = pa.status
	rc.ackBuf = transfer.AppendAck(rc.ackBuf, &rc.ack)
	if failure == nil && !pa.last && len(rc.acks) > 0 && rc.mirror.r.MessageBuffered() {
		return nil // the next goes with it
	}
	if err := rc.acknowledge(); failure == nil {
		failure = err
	}
	return failure
}

// readDown reads the acknowledgement of a packet by the DataNodes behind. One that could not
// be sent may not be acknowledged, but the DataNode may have said before that it restarts.
func (rc *receiver) readDown(pa *pendingAck, down *transfer.Ack) error {
	// It may have been a while since the last packet.
	if pa.mirror != nil {
		rc.mirror.wait(restartGrace)
	} else if rc.mirror.r.Buffered() == 0 {
		rc.mirror.wait(rc.mirror.readTimeout)
	}
	if err := rc.mirror.r.ReadAck(down); err != nil {
		return fmt.Errorf("acknowledgement from DataNode %s: %w", rc.mirrorAddr, errors.Join(pa.mirror, err))
	}
	if down.Seqno == transfer.UnknownSeqno && slices.Contains(down.Replies, hdfspb.Status_OOB_RESTART) {
		return fmt.Errorf("DataNode %s or one behind it: %w", rc.mirrorAddr, errRestarts)
	}
	if pa.mirror != nil {
		return pa.mirror
	}
	if down.Seqno != pa.seqno {
		return fmt.Errorf("%w: DataNode %s acknowledges packet %d, due is %d", transfer.ErrMalformed, rc.mirrorAddr, down.Seqno, pa.seqno)
	}
	return allReply(down, rc.op)
}

// allReply returns an error if a yes of the DataNodes behind is not of each of them: nobody has said
// that the others have the packet. A no need not be of all.
func allReply(down *transfer.Ack, op *hdfspb.OpWriteBlockProto) error {
	if n, nodes := len(down.Replies), len(op.GetTargets()); down.OK() && n != nodes {
		return fmt.Errorf("%w: acknowledgement of %d DataNodes, there are %d", transfer.ErrMalformed, n, nodes)
	}
	return nil
}

// receiveCopy takes a replica from another DataNode: no packet is
// acknowledged, but all of them are answered together at the end.
func (rc *receiver) receiveCopy() error {
	for last := false; !last; {
		taken, err := rc.take()
		if err != nil {
			return fmt.Errorf("copy of block %d: read a packet: %w", rc.w.Info().ID, err)
		}
		pa := taken[len(taken)-1]
		if pa.cause != nil || pa.mirror != nil {
			return rc.dn.answered(rc.p, &rc.firstBadLink, errors.Join(pa.cause, pa.mirror))
		}
		last = pa.last
	}
	if err := rc.announced(); err != nil {
		return rc.dn.answered(rc.p, &rc.firstBadLink, err)
	}
	if rc.mirror != nil {
		if err := readFinalResponse(rc.mirror); err != nil {
			return rc.dn.answered(rc.p, &rc.firstBadLink, fmt.Errorf("DataNode %s: %w", rc.mirrorAddr, err))
		}
	}
	if err := rc.finishCopy(rc.mirror == nil); err != nil {
		return rc.dn.answered(rc.p, nil, err)
	}
	return rc.accept()
}

func readFinalResponse(m *peer) error {
	m.wait(m.readTimeout)
	resp := &hdfspb.BlockOpResponseProto{}
	if err := m.r.ReadMessage(resp); err != nil {
		return fmt.Errorf("answer to a copy: %w", err)
	}
	if resp.GetStatus() != hdfspb.Status_SUCCESS {
		return fmt.Errorf("copy refused: %v: %s", resp.GetStatus(), resp.GetMessage())
	}
	return nil
}
