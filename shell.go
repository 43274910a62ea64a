package verbena

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/latch"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/release"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

const (
	// soon is the length in bytes of an eager message whose memory is wanted back
	// at once. What is shorter waits for the next signalled request; on a strict
	// device, where an idle endpoint holds more, all that waits counts.
	soon = 2 << 10
	// flushBatch is how many requests a post has at most.
	flushBatch = 4
)

// A shell is the carrier over a queue pair. It owns the queue pair and the memory,
// and carries out what the protocol's machine says; whoever posts or handles a
// completion holds mu.
type shell struct {
	e      *Endpoint
	n      *domain
	w      *worker
	share  *share // of the peer
	t      Tuning
	limits link.Limits
	qp     rdma.QueuePair
	claim  int // completion queue entries
	places slab.Slab
	inline int // bytes of a message that are posted inline
	recv   *receives
	own    bool // recv is this endpoint's alone
	strict bool // a receive has to be posted for each message that may come

	spin     spinner // of Receive; its caller's
	sendSpin spinner // of Send; the holder of sendLock's
	unwatch  chan struct{}
	wg       sync.WaitGroup

	// What waits looks at these without mu. They change under it, but for wake.
	readable release.Flag // Receive has something to do
	writable release.Flag // a Send that waits may go on
	handed   release.Flag // hand is the next message
	hand     *Message     // whoever clears handed owns it
	inReady  func() bool

	received chan struct{} // one token when readable and somebody sleeps
	progress chan struct{} // one token when a sender, or Close, may go on

	mu         latch.Latch
	m          *link.Machine[*Message]
	live       bool   // the machine has been started
	dead       bool   // closed: memory that comes back goes to the pools
	left       bool   // closed and the domain told of the messages that are still held
	stuck      bool   // closed without success: the device may still use what it was given
	breach     bool   // the peer's: its messages are not looked at any more
	broken     bool   // a post has failed: no other follows it
	sending    bool   // the holder of sendLock is at it
	waiting    bool   // for progress
	receiving  bool   // Receive sleeps
	handing    bool   // Receive waits: the next message may be handed to it past the inbox
	held       int    // messages that the application has
	longBytes  int    // memory of long messages
	ahead      int    // of that, of messages that the application has not received
	pace       pace   // of the peer's long messages
	fetched    uint64 // bytes of them that pace knows of
	heldEager  int    // messages that the application has and that lie in a receive
	promised   int    // receives of recv
	base       int    // of them, those for the peer's first credits
	asleep     int    // of those, not posted yet
	unasked    int    // for answers, not posted yet
	lent       int    // credits that go again with messages that are released
	lends      int    // times since lentSince
	lendDue    bool   // lendLate comes
	lentSince  time.Time
	traffic    Traffic
	taken      Traffic           // by Receive
	early      []rdma.Completion // that came before the machine was started
	payload    slab.Slab         // of the eager message that is about to be posted
	quiet      int               // bytes that wait for the next signalled request, on a strict device
	sends      []slab.Slab       // to be freed, by place in the send queue; a power of two
	offers     []offered         // by id
	private    *slab.Private     // where offers come from: the peer gets keys to it
	served     served            // operations that are messages
	grounded   bool              // no one-sided operation begins any more
	flights    *flights          // nil before the first one-sided operation
	requests   [flushBatch]rdma.SendRequest
	entries    [flushBatch][2]rdma.SGE
	dropBuffer func(*Message)

	// Buffers: see shell_buffer.go.
	gathers     bool      // the device sends in two pieces
	gather      *Buffer   // of the eager message that is about to be posted
	gatherEntry rdma.SGE  // where its bytes lie
	gatherings  []*Buffer // that requests send from, by place in the send queue
	inFlight    int       // buffers in gatherings and offers
	settling    settling
	loose       []*Buffer     // without a reference, to be given back without mu
	blanks      []blank       // for buffers to come
	longs       []longMessage // for messages to come

	sink      sink // gets messages instead of Receive, if there is one
	serving   bool // it counts in its worker
	providing bool // a goroutine gets memory for the sink's next message
	closed    bool // no such goroutine may begin
}

