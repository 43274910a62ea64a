package perf

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A completion's ID has a kind, the poster and the connection within the lane. A
// Send's has the number of requests that it stands for, a receive's has which receive
// it is.
const (
	idRecv   = uint64(1) << 56
	idSend   = uint64(2) << 56
	idFinish = uint64(3) << 56
	idReply  = uint64(4) << 56

	idKind      = uint64(0xff) << 56
	posterShift = 44
	connShift   = 32
	twelveBits  = 1<<12 - 1
)

// errStopped says that a loop was told to end.
var errStopped = errors.New("perf: stopped")

// A side is one end of a measurement with verbs.
type side struct {
	plan   *Plan
	layout layout
	client bool
	domain rdma.Domain
	region rdma.Region
	bytes  []byte
	peer   memory
	lanes  []*lane
	conns  []*conn
	// yield is how many vain polls a spinning loop makes before it lets others run.
	yield int

	stopping atomic.Bool
	once     sync.Once
	err      error // why the loops stopped; guarded by once

	corrupt func(message int64, payload []byte) // tests: called before a message is sent
}

// A lane is a completion queue and the connections that use it. One goroutine
// polls it, or, on the sending side of a stream, its posters.
type lane struct {
	side *side
	cq   rdma.CompletionQueue
	// sends is the queue for completions of Sends where these must not wake the
	// goroutine that sleeps until a message comes. Otherwise it is nil and cq has them.
	sends rdma.CompletionQueue
	// shared is where the connections receive from, or nil: each has its own receives.
	shared   rdma.SharedReceiveQueue
	conns    []*conn
	byNumber map[uint32]*conn // by their queue pairs' numbers

	// posters are those of a stream; nil otherwise.
	posters []*poster
	waiting sync.Mutex // held to arm and wait, where posters share the lane

	messages atomic.Int64 // that arrived, as far as published
	verified atomic.Int64 // bytes
	received int64        // the loop's own count
	sum      uint64       // of what was read, so that the compiler keeps the reading
	batch    [64]rdma.Completion
	sent     [8]rdma.Completion // of sends: batch may be in use
}

// A conn is a queue pair and its memory.
type conn struct {
	lane   *lane
	index  int // of all
	number uint64
	base   int // offset of its block in the region
	qp     rdma.QueuePair

	recvs   []rdma.RecvRequest
	next    int  // receive that is posted next
	unposed int  // receives that are to be posted again
	lot     int  // how many receives one post takes
	late    bool // the last receive is yet to be posted again: see repostLate
	quiet   int  // requests until the next that is signalled
	arrived int64

	send  [1]rdma.SendRequest
	sge   [1]rdma.SGE
	reply [1]rdma.SendRequest

	allow   atomic.Int64 // messages that the receiver has room for
	granted int          // receiver: consumed since the last grant
	replies atomic.Int64 // sender: zero-length messages that came
	posted  atomic.Int64 // sender: messages
	phases  int64        // sender: times it has finished
}

