package datanode

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// A blockWriter is what a WRITE_BLOCK does with the replica, whatever carries the packets.
type blockWriter struct {
	dn    *DataNode
	op    *hdfspb.OpWriteBlockProto
	stage writeStage
	sum   transfer.Checksum
	w     *store.Writer
	spent writeTimes
}

// admitWrite checks a WRITE_BLOCK. With an error it returns what firstBadLink says.
func (dn *DataNode) admitWrite(op *hdfspb.OpWriteBlockProto) (b blockWriter, link *string, err error) {
	none := ""
	block := op.GetHeader().GetBaseHeader().GetBlock()
	s, ok := stages[op.GetStage()]
	if !ok {
		return b, &none, fmt.Errorf("%w: a connection can't begin with stage %v", transfer.ErrMalformed, op.GetStage())
	}
	if dn.refusesWriters() {
		return b, &none, fmt.Errorf("block %d is not begun: this DataNode is stopping: %w", block.GetBlockId(), errRestarts)
	}
	if err := dn.checkBlock(block); err != nil {
		return b, &none, err
	}
	if err := dn.allow(op.GetHeader().GetBaseHeader().GetToken(), blocktoken.Access{Block: block, Newest: op.GetLatestGenerationStamp(), Mode: blocktoken.Write}); err != nil {
		return b, dn.refusedWrite(err), err
	}
	if len(op.GetTargets()) > maxPipeline {
		return b, &none, fmt.Errorf("%w: a pipeline with %d more DataNodes, at most %d are allowed", transfer.ErrMalformed, len(op.GetTargets()), maxPipeline)
	}
	sum, err := transfer.NewChecksum(op.GetRequestedChecksum().GetType(), op.GetRequestedChecksum().GetBytesPerChecksum())
	if err != nil {
		return b, &none, err
	}
	return blockWriter{dn: dn, op: op, stage: s, sum: sum}, nil, nil
}

// open begins to write the replica. interrupt is called when another writer takes over.
func (b *blockWriter) open(interrupt func()) (err error) {
	block, s := b.op.GetHeader().GetBaseHeader().GetBlock(), b.dn.store
	defer b.spent.opened(time.Now())
	if b.stage.create {
		b.w, err = s.Create(block.GetBlockId(), block.GetGenerationStamp(), b.sum, b.stage.transfer, interrupt, store.Want{
			Size: int64(min(block.GetNumBytes(), store.MaxBlock)), Type: b.op.GetStorageType(),
		})
	} else {
		b.w, err = s.Reopen(block.GetBlockId(), store.ReopenOptions{
			Mode:       b.stage.mode,
			Generation: block.GetGenerationStamp(), NewGeneration: b.op.GetLatestGenerationStamp(),
			Min: int64(min(b.op.GetMinBytesRcvd(), 1<<63-1)), Max: int64(min(b.op.GetMaxBytesRcvd(), 1<<63-1)),
			Interrupt: interrupt,
		})
	}
	b.dn.noteDisk(err)
	return err
}

// nextOp is a WRITE_BLOCK as the next DataNode of the pipeline gets it.
func nextOp(op *hdfspb.OpWriteBlockProto) *hdfspb.OpWriteBlockProto {
	next := proto.CloneOf(op)
	next.Targets = next.Targets[1:]
	if n := len(next.TargetStorageTypes); n > 0 {
		next.StorageType, next.TargetStorageTypes = next.TargetStorageTypes[0].Enum(), next.TargetStorageTypes[1:]
	}
	if n := len(next.TargetStorageIds); n > 0 {
		next.StorageId, next.TargetStorageIds = &next.TargetStorageIds[0], next.TargetStorageIds[1:]
	}
	if n := len(next.TargetPinnings); n > 0 {
		next.Pinning, next.TargetPinnings = &next.TargetPinnings[0], next.TargetPinnings[1:]
	}
	return next
}

// store writes a packet, and tells pa what has become of it. Without verify its bytes are
// not compared with their checksums, which a DataNode behind this one does.
func (b *blockWriter) store(pkt *transfer.Packet, verify bool, pa *pendingAck) {
	if len(pkt.Data) > 0 { // without data it has no checksum that readers could get of its end
		pa.end = pkt.Offset + int64(len(pkt.Data))
	}
	defer b.spent.packet(b.w, time.Now(), b.w.IO())
	var err error
	switch {
	case len(pkt.Data) > 0 && verify:
		pa.tail, err = b.w.Write(pkt.Offset, pkt.Data, pkt.Sums, b.sum)
	case len(pkt.Data) > 0:
		pa.tail, err = b.w.WriteUnproven(pkt.Offset, pkt.Data, pkt.Sums, b.sum)
	case pkt.Last && pkt.Offset != b.w.Info().Length:
		err = fmt.Errorf("%w: the block ends at %d, but %d bytes have come", store.ErrLength, pkt.Offset, b.w.Info().Length)
	}
	if err == nil && pkt.Sync && !pkt.Last {
		err = b.w.Sync()
	}
	if err != nil {
		b.notStored(err, pa)
	}
}

