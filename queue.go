package verbena

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

const (
	// controlReceives are posted for the peer's credit messages. Two are enough
	// that the peer never has to wait for one while this side waits for credits:
	// docs/endpoints.md has the argument.
	controlReceives = 2
	goodbyeReceives = 1
	// placeSize is the memory that each place in the send queue has for a header
	// and what fits beside it.
	placeSize = 64
	smallest  = placeSize - packetHeader
	// One of so many small messages is signalled, or of half of the send queue if
	// that is shorter: otherwise it could be full with nothing to free it.
	unsignaled = 8
)

// A queue is the carrier over a queue pair.
//
// Eager messages and offers cost a credit, which stands for a receive that the
// peer has posted. Beside those it has receives for each message that it may
// owe without one: confirmations of its own offers, a few credit messages, the
// goodbye. So no message ever meets an empty receive queue, whatever the
// application does, and nothing that frees resources ever waits for some.
type queue struct {
	e      *Endpoint
	w      *worker
	d      *device
	t      Tuning
	qp     rdma.QueuePair
	claim  int // completion queue entries
	places slab.Slab
	header []byte // of places

	eagerMax int // payload that goes into a receive of the peer
	peerMax  int

	progress chan struct{} // one token when a sender's wait may be over
	spin     spinner       // of Receive; its caller's
	sendSpin spinner       // of Send; the holder of sendLock's
	inReady  func() bool
	unwatch  chan struct{}
	wg       sync.WaitGroup

	mu      sync.Mutex
	live    bool // connected: requests may be posted
	dead    bool // closed: memory that comes back goes to the pools
	left    bool // closed and the device told of the messages that are still held
	stuck   bool // closed without success: the device may still use what it was given
	longs   int  // long messages that have memory
	peer    parameters
	credits int     // for eager messages and offers
	owed    int     // credits to give back
	control int     // credit messages that the peer has not confirmed
	owedCtl int     // the peer's that have been handled
	traffic Traffic // sent
	window  int     // receives posted for the peer's eager messages and offers
	starved bool

	// The send queue: places head to tail are outstanding, in order.
	sends      []place
	head, tail uint32
	depth      uint32 // of eager messages and offers
	quiet      int    // since the last signalled request
	request    [1]rdma.SendRequest
	entry      [1]rdma.SGE

	open    []slab.Slab       // offers, by id
	idle    []uint32          // ids that are free
	taken   []uint32          // confirmations that are due
	reads   []read            // that are due
	reading int               // under way
	opened  int               // offers of the peer that are not confirmed
	early   []rdma.Completion // that came before the queue was live
	arrival *arrival          // the long message that is arriving

	goodbyeDue, goodbyeSent, goodbyeOut, peerGoodbye bool

	recv *receives
}

// A place is a request in the send queue.
type place struct {
	slab slab.Slab // to be freed when it is done
	read *arrival
	id   uint32 // of the offer that was read
	size uint32
	bye  bool
}

type read struct {
	arrival *arrival
	offer   offer
}

// An arrival is a long message on its way into one slab. It is guarded by the
// queue's mu, except for its message's due bytes, which are the inbox's.
type arrival struct {
	Message
	q       *queue
	memory  slab.Slab
	total   int
	offered int
	dropped bool
	held    []offer // until there is memory
}

func (a *arrival) release(*Message) {
	q := a.q
	q.mu.Lock()
	if a.memory.None() {
		q.mu.Unlock()
		return
	}
	if !q.stuck || a.due == 0 { // otherwise a Read may be under way
		q.d.recvPool.Put(a.memory)
	}
	a.memory = slab.Slab{}
	q.longs--
	left := q.left
	q.mu.Unlock()
	if left {
		q.d.cameBack()
	}
}

