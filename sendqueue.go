package verbena

import (
	"slices"

	"github.com/verbena-data/verbena/internal/latch"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

const (
	// An eager message of more than soon bytes is signalled, so that its memory comes
	// back at once. The memory of shorter ones comes back with the next signalled
	// request. On a strict device, where an idle endpoint holds more, what waits for
	// that counts, too.
	soon = 2 << 10
	// flushBatch is how many requests a post has at most.
	flushBatch = 4
)

// A postLatch guards an endpoint's posts. Whoever lets it go rings the doorbell of what
// was posted under it: while the kernel wakes somebody, others may have the latch, and
// who is woken finds it free.
type postLatch struct {
	latch.Latch
	doorbell rdma.DoorbellQueuePair // nil: the device rings while it posts
	due      bool                   // guarded by the latch
}

// Unlock lets the latch go.
func (l *postLatch) Unlock() {
	if l.due {
		l.unlockAndRing()
		return
	}
	l.Latch.Unlock()
}

// unlockAndRing is apart, so that Unlock is inlined where no doorbell is due.
//
//go:noinline
func (l *postLatch) unlockAndRing() {
	l.due = false
	l.Latch.Unlock()
	l.doorbell.Ring()
}

// A sendQueue is the send queue of an endpoint's queue pair: it turns the posts of the
// machine into work requests, and knows what memory each of them was given. The shell's
// mu guards all of it.
type sendQueue struct {
	qp      rdma.QueuePair
	mu      *postLatch
	pool    *slab.Pool // of eager messages
	places  slab.Slab  // link.PlaceSize bytes for each request: headers and short messages
	former  []former   // places that requests have which were posted before there were more
	inline  int        // bytes of a message that are posted inline
	gathers bool       // the device sends in two pieces
	strict  bool       // memory of messages is wanted back early
	broken  bool       // a post has failed: no other may follow
	quiet   int        // bytes that wait for the next signalled request, if strict
	copied  int        // bytes of memory that copied messages have

	// Of the eager message that is about to be posted: its memory, or the buffer and
	// where in it the bytes lie.
	payload slab.Slab
	gather  *Buffer
	piece   rdma.SGE

	// By place, a power of two of them, since sequence numbers wrap.
	slabs      []slab.Slab // to be freed when the request is done
	gatherings []*Buffer   // that the request sends from; nil before the first

	offers    []offered // by id
	offerPool *slab.Pool
	private   *slab.Private // where offers come from: the peer gets keys to it
	inFlight  int           // buffers in gatherings and offers
	letGo     func(*Buffer) // is told when a send does not use a buffer any more

	requests [flushBatch]rdma.SendRequest
	entries  [flushBatch][2]rdma.SGE
}

// former are places that the queue had. The device uses them until the request with
// sequence number until is done.
type former struct {
	places slab.Slab
	until  uint32
}

// An offered part of a long message lies in memory of its own, or in a buffer.
type offered struct {
	slab    slab.Slab
	buffer  *Buffer
	passage *passage // of a buffer in the memory of another endpoint's peer; else nil
}

// ended notes that the peer reads there no more.
func (o *offered) ended() {
	if o.passage != nil {
		o.passage.end()
	}
}

// make makes room for the first requests, whose places are there, and for as many
// offers as the machine may have.
func (q *sendQueue) make(limits *link.Limits) {
	q.slabs, q.offers = make([]slab.Slab, limits.FirstPlaces()), make([]offered, limits.Chunks)
}

// morePlaces is memory for twice as many requests, if there is some at once.
func (q *sendQueue) morePlaces() (places slab.Slab, ok bool) {
	places, ok, err := q.pool.TryQuick(2 * len(q.slabs) * link.PlaceSize)
	return places, ok && err == nil
}

// grow makes room for twice as many requests, from morePlaces. Those from first to
// before last are under way.
func (q *sendQueue) grow(places slab.Slab, first, last uint32) {
	if first == last {
		q.pool.Put(q.places)
	} else {
		q.former = append(q.former, former{places: q.places, until: last - 1})
	}
	q.places = places
	slabs, gatherings := q.slabs, q.gatherings
	q.slabs = make([]slab.Slab, 2*len(slabs))
	if gatherings != nil {
		q.gatherings = make([]*Buffer, len(q.slabs))
	}
	for seq := first; seq != last; seq++ {
		from := int(seq) & (len(slabs) - 1)
		q.slabs[q.slot(seq)] = slabs[from]
		if gatherings != nil {
			q.gatherings[q.slot(seq)] = gatherings[from]
		}
	}
}

// slot is where a request has its place.
func (q *sendQueue) slot(seq uint32) int { return int(seq) & (len(q.slabs) - 1) }

// send makes work request i of the next post: a message.
func (q *sendQueue) send(i int, p *link.Post) {
	r, entry := &q.requests[i], q.entries[i][:1]
	*r = rdma.SendRequest{ID: idSend | uint64(p.Seq), Op: rdma.OpSend, SGEs: entry}
	if p.Signaled {
		r.Flags = rdma.Signaled
		q.quiet = 0
	}
	slot := q.slot(p.Seq)
	at := slot * link.PlaceSize
	if p.Payload == 0 {
		entry[0] = rdma.SGE{Region: q.places.Region(), Offset: q.places.Offset() + at, Length: p.Size}
		if p.Size <= q.inline {
			r.Flags |= rdma.Inline
		}
		return
	}
	if q.gather != nil {
		r.SGEs = q.gathered(slot, p, entry)
		return
	}
	memory := q.payload
	copy(memory.Bytes()[:p.Size], q.places.Bytes()[at:])
	q.slabs[slot], q.payload = memory, slab.Slab{}
	q.copied += memory.Size()
	if !p.Signaled && q.strict {
		q.quiet += memory.Size()
	}
	entry[0] = rdma.SGE{Region: memory.Region(), Offset: memory.Offset(), Length: p.Size + p.Payload}
}

// gathered fills in the entries of a request for a header, and for the buffer that lies
// ready in gather.
func (q *sendQueue) gathered(slot int, p *link.Post, entries []rdma.SGE) []rdma.SGE {
	entries = entries[:2]
	entries[0] = rdma.SGE{Region: q.places.Region(), Offset: q.places.Offset() + slot*link.PlaceSize, Length: p.Size}
	entries[1] = q.piece
	if q.gatherings == nil { // few endpoints send buffers: up to 1 KiB
		q.gatherings = make([]*Buffer, len(q.slabs))
	}
	q.gatherings[slot], q.gather = q.gather, nil
	q.inFlight++
	return entries
}

// read makes work request i of the next post: a Read of a long message into memory.
func (q *sendQueue) read(i int, p *link.Post, memory slab.Slab) {
	r, entry := &q.requests[i], q.entries[i][:1]
	*r = rdma.SendRequest{ID: idSend | uint64(p.Seq), Op: rdma.OpRead, SGEs: entry, Remote: rdma.Remote{Address: p.Address, Key: p.Key}}
	if p.Signaled {
		r.Flags = rdma.Signaled
		q.quiet = 0
	}
	entry[0] = rdma.SGE{Region: memory.Region(), Offset: memory.Offset() + p.Offset, Length: p.Length}
}

// post hands requests to the device. After an error no other post may follow: requests
// complete in order, so a later one would tell that those that failed are done.
func (q *sendQueue) post(requests []rdma.SendRequest) (err error) {
	if held := q.mu.doorbell; held != nil {
		var ring bool
		_, ring, err = held.PostSendHeld(requests)
		q.mu.due = q.mu.due || ring
	} else {
		_, err = q.qp.PostSend(requests)
	}
	q.broken = err != nil
	return err
}

// done takes back the memory of the requests from sequence number from to before to.
func (q *sendQueue) done(from, to uint32) {
	for len(q.former) > 0 && q.former[0].until-from < to-from {
		q.pool.Put(q.former[0].places)
		q.former = slices.Delete(q.former, 0, 1)
	}
	for ; from != to; from++ {
		if slot := &q.slabs[q.slot(from)]; !slot.None() {
			q.copied -= slot.Size()
			q.pool.Put(*slot)
			*slot = slab.Slab{}
		}
		if q.inFlight > 0 && q.gatherings != nil {
			if slot := &q.gatherings[q.slot(from)]; *slot != nil {
				b := *slot
				*slot = nil
				q.drop(b)
			}
		}
	}
}

// confirmed takes back the memory of an offer with which the peer is through.
func (q *sendQueue) confirmed(id uint32) {
	o := q.offers[id]
	q.offers[id] = offered{}
	o.ended()
	if o.buffer != nil {
		q.drop(o.buffer)
	} else {
		q.offerPool.Put(o.slab)
	}
}

func (q *sendQueue) drop(b *Buffer) {
	q.inFlight--
	q.letGo(b)
}

// uses tells whether a message is sent from b.
func (q *sendQueue) uses(b *Buffer) bool {
	if q.inFlight == 0 {
		return false
	}
	for _, other := range q.gatherings {
		if other == b {
			return true
		}
	}
	for i := range q.offers {
		if q.offers[i].buffer == b {
			return true
		}
	}
	return false
}

// dropAll ends the use of all buffers: neither the device nor the peer reaches them any
// more.
func (q *sendQueue) dropAll() {
	if b := q.gather; b != nil { // it was not posted
		q.gather = nil
		q.letGo(b)
	}
	for i, b := range q.gatherings {
		if b != nil {
			q.gatherings[i] = nil
			q.drop(b)
		}
	}
	for i := range q.offers {
		if b := q.offers[i].buffer; b != nil {
			q.offers[i].ended()
			q.offers[i] = offered{}
			q.drop(b)
		}
	}
}

// free gives back all memory that the device was given to send from. The queue pair is
// closed; spoilt tells that it could not be, and that the device may still use the
// memory. The error is that of memory which peers could read.
func (q *sendQueue) free(spoilt bool) (err error) {
	for _, memory := range q.slabs {
		giveBack(q.pool, memory, spoilt)
	}
	for _, o := range q.offers {
		giveBack(q.offerPool, o.slab, spoilt)
	}
	if q.private != nil {
		err = q.private.Close() // no peer reads any more
	}
	for _, f := range q.former {
		giveBack(q.pool, f.places, spoilt)
	}
	giveBack(q.pool, q.payload, spoilt)
	giveBack(q.pool, q.places, spoilt)
	q.slabs, q.offers, q.former, q.payload, q.places = nil, nil, nil, slab.Slab{}, slab.Slab{}
	return err
}

// giveBack puts memory back if there is any. spoilt tells that the device may still use
// it.
func giveBack(p *slab.Pool, memory slab.Slab, spoilt bool) {
	switch {
	case memory.None():
	case spoilt:
		p.Spoil(memory, nil)
	default:
		p.Put(memory)
	}
}