// storePackets stores packets that follow each other, those together that can be. It returns
// how many it has dealt with: the last of them may have failed. pieces has room for all.
func (b *blockWriter) storePackets(packets []transfer.Packet, pieces []store.Piece, verify bool, acks []pendingAck) (n int) {
	for n < len(packets) && (n == 0 || acks[n-1].status == hdfspb.Status_SUCCESS) {
		if run := plain(packets[n:]); run > 1 {
			n += b.storeAll(packets[n:n+run], pieces[n:n+run], verify, acks[n:n+run])
			continue
		}
		if packets[n].Seqno != transfer.HeartbeatSeqno {
			b.store(&packets[n], verify, &acks[n])
		}
		n++
	}
	return n
}

// plain is how many packets at the start bring data and ask for nothing else.
func plain(packets []transfer.Packet) int {
	for i := range packets {
		if p := &packets[i]; len(p.Data) == 0 || p.Last || p.Sync {
			return i
		}
	}
	return len(packets)
}

// storeAll is store of packets that bring data and ask for nothing else. It returns how
// many it has dealt with: the last of them may have failed. pieces has room for all.
func (b *blockWriter) storeAll(packets []transfer.Packet, pieces []store.Piece, verify bool, acks []pendingAck) int {
	for i := range packets {
		p := &packets[i]
		pieces[i] = store.Piece{Off: p.Offset, Data: p.Data, Sums: p.Sums}
	}
	defer b.spent.packet(b.w, time.Now(), b.w.IO())
	n, err := b.w.WriteAll(pieces, b.sum, verify)
	for i := range n {
		acks[i].end, acks[i].tail = packets[i].Offset+int64(len(packets[i].Data)), pieces[i].Tail
	}
	if err != nil {
		b.notStored(err, &acks[n])
		n++
	}
	return n
}

func (b *blockWriter) notStored(err error, pa *pendingAck) {
	b.dn.noteDisk(err)
	pa.status, pa.cause = hdfspb.Status_ERROR, err
	if errors.Is(err, transfer.ErrChecksum) {
		pa.status = hdfspb.Status_ERROR_CHECKSUM
	}
}

// finish finalizes the replica and tells the NameNode. The last DataNode of a
// pipeline waits until the NameNode knows; the others need not, as it does then.
func (b *blockWriter) finish(sync, last bool) error {
	began, files := time.Now(), b.w.IO()
	if err := b.w.Finalize(sync); err != nil {
		b.dn.noteDisk(err)
		return err
	}
	b.spent.packet(b.w, began, files)
	info := b.w.Info()
	if !info.Synced {
		b.dn.settling[info.Storage].add(info.ID, time.Now().Add(b.dn.cfg.SyncAfter))
	}
	told := time.Now()
	b.dn.changed(clusterpb.ReplicaChange_RECEIVED, info, last)
	b.spent.namenode += time.Since(told)
	return nil
}

// announced tells whether a copy has as many bytes as its beginning said.
func (b *blockWriter) announced() error {
	if n, want := b.w.Info().Length, b.op.GetHeader().GetBaseHeader().GetBlock().GetNumBytes(); uint64(n) != want {
		return fmt.Errorf("%w: a copy of %d bytes, announced were %d", store.ErrLength, n, want)
	}
	return nil
}

// finishCopy makes a copy what the replica is that it was made of: a final one, or one that
// a pipeline goes on with. last is as in finish.
func (b *blockWriter) finishCopy(last bool) error {
	if b.op.GetStage() == hdfspb.OpWriteBlockProto_TRANSFER_FINALIZED {
		// On stable storage, because the replica that it was made of, and that is, may be
		// deleted as soon as the NameNode knows of this one.
		b.dn.names.copiedNow(b.w.Info().ID)
		return b.finish(true, last)
	}
	if err := b.w.Publish(); err != nil {
		b.dn.noteDisk(err)
		return err
	}
	b.dn.changed(clusterpb.ReplicaChange_RECEIVING, b.w.Info(), false)
	return nil
}

// written counts a block that has been written to its end, and acknowledged.
func (b *blockWriter) written(by transferPath) {
	b.dn.writes[by].add(b.w.Info().Length, &b.spent)
}

// close ends the writing.
func (b *blockWriter) close(drop bool) {
	if err := b.w.Close(drop); err != nil {
		b.dn.log.Error("replica left in disorder", "block", b.op.GetHeader().GetBaseHeader().GetBlock().GetBlockId(), "err", err)
	}
}