// newQueue makes a queue pair with its receives posted. It is closed by
// endpoint's Close, or by free if connecting fails.
func newQueue(ctx context.Context, e *Endpoint, d *device) (*queue, error) {
	t := e.runtime.tuningFor(d.name)
	if m := d.attributes.MaxMessage; m > 0 {
		t.Chunk = int(min(int64(t.Chunk), m))
	}
	q := &queue{
		e: e, d: d, t: t,
		progress: make(chan struct{}, 1), unwatch: make(chan struct{}),
		spin: newSpinner(t.Spin), sendSpin: newSpinner(t.Spin),
		window: t.Window, depth: uint32(t.MaxWindow + t.Chunks),
	}
	q.inReady = q.readyToReceive
	// Room for data, confirmations, Reads, credit messages and the goodbye.
	sendDepth := int(q.depth) + 2*t.Chunks + controlReceives + goodbyeReceives + unsignaled
	recvDepth := t.MaxWindow + t.Chunks + controlReceives + goodbyeReceives
	if m := d.attributes.MaxQueueDepth; m > 0 && (sendDepth > m || recvDepth > m) {
		return nil, fmt.Errorf("queues of %d and %d requests, the device has %d at most: lower the window", sendDepth, recvDepth, m)
	}
	q.sends = make([]place, sendDepth)
	q.open = make([]slab.Slab, t.Chunks)
	for id := range t.Chunks {
		q.idle = append(q.idle, uint32(id))
	}
	q.taken = make([]uint32, 0, t.Chunks)
	q.claim = sendDepth + recvDepth
	w, err := d.claim(q.claim)
	if err != nil {
		return nil, err
	}
	q.w = w
	if q.places, err = d.sendPool.Get(ctx, sendDepth*placeSize); err != nil {
		q.free()
		return nil, err
	}
	q.header = q.places.Bytes()
	reads := t.Chunks
	if m := d.attributes.MaxReads; m > 0 {
		reads = min(reads, m)
	}
	q.qp, err = d.domain.NewQueuePair(rdma.QueuePairConfig{
		SendCompletions: w.cq, RecvCompletions: w.cq,
		SendDepth: sendDepth, RecvDepth: recvDepth, MaxSGE: 1,
		MaxInline: min(d.attributes.MaxInline, placeSize), MaxReads: reads,
	})
	if err != nil {
		q.free()
		return nil, fmt.Errorf("queue pair: %w", err)
	}
	q.recv = newReceives(q, recvDepth)
	w.add(q)
	for range t.Window + t.Chunks + controlReceives + goodbyeReceives {
		if err := q.recv.add(ctx); err != nil {
			q.free()
			return nil, fmt.Errorf("posting receives: %w", err)
		}
	}
	e.carrier, e.selection.Device = q, d.attributes.Name
	return q, nil
}

func (q *queue) parameters() parameters {
	return parameters{
		window: uint16(q.t.Window), control: controlReceives, chunks: uint16(q.t.Chunks),
		receive: uint32(q.t.Eager + packetHeader), maxMessage: uint32(q.acceptedMax()),
	}
}

// acceptedMax is the longest message that this side accepts: it must fit into
// the receive pool beside what others need.
func (q *queue) acceptedMax() int {
	return int(min(int64(q.e.runtime.cfg.MaxMessage), max(q.d.recvPool.Limit()/2, int64(q.t.Eager))))
}

// start makes the queue usable with what the peer said of itself.
func (q *queue) start(peer parameters) error {
	if peer.window == 0 || peer.control == 0 || peer.receive < packetHeader+offerSize || int64(peer.receive) > maxEager+packetHeader {
		return fmt.Errorf("%w: window of %d, %d control receives, receives of %d bytes", ErrProtocol, peer.window, peer.control, peer.receive)
	}
	q.mu.Lock()
	q.peer = peer
	q.eagerMax = int(peer.receive) - packetHeader
	q.peerMax = int(peer.maxMessage)
	q.credits += int(peer.window)
	q.live = true
	for i := range q.early {
		q.handleCompletion(&q.early[i])
	}
	q.early = nil
	q.pump()
	q.mu.Unlock()
	q.wg.Go(q.watch)
	return nil
}

// watch notices the end of the connection, and ends it when the endpoint has
// failed.
func (q *queue) watch() {
	select {
	case <-q.qp.Done():
	case <-q.unwatch:
		return
	case <-q.e.done:
		if !errors.Is(q.e.err, ErrPeerClosed) && !errors.Is(q.e.err, ErrClosed) {
			_ = q.qp.Disconnect() // tells the peer; it may know
		}
		select {
		case <-q.qp.Done():
		case <-q.unwatch:
			return
		}
	}
	q.disconnected()
}

