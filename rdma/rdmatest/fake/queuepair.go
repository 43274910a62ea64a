package fake

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A receiveQueue is a ring of receives.
type receiveQueue struct {
	slots []receive
	first int
	count int
}

type receive struct {
	id   uint64
	sges []rdma.SGE
}

func newReceiveQueue(depth, sges int) receiveQueue {
	q := receiveQueue{slots: make([]receive, depth)}
	for i := range q.slots {
		q.slots[i].sges = make([]rdma.SGE, 0, sges)
	}
	return q
}

func (q *receiveQueue) post(d *domain, requests []rdma.RecvRequest) (int, error) {
	for i := range requests {
		r := &requests[i]
		if q.count == len(q.slots) {
			return i, rdma.ErrQueueFull
		}
		slot := &q.slots[(q.first+q.count)%len(q.slots)]
		if _, err := d.check(r.SGEs, cap(slot.sges), rdma.AccessLocalWrite); err != nil {
			return i, err
		}
		slot.id = r.ID
		slot.sges = append(slot.sges[:0], r.SGEs...)
		q.count++
	}
	return len(requests), nil
}

// take returns the oldest receive, which is valid until the next post.
func (q *receiveQueue) take() *receive {
	slot := &q.slots[q.first]
	q.first = (q.first + 1) % len(q.slots)
	q.count--
	return slot
}

// check tells the length of a list of entries; it needs mu.
func (d *domain) check(sges []rdma.SGE, most int, access rdma.Access) (int, error) {
	if len(sges) > most {
		return 0, fmt.Errorf("fake: %d entries, at most %d: %w", len(sges), most, rdma.ErrInvalid)
	}
	length := 0
	for _, s := range sges {
		r, ok := s.Region.(*region)
		switch {
		case !ok || r == nil || r.domain != d:
			return 0, fmt.Errorf("fake: entry of a region of another domain: %w", rdma.ErrInvalid)
		case r.memory == nil:
			return 0, fmt.Errorf("fake: entry of a closed region: %w", rdma.ErrInvalid)
		case s.Offset < 0 || s.Length < 0 || s.Offset > len(r.memory) || s.Length > len(r.memory)-s.Offset:
			return 0, fmt.Errorf("fake: entry of %d bytes at %d is outside its region of %d: %w", s.Length, s.Offset, len(r.memory), rdma.ErrInvalid)
		case access&^r.access != 0:
			return 0, fmt.Errorf("fake: entry of a region without the right of local write: %w", rdma.ErrInvalid)
		}
		length += s.Length
	}
	if int64(length) > d.device.config.MaxMessage {
		return 0, fmt.Errorf("fake: message of %d bytes, at most %d: %w", length, d.device.config.MaxMessage, rdma.ErrInvalid)
	}
	return length, nil
}

type sharedReceiveQueue struct {
	domain *domain

	// Under mu.
	receives receiveQueue
	limit    int
	users    map[*queuePair]struct{}
	closed   bool
}

func (d *domain) NewSharedReceiveQueue(c rdma.SharedReceiveConfig) (rdma.SharedReceiveQueue, error) {
	if !d.device.config.Has(rdma.CapSharedReceive) {
		return nil, fmt.Errorf("fake: shared receive queue: %w", rdma.ErrUnsupported)
	}
	if c.MaxSGE == 0 {
		c.MaxSGE = 1
	}
	if c.Depth < 1 || c.Depth > d.device.config.MaxQueueDepth || c.MaxSGE < 1 || c.MaxSGE > d.device.config.MaxRecvSGE {
		return nil, fmt.Errorf("fake: shared receive queue of depth %d with %d entries is beyond the device's limits: %w", c.Depth, c.MaxSGE, rdma.ErrInvalid)
	}
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if err := d.usable("new shared receive queue"); err != nil {
		return nil, err
	}
	s := &sharedReceiveQueue{
		domain:   d,
		receives: newReceiveQueue(c.Depth, c.MaxSGE),
		limit:    c.LimitEvent,
		users:    map[*queuePair]struct{}{},
	}
	d.shared[s] = struct{}{}
	return s, nil
}

