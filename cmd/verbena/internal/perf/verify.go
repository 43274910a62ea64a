package perf

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// Directions of a pattern. They differ, so that an echo of what was sent is found out.
const (
	asking    = 0
	answering = 1
)

// fill writes the pattern of a message: each 8 bytes depend on the connection,
// the message, the direction and where they stand.
func fill(b []byte, connection int, message int64, direction uint64) {
	seed := seed(connection, message, direction)
	i := 0
	for ; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], pattern(seed, i))
	}
	if i < len(b) {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], pattern(seed, i))
		copy(b[i:], last[:])
	}
}

func seed(connection int, message int64, direction uint64) uint64 {
	return uint64(connection)<<48 ^ uint64(message)<<1 ^ direction
}

// pattern mixes its inputs so that each bit depends on all of them: the
// finalizer of SplitMix64.
func pattern(seed uint64, at int) uint64 {
	x := seed*0x9e3779b97f4a7c15 + uint64(at)*0xd1342543de82ef95 + 1
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// A CorruptError says that other bytes arrived than were sent.
type CorruptError struct {
	Connection int // from 1
	Message    int64
	Offset     int // of the first byte that differs
	Got, Want  byte
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("perf: CORRUPT: connection %d, message %d: byte %d is %#02x where %#02x was sent", e.Connection, e.Message, e.Offset, e.Got, e.Want)
}

// check compares a message with its pattern, every byte.
func check(b []byte, connection int, message int64, direction uint64) error {
	seed := seed(connection, message, direction)
	for i := 0; i < len(b); i += 8 {
		var want [8]byte
		binary.LittleEndian.PutUint64(want[:], pattern(seed, i))
		n := min(8, len(b)-i)
		if n == 8 && binary.LittleEndian.Uint64(b[i:]) == binary.LittleEndian.Uint64(want[:]) {
			continue
		}
		for k := range n {
			if b[i+k] != want[k] {
				return &CorruptError{Connection: connection + 1, Message: message, Offset: i + k, Got: b[i+k], Want: want[k]}
			}
		}
	}
	return nil
}

// check checks a message that lies at offset of the connection's block.
func (c *conn) check(offset int, message int64, direction uint64) error {
	b := c.part(offset)
	if err := check(b, c.index, message, direction); err != nil {
		return err
	}
	c.lane.checked(len(b))
	return nil
}

// checked counts bytes that were as they should be.
func (l *lane) checked(n int) { l.verified.Add(int64(n)) }

// slot is the offset of a place among those for sources or targets.
func (l *layout) slot(first int, message int64, of int) int {
	return first + int(message%int64(of))*l.stride
}

// stamp writes a new message into a place that nothing outstanding uses, and returns
// the place's offset in the connection's block.
func (c *conn) stamp(message int64, direction uint64) int {
	s := c.lane.side
	offset := s.layout.slot(s.layout.source, message, s.layout.sources)
	b := c.part(offset)
	fill(b, c.index, message, direction)
	if s.corrupt != nil {
		s.corrupt(message, b)
	}
	return offset
}

// checkArrival checks, at the server, the message of a receive that has completed.
func (c *conn) checkArrival(d *rdma.Completion) error {
	s := c.lane.side
	p := s.plan
	switch {
	case p.Test == TestWrite:
		for range p.Window {
			if err := c.check(s.layout.slot(s.layout.target, c.arrived, p.Window), c.arrived, asking); err != nil {
				return err
			}
			c.arrived++
		}
		return nil
	case p.Test != TestSend || d.Length == 0 && p.Mode != ModeLatency:
		return nil // the empty message that ends a stream
	}
	if int(d.Length) != p.Size {
		return fmt.Errorf("perf: CORRUPT: connection %d, message %d: %d bytes arrived, %d were sent", c.index+1, c.arrived, d.Length, p.Size)
	}
	buffer := s.layout.receive + int(uint32(d.ID))%s.layout.buffers*s.layout.stride
	err := c.check(buffer, c.arrived, asking)
	c.arrived++
	return err
}

// verifiedRound is a round, or a burst as long as the window. Every byte is checked
// where it arrives.
func (c *conn) verifiedRound() error {
	s := c.lane.side
	p := s.plan
	r := &c.send[0]
	r.Flags |= rdma.Signaled
	for range p.Window {
		switch p.Test {
		case TestSend:
			c.sge[0].Offset = c.base + c.stamp(c.arrived, asking)
		case TestWrite:
			c.sge[0].Offset = c.base + c.stamp(c.arrived, asking)
			r.Remote = c.remote(s.layout.slot(s.layout.target, c.arrived, p.Window))
		case TestRead:
			offset := s.layout.slot(s.layout.receive, c.arrived, p.Window)
			clear(c.part(offset))
			c.sge[0].Offset = c.base + offset
			r.Remote = c.remote(s.layout.slot(s.layout.target, c.arrived, p.Window))
		case TestAtomic:
			c.sge[0].Offset = c.base + s.layout.slot(s.layout.receive, c.arrived, p.Window)
		}
		if err := c.postOne(c.send[:], "post"); err != nil {
			return err
		}
		c.arrived++
	}
	first := c.arrived - int64(p.Window)
	switch p.Test {
	case TestSend, TestWrite:
		if p.Test == TestWrite {
			if err := c.answer(); err != nil {
				return err
			}
		}
		return c.awaitVerified(first)
	}
	if err := c.awaitOwn(p.Window); err != nil {
		return err
	}
	for m := first; m < c.arrived; m++ {
		offset := s.layout.slot(s.layout.receive, m, p.Window)
		if p.Test == TestRead {
			if err := c.check(offset, m%int64(p.Window), answering); err != nil {
				return err
			}
			continue
		}
		if got := binary.NativeEndian.Uint64(c.part(offset)); got != uint64(m) {
			return fmt.Errorf("perf: CORRUPT: connection %d: Fetch-and-add %d returned %d", c.index+1, m, got)
		}
		c.lane.checked(atomicSize)
	}
	return nil
}

// awaitVerified waits for the peer's message and checks its bytes, if it has any. It
// passes over completions of this side's requests.
func (c *conn) awaitVerified(message int64) error {
	l := c.lane
	s := l.side
	p := s.plan
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
			if d.ID&idKind != idRecv {
				continue
			}
			arrived = true
			switch {
			case p.Test == TestSend:
				if int(d.Length) != p.Size {
					return fmt.Errorf("perf: CORRUPT: connection %d, message %d: %d bytes came back of %d", c.index+1, message, d.Length, p.Size)
				}
				err = c.check(s.layout.receive+int(uint32(d.ID))%s.layout.buffers*s.layout.stride, message, answering)
			case p.Mode == ModeLatency:
				err = c.check(s.layout.target, message, answering)
			}
			if err != nil {
				return err
			}
			if err := c.repostThis(d); err != nil {
				return err
			}
		}
		if arrived {
			return nil
		}
	}
}

// awaitOwn waits for the completions of n requests of this side.
func (c *conn) awaitOwn(n int) error {
	l := c.lane
	for n > 0 {
		got, err := l.await()
		if err != nil {
			return c.failed("poll", err)
		}
		for i := range got {
			if got[i].Status != rdma.StatusSuccess {
				return l.bad(&got[i])
			}
			n--
		}
	}
	return nil
}