func (q *queue) disconnected() {
	// What the peer sent before it went may still be in the completion queue.
	q.w.drain()
	err := q.qp.Err()
	if err == nil {
		err = rdma.ErrDisconnected
	}
	q.fail(fmt.Errorf("%w: %w", ErrPeerDied, err))
}

// fail may be called with any lock of the queue held.
func (q *queue) fail(err error) {
	q.e.fail(err)
	notify(q.progress)
}

func (q *queue) maxMessage() int { return q.peerMax }

func (q *queue) eager() int { return min(q.eagerMax, q.t.Eager) }

// Sending.

func (q *queue) send(ctx context.Context, tag uint32, message []byte) error {
	if len(message) > q.eager() {
		return q.sendLong(ctx, tag, message)
	}
	if err := q.waitCredit(ctx, false); err != nil {
		return err
	}
	var s slab.Slab
	if len(message) > smallest {
		var err error
		if s, err = q.take(ctx, q.d.sendPool, packetHeader+len(message)); err != nil {
			return err
		}
		copy(s.Bytes()[packetHeader:], message)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.postData(packet{kind: packetEager, tag: tag, length: uint32(len(message))}, s, message)
	if err == nil {
		q.traffic.add(len(message))
	}
	return err
}

func (q *queue) sentTraffic() Traffic {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.traffic
}

// sendLong offers the message in parts, each copied into memory that the peer
// may read.
func (q *queue) sendLong(ctx context.Context, tag uint32, message []byte) error {
	o := offer{total: uint32(len(message))}
	for len(message) > 0 {
		n := min(len(message), q.t.Chunk)
		if err := q.waitCredit(ctx, true); err != nil {
			// The peer drops the parts that it has when another message begins.
			return err
		}
		s, err := q.take(ctx, q.d.offerPool, n)
		if err != nil {
			return err
		}
		copy(s.Bytes(), message[:n])
		remote := s.Remote()
		o.address, o.key, o.length = remote.Address, remote.Key, uint32(n)
		q.mu.Lock()
		o.id = q.idle[len(q.idle)-1]
		var body [offerSize]byte
		o.put(body[:])
		err = q.postData(packet{kind: packetOffer, tag: tag, length: offerSize}, slab.Slab{}, body[:])
		if err == nil {
			q.idle = q.idle[:len(q.idle)-1]
			q.open[o.id] = s
			if n == len(message) {
				q.traffic.add(int(o.total))
			}
		}
		q.mu.Unlock()
		if err != nil {
			q.d.offerPool.Put(s)
			return err
		}
		message = message[n:]
		o.offset += uint32(n)
	}
	return nil
}

// take gets memory from a pool, and lets the endpoint's end end the wait.
func (q *queue) take(ctx context.Context, p *slab.Pool, size int) (slab.Slab, error) {
	if s, ok, err := p.TryGet(size); ok || err != nil {
		return s, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-q.e.done:
			cancel(q.e.err)
		case <-over:
		}
	}()
	return p.Get(ctx, size)
}

// waitCredit waits until an eager message, or an offer, may be posted. The
// caller holds sendLock, so nobody else takes the credit.
func (q *queue) waitCredit(ctx context.Context, forOffer bool) error {
	if q.mayPost(forOffer) {
		return nil
	}
	ready := func() bool { return q.mayPost(forOffer) || q.e.Err() != nil || ctx.Err() != nil }
	for {
		q.w.drive(&q.sendSpin, ready)
		if err := q.e.Err(); err != nil {
			return err
		}
		if q.mayPost(forOffer) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		q.w.sleep()
		select {
		case <-q.progress:
		case <-ctx.Done():
		case <-q.e.done:
		}
		q.w.awake()
	}
}

func (q *queue) mayPost(forOffer bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if forOffer && len(q.idle) == 0 {
		return false
	}
	if q.credits == 0 {
		q.starved = true
		return false
	}
	return q.tail-q.head < q.depth
}

// postData posts an eager message or an offer; the credit is there. q.mu is held.
func (q *queue) postData(p packet, s slab.Slab, small []byte) error {
	if err := q.e.Err(); err != nil {
		if !s.None() {
			q.d.sendPool.Put(s)
		}
		return err
	}
	q.credits--
	if q.starved {
		p.flags |= packetStarved
		q.starved = false
	}
	return q.post(p, s, small, false)
}