// newSide makes an end's queue pairs, with receives posted.
func newSide(plan *Plan, dev rdma.Device, client bool) (s *side, err error) {
	a := dev.Attributes()
	s = &side{plan: plan, layout: newLayout(plan), client: client, yield: 1024}
	if plan.Posters == 1 {
		// To yield wakes another thread. Where all processors spin, that thread takes one
		// from a spinner. Only the collector needs this goroutine to stop, and it preempts.
		s.yield = 1 << 16
	}
	if a.Has(rdma.CapStreams) {
		s.yield = 16 // a poll is a system call, and goroutines of the provider have work
	}
	if err := supports(plan, a); err != nil {
		return nil, err
	}
	if s.domain, err = dev.OpenDomain(rdma.DomainConfig{}); err != nil {
		return nil, fmt.Errorf("perf: open domain on %s: %w", a.Name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.domain.Close())
		}
	}()
	access := rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	if a.Has(rdma.CapAtomics) {
		access |= rdma.AccessRemoteAtomic
	}
	size := s.layout.connection * plan.Connections
	if s.region, err = s.domain.Allocate(size, access); err != nil {
		return nil, fmt.Errorf("perf: register %d bytes on %s: %w", size, a.Name, err)
	}
	s.bytes = s.region.Bytes()
	for i := 0; i < len(s.bytes); i += page {
		s.bytes[i] = 0 // so that no page is touched first in the measurement
	}
	perLane := (plan.Connections + plan.lanes() - 1) / plan.lanes()
	receives, length := s.receives()
	sends := s.sendDepth()
	if plan.SharedReceives && a.MaxQueueDepth > 0 && receives*perLane > a.MaxQueueDepth {
		return nil, fmt.Errorf("perf: %d receives for each of %d connections are more than a shared receive queue of %s holds, %d: use fewer --receives or --connections",
			receives, perLane, a.Name, a.MaxQueueDepth)
	}
	for range plan.lanes() {
		l := &lane{side: s, byNumber: make(map[uint32]*conn)}
		depth := perLane * (sends + receives)
		if a.MaxCompletions > 0 {
			depth = min(depth, a.MaxCompletions)
		}
		if l.cq, err = s.domain.NewCompletionQueue(max(depth, 16)); err != nil {
			return nil, fmt.Errorf("perf: completion queue of %d on %s: %w", depth, a.Name, err)
		}
		if plan.sleepsForMessages() {
			if l.sends, err = s.domain.NewCompletionQueue(max(depth, 16)); err != nil {
				return nil, fmt.Errorf("perf: completion queue of %d on %s: %w", depth, a.Name, err)
			}
		}
		if plan.SharedReceives {
			if l.shared, err = s.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: receives * perLane, MaxSGE: 1}); err != nil {
				return nil, fmt.Errorf("perf: shared receive queue of %d on %s: %w", receives*perLane, a.Name, err)
			}
		}
		s.lanes = append(s.lanes, l)
	}
	for i := range plan.Connections {
		l := s.lanes[i%len(s.lanes)]
		c := &conn{lane: l, index: i, number: uint64(len(l.conns)), base: i * s.layout.connection}
		l.conns = append(l.conns, c)
		s.conns = append(s.conns, c)
		c.qp, err = s.domain.NewQueuePair(rdma.QueuePairConfig{
			SendCompletions: l.sendCompletions(), RecvCompletions: l.cq, SharedReceive: l.shared, SendDepth: sends, RecvDepth: receives,
			MaxSGE: 1, MaxInline: min(plan.Inline, a.MaxInline), ReceiverNotReadyRetry: notReadyRetry(a),
		})
		if err != nil {
			return nil, fmt.Errorf("perf: queue pair %d of %d on %s: %w", i+1, plan.Connections, a.Name, err)
		}
		l.byNumber[c.qp.Number()] = c
		c.prepare(receives, length)
		if _, err = c.postRecv(c.recvs); err != nil {
			return nil, fmt.Errorf("perf: post %d receives on %s: %w", receives, a.Name, err)
		}
	}
	return s, nil
}

func notReadyRetry(a rdma.Attributes) time.Duration {
	if a.Has(rdma.CapReceiverNotReady) {
		return -1
	}
	return 0
}

// supports tells what a device lacks for a plan.
func supports(p *Plan, a rdma.Attributes) error {
	lacks := func(what string) error {
		return fmt.Errorf("perf: device %s %w: %s", a.Name, rdma.ErrUnsupported, what)
	}
	switch {
	case p.Test == TestAtomic && !a.Has(rdma.CapAtomics):
		return lacks("atomics")
	case p.SharedReceives && !a.Has(rdma.CapSharedReceive):
		return lacks("shared receive queues")
	case p.Polled && !a.Has(rdma.CapPolledWrites):
		return lacks("polling what a Write wrote")
	case p.Test == TestSend && p.Mode != ModeLatency && !p.Credits && !a.Has(rdma.CapReceiverNotReady):
		return lacks("Sends that wait for a receive")
	case a.MaxMessage > 0 && int64(p.Size) > a.MaxMessage:
		return lacks(fmt.Sprintf("messages of %d bytes, at most %d", p.Size, a.MaxMessage))
	}
	return nil
}

// receives is how many receives this end posts on each connection, and their
// length.
func (s *side) receives() (n, length int) {
	const few = 16
	switch {
	case s.plan.Test != TestSend:
		return few, 8
	case s.plan.Mode == ModeLatency:
		return s.plan.Receives, s.plan.Size
	case s.client:
		return few, 8 // for grants, and for the answer to the last message
	}
	return s.plan.Receives, s.plan.Size
}

func (s *side) sendDepth() int {
	if s.client {
		return s.plan.Window*s.plan.sharers() + 2
	}
	return 32
}

