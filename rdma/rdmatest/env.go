package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/verbena-data/verbena/rdma"
)

// An env is what a case runs in. Its methods that fail end the goroutine that
// calls them.
type env struct {
	t     *testing.T
	suite *Suite
	ctx   context.Context // ends with the watchdog

	mu        sync.Mutex
	cleanups  []func()
	abandoned atomic.Bool
	sideA     *side
	sideB     *side
}

func (e *env) abandon() { e.abandoned.Store(true) }

func (e *env) fatalf(format string, args ...any) {
	e.t.Helper()
	e.errorf(format, args...)
	runtime.Goexit()
}

func (e *env) errorf(format string, args ...any) {
	e.t.Helper()
	if !e.abandoned.Load() {
		e.t.Errorf(format, args...)
	}
}

func (e *env) logf(format string, args ...any) {
	e.t.Helper()
	if !e.abandoned.Load() {
		e.t.Logf(format, args...)
	}
}

func (e *env) check(err error, what string) {
	e.t.Helper()
	if err != nil {
		e.fatalf("%s: %v", what, err)
	}
}

// wants fails unless err is one of the errors that are documented for what.
func (e *env) wants(err error, what string, any ...error) {
	e.t.Helper()
	for _, target := range any {
		if errors.Is(err, target) {
			return
		}
	}
	e.errorf("%s: error %v, want one that wraps one of %q", what, err, any)
}

// cleanup runs f when the case is over, the last one first.
func (e *env) cleanup(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cleanups = append(e.cleanups, f)
}

func (e *env) cleanUp() {
	for {
		e.mu.Lock()
		n := len(e.cleanups)
		if n == 0 {
			e.mu.Unlock()
			return
		}
		f := e.cleanups[n-1]
		e.cleanups = e.cleanups[:n-1]
		e.mu.Unlock()
		f()
	}
}

// bound is a context for something that must come.
func (e *env) bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(e.ctx, e.suite.Bound)
}

// soon is a context for something that must not come: a time after which we
// believe it.
func (e *env) soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(e.ctx, 30*time.Millisecond)
}

// eventually polls until what comes true.
func (e *env) eventually(what string, is func() bool) {
	e.t.Helper()
	ctx, cancel := e.bound()
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			e.fatalf("%s: not within %v", what, e.suite.Bound)
		}
	}
}

// together runs all of f at once and fails with the case if one of them did.
func (e *env) together(fs ...func()) {
	e.t.Helper()
	var wg sync.WaitGroup
	var ended atomic.Int32
	for _, f := range fs {
		wg.Go(func() {
			f()
			ended.Add(1)
		})
	}
	wg.Wait()
	if int(ended.Load()) != len(fs) {
		runtime.Goexit() // one of them has said why
	}
}

// a is the initiator's side and b the target's, each with a domain.
func (e *env) a() *side {
	if e.sideA == nil {
		e.sideA = e.newSide("initiator", e.suite.initiator)
	}
	return e.sideA
}

func (e *env) b() *side {
	if e.sideB == nil {
		e.sideB = e.newSide("target", e.suite.target)
	}
	return e.sideB
}

// A side is one domain of one of the devices.
type side struct {
	e          *env
	name       string
	device     rdma.Device
	attributes rdma.Attributes
	domain     rdma.Domain
	listener   rdma.Listener

	mu     sync.Mutex
	events []rdma.Event
	raised chan struct{} // closed and replaced at every event
}

func (e *env) newSide(name string, device rdma.Device) *side {
	e.t.Helper()
	s := &side{e: e, name: name, device: device, attributes: device.Attributes(), raised: make(chan struct{})}
	var inside atomic.Int32
	var err error
	s.domain, err = device.OpenDomain(rdma.DomainConfig{OnEvent: func(event rdma.Event) {
		if inside.Add(1) != 1 {
			e.errorf("%s: OnEvent is called while another call is under way", name)
		}
		s.mu.Lock()
		s.events = append(s.events, event)
		close(s.raised)
		s.raised = make(chan struct{})
		s.mu.Unlock()
		inside.Add(-1)
	}})
	e.check(err, name+": OpenDomain")
	e.cleanup(func() {
		err := s.domain.Close()
		if err != nil && !errors.Is(err, rdma.ErrClosed) && !(isRemote(device) && isLost(err)) {
			e.errorf("%s: Domain.Close: %v", name, err)
		}
	})
	return s
}

