package verbena

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// recordingQueuePair keeps what was posted, or refuses it.
type recordingQueuePair struct {
	rdma.QueuePair
	posted  []rdma.SendRequest
	refusal error
}

func (q *recordingQueuePair) PostSend(requests []rdma.SendRequest) (int, error) {
	if q.refusal != nil {
		return 0, q.refusal
	}
	for _, r := range requests {
		r.SGEs = slices.Clone(r.SGEs)
		q.posted = append(q.posted, r)
	}
	return len(requests), nil
}

// noOwner is where the buffers of these tests come from.
type noOwner struct{}

func (noOwner) release()           {}
func (noOwner) location() location { return location{} }

// newSendQueue makes one of 8 places, and tells which buffers it has let go.
func newSendQueue(t *testing.T) (q *sendQueue, qp *recordingQueuePair, gone *[]*Buffer) {
	t.Helper()
	domain := &stuckDomain{stuck: make(chan struct{})}
	close(domain.stuck)
	pool := slab.New(domain, rdma.AccessLocalWrite, 16<<20)
	limits := link.Limits{MaxWindow: 2, Chunks: 1}
	qp, gone = &recordingQueuePair{}, &[]*Buffer{}
	q = &sendQueue{
		qp: qp, mu: &postLatch{}, pool: pool, offerPool: pool, inline: 24, strict: true, gathers: true,
		letGo: func(b *Buffer) { *gone = append(*gone, b) },
	}
	q.places = slabOf(t, pool, limits.FirstPlaces()*link.PlaceSize)
	q.make(&limits)
	t.Cleanup(func() {
		q.dropAll()
		if err := errors.Join(q.free(false), pool.Close()); err != nil {
			t.Error(err)
		}
		if n := pool.Used(); n != 0 {
			t.Errorf("%d bytes are still used", n)
		}
	})
	return q, qp, gone
}

func slabOf(t *testing.T, pool *slab.Pool, size int) slab.Slab {
	t.Helper()
	s, ok, err := pool.TryGet(size)
	if err != nil || !ok {
		t.Fatalf("%d bytes: %v, %v", size, ok, err)
	}
	return s
}

// A message lies at its place, in memory of its own behind its header, or in a buffer.
// Its memory comes back when its request is done, and not before, also where sequence
// numbers wrap.
func TestSendQueueKnowsWhatRequestsUse(t *testing.T) {
	q, qp, gone := newSendQueue(t)
	for lap := range 3 {
		first := uint32(1<<32-4) + uint32(len(q.slabs)*lap)
		used := q.pool.Used()
		qp.posted, *gone = nil, nil

		q.send(0, &link.Post{Seq: first, Size: 24})
		q.send(1, &link.Post{Seq: first + 1, Size: 25, Signaled: true})
		if err := q.post(q.requests[:2]); err != nil {
			t.Fatal(err)
		}
		if r := qp.posted; r[0].Flags != rdma.Inline || r[1].Flags != rdma.Signaled || r[1].ID != idSend|uint64(first+1) ||
			r[1].SGEs[0].Offset-q.places.Offset() != q.slot(first+1)*link.PlaceSize {
			t.Errorf("short messages are posted as %+v", r)
		}

		q.payload = slabOf(t, q.pool, 1000)
		copy(q.places.Bytes()[q.slot(first+2)*link.PlaceSize:], "header")
		memory := q.payload.Bytes()
		q.send(0, &link.Post{Seq: first + 2, Size: 16, Payload: 900})
		if !bytes.HasPrefix(memory, []byte("header")) || q.requests[0].SGEs[0].Length != 916 || q.quiet < 1000 {
			t.Errorf("the message is %q, in %+v; %d bytes wait for a signal", memory[:16], q.requests[0].SGEs, q.quiet)
		}

		b := &Buffer{owner: noOwner{}}
		q.gather, q.piece = b, rdma.SGE{Length: 5000}
		q.send(1, &link.Post{Seq: first + 3, Size: 16, Payload: 5000, Signaled: true})
		if sges := q.requests[1].SGEs; len(sges) != 2 || sges[0].Length != 16 || sges[1].Length != 5000 || q.quiet != 0 {
			t.Errorf("a buffer is sent as %+v", sges)
		}
		offer := &Buffer{owner: noOwner{}}
		q.offers[0] = offered{buffer: offer}
		q.inFlight++
		if !q.uses(b) || !q.uses(offer) || q.uses(&Buffer{}) || q.inFlight != 2 {
			t.Errorf("%d buffers are in flight; uses: %v, %v", q.inFlight, q.uses(b), q.uses(offer))
		}
		if q.done(first, first+2); q.pool.Used() == used || len(*gone) > 0 {
			t.Error("memory came back too soon")
		}
		if q.done(first+2, first+4); q.pool.Used() != used || !slices.Equal(*gone, []*Buffer{b}) {
			t.Errorf("%d bytes more are used; let go: %v", q.pool.Used()-used, *gone)
		}
		if q.confirmed(0); !slices.Equal(*gone, []*Buffer{b, offer}) || q.inFlight != 0 {
			t.Errorf("let go: %v; %d are in flight", *gone, q.inFlight)
		}
	}
}