// post posts a message: with the header and what follows in s, or, if there is
// none, in the memory of its place. q.mu is held.
func (q *queue) post(p packet, s slab.Slab, small []byte, signaled bool) error {
	p.credits, p.control = uint16(q.owed), uint16(q.owedCtl)
	i := q.tail % uint32(len(q.sends))
	pl := &q.sends[i]
	*pl = place{slab: s, bye: p.kind == packetGoodbye}
	r := &q.request[0]
	*r = rdma.SendRequest{ID: idSend | uint64(q.tail), Op: rdma.OpSend, SGEs: q.entry[:]}
	if s.None() {
		at := int(i) * placeSize
		p.put(q.header[at:])
		n := packetHeader + copy(q.header[at+packetHeader:at+placeSize], small)
		q.entry[0] = rdma.SGE{Region: q.places.Region(), Offset: q.places.Offset() + at, Length: n}
		if n <= q.d.inline {
			r.Flags |= rdma.Inline
		}
	} else {
		p.put(s.Bytes())
		q.entry[0] = rdma.SGE{Region: s.Region(), Offset: s.Offset(), Length: packetHeader + int(p.length)}
		signaled = true // its memory is wanted back
	}
	if q.quiet++; signaled || q.quiet >= min(unsignaled, int(q.depth)/2) {
		r.Flags |= rdma.Signaled
	}
	if _, err := q.qp.PostSend(q.request[:]); err != nil {
		*pl = place{}
		if !s.None() {
			q.d.sendPool.Put(s)
		}
		return q.postFailed(err)
	}
	if r.Flags&rdma.Signaled != 0 {
		q.quiet = 0
	}
	q.tail++
	q.owed, q.owedCtl = 0, 0
	return nil
}

func (q *queue) postFailed(err error) error {
	if errors.Is(err, rdma.ErrState) {
		if cause := q.qp.Err(); cause != nil {
			err = cause
		}
		err = fmt.Errorf("%w: %w", ErrPeerDied, err)
	}
	q.fail(err)
	return err
}

// room tells whether the send queue takes another request that frees something.
func (q *queue) room() bool { return int(q.tail-q.head) < len(q.sends) }

// pump posts what is due and needs no credit. q.mu is held.
func (q *queue) pump() {
	if !q.live || q.dead {
		return
	}
	for len(q.reads) > 0 && q.reading < q.t.Chunks && q.room() {
		if !q.postRead() {
			return
		}
	}
	for len(q.taken) > 0 && q.room() {
		var body [takenSize]byte
		binary.BigEndian.PutUint32(body[:], q.taken[0])
		q.taken = q.taken[:copy(q.taken, q.taken[1:])]
		if q.post(packet{kind: packetTaken, length: takenSize}, slab.Slab{}, body[:], false) != nil {
			return
		}
		q.opened--
	}
	// Half of the window is late enough to be seldom and soon enough that the
	// peer need not stop.
	if q.owed > 0 && q.owed*2 >= q.window && q.control < int(q.peer.control) && q.room() {
		q.control++
		if q.post(packet{kind: packetCredit}, slab.Slab{}, nil, false) != nil {
			return
		}
	}
	if q.goodbyeDue && !q.goodbyeSent && len(q.taken) == 0 && q.room() {
		q.goodbyeSent = q.post(packet{kind: packetGoodbye}, slab.Slab{}, nil, true) == nil
	}
}

func (q *queue) postRead() bool {
	r := q.reads[0]
	q.reads = q.reads[:copy(q.reads, q.reads[1:])]
	if r.arrival.dropped || q.e.closing.Load() {
		q.readDone(r.arrival, r.offer.id, int(r.offer.length))
		return true
	}
	m := r.arrival.memory
	q.sends[q.tail%uint32(len(q.sends))] = place{read: r.arrival, id: r.offer.id, size: r.offer.length}
	q.entry[0] = rdma.SGE{Region: m.Region(), Offset: m.Offset() + int(r.offer.offset), Length: int(r.offer.length)}
	q.request[0] = rdma.SendRequest{
		ID: idSend | uint64(q.tail), Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: q.entry[:],
		Remote: rdma.Remote{Address: r.offer.address, Key: r.offer.key},
	}
	if _, err := q.qp.PostSend(q.request[:]); err != nil {
		_ = q.postFailed(err) // it has been told the endpoint
		return false
	}
	q.tail++
	q.quiet = 0
	q.reading++
	return true
}