func (s *sharedReceiveQueue) PostRecv(requests []rdma.RecvRequest) (int, error) {
	mu := &s.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	if s.closed {
		return 0, rdma.ErrClosed
	}
	n, err := s.receives.post(s.domain, requests)
	for q := range s.users {
		q.wakePeer()
	}
	return n, err
}

func (s *sharedReceiveQueue) Close() error {
	mu := &s.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	if len(s.users) > 0 {
		return fmt.Errorf("fake: close shared receive queue: %d queue pairs use it: %w", len(s.users), rdma.ErrInUse)
	}
	s.closed = true
	delete(s.domain.shared, s)
	return nil
}

// A send is a request on the send queue.
type send struct {
	rdma.SendRequest // whose SGEs are the slot's own
	length           int
	inline           []byte // the payload, if the request is inline
	done             bool
}

type queuePair struct {
	domain *domain
	number uint32
	config rdma.QueuePairConfig
	sendCQ *completionQueue
	recvCQ *completionQueue
	shared *sharedReceiveQueue
	done   chan struct{}
	worker sync.WaitGroup
	leak   chan struct{}

	// Under mu.
	cond     *sync.Cond // signalled when the worker should look again
	state    rdma.State
	err      error
	closed   bool
	peer     *queuePair
	attempt  *attempt
	stream   *stream
	receives receiveQueue
	notReady time.Time // when the send at next gives up waiting for a receive

	// The send queue is a ring; a request with the sequence number s stands at
	// s modulo its length. Sequence numbers below oldest are free again, those
	// below complete have completed, those below next have been started, those
	// below end have been posted.
	sends                       []send
	oldest, complete, next, end uint64
	scratch, waste              []byte
	late                        []uint64 // Reads and atomics that have been started and not carried out
	held                        bool     // until Ring
}

func (d *domain) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	a := &d.device.config.Attributes
	if c.MaxSGE == 0 {
		c.MaxSGE = 1
	}
	if c.MaxReads == 0 || c.MaxReads > a.MaxReads {
		c.MaxReads = a.MaxReads
	}
	if c.SendDepth < 1 || c.SendDepth > a.MaxQueueDepth || c.RecvDepth < 0 || c.RecvDepth > a.MaxQueueDepth ||
		c.MaxSGE < 0 || c.MaxSGE > max(a.MaxSendSGE, a.MaxRecvSGE) || c.MaxInline < 0 || c.MaxInline > a.MaxInline {
		return nil, fmt.Errorf("fake: new queue pair: %d sends, %d receives, %d entries or %d bytes inline are beyond the device's limits: %w",
			c.SendDepth, c.RecvDepth, c.MaxSGE, c.MaxInline, rdma.ErrInvalid)
	}
	sendCQ, ok1 := c.SendCompletions.(*completionQueue)
	recvCQ, ok2 := c.RecvCompletions.(*completionQueue)
	if !ok1 || !ok2 || sendCQ.domain != d || recvCQ.domain != d {
		return nil, fmt.Errorf("fake: new queue pair: its completion queues are not of its domain: %w", rdma.ErrInvalid)
	}
	var shared *sharedReceiveQueue
	if c.SharedReceive != nil {
		var ok bool
		if shared, ok = c.SharedReceive.(*sharedReceiveQueue); !ok || shared.domain != d {
			return nil, fmt.Errorf("fake: new queue pair: its shared receive queue is not of its domain: %w", rdma.ErrInvalid)
		}
	}
	n := d.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := d.usable("new queue pair"); err != nil {
		return nil, err
	}
	if sendCQ.closed || recvCQ.closed || shared != nil && shared.closed {
		return nil, fmt.Errorf("fake: new queue pair: one of its queues: %w", rdma.ErrClosed)
	}
	n.number++
	q := &queuePair{
		domain: d, number: n.number, config: c, sendCQ: sendCQ, recvCQ: recvCQ, shared: shared,
		done: make(chan struct{}), cond: sync.NewCond(&n.mu),
		sends: make([]send, c.SendDepth), late: make([]uint64, 0, c.SendDepth),
	}
	for i := range q.sends {
		q.sends[i].SGEs = make([]rdma.SGE, 0, c.MaxSGE)
		q.sends[i].inline = make([]byte, 0, c.MaxInline)
	}
	if shared == nil {
		q.receives = newReceiveQueue(c.RecvDepth, min(c.MaxSGE, a.MaxRecvSGE))
	} else {
		shared.users[q] = struct{}{}
	}
	sendCQ.users[q] = struct{}{}
	recvCQ.users[q] = struct{}{}
	d.queuePairs[q] = struct{}{}
	return q, nil
}

