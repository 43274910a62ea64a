package datanode

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/fifo"
)

// A nativeBlock is a block that is written over a link. Its packets are dealt with by one
// goroutine at a time: the one that receives from the link, or one that has been started
// for what takes long. Acknowledgements of the DataNode behind come by the goroutine that
// receives from there.
type nativeBlock struct {
	blockWriter
	link   *nativeLink
	tag    uint32
	window int64

	// writing is held by whoever uses the replica's writer.
	writing  turn
	shut     bool
	admitted bool       // stage and sum are those of the request
	dir      int        // of the replica, when it is opened
	info     store.Info // the replica's, then

	// Of the goroutine that deals with packets.
	batch packetBatch
	seqno int64 // of the last one, -1 before the first
	last  bool  // it was the block's last

	// Of the goroutine that receives from the link: it is the one that deals with packets,
	// and keeps them in batch while more messages are there.
	here bool

	// Of the goroutine that receives from the mirror.
	reply transfer.Ack

	mu       sync.Mutex
	queue    fifo.Queue[*verbena.Message]
	running  bool  // a goroutine deals with packets, and takes what is in queue
	held     int64 // bytes of packets that are not acknowledged
	packets  int64 // and how many they are
	pending  fifo.Queue[nativeAck]
	mirror   *native.Conn // nil at the end of a pipeline
	id       uint32       // of the block there
	opened   bool         // the replica is
	behind   bool         // all DataNodes behind have accepted
	settled  bool         // both, and the answer is being made
	answered bool         // the set-up is
	accepted bool         // by a yes
	no       []byte       // the other answer, for when nothing is left of the block
	acked    int64        // the last packet that all behind have acknowledged, -1 before the first
	over     bool
	done     bool // it is complete
	// A goroutine advances, and is to look again.
	advancing, more bool
	timer           *time.Timer // of the mirror's silence
	heard           time.Time
	out             []byte
	owed            int64 // the packet to acknowledge
	unsaid          int64 // bytes of the packets that owed stands for
}

// A turn is a lock that is held while disks and the NameNode are waited for. It is no
// sync.Mutex because in a bubble of testing/synctest no time passes for who waits for one.
type turn chan struct{}

func (t turn) take() { t <- struct{}{} }
func (t turn) give() { <-t }

// A nativeAck is a packet that has been dealt with here.
type nativeAck struct {
	pendingAck
	size int64
}

// batchBytes is how much of a block is gathered at most to be written together. More gains
// nothing, and leaves the processor's cache before it is written.
const batchBytes = 512 << 10

// A packetBatch has packets that were sent on and wait to be written.
type packetBatch struct {
	messages []*verbena.Message // with a reference of each
	packets  []transfer.Packet
	pieces   []store.Piece
	acks     []pendingAck
	bytes    int64
}

func (p *packetBatch) add(m *verbena.Message, pkt transfer.Packet, at time.Time) {
	p.messages, p.packets, p.pieces = append(p.messages, m), append(p.packets, pkt), append(p.pieces, store.Piece{})
	p.acks = append(p.acks, pendingAck{seqno: pkt.Seqno, last: pkt.Last, sync: pkt.Sync, at: at})
	p.bytes += int64(len(m.Bytes()))
}

func (p *packetBatch) release() {
	for _, m := range p.messages {
		m.Release()
	}
	clear(p.messages)
	clear(p.packets)
	clear(p.pieces)
	clear(p.acks)
	p.messages, p.packets, p.pieces, p.acks, p.bytes = p.messages[:0], p.packets[:0], p.pieces[:0], p.acks[:0], 0
}

// setUp does what a set-up asks for, and then deals with the packets that have come
// meanwhile.
func (b *nativeBlock) setUp() {
	if v, resp := b.begin(); v != native.Accepted {
		b.refused(v, resp)
		return
	}
	b.mu.Lock()
	b.opened = true
	b.mu.Unlock()
	b.settle()
	b.run()
}