// readDone confirms an offer whose bytes have been read, or are not wanted.
func (q *queue) readDone(a *arrival, id uint32, size int) {
	q.taken = append(q.taken, id)
	q.e.in.arrived(&a.Message, size)
}

// Completions. They are handled by whoever polls, one at a time.

func (q *queue) completed(c *rdma.Completion) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.dead:
	case !q.live:
		q.early = append(q.early, *c) // no more than were posted
	default:
		q.handleCompletion(c)
		q.pump()
	}
}

func (q *queue) handleCompletion(c *rdma.Completion) {
	switch c.ID & idKind {
	case idSend:
		q.sent(c)
	case idReceive:
		q.received(c)
	}
}

func (q *queue) sent(c *rdma.Completion) {
	seq := uint32(c.ID)
	if seq-q.head >= q.tail-q.head {
		return // of a queue pair that had this number before
	}
	if c.Status != rdma.StatusSuccess {
		pl := &q.sends[seq%uint32(len(q.sends))]
		what := "send"
		if pl.read != nil {
			what = "read of the peer's offer"
		}
		q.fail(q.statusError(what, c.Status))
		return
	}
	for q.head != seq+1 {
		pl := &q.sends[q.head%uint32(len(q.sends))]
		if !pl.slab.None() {
			q.d.sendPool.Put(pl.slab)
		}
		if pl.read != nil {
			q.reading--
			q.readDone(pl.read, pl.id, int(pl.size))
		}
		q.goodbyeOut = q.goodbyeOut || pl.bye
		*pl = place{}
		q.head++
	}
	q.checkGoodbye()
	notify(q.progress)
}

func (q *queue) statusError(what string, s rdma.Status) error {
	cause := q.qp.Err()
	if cause == nil {
		cause = rdma.ErrDisconnected
	}
	kind := ErrPeerDied
	if s == rdma.StatusRemoteAccess || s == rdma.StatusLocalLength || s == rdma.StatusRemoteInvalid {
		kind = ErrProtocol
	}
	return fmt.Errorf("%w: %s completed with %q: %w", kind, what, s, cause)
}

func (q *queue) received(c *rdma.Completion) {
	b := q.recv.arrived(uint32(c.ID))
	if b == nil {
		return
	}
	if c.Status != rdma.StatusSuccess {
		q.recv.drop(b)
		q.fail(q.statusError("receive", c.Status))
		return
	}
	if err := q.handle(b, int(c.Length)); err != nil {
		q.fail(err)
	}
}

// handle takes a message of the peer. The receive is posted again at once
// unless the application gets to see it.
func (q *queue) handle(b *buffer, length int) error {
	memory := b.slab.Bytes()
	if length > len(memory) || q.peerGoodbye {
		q.recv.drop(b)
		return fmt.Errorf("%w: message of %d bytes, after the goodbye: %t", ErrProtocol, length, q.peerGoodbye)
	}
	// The peer can no longer change it, unless it is faulty and the device lets
	// it; what is judged here is what is used.
	p, body, err := parsePacket(memory[:length])
	if err != nil {
		q.recv.drop(b)
		return err
	}
	q.credits += int(p.credits)
	q.control -= int(p.control)
	if q.credits > maxWindow || q.control < 0 {
		q.recv.drop(b)
		return fmt.Errorf("%w: %d credits and %d control credits too many", ErrProtocol, q.credits-maxWindow, -q.control)
	}
	if p.credits > 0 {
		notify(q.progress)
	}
	var o offer
	var id uint32
	switch p.kind {
	case packetEager:
		q.dropArrival()
		if !q.e.closing.Load() {
			b.message = Message{Tag: p.tag, data: body[:len(body):len(body)], owner: q.recv, slot: b.slot}
			q.grow(p.flags)
			q.e.in.push(&b.message)
			return nil
		}
		q.owed++
	case packetOffer:
		if o, err = parseOffer(body, q.acceptedMax()); err == nil {
			q.owed++
			err = q.offered(p.tag, o)
		}
		q.grow(p.flags)
	case packetTaken:
		id = binary.BigEndian.Uint32(body)
		if int64(id) >= int64(len(q.open)) || q.open[id].None() {
			err = fmt.Errorf("%w: confirmation of offer %d, which is not open", ErrProtocol, id)
			break
		}
		q.d.offerPool.Put(q.open[id])
		q.open[id] = slab.Slab{}
		q.idle = append(q.idle, id)
		notify(q.progress)
	case packetCredit:
		q.owedCtl++
	case packetGoodbye:
		q.peerGoodbye = true
		q.dropArrival()
	}
	if e := q.recv.repost(b); err == nil {
		err = e
	}
	if err == nil {
		q.checkGoodbye()
	}
	return err
}

