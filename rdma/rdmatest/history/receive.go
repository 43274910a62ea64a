package history

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// postReceives posts up to n of the receives that are free.
func (e *end) postReceives(n int) error {
	for n = min(n, e.unposted); n > 0; n-- {
		id := e.recvPosted
		at := int(id%commonPosted) * e.slot
		request := &e.receives[0]
		*request = rdma.RecvRequest{ID: deepData | id, SGEs: e.entries[:0]}
		slots := e.slots
		if e.srq != nil {
			e.srq.mu.Lock()
			if len(e.srq.free) == 0 {
				e.srq.mu.Unlock()
				return errors.New("more receives are outstanding on the shared queue than were posted")
			}
			slot := e.srq.free[len(e.srq.free)-1]
			e.srq.free = e.srq.free[:len(e.srq.free)-1]
			e.srq.mu.Unlock()
			request.ID, at, slots = deepData|uint64(slot), slot*e.slot, e.srq.slots
		}
		left := e.slot
		for i := range e.slotSGEs {
			piece := left
			if i < e.slotSGEs-1 {
				piece = e.random.IntN(left + 1)
			}
			request.SGEs = append(request.SGEs, rdma.SGE{Region: slots.region, Offset: at, Length: piece})
			at, left = at+piece, left-piece
		}
		e.entries = request.SGEs
		var taken int
		var err error
		if e.srq != nil {
			taken, err = e.srq.queue.PostRecv(e.receives[:])
		} else {
			taken, err = e.qp.PostRecv(e.receives[:])
		}
		if taken != 1 {
			if errors.Is(err, rdma.ErrState) && e.srq == nil {
				return errFailed
			}
			return fmt.Errorf("PostRecv of number %d: %d, %w", id, taken, err)
		}
		e.unposted--
		e.recvPosted++
	}
	return nil
}

// received checks the completion of a receive. It returns false for one of the next
// round, which has to wait until this end has begun that.
func (e *end) received(c rdma.Completion) (bool, error) {
	number := c.ID &^ deepData
	slots, at := e.slots, int(number%commonPosted)*e.slot
	if e.expected.got == e.expected.total && e.controls == 2 && !e.draining {
		return false, nil
	}
	if e.srq == nil {
		if number != e.recvDone {
			return false, fmt.Errorf("round %d: completion of receive %d (%s), want that of %d", e.round, number, c.Status, e.recvDone)
		}
		if number >= e.recvPosted {
			return false, fmt.Errorf("completion of receive %d (%s), which is not posted", number, c.Status)
		}
	} else {
		slots, at = e.srq.slots, int(number)*e.slot
		if at+e.slot > slots.size {
			return false, fmt.Errorf("completion of receive %d of the shared queue, which was never posted", number)
		}
	}
	e.recvDone++
	if c.Status != rdma.StatusSuccess {
		if c.Status != rdma.StatusFlushed {
			if e.recvFailed {
				return false, fmt.Errorf("round %d: receive %d completes as %s behind one that failed", e.round, number, c.Status)
			}
			e.recvFailure = c.Status
		}
		e.recvFailed = true
		if e.srq != nil {
			return true, e.release(number, e.slot)
		}
		return true, nil
	}
	if e.recvFailed {
		return false, fmt.Errorf("round %d: receive %d succeeds behind one that failed", e.round, number)
	}
	if c.Op != rdma.OpRecv && c.Op != rdma.OpRecvWriteImmediate {
		return false, fmt.Errorf("round %d: receive %d completes as %s", e.round, number, c.Op)
	}
	if c.QueuePair != e.qp.Number() {
		return false, fmt.Errorf("completion of receive %d is of queue pair %d, not %d", number, c.QueuePair, e.qp.Number())
	}
	filled := 0
	if c.Op == rdma.OpRecv {
		if filled = int(c.Length); filled > e.slot {
			return false, fmt.Errorf("round %d: receive %d of %d bytes gets %d", e.round, number, e.slot, filled)
		}
	}
	memory, err := slots.read(at, e.slot)
	if err != nil {
		return false, err
	}
	if !bytes.Equal(memory[filled:], canary[:e.slot-filled]) {
		return false, fmt.Errorf("round %d: receive %d of %d bytes got %d, and memory behind them has changed", e.round, number, e.slot, filled)
	}
	switch {
	case e.expected.got == e.expected.total && e.controls == 2:
		// The peer is a round ahead. After the last round nothing may come.
		if e.t.rounds == 0 || e.round >= e.t.rounds-1 {
			return false, fmt.Errorf("receive %d gets a message after the end", number)
		}
	case e.expected.got < e.expected.total:
		if err := e.expected.match(c, memory); err != nil {
			return false, fmt.Errorf("round %d: receive %d: %w", e.round, number, err)
		}
		e.side.Stats.Messages.Add(1)
	default:
		if c.Op != rdma.OpRecv || c.HasImmediate {
			return false, fmt.Errorf("round %d: receive %d: %s instead of the end of the round", e.round, number, c.Op)
		}
		revokes := e.controls == 0 && planRevocation(e.t, 1-e.role, e.round)
		if c.Invalidated != revokes || revokes && c.Immediate != e.revocable.region.Key() {
			return false, fmt.Errorf("round %d: receive %d: a key is revoked: %v (%#x), want %v", e.round, number, c.Invalidated, c.Immediate, revokes)
		}
		e.lastMark = append(e.lastMark[:0], memory[:filled]...)
		if err := e.controlled(); err != nil {
			return false, err
		}
		e.controls++
	}
	e.unposted++
	return true, e.release(number, filled)
}

// release writes the canary over what a message has written, and frees the receive.
func (e *end) release(number uint64, written int) error {
	if e.srq == nil {
		return e.slots.write(int(number%commonPosted)*e.slot, canary[:written])
	}
	if err := e.srq.slots.write(int(number)*e.slot, canary[:written]); err != nil {
		return err
	}
	e.srq.mu.Lock()
	e.srq.free = append(e.srq.free, int(number))
	e.srq.mu.Unlock()
	return nil
}

// controlled checks a control message: the greeting, the mark behind the last
// request of a round, or the mark that allows the next round.
func (e *end) controlled() error {
	if e.t.rounds == 0 { // not known yet
		if len(e.lastMark) != binary.Size(e.theirs) {
			return fmt.Errorf("a greeting of %d bytes", len(e.lastMark))
		}
		_, err := binary.Decode(e.lastMark, binary.LittleEndian, &e.theirs)
		return err
	}
	var r ready
	if len(e.lastMark) != binary.Size(r) {
		return fmt.Errorf("round %d: %d bytes instead of the end of the round", e.round, len(e.lastMark))
	}
	if _, err := binary.Decode(e.lastMark, binary.LittleEndian, &r); err != nil {
		return err
	}
	if want := [...]uint32{markDone, markReady}[e.controls]; r.Mark != want || r.Round != uint32(e.round) {
		return fmt.Errorf("mark %#x of round %d, want %#x of round %d", r.Mark, r.Round, want, e.round)
	}
	if r.Mark == markReady {
		e.theirs.Exposed, e.theirs.Stale, e.theirRevocable = r.Exposed, r.Stale, r.Revocable
	}
	return nil
}