// admit checks the request and its token, and returns the refusal if they are no good.
func (b *nativeBlock) admit() *hdfspb.BlockOpResponseProto {
	bw, link, err := b.dn.admitWrite(b.op)
	if err != nil {
		return refusedBy(statusOf(err), *link, err)
	}
	b.writing.take()
	b.stage, b.sum, b.admitted = bw.stage, bw.sum, true
	b.writing.give()
	return nil
}

// begin admits a block, if that has not been done, has the next DataNode begin, and opens the
// replica.
func (b *nativeBlock) begin() (native.Verdict, *hdfspb.BlockOpResponseProto) {
	if !b.admitted {
		if no := b.admit(); no != nil {
			return native.Refused, no
		}
	}
	if b.stage.create {
		// The DataNodes behind make their files while this one does.
		if v, resp := b.requestMirror(); v != native.Accepted {
			return v, resp
		}
	}
	wasLate := b.dn.whenLate(b.late)
	b.writing.take()
	err := errEnded
	if !b.shut {
		err = b.open(b.interrupted)
	}
	if err == nil {
		b.info = b.w.Info()
		b.dir = b.info.Storage
	}
	b.writing.give()
	wasLate() // the block has ended then, if it was
	if err != nil {
		return native.Refused, refusedBy(statusOf(err), "", err)
	}
	if !b.stage.create {
		return b.requestMirror()
	}
	return native.Accepted, nil
}

// interrupted ends the block, and tells its writer, because somebody else has it from now on, or
// nobody.
func (b *nativeBlock) interrupted() {
	b.dn.spawn(func() {
		b.fail(hdfspb.Status_ERROR, errors.New("another writer or a recovery takes the block over, or its directory is out of service"))
	})
}

func refusedBy(status hdfspb.Status, link string, err error) *hdfspb.BlockOpResponseProto {
	return transfer.ErrorResponse(status, &link, err.Error())
}

// requestMirror begins to set up the rest of the pipeline, if there is one.
func (b *nativeBlock) requestMirror() (native.Verdict, *hdfspb.BlockOpResponseProto) {
	targets := b.op.GetTargets()
	if len(targets) == 0 {
		b.mu.Lock()
		b.behind = true
		b.mu.Unlock()
		return native.Accepted, nil
	}
	id := targets[0].GetId()
	to := address(id.GetIpAddr(), id.GetXferPort())
	message, err := native.AppendSetUp(nil, int(b.window), nextOp(b.op))
	if err == nil {
		err = b.dn.native.mirrors.Join(b.dn.ctx, to, b, b.joined)
	}
	if err != nil {
		var not *native.NotNativeError
		if errors.As(err, &not) {
			return native.Unreachable, refusedBy(hdfspb.Status_ERROR_UNSUPPORTED, to, err)
		}
		var none *verbena.SelectionError
		if errors.As(err, &none) && none.Temporary() {
			return native.Busy, refusedBy(native.StatusNoRoom, to, fmt.Errorf("pipeline: %w", err))
		}
		return native.Refused, refusedBy(hdfspb.Status_ERROR, to, fmt.Errorf("pipeline: %w", err))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over { // the end has left the mirror
		return native.Refused, refusedBy(hdfspb.Status_ERROR, to, errEnded)
	}
	if err := b.mirror.Takes(len(message)); err != nil {
		return native.Unreachable, refusedBy(hdfspb.Status_ERROR_UNSUPPORTED, to, err)
	}
	b.mirror.Post(b.id, message)
	return native.Accepted, nil
}

// joined has the block have a mirror, before that can say anything to it.
func (b *nativeBlock) joined(mirror *native.Conn, id uint32) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return errEnded
	}
	b.mirror, b.id, b.heard = mirror, id, time.Now()
	b.timer = time.AfterFunc(b.patience(), b.silent)
	return nil
}

// patience is for how long the DataNodes behind may owe something.
func (b *nativeBlock) patience() time.Duration {
	return b.dn.cfg.ReadTimeout + perHop*time.Duration(len(b.op.GetTargets()))
}