func (q *queuePair) Number() uint32        { return q.number }
func (q *queuePair) Done() <-chan struct{} { return q.done }

// PeerCredentials implements [rdma.CredentialedQueuePair]: both ends are in this
// process.
func (q *queuePair) PeerCredentials() (rdma.Credentials, bool) {
	q.domain.network.mu.Lock()
	defer q.domain.network.mu.Unlock()
	if q.peer == nil {
		return rdma.Credentials{}, false
	}
	return rdma.Credentials{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: os.Getpid()}, true
}

func (q *queuePair) State() rdma.State {
	q.domain.network.mu.Lock()
	defer q.domain.network.mu.Unlock()
	return q.state
}

func (q *queuePair) Err() error {
	q.domain.network.mu.Lock()
	defer q.domain.network.mu.Unlock()
	return q.err
}

func (q *queuePair) at(sequence uint64) *send { return &q.sends[sequence%uint64(len(q.sends))] }

// release frees the space of all requests up to sequence; it needs mu.
func (q *queuePair) release(sequence uint64) { q.oldest = max(q.oldest, sequence+1) }

func (q *queuePair) PostSend(requests []rdma.SendRequest) (int, error) {
	mu := &q.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	defer q.cond.Broadcast()
	return q.post(requests)
}

// PostSendHeld implements [rdma.DoorbellQueuePair]. Nothing is carried out before Ring,
// so that who forgets to ring waits for ever.
func (q *queuePair) PostSendHeld(requests []rdma.SendRequest) (n int, ring bool, err error) {
	mu := &q.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	n, err = q.post(requests)
	q.held = q.held || n > 0
	return n, q.held, err
}

// Ring implements [rdma.DoorbellQueuePair].
func (q *queuePair) Ring() {
	mu := &q.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	q.held = q.held && q.domain.device.has(BugDeafDoorbell)
	q.cond.Broadcast()
}

// post needs mu.
func (q *queuePair) post(requests []rdma.SendRequest) (int, error) {
	for i := range requests {
		if err := q.postSend(&requests[i]); err != nil {
			if q.domain.device.has(BugFullFails) && err == rdma.ErrQueueFull || q.domain.device.has(BugInvalidFails) && err != rdma.ErrQueueFull {
				q.fail(err)
			}
			return i, err
		}
	}
	if q.domain.device.has(BugAllocates) {
		q.waste = make([]byte, 64+len(q.waste)%2)
	}
	return len(requests), nil
}

