//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import "fmt"

// Transition is what this side decides about a connection when its queue pair
// is moved by [QP.Move]; the rest is the connection manager's.
type Transition struct {
	MaxReads       uint8 // Reads and atomics outstanding; of QPReadyToSend
	MaxReadsAsPeer uint8 // Reads and atomics taken from the peer; of QPReadyToReceive
	Timeout        uint8 // as a code: 4.096 us times 2 to its power; of QPReadyToSend
	RetryCount     uint8 // at most 7; of QPReadyToSend
	RNRRetryCount  uint8 // 7 is for ever; of QPReadyToSend
	MinRNRTimer    uint8 // as a code: 12 is 0.64 ms; of QPReadyToReceive
}

// maskQPRoCEOnly are bits of the mask that the kernel sets for RoCE and the
// headers no longer name; on InfiniBand they are a known mistake.
const maskQPRoCEOnly = 1<<21 | 1<<22 | 1<<23

// Move takes a queue pair to the next state of the connection that id stands
// for, with what the connection manager knows of the path and the peer. The
// queue pair need not be attached to the ID. link is the port's link layer.
func (q *QP) Move(id CMID, to QPState, link LinkLayer, with Transition) error {
	lib := q.ctx.lib
	s := lib.scratch.get()
	defer lib.scratch.put(s)
	a, maskAt := s.take(sizeQPAttr), s.take(8)
	*at[uint32](a, offQPAttrState) = uint32(to)
	if err := lib.call(fmt.Sprintf("rdma_init_qp_attr for %s on %s", to, q.ctx.name), lib.fn.initQPAttr, id.p, a, maskAt); err != nil {
		return err
	}
	mask := uintptr(*at[uint32](maskAt, 0))
	set := func(bit uintptr, offset uintptr, v uint8) {
		if mask&bit != 0 {
			*at[uint8](a, offset) = v
		}
	}
	set(maskQPMaxRDAtomic, offQPAttrMaxRDAtomic, with.MaxReads)
	set(maskQPMaxDestRDAtomic, offQPAttrMaxDestRDAtomic, with.MaxReadsAsPeer)
	set(maskQPTimeout, offQPAttrTimeout, with.Timeout)
	set(maskQPRetryCnt, offQPAttrRetryCnt, with.RetryCount)
	set(maskQPRNRRetry, offQPAttrRNRRetry, with.RNRRetryCount)
	set(maskQPMinRNR, offQPAttrMinRNRTimer, with.MinRNRTimer)
	if link == LinkInfiniBand {
		mask &^= maskQPRoCEOnly
	}
	return lib.call(fmt.Sprintf("ibv_modify_qp to %s on %s", to, q.ctx.name), lib.fn.modifyQP, q.p, a, mask)
}

// Reset takes the queue pair back to the reset state: the device forgets what
// is outstanding, and no completion of it comes any more. Drivers may refuse.
func (q *QP) Reset() error {
	s := q.ctx.lib.scratch.get()
	defer q.ctx.lib.scratch.put(s)
	a := s.take(sizeQPAttr)
	*at[uint32](a, offQPAttrState) = uint32(QPReset)
	return q.ctx.lib.call("ibv_modify_qp to reset on "+q.ctx.name, q.ctx.lib.fn.modifyQP, q.p, a, maskQPState)
}

// Establish tells the peer that the queue pair can be used, after a
// CMConnectResponse; that event comes to IDs without an attached queue pair.
func (id CMID) Establish() error {
	return id.lib.call("rdma_establish", id.lib.fn.establish, id.p)
}

// Refresh lets librdmacm look at the list of devices again. It closes its own
// contexts of devices that have been removed, which hold up the removal.
func (l *Library) Refresh() error {
	s := l.scratch.get()
	defer l.scratch.put(s)
	list, err := l.callPointer("rdma_get_devices", l.fn.getDevices, s.take(8))
	if err != nil {
		return err
	}
	l.callVoid(l.fn.freeDevices, list)
	return nil
}
