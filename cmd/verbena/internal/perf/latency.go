package perf

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-data/verbena/rdma"
)

// latency does rounds on the lane's connections, in turn, and marks each. It ends
// after a number of rounds or when more returns false. If the side is stopped it
// returns an error, even between two rounds.
func (l *lane) latency(rounds int64, more func() bool, r *recorder) error {
	s := l.side
	p := s.plan
	next := 0
	for i := int64(0); rounds == 0 || i < rounds; i++ {
		if rounds == 0 && !more() {
			return nil
		}
		if s.stopping.Load() {
			return errStopped
		}
		c := l.conns[next]
		if next++; next == len(l.conns) {
			next = 0
		}
		if p.ReadPayload && p.Test != TestRead {
			rewrite(c.source(), byte(c.arrived))
		}
		var err error
		switch {
		case p.Verify:
			err = c.verifiedRound()
		case p.Test == TestSend:
			err = c.sendRound()
		case p.Test == TestWrite && p.Polled:
			err = c.flagRound()
		case p.Test == TestWrite:
			err = c.writeSendRound()
		default:
			err = c.oneSidedRound()
		}
		if err != nil {
			return err
		}
		r.mark(int64(p.Window))
	}
	return nil
}

// post posts the connection's request, signalled as often as the plan says.
func (c *conn) post() error {
	r := &c.send[0]
	if c.quiet--; c.quiet <= 0 {
		c.quiet = c.lane.side.plan.Signal
		r.Flags |= rdma.Signaled
	} else {
		r.Flags &^= rdma.Signaled
	}
	return c.postOne(c.send[:], "post")
}

// sendRound sends a message and waits for the answer. The completion of the Send may
// come before the answer or after it.
func (c *conn) sendRound() error {
	if err := c.post(); err != nil {
		return err
	}
	if err := c.repostLate(); err != nil {
		return err
	}
	return c.awaitMessage()
}

// repostLate posts the last receive again, once the answer is on its way: the time
// that takes then passes beside the answer's.
func (c *conn) repostLate() error {
	if !c.late {
		return nil
	}
	c.late = false
	return c.repost()
}

// awaitMessage waits for a receive of the connection and posts it again.
func (c *conn) awaitMessage() error {
	l := c.lane
	for {
		got, err := l.await()
		if err != nil {
			return c.failed("poll", err)
		}
		arrived := false
		for i := range got {
			d := &got[i]
			if d.Status != rdma.StatusSuccess {
				return l.bad(d)
			}
			if d.ID&idKind == idRecv {
				arrived = true
				if l.side.plan.ReadPayload {
					l.sum += touch(l.owner(d).buffer(int(uint32(d.ID)))[:d.Length])
				}
				c.arrived++
				if c.late = !l.side.plan.RepostFirst; c.late {
					continue
				}
				if err := c.repost(); err != nil {
					return err
				}
			}
		}
		if arrived {
			return nil
		}
	}
}

// flagRound writes a message whose last byte is new, and waits for the peer's.
func (c *conn) flagRound() error {
	source := c.source()
	c.arrived++
	mark := byte(c.arrived)
	source[len(source)-1] = mark
	if err := c.post(); err != nil {
		return err
	}
	// The message is on its way: what is done now costs no latency.
	if err := c.drain(); err != nil {
		return err
	}
	return c.awaitFlag(mark)
}

// awaitFlag polls the last byte of the connection's target, which a polled Write
// changes last. It reads the aligned word that holds the byte; layout keeps room for
// that. Now and then it polls the queue, too: some devices make progress only then.
func (c *conn) awaitFlag(mark byte) error {
	s := c.lane.side
	target := c.part(s.layout.target)
	last := &target[len(target)-1]
	at := uintptr(unsafe.Pointer(last)) & 7
	word := (*uint64)(unsafe.Add(unsafe.Pointer(last), -int(at)))
	for i := 1; ; i++ {
		w := atomic.LoadUint64(word)
		if (*[8]byte)(unsafe.Pointer(&w))[at] == mark {
			break
		}
		rest()
		if i%256 == 0 {
			if err := c.drain(); err != nil {
				return err
			}
		}
		if i%s.yield == 0 {
			if s.stopping.Load() {
				return errStopped
			}
			runtime.Gosched()
		}
	}
	if s.plan.ReadPayload {
		c.lane.sum += touch(target)
	}
	return nil
}

// drain takes completions of requests, without waiting.
func (c *conn) drain() error { return c.reap(c.lane.cq, c.lane.batch[:]) }

// reap takes what has completed in a queue that nobody waits for.
func (c *conn) reap(q rdma.CompletionQueue, into []rdma.Completion) error {
	n, err := q.Poll(into)
	if err != nil {
		return c.failed("poll", err)
	}
	for i := range into[:n] {
		if into[i].Status != rdma.StatusSuccess {
			return c.lane.bad(&into[i])
		}
	}
	return nil
}

// writeSendRound writes and says so by an empty Send. Devices without polled Writes
// need that.
func (c *conn) writeSendRound() error {
	if err := c.post(); err != nil {
		return err
	}
	if err := c.answer(); err != nil {
		return err
	}
	if err := c.repostLate(); err != nil {
		return err
	}
	if err := c.awaitMessage(); err != nil {
		return err
	}
	if c.lane.side.plan.ReadPayload {
		c.lane.sum += touch(c.part(c.lane.side.layout.target))
	}
	return nil
}

// oneSidedRound is a Read or an atomic, which ends with its completion.
func (c *conn) oneSidedRound() error {
	l := c.lane
	c.send[0].Flags |= rdma.Signaled
	if _, err := c.qp.PostSend(c.send[:]); err != nil {
		return c.failed("post", err)
	}
	for {
		got, err := l.await()
		if err != nil {
			return c.failed("poll", err)
		}
		for i := range got {
			if got[i].Status != rdma.StatusSuccess {
				return l.bad(&got[i])
			}
			if got[i].ID&idKind == idSend {
				c.arrived++
				if l.side.plan.ReadPayload {
					l.sum += touch(c.buffer(0))
				}
				return nil
			}
		}
	}
}
