package perf

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A poster is a goroutine that posts to the connections of its lane.
type poster struct {
	lane   *lane
	number uint64
	// For each of the lane's connections: how many requests are outstanding, how many
	// were posted since the last signalled one, and how many other posters have found
	// completed.
	out, since []int32
	found      []atomic.Int32

	requests []rdma.SendRequest
	entries  []rdma.SGE
	batch    [64]rdma.Completion
	recorder *recorder
	posted   int64
}

func newPoster(l *lane, number int) *poster {
	n := len(l.conns)
	p := &poster{
		lane: l, number: uint64(number), out: make([]int32, n), since: make([]int32, n), found: make([]atomic.Int32, n),
		requests: make([]rdma.SendRequest, l.side.plan.Batch), entries: make([]rdma.SGE, l.side.plan.Batch), recorder: newRecorder(),
	}
	return p
}

// stream posts messages within the window, a number of them or until the time is
// over. finish waits for what is outstanding then.
func (p *poster) stream(messages int64, until time.Duration) error {
	l := p.lane
	plan := l.side.plan
	window, batch, shared := int32(plan.Window), int64(plan.Batch), len(l.posters) > 1
	p.recorder.start()
	p.posted = 0
	left := messages
	for round := 0; ; round++ {
		idle := true
		for i, c := range l.conns {
			n := batch
			if messages > 0 {
				if n = min(n, left); n == 0 {
					return nil
				}
			}
			if shared {
				if f := p.found[i].Load(); f != 0 {
					p.found[i].Add(-f)
					p.out[i] -= f
				}
			}
			if p.out[i]+int32(n) > window {
				continue
			}
			if plan.Credits && c.allow.Add(-n) < 0 {
				c.allow.Add(n)
				continue
			}
			taken, err := p.post(c, i, int(n))
			if err != nil {
				return err
			}
			if plan.Credits && int64(taken) < n {
				c.allow.Add(n - int64(taken))
			}
			left -= int64(taken)
			p.posted += int64(taken)
			idle = idle && taken == 0
		}
		got, err := p.poll(idle)
		if err != nil {
			return err
		}
		if got && until > 0 && p.recorder.elapsed() >= until {
			return nil
		}
		if round&255 == 255 && l.side.stopping.Load() {
			return errStopped
		}
	}
}

// post appends n messages to a connection.
func (p *poster) post(c *conn, i, n int) (int, error) {
	s := c.lane.side
	signal := int32(s.plan.Signal)
	first := c.posted.Load()
	if len(c.lane.posters) == 1 {
		c.posted.Store(first + int64(n))
	} else {
		c.posted.Add(int64(n))
	}
	for k := range n {
		r := &p.requests[k]
		*r = c.send[0]
		p.entries[k] = c.sge[0]
		r.SGEs = p.entries[k : k+1]
		r.ID = idSend | p.number<<posterShift | c.number<<connShift
		if p.since[i]++; p.since[i] >= signal {
			r.Flags |= rdma.Signaled
			r.ID |= uint64(p.since[i])
			p.since[i] = 0
		}
		switch {
		case s.plan.Verify:
			p.entries[k].Offset = c.base + c.stamp(first+int64(k), asking)
		case s.plan.ReadPayload && s.plan.Test != TestRead && s.plan.Test != TestAtomic:
			rewrite(c.source(), byte(first+int64(k)))
		}
		if s.plan.Test == TestRead && s.layout.buffers > 1 {
			p.entries[k].Offset += int(first+int64(k)) % s.layout.buffers * s.layout.stride
		}
	}
	taken, err := c.qp.PostSend(p.requests[:n])
	p.out[i] += int32(taken)
	if taken < n {
		// Requests that were not taken do not count towards the next signalled one.
		for k := n - 1; k >= taken; k-- {
			if r := &p.requests[k]; r.Flags&rdma.Signaled != 0 {
				p.since[i] = int32(uint32(r.ID))
			}
			p.since[i]--
		}
		c.posted.Add(int64(taken - n))
		if err != nil && !errors.Is(err, rdma.ErrQueueFull) {
			return taken, c.failed("post", err)
		}
	}
	return taken, nil
}

// poll takes completions; with idle it waits for some.
func (p *poster) poll(idle bool) (bool, error) {
	l := p.lane
	n, err := l.cq.Poll(p.batch[:])
	if n == 0 && err == nil && idle {
		switch {
		case len(l.posters) == 1:
			n, err = l.wait(p.batch[:])
		case l.side.plan.Wait == WaitEvent && l.waiting.TryLock():
			// Another poster may have polled the completion that this one waits for.
			if p.mine() == 0 {
				n, err = l.sleep(p.batch[:])
			}
			l.waiting.Unlock()
		default:
			runtime.Gosched()
		}
	}
	if err != nil {
		if l.side.stopping.Load() {
			err = errStopped
		}
		return false, err
	}
	mine := false
	for i := range p.batch[:n] {
		own, err := p.completed(&p.batch[i])
		if err != nil {
			return false, err
		}
		mine = mine || own
	}
	return mine, nil
}

