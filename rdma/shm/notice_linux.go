package shm

import "github.com/verbena-data/verbena/rdma"

var _ rdma.NoticingQueuePair = (*queuePair)(nil)

// PeerSleeps implements [rdma.NoticingQueuePair]. While somebody else sends, it reports false.
func (qp *queuePair) PeerSleeps() bool {
	if !qp.sendMu.TryLock() { // without it the doorbell could be unmapped
		return false
	}
	defer qp.sendMu.Unlock()
	if qp.State() != rdma.StateConnected {
		return false
	}
	armed := qp.peer.Load().bell.block(qp.remote.bell.queue).armed().Load()
	return armed&(armedAny|armedSolicited) != 0
}