func (q *queuePair) postSend(r *rdma.SendRequest) error {
	d := q.domain.device
	if q.state != rdma.StateConnected {
		if d.has(BugTakesAfterError) && q.state == rdma.StateError {
			return nil
		}
		return rdma.ErrState
	}
	if q.end-q.oldest == uint64(len(q.sends)) {
		return rdma.ErrQueueFull
	}
	most, access := min(q.config.MaxSGE, d.config.MaxSendSGE), rdma.Access(0)
	needs := rdma.Capabilities(0)
	switch r.Op {
	case rdma.OpSend, rdma.OpWrite:
	case rdma.OpSendImmediate:
		needs = rdma.CapSendImmediate
	case rdma.OpSendInvalidate:
		needs = rdma.CapSendInvalidate
	case rdma.OpWriteImmediate:
		needs = rdma.CapWriteImmediate
	case rdma.OpRead:
		most, access = min(q.config.MaxSGE, d.config.MaxReadSGE), rdma.AccessLocalWrite
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		most, access, needs = 1, rdma.AccessLocalWrite, rdma.CapAtomics
	default:
		return fmt.Errorf("fake: post of operation %d: %w", r.Op, rdma.ErrInvalid)
	}
	if !d.config.Has(needs) {
		return fmt.Errorf("fake: post of %s: %w", r.Op, rdma.ErrUnsupported)
	}
	length, err := q.domain.check(r.SGEs, most, access)
	switch {
	case err != nil:
		return err
	case needs == rdma.CapAtomics && length != 8:
		return fmt.Errorf("fake: %s with an entry of %d bytes: %w", r.Op, length, rdma.ErrInvalid)
	case needs == rdma.CapAtomics && r.Remote.Address%8 != 0 && !d.has(BugUnaligned):
		return fmt.Errorf("fake: %s of unaligned memory: %w", r.Op, rdma.ErrInvalid)
	case r.Flags&rdma.Inline != 0 && access != 0:
		return fmt.Errorf("fake: inline %s: %w", r.Op, rdma.ErrInvalid)
	case r.Flags&rdma.Inline != 0 && length > q.config.MaxInline:
		return fmt.Errorf("fake: %d bytes inline, at most %d: %w", length, q.config.MaxInline, rdma.ErrInvalid)
	}
	s := q.at(q.end)
	sges, inline := append(s.SGEs[:0], r.SGEs...), s.inline[:0]
	*s = send{SendRequest: *r, length: length, inline: inline}
	s.SGEs = sges
	if d.has(BugGap) && len(sges) > 1 {
		n := len(sges)
		sges[n-1], sges[n-2] = sges[n-2], sges[n-1]
	}
	if r.Flags&rdma.Inline != 0 && !d.has(BugInlineReference) {
		for _, e := range s.SGEs {
			s.inline = append(s.inline, e.Region.(*region).memory[e.Offset:][:e.Length]...)
		}
	}
	q.end++
	return nil
}

func (q *queuePair) PostRecv(requests []rdma.RecvRequest) (int, error) {
	mu := &q.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	if q.shared != nil {
		return 0, fmt.Errorf("fake: post to a queue pair with a shared receive queue: %w", rdma.ErrInvalid)
	}
	if q.state != rdma.StateInit && q.state != rdma.StateConnected {
		return 0, rdma.ErrState
	}
	n, err := q.receives.post(q.domain, requests)
	q.wakePeer()
	return n, err
}

func (q *queuePair) wakePeer() {
	if q.peer != nil {
		q.peer.cond.Broadcast()
	}
}

// connected starts the worker; it needs mu.
func (q *queuePair) connected() {
	q.state = rdma.StateConnected
	q.worker.Go(q.work)
	if q.domain.device.has(BugLeaksGoroutine) {
		go func() { <-q.leak }()
	}
}

// work carries out requests, one at a time, until the queue pair fails.
func (q *queuePair) work() {
	mu := &q.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	for q.state == rdma.StateConnected {
		here, there := q.domain.device, q.peer.domain.device
		if here.dead {
			return
		}
		if here.stopped || there.dead || there.stopped || q.held || !q.step() {
			q.cond.Wait()
			continue
		}
		mu.Unlock() // to let others in
		if here.has(BugLateWrite | BugEarlyRead | BugEarlyWrite) {
			runtime.Gosched() // one processor is enough to see these
		}
		mu.Lock()
	}
}

// step carries out one request, or a part of one. It tells whether there was
// anything that it could do. It needs mu.
func (q *queuePair) step() bool {
	d := q.domain.device
	if q.next == q.end {
		return q.catchUp()
	}
	s := q.at(q.next)
	switch {
	case s.Flags&rdma.Fence != 0 && len(q.late) > 0 && !d.has(BugNoFence):
		return q.catchUp()
	case (answered(s.Op) || s.Op == rdma.OpWrite && d.has(BugLateWrite|BugEarlyWrite)) && !d.config.PromptReads:
		// The peer looks at requests in order: only the data is late.
		refused := s.length > 0 && q.peer.domain.remote(s.Remote, s.length, rights[s.Op]) == nil
		if len(q.late) >= q.config.MaxReads || refused && len(q.late) > 0 {
			return q.catchUp()
		}
		if refused {
			q.refused(q.next)
			return true
		}
		q.late = append(q.late, q.next)
		if s.Op == rdma.OpWrite && d.has(BugEarlyWrite) || s.Op != rdma.OpWrite && d.has(BugEarlyRead) {
			s.done = true
		}
		q.next++
		q.finish()
		return true
	}
	if takesReceive(s.Op) && !q.peer.hasReceive() && len(q.late) > 0 {
		return q.catchUp() // what is before it is not held up
	}
	if !q.perform(q.next) {
		return false
	}
	if q.state == rdma.StateConnected {
		q.next++
		q.finish()
	}
	return true
}