// An offered part of a long message lies in memory of its own, or in a buffer.
type offered struct {
	slab   slab.Slab
	buffer *Buffer
}

// A longMessage is one that was read out of the peer's memory.
type longMessage struct {
	message Message
	s       *shell
	share   *share
	slab    slab.Slab
	kind    memoryKind // of slab
}

// newShell makes a queue pair that takes messages, ready to be connected. It is
// closed by the endpoint's Close, or by free if connecting fails.
func newShell(e *Endpoint, n *domain) (s *shell, err error) {
	t := e.tuning
	a := &n.attributes
	if a.MaxMessage > 0 {
		t.Chunk = int(min(int64(t.Chunk), a.MaxMessage))
	}
	if err := n.enter(); err != nil {
		return nil, err
	}
	own := n.own(t.Own)
	strict := own || !n.waits
	s = &shell{
		e: e, n: n, own: own, strict: strict,
		share: n.shares.join(e.origin), t: t, limits: n.limits(t, strict), inline: min(a.MaxInline, link.PlaceSize),
		spin: newSpinner(t.Spin), sendSpin: newSpinner(t.Spin), unwatch: make(chan struct{}),
		received: make(chan struct{}, 1), progress: make(chan struct{}, 1),
	}
	defer func() {
		if err != nil {
			s.free()
			s = nil
		}
	}()
	s.private = n.offerPool.NewPrivate()
	s.inReady = func() bool { return s.handed.Load() || s.readable.Load() }
	s.dropBuffer = s.drop
	if err := s.make(a); err != nil {
		return s, err
	}
	s.m = link.New[*Message](s.limits, s.places.Bytes())
	if s.servesOperations() {
		s.m.Serve()
	}
	s.w.add(s.qp.Number(), s)
	e.carrier, e.selection.Device = s, a.Name
	e.selection.OneSided = s.oneSided()
	return s, nil
}

// make gets what the shell owns of the device.
func (s *shell) make(a *rdma.Attributes) (err error) {
	rest := 0 // receives for what costs no credit
	if s.strict {
		rest = s.limits.Receives(0, s.limits.AllAnswers())
	}
	awake := s.limits.Receives(1, s.limits.Answers)
	var shared *receives
	if !s.own {
		var granted int
		if shared, granted, err = s.n.share(s.share, 1+rest, s.limits.Window+rest, awake); err != nil {
			return err
		}
		s.recv = shared
		s.granted(granted, rest)
	}
	sendDepth := s.limits.SendDepth()
	config := rdma.QueuePairConfig{
		SendDepth: sendDepth, MaxSGE: 1, MaxInline: s.inline, MaxReads: s.limits.Chunks,
		ReceiverNotReadyRetry: -1, // the peer promised receives
	}
	if s.gathers = a.MaxSendSGE >= 2; s.gathers {
		config.MaxSGE = 2
	}
	if a.MaxReads > 0 {
		config.MaxReads = min(config.MaxReads, a.MaxReads)
	}
	s.claim = sendDepth
	if shared == nil {
		config.RecvDepth = s.limits.Receives(s.limits.MaxWindow, s.limits.AllAnswers())
		s.claim += config.RecvDepth
	}
	if m := a.MaxQueueDepth; m > 0 && max(sendDepth, config.RecvDepth) > m {
		return fmt.Errorf("queues of %d and %d requests, the device has %d at most: lower the window", sendDepth, config.RecvDepth, m)
	}
	if s.w, err = s.n.claim(s.claim, shared); err != nil {
		return err
	}
	places, err := s.n.sendPool.GetNow(context.Background(), s.limits.Places()*link.PlaceSize)
	if err != nil {
		return fmt.Errorf("memory of a send queue, or raise SendMemory: %w", err)
	}
	s.places = places
	s.sends, s.offers = make([]slab.Slab, s.limits.Places()), make([]offered, s.limits.Chunks)
	s.gatherings = make([]*Buffer, s.limits.Places())
	config.SendCompletions, config.RecvCompletions = s.w.cq, s.w.cq
	if shared != nil {
		config.SharedReceive = shared.queue.(rdma.SharedReceiveQueue)
	}
	if s.qp, err = s.n.domain.NewQueuePair(config); err != nil {
		return fmt.Errorf("queue pair: %w", err)
	}
	if shared == nil {
		// They are posted before a message can come, on any device.
		s.recv = newReceives(s.qp, s.n.receivePool, s.n.log, 0, s.n.receiveSize(), config.RecvDepth, true)
		granted, err := s.recv.admit(s.share, 1+rest, s.limits.Window+rest, awake)
		s.granted(granted, rest)
		return err
	}
	return nil
}