// silent looks whether the mirror has owed something for too long.
func (b *nativeBlock) silent() {
	b.mu.Lock()
	left := b.patience()
	if since, owes := b.owes(); owes {
		left -= time.Since(since)
	}
	if b.over {
		b.mu.Unlock()
		return
	}
	if left > 0 {
		b.timer.Reset(left)
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	b.mirrorFailed(fmt.Errorf("it has been silent for %v", b.patience()))
}

// owes tells whether the mirror owes an answer or an acknowledgement, and since when: nothing has
// been heard of it since, either. What it has acknowledged waits for this DataNode alone. mu is held.
func (b *nativeBlock) owes() (since time.Time, owes bool) {
	since, owes = b.heard, !b.behind
	for i := range b.pending.Values() {
		ack := &b.pending.Values()[i]
		if ack.seqno <= b.acked {
			continue
		}
		if owes = true; ack.at.After(since) {
			since = ack.at
		}
		break
	}
	return since, owes
}

// settle answers the set-up when this DataNode and all behind it have what they need.
func (b *nativeBlock) settle() {
	b.mu.Lock()
	ready := b.opened && b.behind && !b.settled && !b.over
	b.settled = b.settled || ready
	b.mu.Unlock()
	switch {
	case !ready:
	case b.stage.noData:
		b.dn.spawn(func() {
			b.writing.take()
			err := errEnded
			if !b.shut {
				err = b.blockWriter.finish(false, b.mirror == nil)
			}
			b.writing.give()
			if err != nil {
				b.refused(native.Refused, refusedBy(statusOf(err), "", err))
				return
			}
			b.accept()
			b.end()
		})
	default:
		if !b.stage.transfer {
			b.dn.changed(clusterpb.ReplicaChange_RECEIVING, b.info, false)
		}
		b.accept()
		b.advance(false)
	}
}

// accept answers the set-up with a yes.
func (b *nativeBlock) accept() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer(native.Accepted, nil)
}

// answer answers the set-up, once, and tells whether it has done so now. A no goes when the
// block has ended: who asks again at once is to find nothing of it. mu is held, so that no
// acknowledgement goes before the answer.
func (b *nativeBlock) answer(v native.Verdict, resp *hdfspb.BlockOpResponseProto) bool {
	if b.answered || b.over {
		return false
	}
	message := answerTo(v, resp)
	b.answered, b.accepted = true, v == native.Accepted
	if b.accepted {
		b.link.Post(b.tag, message)
	} else {
		b.no = message
	}
	return true
}

// answerTo is the answer to a set-up.
func answerTo(v native.Verdict, resp *hdfspb.BlockOpResponseProto) []byte {
	message, err := native.AppendAnswer(nil, v, resp)
	if err != nil || len(message) > native.MaxRequest {
		message, _ = native.AppendAnswer(nil, v, nil)
	}
	return message
}

// take takes a packet that has come. The error is a breach.
func (b *nativeBlock) take(m *verbena.Message) error {
	size := int64(len(m.Bytes()))
	long := m.Bytes()[1] != 0 // the last one, or one that is to be synced
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		m.Release()
		return nil
	}
	if b.held += size; b.held > b.window {
		b.mu.Unlock()
		m.Release()
		return fmt.Errorf("%w: %d bytes without an acknowledgement in a window of %d", native.ErrMalformed, b.held, b.window)
	}
	if b.packets++; b.packets > native.WindowPackets(b.window) {
		b.mu.Unlock()
		m.Release()
		return fmt.Errorf("%w: %d packets without an acknowledgement in a window of %d bytes", native.ErrMalformed, b.packets, b.window)
	}
	if long || b.running && !b.here || b.apart() {
		b.queue.Push(m)
		begin := !b.running || b.here
		b.running = true
		b.mu.Unlock()
		if begin {
			if !b.dn.goBackground(b.run) {
				return ErrClosed
			}
			b.here = false // the new goroutine has the batch, too
		}
		return nil
	}
	b.running = true
	b.mu.Unlock()
	if !b.here {
		b.here = true
		b.link.owing = append(b.link.owing, b)
	}
	if b.gather(m) {
		return b.link.write(b)
	}
	return nil
}

// apart tells whether the block's disk may hang, so that its packets are dealt with in a
// goroutine for that.
func (b *nativeBlock) apart() bool {
	return b.dn.native.stuck[b.dir].Load() > 0 || b.dn.store.Hangs(b.dir)
}