// grow posts more receives for a peer that had to wait, while there is plenty
// of memory.
func (q *queue) grow(flags uint8) {
	if flags&packetStarved == 0 || q.dead {
		return
	}
	for n := min(q.window, q.t.MaxWindow-q.window); n > 0 && q.d.recvPool.Used() < q.d.recvPool.Limit()/2; n-- {
		if !q.recv.tryAdd() {
			return
		}
		q.window++
		q.owed++
	}
}

// offered takes a part of a long message.
func (q *queue) offered(tag uint32, o offer) error {
	if o.offset == 0 {
		q.dropArrival()
		a := &arrival{q: q, total: int(o.total)}
		a.Tag, a.owner, a.due = tag, a, int(o.total)
		q.arrival = a
		if !q.e.closing.Load() {
			if q.d.recvPool.Used() < q.d.recvPool.Limit()/2 {
				// A device that cannot register more may be able to later.
				a.memory, _, _ = q.d.recvPool.TryGet(a.total)
			}
			if a.wanting = a.memory.None(); !a.wanting {
				q.longs++
				a.data = a.memory.Bytes()[:a.total:a.total]
			}
			q.e.in.push(&a.Message)
		}
	}
	a := q.arrival
	if a == nil || a.Tag != tag || a.total != int(o.total) || a.offered != int(o.offset) {
		return fmt.Errorf("%w: offer of bytes %d to %d of %d, which does not continue what came before",
			ErrProtocol, o.offset, o.offset+o.length, o.total)
	}
	if q.opened++; q.opened > int(q.peer.chunks) {
		return fmt.Errorf("%w: more than %d offers at a time", ErrProtocol, q.peer.chunks)
	}
	a.offered += int(o.length)
	if a.memory.None() && !q.e.closing.Load() {
		a.held = append(a.held, o) // until Receive has come to it
	} else {
		q.reads = append(q.reads, read{arrival: a, offer: o})
	}
	if a.offered == a.total {
		q.arrival = nil
	}
	return nil
}

// dropArrival gives up a long message that the peer did not finish.
func (q *queue) dropArrival() {
	a := q.arrival
	if a == nil {
		return
	}
	q.arrival = nil
	a.dropped = true
	for _, o := range a.held {
		q.readDone(a, o.id, int(o.length))
	}
	a.held = nil
	q.e.in.drop(&a.Message, a.total-a.offered)
}

// checkGoodbye ends the endpoint once the peer has said goodbye and everything
// of it is here, and answers, which tells the peer that.
func (q *queue) checkGoodbye() {
	if !q.peerGoodbye || q.reading > 0 || len(q.reads) > 0 || q.e.in.incomplete() {
		return
	}
	q.goodbyeDue = true
	q.pump()
	q.e.end(ErrPeerClosed)
	q.e.in.wake()
	notify(q.progress)
}

// Receiving.

func (q *queue) readyToReceive() bool { return q.e.in.waiting() || q.e.Err() != nil }