// prepare makes the requests of a connection, so that the loops only post them.
func (c *conn) prepare(receives, length int) {
	s := c.lane.side
	entries := make([]rdma.SGE, receives)
	c.recvs = make([]rdma.RecvRequest, receives)
	for i := range c.recvs {
		entries[i] = rdma.SGE{Region: s.region, Offset: c.base + s.layout.receive + i%s.layout.buffers*s.layout.stride, Length: length}
		c.recvs[i] = rdma.RecvRequest{ID: idRecv | c.number<<connShift | uint64(i), SGEs: entries[i : i+1]}
	}
	c.lot = 1
	if s.plan.Batch > 1 {
		c.lot = max(min(s.plan.Batch, receives/4), 1)
	}
	c.sge[0] = rdma.SGE{Region: s.region, Offset: c.base + s.layout.source, Length: s.plan.Size}
	c.send[0] = rdma.SendRequest{ID: idSend | c.number<<connShift | 1, Op: rdma.OpSend, SGEs: c.sge[:]}
	if s.plan.Size <= s.plan.Inline {
		c.send[0].Flags = rdma.Inline
	}
	c.reply[0] = rdma.SendRequest{ID: idReply | c.number<<connShift, Op: rdma.OpSend, Flags: rdma.Signaled}
	// The sender may not count on receives that wait to be posted again, nor on the
	// one for the last message.
	c.allow.Store(int64(max(s.plan.Receives-c.lot-1, 1)))
}

// source is what the connection sends, and target what the peer reaches.
func (c *conn) source() []byte { return c.part(c.lane.side.layout.source) }

func (c *conn) part(offset int) []byte {
	s := c.lane.side
	from := c.base + offset
	return s.bytes[from : from+s.plan.Size : from+s.layout.stride]
}

// buffer is where receive i lands.
func (c *conn) buffer(i int) []byte {
	l := &c.lane.side.layout
	return c.part(l.receive + i%l.buffers*l.stride)
}

// remote is the peer's memory at an offset of the same connection's block.
func (c *conn) remote(offset int) rdma.Remote {
	s := c.lane.side
	return rdma.Remote{Address: s.peer.Address + uint64(c.base+offset), Key: s.peer.Key}
}

// meet takes over what the peer lets this side reach. It comes before the loops.
func (s *side) meet(peer memory) {
	s.peer = peer
	for _, c := range s.conns {
		if s.plan.Verify && s.plan.Test == TestRead && !s.client {
			for i := range s.layout.targets {
				fill(c.part(s.layout.target+i*s.layout.stride), c.index, int64(i), answering)
			}
		}
		r := &c.send[0]
		switch s.plan.Test {
		case TestWrite:
			r.Op, r.Remote = rdma.OpWrite, c.remote(s.layout.target)
		case TestRead:
			r.Op, r.Remote = rdma.OpRead, c.remote(s.layout.target)
			c.sge[0].Offset = c.base + s.layout.receive
		case TestAtomic:
			r.Op, r.Remote, r.CompareAdd = rdma.OpFetchAdd, c.remote(s.layout.target), 1
			c.sge[0].Offset = c.base + s.layout.receive
		}
	}
}

// repost posts the oldest receive again. It gathers receives into lots, each of which
// is one call of the device.
func (c *conn) repost() error {
	if c.unposed++; c.unposed < c.lot {
		return nil
	}
	for c.unposed > 0 {
		n := min(c.unposed, len(c.recvs)-c.next)
		taken, err := c.postRecv(c.recvs[c.next : c.next+n])
		c.unposed -= taken
		if c.next += taken; c.next == len(c.recvs) {
			c.next = 0
		}
		if err != nil {
			return c.failed("post a receive", err)
		}
	}
	return nil
}

// repostThis is repost for the receive of a completion, where its buffer matters. A
// queue pair's own receives are used in the order in which they were posted.
func (c *conn) repostThis(d *rdma.Completion) error {
	if c.lane.shared == nil {
		return c.repost()
	}
	i := int(uint32(d.ID))
	if _, err := c.postRecv(c.recvs[i : i+1]); err != nil {
		return c.failed("post a receive", err)
	}
	return nil
}

func (c *conn) postRecv(receives []rdma.RecvRequest) (int, error) {
	if shared := c.lane.shared; shared != nil {
		return shared.PostRecv(receives)
	}
	return c.qp.PostRecv(receives)
}

// owner is the connection whose receive a completion is of, and from the one that the
// message came over. With shared receives these may differ.
func (l *lane) owner(d *rdma.Completion) *conn { return l.conns[int(d.ID>>connShift&twelveBits)] }

func (l *lane) from(d *rdma.Completion) *conn {
	if l.shared == nil {
		return l.owner(d)
	}
	return l.byNumber[d.QueuePair]
}

func (c *conn) failed(what string, err error) error {
	if c.lane.side.stopping.Load() {
		return errStopped
	}
	if cause := c.qp.Err(); cause != nil {
		err = errors.Join(err, cause)
	}
	return fmt.Errorf("perf: connection %d: %s: %w", c.index+1, what, err)
}