// catchUp carries out the oldest late request.
func (q *queuePair) catchUp() bool {
	if len(q.late) == 0 {
		return false
	}
	sequence := q.late[0]
	copy(q.late, q.late[1:])
	q.late = q.late[:len(q.late)-1]
	q.perform(sequence)
	if q.state == rdma.StateConnected {
		q.finish()
	}
	return true
}

// finish completes, in order, what has been done.
func (q *queuePair) finish() {
	for q.state == rdma.StateConnected && q.complete < q.next && q.at(q.complete).done {
		s := q.at(q.complete)
		q.complete++
		d := q.domain.device
		if s.Flags&rdma.Signaled != 0 || d.has(BugCompletesUnsignaled) {
			q.completeSend(q.complete-1, rdma.StatusSuccess)
		} else if d.has(BugEarlySpace) {
			q.release(q.complete - 1)
		}
	}
}

func (q *queuePair) completeSend(sequence uint64, status rdma.Status) {
	s := q.at(sequence)
	c := rdma.Completion{ID: s.ID, QueuePair: q.number, Op: s.Op, Status: status}
	if status == rdma.StatusSuccess && answered(s.Op) {
		c.Length = uint32(s.length)
	}
	q.sendCQ.add(entry{completion: c, queuePair: q, sequence: sequence, send: true}, false)
}

// takesReceive tells whether an operation consumes a receive of the peer.
func takesReceive(op rdma.Opcode) bool {
	switch op {
	case rdma.OpSend, rdma.OpSendImmediate, rdma.OpSendInvalidate, rdma.OpWriteImmediate:
		return true
	}
	return false
}

// answered tells whether an operation brings something back.
func answered(op rdma.Opcode) bool { return op >= rdma.OpRead && op <= rdma.OpFetchAdd }

// rights are what the operations need at the peer.
var rights = [...]rdma.Access{
	rdma.OpWrite: rdma.AccessRemoteWrite, rdma.OpWriteImmediate: rdma.AccessRemoteWrite, rdma.OpRead: rdma.AccessRemoteRead,
	rdma.OpCompareSwap: rdma.AccessRemoteAtomic, rdma.OpFetchAdd: rdma.AccessRemoteAtomic,
}

// perform carries out a request at both ends. It reports false if the request
// has to wait.
func (q *queuePair) perform(sequence uint64) bool {
	s, peer, d := q.at(sequence), q.peer, q.domain.device
	if d.dropAfter > 0 {
		if d.dropAfter--; d.dropAfter == 0 {
			err := fmt.Errorf("fake: connection dropped by DropAfter: %w", rdma.ErrDisconnected)
			peer.lost(err)
			q.lost(err)
			return true
		}
	}
	for _, e := range s.SGEs {
		if s.Flags&rdma.Inline == 0 && e.Region.(*region).memory == nil {
			q.failAt(sequence, rdma.StatusLocalProtection, fmt.Errorf("fake: %s from or to a closed region", s.Op))
			return true
		}
	}
	if takesReceive(s.Op) {
		if !peer.hasReceive() {
			return q.waitForReceive(sequence)
		}
		q.notReady = time.Time{}
	}
	var target []byte
	if s.Op >= rdma.OpWrite && s.Op != rdma.OpSendInvalidate && s.length > 0 {
		if target = peer.domain.remote(s.Remote, s.length, rights[s.Op]); target == nil {
			q.refused(sequence)
			return true
		}
	}
	switch s.Op {
	case rdma.OpSend, rdma.OpSendImmediate, rdma.OpSendInvalidate:
		return q.deliver(sequence)
	case rdma.OpWrite, rdma.OpWriteImmediate:
		s.gather(target)
		if s.Op == rdma.OpWriteImmediate {
			r := peer.takeReceive()
			peer.completeReceive(r.id, s, rdma.OpRecvWriteImmediate, s.length)
		}
	case rdma.OpRead:
		s.scatter(target)
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		was := binary.NativeEndian.Uint64(target)
		now := was + s.CompareAdd
		if s.Op == rdma.OpCompareSwap {
			if now = was; was == s.CompareAdd && !d.has(BugNoSwap) {
				now = s.Swap
			}
		} else if d.has(BugSum) {
			was = now
		}
		binary.NativeEndian.PutUint64(target, now)
		q.scratch = binary.NativeEndian.AppendUint64(q.scratch[:0], was)
		s.scatter(q.scratch)
	}
	s.done = true
	return true
}