// event waits for an event that matches.
func (s *side) event(what string, matches func(rdma.Event) bool) rdma.Event {
	s.e.t.Helper()
	ctx, cancel := s.e.bound()
	defer cancel()
	for seen := 0; ; {
		s.mu.Lock()
		events, raised := s.events, s.raised
		s.mu.Unlock()
		for ; seen < len(events); seen++ {
			if matches(events[seen]) {
				return events[seen]
			}
		}
		select {
		case <-raised:
		case <-ctx.Done():
			s.e.fatalf("%s: no event: %s; seen: %v", s.name, what, events)
		}
	}
}

// count counts the events that have come and match.
func (s *side) count(matches func(rdma.Event) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, event := range s.events {
		if matches(event) {
			n++
		}
	}
	return n
}

// address is what the side listens at.
func (s *side) address() string {
	if s.device == s.e.suite.initiator && s.e.suite.initiator != s.e.suite.target {
		return s.e.suite.InitiatorAddress
	}
	return s.e.suite.Address
}

// listen returns the side's listener.
func (s *side) listen() rdma.Listener {
	s.e.t.Helper()
	if s.listener == nil {
		ctx, cancel := s.e.bound()
		defer cancel()
		l, err := s.device.Listen(ctx, s.address())
		s.e.check(err, s.name+": Listen")
		s.listener = l
		s.e.cleanup(func() { l.Close() })
	}
	return s.listener
}

const (
	everything = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteAtomic
	readWrite  = everything &^ rdma.AccessRemoteAtomic
)

// all is every right that the side's device knows.
func (s *side) all() rdma.Access {
	if s.attributes.Has(rdma.CapAtomics) {
		return everything
	}
	return readWrite
}

// A memory is a region wherever it is.
type memory struct {
	rdma.Region
	s    *side
	size int
}

func (s *side) allocate(size int, access rdma.Access) *memory {
	s.e.t.Helper()
	r, err := s.domain.Allocate(size, access)
	s.e.check(err, fmt.Sprintf("%s: Allocate of %d bytes", s.name, size))
	return &memory{Region: r, s: s, size: size}
}

// memory allocates with all rights.
func (s *side) memory(size int) *memory {
	s.e.t.Helper()
	return s.allocate(size, s.all())
}

func (m *memory) read(offset, length int) []byte {
	m.s.e.t.Helper()
	if r, ok := m.Region.(*remoteRegion); ok {
		data, err := r.read(offset, length)
		m.s.e.check(err, "read memory of the other process")
		return data
	}
	return m.Bytes()[offset : offset+length]
}

func (m *memory) write(offset int, data []byte) {
	m.s.e.t.Helper()
	if r, ok := m.Region.(*remoteRegion); ok {
		m.s.e.check(r.write(offset, data), "write memory of the other process")
		return
	}
	copy(m.Bytes()[offset:], data)
}

// fill sets length bytes from offset on.
func (m *memory) fill(offset, length int, value byte) {
	m.s.e.t.Helper()
	if r, ok := m.Region.(*remoteRegion); ok {
		m.s.e.check(r.fill(offset, length, value), "fill memory of the other process")
		return
	}
	b := m.Bytes()[offset : offset+length]
	for len(b) > 0 {
		b = b[copy(b, blanks[value][:]):]
	}
}

// blanks are blocks of one value, to fill and compare by.
var blanks = func() (b [256][]byte) {
	for value := range b {
		b[value] = bytes.Repeat([]byte{byte(value)}, 4096)
	}
	return b
}()