// bad is the error that a completion other than a success stands for.
func (l *lane) bad(c *rdma.Completion) error {
	if l.side.stopping.Load() {
		return errStopped
	}
	if l.sends != nil && c.Status == rdma.StatusFlushed {
		// A Send that failed may say why, in the queue that nobody waits for.
		n, _ := l.sends.Poll(l.sent[:]) // what it fails with tells less
		for i := range l.sent[:n] {
			if s := l.sent[i].Status; s != rdma.StatusSuccess && s != rdma.StatusFlushed {
				c = &l.sent[i]
				break
			}
		}
	}
	err := fmt.Errorf("perf: completion with %s", c.Status)
	for _, conn := range l.conns {
		if conn.qp.Number() == c.QueuePair {
			return conn.failed(c.Status.String(), err)
		}
	}
	return err
}

func (l *lane) sendCompletions() rdma.CompletionQueue {
	if l.sends != nil {
		return l.sends
	}
	return l.cq
}

// postOne posts a request of a ping-pong.
func (c *conn) postOne(request []rdma.SendRequest, what string) error {
	l := c.lane
	if l.sends == nil {
		if _, err := c.qp.PostSend(request); err != nil {
			return c.failed(what, err)
		}
		return nil
	}
	for {
		if err := c.reap(l.sends, l.sent[:]); err != nil {
			return err
		}
		_, err := c.qp.PostSend(request)
		if err == nil {
			return nil
		}
		// The queue may be full: an answer can come before the acknowledgement of what it
		// answers.
		if !errors.Is(err, rdma.ErrQueueFull) || l.side.stopping.Load() {
			return c.failed(what, err)
		}
		runtime.Gosched()
	}
}

// await waits, as the plan says, until it has taken at least one completion into the
// lane's batch, and returns them.
func (l *lane) await() ([]rdma.Completion, error) {
	if n, err := l.cq.Poll(l.batch[:]); n > 0 || err != nil {
		return l.batch[:n], err
	}
	n, err := l.wait(l.batch[:])
	return l.batch[:n], err
}

// adaptiveSpin is how long an adaptive wait polls before it sleeps: about as long as
// falling asleep and waking take.
const adaptiveSpin = 20 * time.Microsecond

// wait polls until there is something, or sleeps in between.
func (l *lane) wait(into []rdma.Completion) (int, error) {
	s := l.side
	if s.plan.Wait == WaitEvent {
		return l.sleep(into)
	}
	var began time.Time
	for i := 1; ; i++ {
		if n, err := l.cq.Poll(into); n > 0 || err != nil {
			return n, err
		}
		if i%s.yield == 0 {
			if s.stopping.Load() {
				return 0, errStopped
			}
			runtime.Gosched()
		}
		if i%16 == 0 && s.plan.Wait == WaitAdaptive {
			if began.IsZero() {
				began = time.Now()
			} else if time.Since(began) > adaptiveSpin {
				return l.sleep(into)
			}
		}
	}
}

// sleep waits for the queue's event. stop ends it. A context that can end would make
// each wait allocate, over some transports.
func (l *lane) sleep(into []rdma.Completion) (int, error) {
	for {
		if err := l.cq.Arm(false); err != nil {
			return 0, fmt.Errorf("perf: arm: %w", err)
		}
		if n, err := l.cq.Poll(into); n > 0 || err != nil {
			return n, err
		}
		if l.side.stopping.Load() {
			return 0, errStopped
		}
		if err := l.cq.Wait(context.Background()); err != nil {
			return 0, fmt.Errorf("perf: wait for completions: %w", err)
		}
		// The completion is mostly there by now, so that arming would be in vain.
		if n, err := l.cq.Poll(into); n > 0 || err != nil {
			return n, err
		}
	}
}

// stop ends the loops: with err, if it is the first reason. It wakes those that sleep.
// A queue pair that is disconnected flushes its own receives, which completes them.
// Shared receives outlive it and complete nothing, so that their completion queue has
// to be closed, and before it the queue pairs that use it.
func (s *side) stop(err error) {
	s.once.Do(func() {
		s.err = err
		s.stopping.Store(true)
		for _, c := range s.conns {
			_ = c.qp.Disconnect() // it may be over already
		}
		if !s.plan.SharedReceives {
			return
		}
		// What cannot be closed here the domain's Close reports.
		for _, c := range s.conns {
			_ = c.qp.Close()
		}
		for _, l := range s.lanes {
			_ = l.cq.Close()
		}
	})
}

// close frees everything. The loops have ended.
func (s *side) close() error {
	if err := s.domain.Close(); err != nil {
		return fmt.Errorf("perf: close domain: %w", err)
	}
	return nil
}

// touch reads a word of each line.
func touch(b []byte) (sum uint64) {
	for i := 0; i < len(b); i += line {
		sum += uint64(b[i])
	}
	return sum
}

// rewrite writes a byte of each line.
func rewrite(b []byte, with byte) {
	for i := 0; i < len(b); i += line {
		b[i] = with
	}
}