// gather copies the payload to one place.
func (s *send) gather(to []byte) {
	if s.Flags&rdma.Inline != 0 && len(s.inline) == s.length {
		copy(to, s.inline)
		return
	}
	for _, e := range s.SGEs {
		to = to[copy(to, e.Region.(*region).memory[e.Offset:][:e.Length]):]
	}
}

// scatter copies one place to the entries.
func (s *send) scatter(from []byte) {
	for _, e := range s.SGEs {
		from = from[copy(e.Region.(*region).memory[e.Offset:][:e.Length], from):]
	}
}

func (q *queuePair) hasReceive() bool {
	if q.shared != nil {
		return q.shared.receives.count > 0
	}
	return q.receives.count > 0
}

func (q *queuePair) takeReceive() *receive {
	s := q.shared
	if s == nil {
		return q.receives.take()
	}
	r := s.receives.take()
	if s.limit > 0 && s.receives.count < s.limit && !q.domain.device.has(BugNoLimitEvent) {
		s.limit = 0
		q.domain.raise(rdma.Event{Kind: rdma.EventReceiveLimit, SharedReceive: s})
	}
	return r
}

// completeReceive completes a receive of q that the peer's request s took.
func (q *queuePair) completeReceive(id uint64, s *send, op rdma.Opcode, length int) {
	c := rdma.Completion{ID: id, QueuePair: q.number, Op: op, Length: uint32(length)}
	if s.Op == rdma.OpSendInvalidate {
		c.Immediate, c.Invalidated = s.Remote.Key, true
	} else if s.Op != rdma.OpSend && !q.domain.device.has(BugNoImmediate) {
		c.Immediate, c.HasImmediate = s.Immediate, true
	}
	q.recvCQ.add(entry{completion: c, queuePair: q}, s.Flags&rdma.Solicited != 0)
}

func (q *queuePair) flushReceive(id uint64, status rdma.Status) {
	q.recvCQ.add(entry{completion: rdma.Completion{ID: id, QueuePair: q.number, Op: rdma.OpRecv, Status: status}, queuePair: q}, false)
}

// deliver puts a Send into the peer's next receive.
func (q *queuePair) deliver(sequence uint64) bool {
	s, peer := q.at(sequence), q.peer
	r := peer.takeReceive()
	room := 0
	for _, e := range r.sges {
		if e.Region.(*region).memory == nil {
			err := fmt.Errorf("fake: receive %d into a closed region", r.id)
			peer.flushReceive(r.id, rdma.StatusLocalProtection)
			peer.fail(err)
			q.failAt(sequence, rdma.StatusRemoteOperation, fmt.Errorf("fake: the peer failed: %w", err))
			return true
		}
		room += e.Length
	}
	if s.length > room && !q.domain.device.has(BugCutsMessages) {
		err := fmt.Errorf("fake: message of %d bytes for a receive of %d", s.length, room)
		peer.flushReceive(r.id, rdma.StatusLocalLength)
		peer.fail(err)
		if q.domain.device.config.Class == rdma.ClassIWARP {
			s.done = true
			q.next = max(q.next, sequence+1)
			q.finish()
			q.fail(err)
			return true
		}
		q.failAt(sequence, rdma.StatusRemoteInvalid, err)
		return true
	}
	if s.Op == rdma.OpSendInvalidate && !peer.domain.invalidate(s.Remote.Key) {
		peer.flushReceive(r.id, rdma.StatusFlushed)
		q.refused(sequence)
		return true
	}
	q.scratch = slices.Grow(q.scratch[:0], s.length)[:s.length]
	payload := q.scratch
	s.gather(payload)
	length := s.length
	if q.domain.device.has(BugWrongLength) {
		length = room
	}
	for _, e := range r.sges {
		payload = payload[copy(e.Region.(*region).memory[e.Offset:][:e.Length], payload):]
	}
	peer.completeReceive(r.id, s, rdma.OpRecv, length)
	s.done = true
	return true
}