// startWith is start with the peer's answer as it came.
func (s *shell) startWith(reply []byte) error {
	peer, err := wire.ParseParameters(reply)
	if err != nil {
		return err
	}
	return s.start(peer)
}

// start makes the shell usable with what the peer said of itself.
func (s *shell) start(peer wire.Parameters) error {
	s.mu.Lock()
	err := s.m.Start(peer)
	if err == nil {
		s.e.selection.Files = s.files()
		s.live = true
		s.flush()
		for i := range s.early {
			s.handle(&s.early[i])
		}
		s.early = nil
		s.settled()
	}
	s.mu.Unlock()
	if err == nil {
		s.wg.Go(s.watch)
	}
	return err
}

// watch notices the end of the connection, and ends it when the endpoint has
// failed.
func (s *shell) watch() {
	select {
	case <-s.qp.Done():
	case <-s.unwatch:
		return
	case <-s.e.done:
		if !errors.Is(s.e.err, ErrPeerClosed) && !errors.Is(s.e.err, ErrClosed) {
			_ = s.qp.Disconnect() // tells the peer; it may know
		}
		select {
		case <-s.qp.Done():
		case <-s.unwatch:
			return
		}
	}
	// What the peer sent before it went may still be in the completion queue.
	s.w.drain()
	err := s.qp.Err()
	if err == nil {
		err = rdma.ErrDisconnected
	}
	s.mu.Lock()
	kind := s.death(err)
	s.mu.Unlock()
	s.fail(fmt.Errorf("%w: %w", kind, err))
}

// death tells what the end of the connection by err is. Some devices do not tell which
// request the peer has refused. mu is held.
func (s *shell) death(err error) error {
	if s.flights != nil && errors.Is(err, rdma.ErrRemoteAccess) {
		return ErrRevoked
	}
	return ErrPeerDied
}

// fail may be called with mu held or not.
func (s *shell) fail(err error) {
	s.e.end(err)
	s.wake()
}

// wake ends all waits, so that they look at the endpoint's state.
func (s *shell) wake() {
	s.readable.Set()
	s.writable.Set()
	notify(s.received)
	notify(s.progress)
}

// Completions.

// complete handles a completion. Its worker calls it.
func (s *shell) complete(c *rdma.Completion) {
	s.mu.Lock()
	switch {
	case s.handing && c.ID&idKind == idReceive && s.handOver(c):
	case s.dead:
		if c.ID&idKind == idReceive {
			s.putBack(s.recv.arrived(c.ID))
		}
	case !s.live:
		s.early = append(s.early, *c) // no more than were posted
	default:
		s.handle(c)
		s.settled()
	}
	loose := len(s.loose) > 0
	s.mu.Unlock()
	if loose {
		s.dropLoose()
	}
}

func (s *shell) handle(c *rdma.Completion) {
	switch c.ID & idKind {
	case idSend:
		s.sent(c)
	case idReceive:
		s.arrived(c)
	}
}

// settled tells those who wait what has become of what they wait for. mu is held.
func (s *shell) settled() {
	if s.sink != nil {
		s.deliverReady()
	}
	if s.m.PeerSaidGoodbye() && s.m.Finished() {
		s.flush()
		s.e.end(ErrPeerClosed)
		s.wake()
		return
	}
	if s.m.Announced() {
		s.provideAtOnce()
	}
	if !s.readable.Load() && s.m.Ready() {
		s.readable.Set()
	}
	if s.receiving && s.readable.Load() {
		notify(s.received)
	}
	s.tellSender()
}