// pause writes and acknowledges what the goroutine that receives has gathered: no more
// messages are there.
func (b *nativeBlock) pause() error {
	if !b.here {
		return nil
	}
	b.here = false
	if b.apart() && b.dn.goBackground(b.run) {
		return nil
	}
	if err := b.link.write(b); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = false
	b.acknowledgeNow()
	return nil
}

// run deals with packets until none is left, in a goroutine for that.
func (b *nativeBlock) run() {
	for {
		b.mu.Lock()
		if b.queue.Len() > 0 {
			m := b.queue.Pop()
			b.mu.Unlock()
			if b.gather(m) {
				b.write()
			}
			continue
		}
		if len(b.batch.messages) == 0 {
			b.running = false
			b.acknowledgeNow()
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		b.write()
	}
}

// gather sends a packet on and keeps it to be written together with those that follow. It tells
// whether none should be waited for. It takes the reference.
func (b *nativeBlock) gather(m *verbena.Message) (write bool) {
	var pkt transfer.Packet
	err := native.ParsePacket(m.Bytes(), b.sum, &pkt)
	if err == nil && (b.last || pkt.Seqno <= b.seqno) {
		err = fmt.Errorf("%w: packet %d behind packet %d, which was the last: %v", native.ErrMalformed, pkt.Seqno, b.seqno, b.last)
	}
	if err != nil {
		m.Release()
		b.link.broken(err)
		b.end() // more of its packets may be there
		return false
	}
	b.seqno, b.last = pkt.Seqno, pkt.Last
	b.mu.Lock()
	mirror, over := b.mirror, b.over
	b.mu.Unlock()
	if over {
		m.Release()
		return false
	}
	var at time.Time
	if mirror != nil {
		if err := mirror.Takes(len(m.Bytes())); err != nil {
			m.Release()
			b.mirrorFailed(err)
			return false
		}
		m.Retain()
		mirror.Forward(b.id, &m.Buffer)
		at = time.Now()
	}
	b.batch.add(m, pkt, at)
	another := int64(len(m.Bytes())) // of the same size
	return pkt.Last || pkt.Sync || b.batch.bytes+another > min(batchBytes, b.window/4)
}

// write writes what has been gathered.
func (b *nativeBlock) write() {
	p := &b.batch
	if len(p.messages) == 0 {
		return
	}
	defer p.release()
	b.writing.take()
	if b.shut {
		b.writing.give()
		return
	}
	// The last DataNode verifies for all, as in HDFS, but each one what it copies.
	verify := b.mirror == nil || b.stage.transfer
	acks := p.acks[:b.storePackets(p.packets, p.pieces, verify, p.acks)]
	b.writing.give()
	failed := acks[len(acks)-1]
	b.mu.Lock()
	for i := range acks {
		if acks[i].status == hdfspb.Status_SUCCESS {
			b.pending.Push(nativeAck{acks[i], int64(len(p.messages[i].Bytes()))})
		}
	}
	b.mu.Unlock()
	b.advance(true)
	if failed.status != hdfspb.Status_SUCCESS {
		b.acknowledgeOwed()
		b.fail(failed.status, failed.cause)
	}
}

// advance acknowledges what is written here and acknowledged behind. Without wait it leaves to
// another goroutine what would wait: somebody who opens the replica has it locked while his disk
// hangs. Nobody waits for mu meanwhile.
func (b *nativeBlock) advance(wait bool) {
	b.mu.Lock()
	if b.more = true; b.advancing {
		b.mu.Unlock()
		return
	}
	b.advancing = true
	var last nativeAck
	for b.more && !last.last && b.accepted && !b.over {
		b.more = false
		ready, shown := b.ready()
		// Nobody sees a copy before its end.
		if shown != nil && !b.stage.transfer && !b.w.TryAcked(shown.end, shown.tail) {
			b.more = true
			if !wait {
				b.dn.goBackground(func() { b.advance(true) })
				break
			}
			w, end, tail := b.w, shown.end, shown.tail
			b.mu.Unlock()
			w.Acked(end, tail)
			b.mu.Lock()
			continue
		}
		for range ready {
			ack := b.pending.Pop()
			b.packets--
			if b.held -= ack.size; ack.last {
				last = ack
				break
			}
			b.owed, b.unsaid = ack.seqno, b.unsaid+ack.size
		}
		// Those of the DataNodes behind have been gathered there.
		if b.mirror != nil || b.unsaid > b.window/4 {
			b.acknowledgeNow()
		}
	}
	b.advancing = false
	b.mu.Unlock()
	if last.last {
		b.dn.spawn(func() { b.finish(last) })
	}
}

// ready counts the packets that may be acknowledged, and returns the one of them whose data ends
// last, if there is one with data. That need not be the last one: a client may send bytes again.
// mu is held.
func (b *nativeBlock) ready() (n int, shown *nativeAck) {
	values := b.pending.Values()
	for n < len(values) && (b.mirror == nil || values[n].seqno <= b.acked) {
		if n++; values[n-1].last {
			break
		}
		if end := values[n-1].end; end > 0 && (shown == nil || end > shown.end) {
			shown = &values[n-1]
		}
	}
	return n, shown
}

// acknowledgeOwed sends the acknowledgement that waits, if one does.
func (b *nativeBlock) acknowledgeOwed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.acknowledgeNow()
}