// waitForReceive is called when the peer has no receive for a request. It
// reports false if there is still time.
func (q *queuePair) waitForReceive(sequence uint64) bool {
	d := q.domain.device
	err := fmt.Errorf("fake: the peer has posted no receive for %s", q.at(sequence).Op)
	if q.peer.domain.device.config.Has(rdma.CapReceiverWaits) {
		q.at(sequence).done = d.has(BugDropsWaiting)
		return q.at(sequence).done
	}
	if !d.config.Has(rdma.CapReceiverNotReady) {
		q.peer.fail(err)
		if d.config.Class == rdma.ClassIWARP {
			q.at(sequence).done = true
			q.next = max(q.next, sequence+1)
			q.finish()
			q.fail(err)
			return true
		}
		q.failAt(sequence, rdma.StatusRemoteOperation, err)
		return true
	}
	retry := q.config.ReceiverNotReadyRetry
	switch {
	case d.has(BugPatientSender):
		retry = never
	case d.has(BugImpatientSender):
		retry = 0
	}
	now := time.Now()
	switch {
	case retry < 0:
		return false
	case q.notReady.IsZero():
		q.notReady = now.Add(retry)
	}
	if left := q.notReady.Sub(now); left > 0 {
		time.AfterFunc(left, func() {
			q.domain.network.mu.Lock()
			q.cond.Broadcast()
			q.domain.network.mu.Unlock()
		})
		return false
	}
	q.failAt(sequence, rdma.StatusReceiverNotReady, err)
	return true
}

// refused ends both ends in the way of the class when the peer's side does not
// allow the access of a request.
func (q *queuePair) refused(sequence uint64) {
	s := q.at(sequence)
	err := fmt.Errorf("fake: %s of %d bytes at %#x: %w", s.Op, s.length, s.Remote.Address, rdma.ErrRemoteAccess)
	peer := q.peer
	if q.domain.device.config.Class == rdma.ClassIWARP {
		if s.Op == rdma.OpWrite || s.Op == rdma.OpSendInvalidate {
			s.done = true
			q.next = max(q.next, sequence+1)
			q.finish()
		}
		q.fail(err)
	} else {
		q.failAt(sequence, rdma.StatusRemoteAccess, err)
	}
	peer.fail(fmt.Errorf("fake: the peer asked for what it may not: %w", err))
}

// failAt fails the queue pair by the request at sequence. It needs mu.
func (q *queuePair) failAt(sequence uint64, status rdma.Status, err error) {
	if q.state != rdma.StateConnected {
		return
	}
	// The Reads before it have not been refused: they are done first.
	for len(q.late) > 0 && q.late[0] < sequence && q.state == rdma.StateConnected {
		q.catchUp()
	}
	if q.state != rdma.StateConnected {
		return
	}
	for ; q.complete < sequence; q.complete++ {
		if q.at(q.complete).Flags&rdma.Signaled != 0 {
			q.completeSend(q.complete, rdma.StatusSuccess)
		}
	}
	q.completeSend(sequence, status)
	q.complete = sequence + 1
	q.shut(err, rdma.EventQueuePairError)
}

// fail moves the queue pair to StateError and flushes it. It needs mu.
func (q *queuePair) fail(err error) { q.shut(err, rdma.EventQueuePairError) }