// tellSender lets a Send that waits look whether it may go on. mu is held.
func (s *shell) tellSender() {
	if s.waiting {
		s.writable.Set()
		notify(s.progress)
	}
}

func (s *shell) sent(c *rdma.Completion) {
	if c.Status != rdma.StatusSuccess {
		s.fail(s.statusError("request", c.Status))
		return
	}
	from, to, ok := s.m.Sent(uint32(c.ID))
	if !ok {
		return // of a queue pair that had this number before
	}
	if n := s.m.Fetched(); n != s.fetched {
		s.pace.brought(time.Now(), int(n-s.fetched))
		s.fetched = n
	}
	for ; from != to; from++ {
		if slot := &s.sends[int(from)&(len(s.sends)-1)]; !slot.None() {
			s.n.sendPool.Put(*slot)
			*slot = slab.Slab{}
		}
		if s.inFlight > 0 {
			if slot := &s.gatherings[int(from)&(len(s.sends)-1)]; *slot != nil {
				b := *slot
				*slot = nil
				s.letGo(b)
			}
		}
	}
	if s.flights != nil && s.flights.count > 0 {
		s.arriveUntil(to)
	}
	s.flush()
	if s.served.serving {
		notify(s.served.room)
	}
}

func (s *shell) statusError(what string, status rdma.Status) error {
	cause := s.qp.Err()
	if cause == nil {
		cause = rdma.ErrDisconnected
	}
	kind := s.death(cause)
	switch {
	case status == rdma.StatusRemoteAccess && s.flights != nil:
		kind = ErrRevoked // it may have been a Read of a long message: then the peer is at fault, too
	case status == rdma.StatusRemoteAccess || status == rdma.StatusLocalLength || status == rdma.StatusRemoteInvalid:
		kind = ErrProtocol
	}
	return fmt.Errorf("%w: %s completed with %q: %w", kind, what, status, cause)
}

// arrived takes a message of the peer. Its receive is posted again at once unless
// the application gets to see it.
func (s *shell) arrived(c *rdma.Completion) {
	b := s.recv.arrived(c.ID)
	if b == nil {
		return // of a queue pair that had this number before
	}
	if c.Status != rdma.StatusSuccess {
		s.fail(s.statusError("receive", c.Status))
		s.putBack(b)
		return
	}
	s.arrivedIn(b, c)
}

// handOver is arrived for a message that goes to the Receive that waits for it, past
// the inbox. If it is anything else, handOver reports false and has done nothing.
func (s *shell) handOver(c *rdma.Completion) bool {
	b := s.recv.look(c.ID)
	if b == nil || c.Status != rdma.StatusSuccess || int64(c.Length) > int64(b.home.size) {
		return false
	}
	memory := b.memory[:c.Length]
	tag, ok := s.m.Take(memory)
	if !ok {
		return false
	}
	s.recv.took(b)
	m := &b.message
	m.Tag, m.data, m.held, b.holder = tag, memory[wire.HeaderSize:c.Length:c.Length], true, s
	m.front = 0
	s.held++
	s.heldEager++
	s.taken.add(len(m.data))
	if s.sink != nil {
		s.deliver(m)
	} else {
		s.handing, s.hand = false, m
		s.handed.Set()
		if s.receiving {
			notify(s.received)
		}
	}
	s.tellSender()
	if s.asleep > 0 {
		s.lend()
		s.flush()
	}
	return true
}

// arrivedIn is arrived for a message in b.
func (s *shell) arrivedIn(b *buffer, c *rdma.Completion) {
	if s.breach {
		s.putBack(b)
		return
	}
	memory := b.memory
	if int64(c.Length) > int64(len(memory)) {
		s.fail(fmt.Errorf("%w: message of %d bytes in a receive of %d", ErrProtocol, c.Length, len(memory)))
		s.putBack(b)
		return
	}
	memory = memory[:c.Length]
	effects, err := s.m.Received(memory, &b.message)
	switch {
	case effects.Answered:
		err = s.answered(effects.Answer, effects.Data)
	case effects.Asked:
		s.asked(effects.Operation)
	}
	if effects.Kept {
		b.message.data, b.message.front = memory[wire.HeaderSize:c.Length:c.Length], 0
		b.holder = s
	} else {
		s.putBack(b)
	}
	if effects.Freed {
		o := s.offers[effects.FreedID]
		s.offers[effects.FreedID] = offered{}
		if o.buffer != nil {
			s.letGo(o.buffer)
		} else {
			s.n.offerPool.Put(o.slab)
		}
	}
	if err != nil {
		s.breach, s.handing = true, false
		s.fail(err)
		return
	}
	if effects.Starved {
		s.widen()
	}
	if effects.Kept {
		s.lend()
	}
	s.flush()
}