// acknowledgeNow is acknowledgeOwed. mu is held.
func (b *nativeBlock) acknowledgeNow() {
	if b.unsaid > 0 && !b.over {
		b.acknowledge(b.owed)
	}
	b.unsaid = 0
}

// acknowledge tells the end before this one that all have the packets up to seqno. mu is
// held, so that acknowledgements go in order.
func (b *nativeBlock) acknowledge(seqno int64) {
	var replies [1 + maxPipeline]hdfspb.Status // all SUCCESS
	b.out = native.AppendAck(b.out[:0], &transfer.Ack{Seqno: seqno, Replies: replies[:1+len(b.op.GetTargets())]})
	b.dn.native.acks.Add(1)
	b.link.Post(b.tag, b.out)
}

// finish ends a block of which all have everything.
func (b *nativeBlock) finish(last nativeAck) {
	b.writing.take()
	err := errEnded
	switch {
	case b.shut:
	case b.stage.transfer:
		if err = b.announced(); err == nil {
			err = b.finishCopy(b.mirror == nil)
		}
	default:
		if err = b.blockWriter.finish(last.sync, b.mirror == nil); err == nil {
			b.written(byNative)
		}
	}
	b.writing.give()
	if err != nil {
		b.fail(hdfspb.Status_ERROR, err)
		return
	}
	b.mu.Lock()
	if b.done = true; !b.over {
		b.acknowledge(last.seqno)
	}
	b.mu.Unlock()
	b.end()
}

// fail tells the end before this one that the block goes no further here.
func (b *nativeBlock) fail(status hdfspb.Status, cause error) {
	b.failWith(cause, status)
}

// mirrorFailed tells the end before this one that the DataNode behind has failed.
func (b *nativeBlock) mirrorFailed(cause error) {
	if b.dn.ctx.Err() != nil {
		b.end() // this DataNode closes, and so do its connections: the next one is not to blame
		return
	}
	b.failWith(fmt.Errorf("DataNode %s: %w", b.mirror.Address(), cause), hdfspb.Status_SUCCESS, hdfspb.Status_ERROR)
}

// failWith is fail with what this DataNode and those behind it say: the last one that does not
// say SUCCESS is to blame, as in HDFS.
func (b *nativeBlock) failWith(cause error, replies ...hdfspb.Status) {
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return
	}
	if !b.accepted {
		bad := len(replies) - 1
		for bad > 0 && replies[bad] == hdfspb.Status_SUCCESS {
			bad--
		}
		link := ""
		if targets := b.op.GetTargets(); 0 < bad && bad <= len(targets) {
			id := targets[bad-1].GetId()
			link = address(id.GetIpAddr(), id.GetXferPort())
		}
		b.answer(native.Refused, refusedBy(replies[bad], link, cause))
		b.mu.Unlock()
		b.end()
		return
	}
	b.out = native.AppendAck(b.out[:0], &transfer.Ack{Seqno: max(0, b.acked), Replies: replies})
	b.link.Post(b.tag, b.out)
	b.mu.Unlock()
	b.dn.log.Info("a block is not written further", "block", b.op.GetHeader().GetBaseHeader().GetBlock().GetBlockId(), "err", cause)
	b.end()
}