func (p *poster) mine() (n int32) {
	for i := range p.found {
		n += p.found[i].Load()
	}
	return n
}

// completed books a completion for whoever posted the request.
func (p *poster) completed(d *rdma.Completion) (own bool, err error) {
	l := p.lane
	plan := l.side.plan
	if d.Status != rdma.StatusSuccess {
		return false, l.bad(d)
	}
	i := int(d.ID >> connShift & twelveBits)
	c := l.conns[i]
	count := int32(uint32(d.ID))
	switch d.ID & idKind {
	case idSend:
		if number := d.ID >> posterShift & twelveBits; number != p.number {
			l.posters[number].found[i].Add(count)
			return false, nil
		}
		p.out[i] -= count
		p.recorder.mark(int64(count))
		if plan.ReadPayload && plan.Test == TestRead {
			for range count {
				l.sum += touch(c.buffer(int(c.arrived)))
				c.arrived++
			}
		}
		return true, nil
	case idRecv:
		c = l.from(d)
		c.replies.Add(1)
		if plan.Credits {
			c.allow.Add(int64(grant(plan)))
		}
		return false, c.repostShared()
	}
	return false, nil
}

// repostShared is repost where several goroutines poll. Nothing is read from the
// receives there, so that their order does not matter.
func (c *conn) repostShared() error {
	if _, err := c.postRecv(c.recvs[:1]); err != nil {
		return c.failed("post a receive", err)
	}
	return nil
}

// grant is how many receives the receiver gathers before it tells the sender of them.
func grant(p *Plan) int { return max(p.Receives/4, 1) }

// finish sends each connection's last message, an empty one, and waits for the
// answer, which the peer sends when it has taken all messages before it.
func (l *lane) finish() error {
	p := l.posters[0]
	plan := l.side.plan
	for _, c := range l.conns {
		c.phases++
		request := [1]rdma.SendRequest{{ID: idFinish | c.number<<connShift, Op: rdma.OpSend, Flags: rdma.Signaled}}
		for {
			n, err := c.qp.PostSend(request[:])
			if n == 1 {
				break
			}
			if !errors.Is(err, rdma.ErrQueueFull) {
				return c.failed("post", err)
			}
			if _, err := p.poll(true); err != nil {
				return err
			}
		}
	}
	for _, c := range l.conns {
		expected := c.phases
		if plan.Credits {
			expected += c.posted.Load() / int64(grant(plan))
		}
		for c.replies.Load() < expected {
			if _, err := p.poll(true); err != nil {
				return err
			}
		}
		if plan.Credits {
			c.allow.Add(-int64(grant(plan))) // the answer was counted as a grant
		}
	}
	for _, p := range l.posters {
		clear(p.out)
		clear(p.since)
		for i := range p.found {
			p.found[i].Store(0)
		}
	}
	return nil
}

// streams lets all posters run and returns when the peer has everything.
func (s *side) streams(messages int64, until time.Duration) error {
	var all sync.WaitGroup
	errs := make([]error, len(s.lanes))
	total := 0
	for _, l := range s.lanes {
		total += len(l.posters)
	}
	nth := int64(0)
	for i, l := range s.lanes {
		shares := make([]int64, len(l.posters))
		for k := range shares {
			if messages > 0 {
				shares[k] = max(messages*(nth+1)/int64(total)-messages*nth/int64(total), 1)
			}
			nth++
		}
		all.Go(func() {
			errs[i] = l.run(shares, until)
			if errs[i] != nil {
				s.stop(errs[i])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (l *lane) run(shares []int64, until time.Duration) error {
	if len(l.posters) == 1 {
		if err := l.posters[0].stream(shares[0], until); err != nil {
			return err
		}
		return l.end()
	}
	var posters sync.WaitGroup
	errs := make([]error, len(l.posters))
	for i, p := range l.posters {
		posters.Go(func() { errs[i] = p.stream(shares[i], until) })
	}
	posters.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return l.end()
}

// end calls finish, so that the time includes the last messages.
func (l *lane) end() error {
	if err := l.finish(); err != nil {
		return err
	}
	for _, p := range l.posters {
		if left := p.posted - p.recorder.marked; left > 0 {
			p.recorder.mark(left)
		}
	}
	return nil
}