// putBack posts a receive again.
func (s *shell) putBack(b *buffer) {
	if b == nil {
		return
	}
	if s.dead {
		b.home.putLate(b, false)
	} else if err := b.home.put(b); err != nil {
		s.postFailed(err)
	}
}

// flush posts what the machine wants posted. mu is held.
func (s *shell) flush() {
	posts := s.m.Posts()
	// Requests complete in order, so one that is posted after a failed one would
	// tell that it is done.
	for len(posts) > 0 && !s.broken {
		n := min(len(posts), flushBatch)
		for i := range posts[:n] {
			s.request(&posts[i], &s.requests[i], s.entries[i][:1])
		}
		if _, err := s.qp.PostSend(s.requests[:n]); err != nil {
			s.broken = true
			s.postFailed(err)
			return
		}
		posts = posts[n:]
	}
}

// request turns a post of the machine into a work request.
func (s *shell) request(p *link.Post, r *rdma.SendRequest, entry []rdma.SGE) {
	*r = rdma.SendRequest{ID: idSend | uint64(p.Seq), SGEs: entry}
	if p.Signaled {
		r.Flags = rdma.Signaled
		s.quiet = 0
	}
	if p.Read {
		memory := s.m.Handle(p.Message).owner.(*longMessage).slab
		r.Op = rdma.OpRead
		r.Remote = rdma.Remote{Address: p.Address, Key: p.Key}
		entry[0] = rdma.SGE{Region: memory.Region(), Offset: memory.Offset() + p.Offset, Length: p.Length}
		return
	}
	r.Op = rdma.OpSend
	slot := int(p.Seq) & (len(s.sends) - 1)
	at := slot * link.PlaceSize
	if p.Payload == 0 {
		entry[0] = rdma.SGE{Region: s.places.Region(), Offset: s.places.Offset() + at, Length: p.Size}
		if p.Size <= s.inline {
			r.Flags |= rdma.Inline
		}
		return
	}
	if s.gather != nil {
		r.SGEs = s.gathered(slot, p, entry)
		return
	}
	memory := s.payload
	copy(memory.Bytes()[:p.Size], s.places.Bytes()[at:])
	s.sends[slot], s.payload = memory, slab.Slab{}
	if !p.Signaled && s.strict {
		s.quiet += memory.Size()
	}
	entry[0] = rdma.SGE{Region: memory.Region(), Offset: memory.Offset(), Length: p.Size + p.Payload}
}

func (s *shell) postFailed(err error) {
	if errors.Is(err, rdma.ErrState) {
		if cause := s.qp.Err(); cause != nil {
			err = cause
		}
	}
	s.fail(fmt.Errorf("%w: %w", s.death(err), err))
}

func (s *shell) maxMessage() int { return s.m.MaxMessage() }

func (s *shell) eager() int { return s.m.MaxEager() }

func (s *shell) sentTraffic() Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.traffic
}

func (s *shell) receivedTraffic() Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// A memorySource is where slabs come from.
type memorySource interface {
	TryGet(size int) (slab.Slab, bool, error)
	Get(ctx context.Context, size int) (slab.Slab, error)
}

// take gets memory, and lets the endpoint's end end the wait.
func (s *shell) take(ctx context.Context, p memorySource, size int) (slab.Slab, error) {
	if memory, ok, err := p.TryGet(size); ok || err != nil {
		return memory, err
	}
	ctx, stop := untilOver(ctx, s.e)
	defer stop()
	return p.Get(ctx, size)
}