func (q *queue) receive(ctx context.Context) (*Message, error) {
	for {
		if q.e.closing.Load() {
			return nil, ErrClosed
		}
		if m := q.e.in.pop(); m != nil {
			return m, nil
		}
		if q.e.Err() != nil {
			return q.e.lastMessage()
		}
		if m := q.e.in.wanting(); m != nil {
			if err := q.provide(ctx, m.owner.(*arrival)); err != nil {
				return nil, err
			}
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if q.w.drive(&q.spin, q.inReady) {
			continue
		}
		q.w.sleep()
		select {
		case <-q.e.in.ready:
		case <-ctx.Done():
		case <-q.e.done:
		}
		q.w.awake()
	}
}

// provide gets memory for the message that Receive waits for. Those behind it
// do not get any in this way, so that what is waited for is only held by
// messages that applications have and will release.
func (q *queue) provide(ctx context.Context, a *arrival) error {
	q.mu.Lock()
	need := a.memory.None() && !a.dropped
	q.mu.Unlock()
	if !need {
		return nil
	}
	s, err := q.take(ctx, q.d.recvPool, a.total)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !a.memory.None() || a.dropped || q.dead {
		q.d.recvPool.Put(s)
		return nil
	}
	a.memory = s
	q.longs++
	q.e.in.provided(&a.Message, s.Bytes()[:a.total:a.total])
	for _, o := range a.held {
		q.reads = append(q.reads, read{arrival: a, offer: o})
	}
	a.held = nil
	q.pump()
	return nil
}

// Closing.

func (q *queue) close(ctx context.Context) error {
	err := q.goodbye(ctx)
	// A Send may still be copying into registered memory. It has no reason to
	// wait any more.
	q.e.sendLock <- struct{}{}
	q.free()
	return err
}

// goodbye waits until the peer has everything, or cannot be waited for.
func (q *queue) goodbye(ctx context.Context) error {
	if e := q.e.err; errors.Is(e, ErrPeerClosed) {
		// It has everything it wants. Let the answer to its goodbye go out.
		q.await(ctx, func() bool { return q.goodbyeOut })
		return nil
	}
	if !errors.Is(q.e.err, ErrClosed) {
		return nil // failed before
	}
	select {
	case q.e.sendLock <- struct{}{}:
		defer func() { <-q.e.sendLock }()
	case <-ctx.Done():
		return ErrNotDelivered
	}
	q.mu.Lock()
	q.goodbyeDue = true
	// Nobody receives what has arrived or will: the peer's memory is free.
	q.dropArrival()
	q.e.in.each(func(m *Message) {
		if a, ok := m.owner.(*arrival); ok {
			for _, o := range a.held {
				q.readDone(a, o.id, int(o.length))
			}
			a.held = nil
		}
	})
	q.pump()
	q.mu.Unlock()
	if !q.await(ctx, func() bool { return q.goodbyeOut && q.peerGoodbye }) {
		q.mu.Lock()
		defer q.mu.Unlock()
		// A peer that said goodbye wants nothing more, or has it.
		if !q.peerGoodbye && (!q.goodbyeOut || len(q.idle) < len(q.open)) {
			return ErrNotDelivered
		}
	}
	return nil
}

// await waits until ready, which is called with q.mu held, or until that
// cannot come any more.
func (q *queue) await(ctx context.Context, ready func() bool) bool {
	locked := func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return ready()
	}
	for !locked() {
		q.w.sleep()
		select {
		case <-q.progress:
		case <-q.qp.Done():
			q.w.awake()
			q.w.drain()
			return locked()
		case <-ctx.Done():
			q.w.awake()
			return locked()
		}
		q.w.awake()
	}
	return true
}

// free gives everything back. It works at every stage of newQueue.
func (q *queue) free() {
	if q.qp != nil {
		_ = q.qp.Disconnect() // it may never have been connected
		q.w.remove(q)
	}
	close(q.unwatch)
	q.wg.Wait()
	stuck := false
	if q.qp != nil {
		if err := q.qp.Close(); err != nil {
			q.e.runtime.cfg.Logger.Error("queue pair not closed", "peer", q.e.remote, "device", q.d.name, "error", err)
			stuck = true
		}
	}
	q.mu.Lock()
	q.dead, q.stuck = true, stuck
	q.mu.Unlock()
	q.e.in.clear()
	// What the application holds stays readable: the device keeps the memory.
	q.mu.Lock()
	held := q.longs
	if q.recv != nil {
		held += q.recv.held()
	}
	q.left = true
	q.d.leave(held)
	q.mu.Unlock()
	if stuck {
		return // the device may still use the rest
	}
	if q.recv != nil {
		q.recv.close()
	}
	for q.head != q.tail {
		if pl := &q.sends[q.head%uint32(len(q.sends))]; !pl.slab.None() {
			q.d.sendPool.Put(pl.slab)
		}
		q.head++
	}
	for _, s := range q.open {
		if !s.None() {
			q.d.offerPool.Put(s)
		}
	}
	if !q.places.None() {
		q.d.sendPool.Put(q.places)
	}
	q.d.unclaim(q.w, q.claim)
}