// When the queue gets more places, what is under way keeps the memory that it was posted
// with, and everything comes back as before: also where sequence numbers wrap, and where
// the queue grows again meanwhile.
func TestSendQueueGrows(t *testing.T) {
	q, _, gone := newSendQueue(t)
	first := uint32(1<<32 - 3)
	b := &Buffer{owner: noOwner{}}
	send := func(seq uint32) {
		if seq&1 == 0 {
			q.payload = slabOf(t, q.pool, 1000)
		} else {
			q.gather = b
		}
		q.send(0, &link.Post{Seq: seq, Size: 16, Payload: 900})
	}
	grow := func(first, last uint32) {
		before := len(q.slabs)
		places, ok := q.morePlaces()
		if !ok {
			t.Fatal("no memory")
		}
		if q.grow(places, first, last); len(q.slabs) != 2*before || places != q.places || places.Size() < len(q.slabs)*link.PlaceSize {
			t.Fatalf("%d places, after %d, in %d bytes", len(q.slabs), before, places.Size())
		}
	}
	used := func() int64 { return q.pool.Used() - int64(q.places.Size()) }

	grow(first, first) // with nothing under way
	if used() != 0 {
		t.Fatalf("%d bytes are used beside the places", used())
	}
	for i := range uint32(4) {
		send(first + i)
	}
	two := used()
	small := int64(q.places.Size())
	grow(first, first+4)
	larger := int64(q.places.Size())
	send(first + 4)
	grow(first, first+5)
	if n := used(); n != two+small+larger || q.inFlight != 3 {
		t.Errorf("%d bytes are used beside the places, and %d buffers; want %d", n, q.inFlight, two+small+larger)
	}
	if q.done(first, first+3); used() != two/2+small+larger || len(*gone) != 2 {
		t.Errorf("%d bytes are used beside the places while former ones are; %d buffers have gone", used(), len(*gone))
	}
	if q.done(first+3, first+4); used() != larger || len(*gone) != 2 {
		t.Errorf("%d bytes are used beside the places; %d buffers have gone", used(), len(*gone))
	}
	if q.done(first+4, first+5); used() != 0 || len(*gone) != 3 || q.inFlight != 0 {
		t.Errorf("%d bytes are used beside the places; %d buffers have gone, %d are in flight", used(), len(*gone), q.inFlight)
	}
}

// A Read goes to its place in the memory of the message.
func TestSendQueueReads(t *testing.T) {
	q, _, _ := newSendQueue(t)
	memory := slabOf(t, q.pool, 8000)
	defer q.pool.Put(memory)
	q.read(0, &link.Post{Seq: 7, Read: true, Offset: 1000, Length: 50, Address: 1 << 40, Key: 3}, memory)
	r := q.requests[0]
	if r.Op != rdma.OpRead || r.Remote != (rdma.Remote{Address: 1 << 40, Key: 3}) || r.SGEs[0].Offset != memory.Offset()+1000 || r.SGEs[0].Length != 50 {
		t.Errorf("posted as %+v", r)
	}
}

// What is left when the queue pair has been closed comes back, and what a device that
// could not be closed may still use does not.
func TestSendQueueIsFreed(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		q, _, gone := newSendQueue(t)
		pool := q.pool
		b := &Buffer{owner: noOwner{}}
		q.payload = slabOf(t, pool, 1000)
		q.send(0, &link.Post{Seq: 0, Size: 16, Payload: 900})
		q.gather = b
		q.send(1, &link.Post{Seq: 1, Size: 16, Payload: 900})
		q.offers[0] = offered{slab: slabOf(t, pool, 4000)}
		if !stuck {
			if q.dropAll(); !slices.Equal(*gone, []*Buffer{b}) || q.inFlight != 0 {
				t.Errorf("let go: %v; %d are in flight", *gone, q.inFlight)
			}
		}
		if err := q.free(stuck); err != nil {
			t.Error(err)
		}
		if stuck != (len(*gone) == 0) {
			t.Errorf("stuck %v: let go: %v", stuck, *gone)
		}
	}
}

// A post that fails is the last one.
func TestSendQueueBreaks(t *testing.T) {
	q, qp, _ := newSendQueue(t)
	qp.refusal = rdma.ErrState
	q.send(0, &link.Post{Size: 16})
	if err := q.post(q.requests[:1]); !errors.Is(err, rdma.ErrState) || !q.broken {
		t.Errorf("%v, broken: %v", err, q.broken)
	}
}

// doorbellQueuePair holds the doorbell, and counts how often it is rung.
type doorbellQueuePair struct {
	recordingQueuePair
	rung func()
}

func (q *doorbellQueuePair) PostSendHeld(requests []rdma.SendRequest) (n int, ring bool, err error) {
	n, err = q.PostSend(requests)
	return n, n > 0, err
}

func (q *doorbellQueuePair) Ring() { q.rung() }

// The doorbell rings once for all posts of a turn, when the latch is free.
func TestDoorbellBehindTheLatch(t *testing.T) {
	q, _, _ := newSendQueue(t)
	rung := 0
	qp := &doorbellQueuePair{rung: func() {
		if rung++; !q.mu.TryLock() {
			t.Fatal("the doorbell rings while the latch is held")
		}
		q.mu.Latch.Unlock()
	}}
	q.qp, q.mu.doorbell = qp, qp
	for turn := range 3 {
		q.mu.Lock()
		for range 2 {
			if err := q.post([]rdma.SendRequest{{Op: rdma.OpSend}}); err != nil {
				t.Fatal(err)
			}
		}
		if rung != turn {
			t.Fatalf("the doorbell has been rung %d times under the latch", rung-turn)
		}
		q.mu.Unlock()
		q.mu.Lock()   // a turn without a post
		q.mu.Unlock() //nolint:staticcheck // it is the turn that is tested
		if rung != turn+1 {
			t.Fatalf("after %d turns with posts the doorbell has been rung %d times", turn+1, rung)
		}
	}
	q.mu.Lock()
	qp.refusal = rdma.ErrState
	if err := q.post([]rdma.SendRequest{{Op: rdma.OpSend}}); err == nil {
		t.Fatal("a post is taken that the device refuses")
	}
	q.mu.Unlock()
	if rung != 3 {
		t.Fatal("the doorbell is rung for what was not posted")
	}
}