// lost is fail for a connection that the peer ended.
func (q *queuePair) lost(err error) {
	if q.state == rdma.StateConnected && q.complete < q.end && q.domain.device.config.Class == rdma.ClassInfiniBand {
		q.completeSend(q.complete, rdma.StatusRetryExceeded)
		q.complete++
	}
	q.shut(err, rdma.EventDisconnected)
}

// noEvent is for what this side did itself.
const noEvent = rdma.EventKind(0xFF)

// shut moves the queue pair to StateError and flushes it. It needs mu.
func (q *queuePair) shut(err error, kind rdma.EventKind) {
	if q.state == rdma.StateError || q.state == rdma.StateClosed {
		return
	}
	was := q.state
	q.state = rdma.StateError
	q.err = err
	d := q.domain.device
	if !d.has(BugSilentEnd) {
		close(q.done)
		if was == rdma.StateConnected && kind != noEvent {
			q.domain.raise(rdma.Event{Kind: kind, QueuePair: q, Err: err})
		}
	}
	if !d.has(BugNoFlush) {
		from, to := q.complete, q.end
		for i := from; i < to; i++ {
			sequence := i
			if d.has(BugFlushBackwards) {
				sequence = to - 1 - (i - from)
			}
			q.completeSend(sequence, rdma.StatusFlushed)
		}
		q.complete = q.end
	}
	q.late = q.late[:0]
	for q.shared == nil && q.receives.count > 0 {
		r := q.receives.take()
		if !d.has(BugNoReceiveFlush) {
			q.flushReceive(r.id, rdma.StatusFlushed)
		}
	}
	for q.shared != nil && q.shared.receives.count > 0 && d.has(BugFlushesShared) {
		q.flushReceive(q.shared.receives.take().id, rdma.StatusFlushed)
	}
	if q.shared != nil && q.shared.receives.count > 0 && d.has(BugLosesShared) {
		q.shared.receives.take()
	}
	q.cond.Broadcast()
	q.wakePeer()
	if q.stream != nil {
		q.stream.conn.Close()
	}
}

// leave ends the connection at both ends. It needs mu.
func (q *queuePair) leave(err error) {
	if q.attempt != nil {
		q.attempt.end(nil, err)
	}
	peer := q.peer
	connected := q.state == rdma.StateConnected || q.state == rdma.StateError
	q.shut(err, noEvent)
	if connected && peer != nil && peer.state == rdma.StateConnected && !q.domain.device.has(BugDisconnectUnseen) {
		if !q.domain.device.dead {
			peer.lost(fmt.Errorf("fake: queue pair %d of %s ended the connection: %w", q.number, q.domain.device.config.Name, rdma.ErrDisconnected))
		}
	}
}

func (q *queuePair) Disconnect() error {
	mu := &q.domain.network.mu
	mu.Lock()
	defer mu.Unlock()
	switch q.state {
	case rdma.StateInit:
		return fmt.Errorf("fake: disconnect queue pair %d: it is not connected: %w", q.number, rdma.ErrState)
	case rdma.StateClosed:
		return fmt.Errorf("fake: disconnect: queue pair %d: %w", q.number, rdma.ErrClosed)
	}
	q.leave(fmt.Errorf("fake: this side ended the connection: %w", rdma.ErrDisconnected))
	return nil
}

func (q *queuePair) Close() error {
	mu := &q.domain.network.mu
	mu.Lock()
	if q.closed {
		mu.Unlock()
		return nil
	}
	wasConnected := q.state == rdma.StateConnected
	q.closed = true // from here on no completion of it is added
	q.leave(fmt.Errorf("fake: queue pair %d: %w", q.number, rdma.ErrClosed))
	q.state = rdma.StateClosed
	q.sendCQ.forget(q)
	q.recvCQ.forget(q)
	delete(q.sendCQ.users, q)
	delete(q.recvCQ.users, q)
	if q.shared != nil {
		delete(q.shared.users, q)
	}
	delete(q.domain.queuePairs, q)
	s := q.stream
	q.cond.Broadcast()
	mu.Unlock()
	if s != nil {
		s.conn.Close()
		s.watcher.Wait()
	}
	if wasConnected && q.domain.device.has(BugStuckClose) {
		<-q.leak
	}
	q.worker.Wait()
	return nil
}
