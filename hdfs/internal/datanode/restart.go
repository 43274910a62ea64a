package datanode

import (
	"errors"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// restartGrace is for how long writers may take to leave that are told of a restart, as in
// HDFS.
const restartGrace = time.Second

// errRestarts says that a DataNode of a pipeline will be back soon.
var errRestarts = errors.New("it restarts")

// AnnounceRestart tells all who write blocks that this DataNode restarts (OOB_RESTART): who
// writes on its host, or to it alone, waits for it to come back, and others go on without it.
// It returns when all have left, after a second at most. Blocks are not begun any more, and
// Close should follow. Called again it does nothing.
func (dn *DataNode) AnnounceRestart() {
	dn.mu.Lock()
	if dn.restarting || dn.closed {
		dn.mu.Unlock()
		return
	}
	dn.restarting = true
	told := len(dn.receivers)
	left := make(chan struct{})
	if dn.idle = left; told == 0 {
		close(left)
		dn.idle = nil
	}
	for rc := range dn.receivers {
		// A writer that does not read must not keep it from the others.
		dn.wg.Go(rc.announceRestart)
	}
	dn.mu.Unlock()
	told += dn.failNatives(hdfspb.Status_OOB_RESTART, errRestarts)
	dn.log.Info("writers are told that this DataNode restarts", "writers", told)
	t := time.NewTimer(restartGrace)
	defer t.Stop()
	select {
	case <-left:
	case <-t.C:
	case <-dn.ctx.Done():
	}
}

// announceRestart sends the acknowledgement of no packet that tells of a restart.
func (rc *receiver) announceRestart() {
	ack := transfer.AppendAck(nil, &transfer.Ack{Seqno: transfer.UnknownSeqno, Replies: []hdfspb.Status{hdfspb.Status_OOB_RESTART}})
	rc.sending.Lock()
	defer rc.sending.Unlock()
	if _, err := rc.p.Write(ack); err != nil {
		rc.dn.log.Debug("a writer was not told of the restart", "err", err)
	}
}

// beginReceiving notes a pipeline that is set up; false if this DataNode restarts, which its
// writer is not told then.
func (dn *DataNode) beginReceiving(rc *receiver) bool {
	dn.mu.Lock()
	defer dn.mu.Unlock()
	dn.receivers[rc] = struct{}{}
	return !dn.restarting
}

func (dn *DataNode) endReceiving(rc *receiver) {
	dn.mu.Lock()
	defer dn.mu.Unlock()
	delete(dn.receivers, rc)
	if len(dn.receivers) == 0 && dn.idle != nil {
		close(dn.idle)
		dn.idle = nil
	}
}

// refusesWriters tells whether blocks are not begun any more.
func (dn *DataNode) refusesWriters() bool {
	dn.mu.Lock()
	defer dn.mu.Unlock()
	return dn.restarting
}