// refused answers the set-up with a no, and ends the block, unless it has an answer.
func (b *nativeBlock) refused(v native.Verdict, resp *hdfspb.BlockOpResponseProto) {
	b.mu.Lock()
	refused := b.answer(v, resp)
	b.mu.Unlock()
	if refused {
		b.end()
	}
}

// late refuses a block that waits for a disk that hangs, and ends it. The answer does not wait until the replica
// is closed, as others do.
func (b *nativeBlock) late(err error) {
	b.mu.Lock()
	b.answer(native.Refused, refusedBy(statusOf(err), "", err))
	no := b.no
	b.no = nil
	b.mu.Unlock()
	if no != nil {
		b.link.Post(b.tag, no)
	}
	b.end()
}

// Take implements [native.User]: messages of the mirror.
func (b *nativeBlock) Take(m *verbena.Message) {
	defer m.Release()
	b.mu.Lock()
	b.heard = time.Now()
	behind := b.behind
	b.mu.Unlock()
	switch kind := native.KindOf(m.Bytes()); {
	case kind == native.Answer && !behind:
		v, resp, err := native.ParseAnswer(m.Bytes())
		if err != nil {
			b.mirrorFailed(err)
			return
		}
		if v != native.Accepted {
			link := resp.GetFirstBadLink()
			if link == "" {
				link = b.mirror.Address()
			}
			text := fmt.Errorf("pipeline: DataNode %s: %s", b.mirror.Address(), resp.GetMessage())
			b.refused(v, refusedBy(resp.GetStatus(), link, text))
			return
		}
		b.mu.Lock()
		b.behind = true
		b.mu.Unlock()
		b.settle()
	case kind == native.Ack && behind:
		err := native.ParseAck(m.Bytes(), &b.reply)
		if err == nil {
			err = allReply(&b.reply, b.op)
		}
		if err != nil {
			b.mirrorFailed(err)
			return
		}
		if !b.reply.OK() {
			replies := append([]hdfspb.Status{hdfspb.Status_SUCCESS}, b.reply.Replies...)
			b.failWith(fmt.Errorf("DataNode %s or one behind it: %v", b.mirror.Address(), b.reply.Replies), replies[:min(len(replies), native.MaxReplies)]...)
			return
		}
		b.mu.Lock()
		b.acked = max(b.acked, b.reply.Seqno)
		b.mu.Unlock()
		b.advance(false)
	default:
		b.mirrorFailed(fmt.Errorf("%w: kind %d", native.ErrMalformed, kind))
	}
}

// End implements [native.User].
func (b *nativeBlock) End(err error) { b.mirrorFailed(err) }

// end ends the writing, once: after the last packet, a failure, an abort, another writer
// or the end of the link. What is visible stays.
func (b *nativeBlock) end() {
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return
	}
	b.over = true
	for b.queue.Len() > 0 {
		b.queue.Pop().Release()
	}
	if b.timer != nil {
		b.timer.Stop()
	}
	mirror, done := b.mirror, b.done
	b.mu.Unlock()
	b.link.forget(b)
	release := func() { b.link.release(b.window) }
	if mirror == nil {
		release()
	} else {
		mirror.Leave(b.id)
		if mirror.Forget(b.id, release) && !done {
			mirror.Post(b.id, native.AppendAbort(nil))
		}
	}
	b.dn.transfers.Add(-1)
	b.dn.spawn(b.close)
}

// close lets the replica go. One whose pipeline was never set up is of no use.
func (b *nativeBlock) close() {
	b.writing.take()
	defer b.writing.give()
	b.mu.Lock()
	accepted, no := b.accepted, b.no
	b.mu.Unlock()
	if b.shut = true; b.w != nil {
		b.blockWriter.close(b.stage.create && !accepted)
		b.w = nil
	}
	if no != nil {
		b.link.Post(b.tag, no)
	}
}
