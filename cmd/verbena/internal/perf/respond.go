package perf

import (
	"github.com/verbena-data/verbena/rdma"
)

// respond is the server's loop of a lane, until the side is stopped.
func (l *lane) respond() error {
	p := l.side.plan
	switch {
	case p.Mode == ModeLatency && p.Polled:
		return l.echoFlags()
	default:
		return l.take()
	}
}

// take takes completions and answers each message as the test asks.
func (l *lane) take() error {
	s := l.side
	p := s.plan
	echo := p.Mode == ModeLatency && (p.Test == TestSend || p.Test == TestWrite)
	for {
		got, err := l.await()
		if err != nil {
			if s.stopping.Load() {
				err = errStopped
			}
			return err
		}
		for i := range got {
			d := &got[i]
			if d.Status != rdma.StatusSuccess {
				return l.bad(d)
			}
			if d.ID&idKind != idRecv {
				continue
			}
			c := l.from(d)
			if p.Verify {
				if err := c.checkArrival(d); err != nil {
					return err
				}
			} else if p.ReadPayload {
				switch {
				case p.Test == TestSend && d.Length > 0:
					l.sum += touch(l.owner(d).buffer(int(uint32(d.ID)))[:d.Length])
				case p.Test == TestWrite:
					l.sum += touch(c.part(s.layout.target))
				}
			}
			l.received++
			if echo && !p.RepostFirst {
				if err := c.echo(); err != nil {
					return err
				}
			}
			if p.Verify {
				err = c.repostThis(d)
			} else {
				err = c.repost()
			}
			if err != nil {
				return err
			}
			switch {
			case echo:
				if p.RepostFirst {
					err = c.echo()
				}
			case d.Length == 0:
				l.received--
				err = c.answer()
			case p.Credits:
				if c.granted++; c.granted == grant(p) {
					c.granted = 0
					err = c.answer()
				}
			}
			if err != nil {
				return err
			}
		}
		l.messages.Store(l.received)
	}
}

// echo sends a message of the same size back.
func (c *conn) echo() error {
	switch p := c.lane.side.plan; {
	case p.Verify: // has counted it
		c.sge[0].Offset = c.base + c.stamp(c.arrived-1, answering)
	case p.ReadPayload:
		rewrite(c.source(), byte(c.arrived))
		c.arrived++
	}
	if err := c.post(); err != nil {
		return err
	}
	if c.lane.side.plan.Test == TestWrite {
		return c.answer()
	}
	return nil
}

// answer sends an empty message.
func (c *conn) answer() error {
	return c.postOne(c.reply[:], "post an answer")
}

// echoFlags answers Writes by Writes on all connections in turn, in which order the
// client writes, one connection at a time.
func (l *lane) echoFlags() error {
	for {
		for _, c := range l.conns {
			c.arrived++
			mark := byte(c.arrived)
			if err := c.awaitFlag(mark); err != nil {
				return err
			}
			if l.side.plan.ReadPayload {
				rewrite(c.source(), mark)
			}
			source := c.source()
			source[len(source)-1] = mark
			if err := c.post(); err != nil {
				return err
			}
			if err := c.drain(); err != nil {
				return err
			}
			l.received++
			l.messages.Store(l.received)
		}
	}
}