// is tells whether all bytes of b have the value.
func is(b []byte, value byte) bool {
	for len(b) > 0 {
		n := min(len(b), 4096)
		if !bytes.Equal(b[:n], blanks[value][:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// at is the memory from offset on, as the peer names it.
func (m *memory) at(offset int) rdma.Remote {
	return rdma.Remote{Address: m.Address() + uint64(offset), Key: m.Key()}
}

// sge is one entry.
func (m *memory) sge(offset, length int) []rdma.SGE {
	return []rdma.SGE{{Region: m.Region, Offset: offset, Length: length}}
}

// A queue is a completion queue.
type queue struct {
	rdma.CompletionQueue
	s       *side
	pending []rdma.Completion
	buffer  [32]rdma.Completion
}

func (s *side) queue(depth int) *queue {
	s.e.t.Helper()
	q, err := s.domain.NewCompletionQueue(depth)
	s.e.check(err, fmt.Sprintf("%s: NewCompletionQueue(%d)", s.name, depth))
	return &queue{CompletionQueue: q, s: s}
}

// poll takes what is there.
func (q *queue) poll() []rdma.Completion {
	q.s.e.t.Helper()
	n, err := q.Poll(q.buffer[:])
	q.s.e.check(err, q.s.name+": Poll")
	return q.buffer[:n]
}

// next returns the next completion. It arms, polls and waits.
func (q *queue) next() rdma.Completion {
	q.s.e.t.Helper()
	if len(q.pending) == 0 {
		q.pending = append(q.pending, q.poll()...)
	}
	if len(q.pending) == 0 {
		ctx, cancel := q.s.e.bound()
		defer cancel()
		for len(q.pending) == 0 {
			q.s.e.check(q.Arm(false), q.s.name+": Arm")
			if q.pending = append(q.pending, q.poll()...); len(q.pending) > 0 {
				break
			}
			if err := q.Wait(ctx); err != nil {
				late := q.poll()
				if len(late) > 0 {
					q.s.e.fatalf("%s: Wait: %v, though a completion is there: a lost wake-up", q.s.name, err)
				}
				q.s.e.fatalf("%s: no completion came: Wait: %v", q.s.name, err)
			}
		}
	}
	c := q.pending[0]
	q.pending = q.pending[1:]
	return c
}

// success takes one successful completion with the ID.
func (q *queue) success(id uint64) rdma.Completion {
	q.s.e.t.Helper()
	c := q.next()
	if c.ID != id || c.Status != rdma.StatusSuccess {
		q.s.e.fatalf("%s: completion of %d: %s; want success of %d", q.s.name, c.ID, c.Status, id)
	}
	return c
}

// spin is success for one who polls without a pause: it sees the completion as
// soon as it is there.
func (q *queue) spin(id uint64) {
	q.s.e.t.Helper()
	if len(q.pending) == 0 {
		q.s.e.poll(fmt.Sprintf("completion of %d", id), func() bool {
			n, err := q.Poll(q.buffer[:1])
			q.s.e.check(err, q.s.name+": Poll")
			q.pending = append(q.pending, q.buffer[:n]...)
			return n > 0
		})
	}
	q.success(id)
}

// quiet fails if a completion comes soon.
func (q *queue) quiet(what string) {
	q.s.e.t.Helper()
	ctx, cancel := q.s.e.soon()
	defer cancel()
	q.s.e.check(q.Arm(false), "Arm")
	if all := q.poll(); len(all) > 0 {
		q.s.e.fatalf("%s: %s: completion %+v", q.s.name, what, all[0])
	}
	for q.Wait(ctx) == nil {
		if all := q.poll(); len(all) > 0 {
			q.s.e.fatalf("%s: %s: completion %+v", q.s.name, what, all[0])
		}
		q.s.e.check(q.Arm(false), "Arm")
	}
}

// A conn is one side's end of a connection.
type conn struct {
	rdma.QueuePair
	s      *side
	sends  *queue
	recvs  *queue
	config rdma.QueuePairConfig
}

// newConn makes a queue pair; adjust may change its configuration.
func (s *side) newConn(adjust func(*rdma.QueuePairConfig)) *conn {
	s.e.t.Helper()
	c := &conn{s: s}
	c.config = rdma.QueuePairConfig{
		SendDepth: min(64, s.attributes.MaxQueueDepth),
		RecvDepth: min(64, s.attributes.MaxQueueDepth),
		MaxSGE:    min(4, s.attributes.MaxSendSGE, s.attributes.MaxRecvSGE),
		MaxInline: min(64, s.attributes.MaxInline),
	}
	if s.attributes.Has(rdma.CapReceiverNotReady) {
		c.config.ReceiverNotReadyRetry = -1
	}
	if adjust != nil {
		adjust(&c.config)
	}
	// The provider may give deeper queues than it was asked for, and failing
	// tests may post more than they should.
	if c.config.SendCompletions == nil {
		c.sends = s.queue(min(2*c.config.SendDepth, s.attributes.MaxCompletions))
		c.config.SendCompletions = c.sends.CompletionQueue
	}
	if c.config.RecvCompletions == nil {
		c.recvs = s.queue(min(2*max(c.config.RecvDepth, 64), s.attributes.MaxCompletions))
		c.config.RecvCompletions = c.recvs.CompletionQueue
	}
	qp, err := s.domain.NewQueuePair(c.config)
	s.e.check(err, s.name+": NewQueuePair")
	c.QueuePair = qp
	return c
}

// using makes a queue pair use existing completion queues.
func using(sends, recvs *queue) func(*rdma.QueuePairConfig) {
	return func(c *rdma.QueuePairConfig) {
		c.SendCompletions, c.RecvCompletions = sends.CompletionQueue, recvs.CompletionQueue
	}
}

// connect makes a connection between new queue pairs of both sides.
func (e *env) connect(adjust func(*rdma.QueuePairConfig)) (a, b *conn) {
	e.t.Helper()
	return e.connectEach(adjust, adjust)
}

func (e *env) connectEach(adjustA, adjustB func(*rdma.QueuePairConfig)) (a, b *conn) {
	e.t.Helper()
	a, b = e.a().newConn(adjustA), e.b().newConn(adjustB)
	e.join(a, b)
	return a, b
}

// connectBothWays connects and has the initiator send first, which a target may
// have to wait for before it sends itself (RFC 5044).
func (e *env) connectBothWays() (a, b *conn) {
	e.t.Helper()
	a, b = e.connect(nil)
	a.signal(b)
	return a, b
}

// join connects a to b.
func (e *env) join(a, b *conn) {
	e.t.Helper()
	l := b.s.listen()
	ctx, cancel := e.bound()
	defer cancel()
	e.together(func() {
		_, err := a.Connect(ctx, l.Address(), nil)
		e.check(err, "Connect")
	}, func() {
		request, err := l.Accept(ctx)
		e.check(err, "Listener.Accept")
		e.check(request.Accept(ctx, b.QueuePair, nil), "ConnectRequest.Accept")
	})
	for _, c := range []*conn{a, b} {
		if state := c.State(); state != rdma.StateConnected {
			e.fatalf("%s: connected queue pair is in state %s", c.s.name, state)
		}
	}
}

// send posts one request and expects it to be taken.
func (c *conn) send(request rdma.SendRequest) {
	c.s.e.t.Helper()
	n, err := c.PostSend([]rdma.SendRequest{request})
	if n != 1 || err != nil {
		c.s.e.fatalf("%s: PostSend of %s: %d, %v", c.s.name, request.Op, n, err)
	}
}

// recv posts one receive.
func (c *conn) recv(id uint64, sges []rdma.SGE) {
	c.s.e.t.Helper()
	n, err := c.PostRecv([]rdma.RecvRequest{{ID: id, SGEs: sges}})
	if n != 1 || err != nil {
		c.s.e.fatalf("%s: PostRecv: %d, %v", c.s.name, n, err)
	}
}

// signal sends an empty message and waits until the peer has it: what was
// written before is visible there.
func (c *conn) signal(peer *conn) {
	c.s.e.t.Helper()
	const id = 1<<63 + 1
	peer.recv(id, nil)
	c.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled})
	peer.recvs.success(id)
	c.sends.success(id)
}

// ended waits until the queue pair has failed, and checks what must then hold.
func (c *conn) ended() {
	c.s.e.t.Helper()
	ctx, cancel := c.s.e.bound()
	defer cancel()
	select {
	case <-c.Done():
	case <-ctx.Done():
		c.s.e.fatalf("%s: queue pair did not fail: it is %s, error %v", c.s.name, c.State(), c.Err())
	}
	if state := c.State(); state != rdma.StateError && state != rdma.StateClosed {
		c.s.e.errorf("%s: Done is closed and the state is %s", c.s.name, state)
	}
	if c.Err() == nil {
		c.s.e.errorf("%s: queue pair failed and Err is nil", c.s.name)
	}
}

// pattern is data that differs from place to place and from seed to seed.
func pattern(b []byte, seed uint64) {
	x := seed*0x9E3779B97F4A7C15 + 0x1234567
	for len(b) >= 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[0], b[1], b[2], b[3] = byte(x), byte(x>>8), byte(x>>16), byte(x>>24)
		b[4], b[5], b[6], b[7] = byte(x>>32), byte(x>>40), byte(x>>48), byte(x>>56)
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}

func patterned(n int, seed uint64) []byte {
	b := make([]byte, n)
	pattern(b, seed)
	return b
}

// same fails at the first byte that differs.
func (e *env) same(got, want []byte, what string) {
	e.t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		e.fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			e.fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
		}
	}
}

// poll spins until what comes true.
func (e *env) poll(what string, is func() bool) {
	e.t.Helper()
	end := time.Now().Add(e.suite.Bound)
	for i := 0; !is(); i++ {
		runtime.Gosched()
		if i%1024 == 1023 && time.Now().After(end) {
			e.fatalf("%s: not within %v", what, e.suite.Bound)
		}
	}
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// wordPointer is the aligned word that b begins with.
func wordPointer(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }

func loadWord(p *uint64) uint64 { return atomic.LoadUint64(p) }