// receives are the receives of a queue pair. q.mu guards them.
type receives struct {
	q       *queue
	size    int
	buffers []*buffer
	free    []int32 // slots
	request [1]rdma.RecvRequest
	entry   [1]rdma.SGE
}

// A buffer is the memory of a receive and the message that comes to lie in it.
type buffer struct {
	message Message
	slab    slab.Slab
	slot    int32
	posted  bool
}

func newReceives(q *queue, depth int) *receives {
	return &receives{q: q, size: packetHeader + q.t.Eager, buffers: make([]*buffer, 0, depth)}
}

// add posts one more receive, as soon as there is memory.
func (r *receives) add(ctx context.Context) error {
	s, err := r.q.d.recvPool.Get(ctx, r.size)
	if err != nil {
		return err
	}
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	return r.repost(r.take(s))
}

// tryAdd is add if there is memory now. q.mu is held.
func (r *receives) tryAdd() bool {
	s, ok, err := r.q.d.recvPool.TryGet(r.size)
	return ok && err == nil && r.repost(r.take(s)) == nil
}

func (r *receives) take(s slab.Slab) *buffer {
	if n := len(r.free); n > 0 {
		b := r.buffers[r.free[n-1]]
		r.free = r.free[:n-1]
		b.slab = s
		return b
	}
	b := &buffer{slab: s, slot: int32(len(r.buffers))}
	r.buffers = append(r.buffers, b)
	return b
}

func (r *receives) repost(b *buffer) error {
	r.entry[0] = rdma.SGE{Region: b.slab.Region(), Offset: b.slab.Offset(), Length: r.size}
	r.request[0] = rdma.RecvRequest{ID: idReceive | uint64(b.slot), SGEs: r.entry[:]}
	if _, err := r.q.qp.PostRecv(r.request[:]); err != nil {
		r.drop(b)
		return r.q.postFailed(err)
	}
	b.posted = true
	return nil
}

// arrived returns the buffer of a receive that has completed.
func (r *receives) arrived(slot uint32) *buffer {
	if int64(slot) >= int64(len(r.buffers)) || !r.buffers[slot].posted {
		return nil // of a queue pair that had this number before
	}
	r.buffers[slot].posted = false
	return r.buffers[slot]
}

// drop gives the memory of a buffer that is not posted back to the pool.
func (r *receives) drop(b *buffer) {
	r.q.d.recvPool.Put(b.slab)
	b.slab = slab.Slab{}
	r.free = append(r.free, b.slot)
}

// release takes a message back from the application.
func (r *receives) release(m *Message) {
	q := r.q
	q.mu.Lock()
	if !q.dead {
		defer q.mu.Unlock()
		r.reuse(m)
		return
	}
	m.data = nil
	r.drop(r.buffers[m.slot])
	left := q.left
	q.mu.Unlock()
	if left {
		q.d.cameBack()
	}
}

// reuse posts the receive of a message again. q.mu is held.
func (r *receives) reuse(m *Message) {
	q := r.q
	b := r.buffers[m.slot]
	m.data = nil
	if pool := q.d.recvPool; q.window > q.t.Window && pool.Used() > pool.Limit()/4*3 {
		// Memory is short: what the window has grown by goes back.
		r.drop(b)
		q.window--
		q.pump()
		return
	}
	if r.repost(b) == nil {
		q.owed++
		q.pump()
	}
}

// held counts the messages that the application has. The inbox is empty.
func (r *receives) held() int {
	n := 0
	for _, b := range r.buffers {
		if !b.posted && !b.slab.None() {
			n++
		}
	}
	return n
}

// close gives back what the application does not hold. The queue pair is closed.
func (r *receives) close() {
	for _, b := range r.buffers {
		if b.posted {
			b.posted = false
			r.drop(b)
		}
	}
}
