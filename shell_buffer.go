package verbena

import (
	"context"
	"errors"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// Buffers of a shell. Each send that uses one has a reference of its own: from its
// post until the request is done, or until the peer has confirmed the offer. What
// the peer never confirms is let go when the queue pair has been closed.

// A blank is memory of Endpoint.Buffer. It is used once, so that it can tell a
// second Release from the first.
type blank struct {
	Buffer
	s       *queuePair
	pool    *slab.Pool
	slab    slab.Slab
	private *slab.Private // of a region that the peer may have the key to
}

// bufferUses is what a shell knows of buffers beside those that it sends from. Its mu
// guards it.
type bufferUses struct {
	blanks   stock[blank] // for buffers to come
	settling settling
	loose    []*Buffer // without a reference, to be given back without mu
}

// anyLoose tells whether there are some to be given back.
func (u *bufferUses) anyLoose() bool { return len(u.loose) > 0 }

// takeLoose takes one of them, or nil.
func (u *bufferUses) takeLoose() (b *Buffer) {
	if n := len(u.loose); n > 0 {
		b, u.loose[n-1] = u.loose[n-1], nil
		u.loose = u.loose[:n-1]
	}
	return b
}

// dropped keeps a buffer that has lost a reference, if it was the last one.
func (u *bufferUses) dropped(b *Buffer) {
	if b.last() {
		u.loose = append(u.loose, b)
	}
}

func (s *queuePair) buffer(ctx context.Context, front, size int) (*Buffer, error) {
	s.mu.Lock()
	if err := s.e.Err(); err != nil || s.life.reached(stageClosed) {
		s.mu.Unlock()
		if err == nil {
			err = ErrClosed
		}
		return nil, err
	}
	s.held++ // the domain stays as long as the memory
	b := s.buffers.blanks.take()
	s.mu.Unlock()

	b.s, b.pool = s, s.n.offerPool
	var from memorySource = s.queue.private
	switch {
	case front+size <= s.m.MaxEager():
		front = 0 // it is gathered, or copied behind its header
		b.pool = s.n.sendPool
		from = b.pool
	case s.trusts():
		from = b.pool
	default:
		b.private = s.queue.private
	}
	memory, err := s.take(ctx, from, front+size)
	s.mu.Lock()
	if err != nil {
		s.releasedOne()
		if errors.Is(err, slab.ErrClosed) {
			err = ErrClosed
		}
		return nil, err
	}
	b.slab, b.data, b.owner, b.held = memory, memory.Bytes()[front:front+size:front+size], b, true
	b.front = front
	s.mu.Unlock()
	return &b.Buffer, nil
}

func (b *blank) location() location {
	return location{pool: b.pool, slab: b.slab, owner: b.private}
}

func (b *blank) release() {
	s := b.s
	s.mu.Lock()
	if !b.held {
		s.mu.Unlock()
		s.releasedTwice()
		return
	}
	memory := b.slab
	b.held, b.data, b.slab = false, nil, slab.Slab{}
	s.mu.Unlock()
	b.pool.Put(memory) // it may have to close a region
	s.mu.Lock()
	s.releasedOne()
}

// prepend puts the header of a message before its body, if that lies behind room for it
// which no other send uses. The caller holds sendLock, and the room is for the endpoint
// alone that the buffer was made for.
func (s *queuePair) prepend(p *parcel) {
	b, ok := p.buffer.owner.(*blank)
	n := len(p.header)
	if !ok || n == 0 || b.s != s || p.from != b.front || n > b.front {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uses(p.buffer) {
		return // the peer may be about to read the header of another message
	}
	whole := b.slab.Bytes()[b.front-n : b.front+len(p.body)]
	copy(whole, p.header)
	p.header, p.body, p.from = nil, whole, p.from-n
}

// trusts tells that the peer may have keys to memory that holds what other trusted
// peers of the group have sent.
func (s *queuePair) trusts() bool { return s.n.cfg.relay && s.e.trusted }

// mayGather tells whether the device can send a buffer from where it lies.
func (s *queuePair) mayGather(at *location) bool { return s.queue.gathers && s.n.reaches(at) }

// mayShow tells whether the peer may have the key to where a buffer lies. It opens
// the whole region.
func (s *queuePair) mayShow(at *location) bool {
	switch {
	case at.owner != nil:
		return at.owner == s.queue.private
	case at.user != nil:
		return s.trusts() && s.n.reaches(at) && at.user.access&rdma.AccessRemoteRead != 0
	}
	return s.trusts() && (at.pool == s.n.longPool || at.pool == s.n.offerPool)
}

// sendBufferNow is sendNow for a buffer that the device can send from where it lies.
func (s *outbound) sendBufferNow(p parcel) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.busy || p.size() > s.m.MaxEager() || s.e.over() || !s.m.MaySend() {
		return false
	}
	return s.tryGather(&p)
}

// tryGather posts an eager message whose bytes need not be copied to other memory.
// MaySend, and mu is held.
func (s *outbound) tryGather(p *parcel) bool {
	if p.size() <= link.Small {
		if p.own() != nil {
			return false
		}
	} else {
		at := p.buffer.owner.location()
		if !s.mayGather(&at) {
			return false
		}
		p.buffer.Retain()
		s.queue.gather = p.buffer
		s.queue.piece = rdma.SGE{Region: at.region(), Offset: at.place() + p.from, Length: len(p.body)}
	}
	s.m.Gather(p.tag, p.header, p.body, p.size() > link.Small)
	s.flush()
	s.sent.add(p.size())
	return true
}

// offerInPlace offers a part of a long message from where it lies.
func (s *outbound) offerInPlace(ctx context.Context, p parcel, o *wire.Offer, at *location) error {
	if _, err := s.ready(ctx, (*link.Machine[*Message]).MayOffer, nil, nil, 0, p); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if !at.begin(p.buffer) {
		return errNotIntact
	}
	s.postInPlace(p, o, at)
	return s.posted()
}

// postInPlace posts an offer of a part from where it lies. MayOffer, begin has reported true,
// and mu is held.
func (s *outbound) postInPlace(p parcel, o *wire.Offer, at *location) {
	region := at.region()
	p.buffer.Retain()
	s.offer(p.tag, o, region.Address()+uint64(at.place()+p.from), region.Key(), len(p.body), offered{buffer: p.buffer, passage: at.passage})
	s.queue.inFlight++
}

// letGo ends the use of a buffer by a send. mu is held; whoever holds it calls
// dropLoose when it has let go of that.
func (s *queuePair) letGo(b *Buffer) {
	if s.buffers.settling.any() && !s.uses(b) {
		s.buffers.settling.settled(b)
	}
	s.buffers.dropped(b)
}

// dropLoose gives back buffers whose last reference was that of a send. It takes the
// lock of the endpoint that they belong to, so mu is not held.
func (s *queuePair) dropLoose() {
	for {
		s.mu.Lock()
		b := s.buffers.takeLoose()
		s.mu.Unlock()
		if b == nil {
			return
		}
		b.owner.release()
	}
}

// uses tells whether a send of b is under way, or a one-sided operation. mu is held.
func (s *queuePair) uses(b *Buffer) bool {
	return s.flights != nil && s.flights.use(b) || s.queue.uses(b)
}

func (s *queuePair) settle(ctx context.Context, b *Buffer) error {
	return s.buffers.settling.wait(ctx, &s.mu, s.uses, b, s.e.Err, func(w *settler) {
		if !s.w.drive(&w.spin, w.ready) {
			s.w.sleep()
			w.sleep(ctx, s.e.done)
			s.w.awake()
		}
	})
}
