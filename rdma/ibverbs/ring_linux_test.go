//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"math/rand/v2"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// post takes a place, as PostSend does.
func (r *sendRing) post(id uint64, op rdma.Opcode, signaled, reports bool) uint32 {
	seq := r.tail.Load()
	s := &r.slots[seq&r.mask]
	*s = sendSlot{id: id, op: op, signaled: signaled, reports: reports}
	r.tail.Store(seq + 1)
	return seq
}

type told struct {
	id     uint64
	status rdma.Status
}

func (r *sendRing) tell(flush bool) (list []told, lost int) {
	for {
		s, tell, forgotten, ok := r.next(flush)
		if !ok {
			return list, lost
		}
		if forgotten {
			lost++
		}
		if tell {
			list = append(list, told{s.id, s.status})
		}
	}
}

func newSendRing(depth int, start uint32) *sendRing {
	r := &sendRing{}
	r.init(depth)
	r.head.Store(start)
	r.tail.Store(start)
	r.seen = start
	return r
}

func expect(t *testing.T, what string, got []told, want ...told) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
	}
}

const (
	ok      = rdma.StatusSuccess
	refused = rdma.StatusRemoteAccess
	flushed = rdma.StatusFlushed
)

// TestSendRing has scripts of what drivers do. The numbers wrap in each.
func TestSendRing(t *testing.T) {
	for _, start := range []uint32{0, 1<<32 - 2} {
		r := newSendRing(4, start)
		a := r.post(1, rdma.OpWrite, false, false)
		b := r.post(2, rdma.OpWrite, true, true)
		got, _ := r.tell(false)
		expect(t, "nothing has been reported", got)
		if r.room() != 2 {
			t.Errorf("room for %d, want 2", r.room())
		}
		if !r.report(b, ok) {
			t.Error("a completion is refused")
		}
		got, lost := r.tell(false)
		expect(t, "unsignalled, then signalled", got, told{2, ok})
		if r.room() != 4 || lost != 0 {
			t.Errorf("room for %d, %d lost", r.room(), lost)
		}
		if r.report(a, ok) || r.report(b, ok) || r.report(b+1, ok) || r.report(b+1000, ok) || r.report(b-1000, ok) {
			t.Error("takes a completion that cannot be")
		}

		// iWARP: a Send is reported before the Read in front of it.
		read := r.post(3, rdma.OpRead, false, true)
		r.post(4, rdma.OpWrite, false, false)
		send := r.post(5, rdma.OpSend, true, true)
		r.report(send, ok)
		got, _ = r.tell(false)
		expect(t, "the Read is under way", got)
		if r.report(send, ok) {
			t.Error("takes a completion twice")
		}
		r.report(read, ok)
		got, _ = r.tell(false)
		expect(t, "the Read is done", got, told{5, ok})

		// A failure in the middle: what is behind it is flushed, even if the
		// driver says that it has succeeded.
		bad := r.post(6, rdma.OpRead, false, true)
		r.post(7, rdma.OpWrite, false, false)
		behind := r.post(8, rdma.OpSend, true, true)
		r.report(behind, ok)
		r.report(bad, refused)
		got, _ = r.tell(false)
		expect(t, "refused", got, told{6, refused}, told{7, flushed}, told{8, flushed})

		// The driver forgets the rest.
		r.post(9, rdma.OpSend, false, false)
		r.post(10, rdma.OpSend, true, true)
		got, _ = r.tell(false)
		expect(t, "nothing more is reported", got)
		got, lost = r.tell(true)
		expect(t, "flush", got, told{9, flushed}, told{10, flushed})
		if lost != 2 {
			t.Errorf("%d lost, want 2", lost)
		}
		if r.outstanding() != 0 {
			t.Errorf("%d outstanding", r.outstanding())
		}
	}
}

// TestSendRingFlushKeepsSuccess has a driver that reports a request and forgets
// the next: what came before the report has been done.
func TestSendRingFlushKeepsSuccess(t *testing.T) {
	r := newSendRing(8, 0)
	r.post(1, rdma.OpWrite, false, false)
	two := r.post(2, rdma.OpSend, true, true)
	r.post(3, rdma.OpWrite, false, false)
	r.post(4, rdma.OpSend, true, true)
	r.report(two, ok)
	got, lost := r.tell(true)
	expect(t, "flush", got, told{2, ok}, told{3, flushed}, told{4, flushed})
	if lost != 2 {
		t.Errorf("%d lost, want 2", lost)
	}
}

// TestSendRingRandom reports random requests in the orders that drivers may use
// and compares what is told with what was posted.
func TestSendRingRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(20100215, 3))
	for round := range 2000 {
		depth := 1 + random.IntN(20)
		r := newSendRing(depth, random.Uint32())
		iwarp := round%2 == 1
		type request struct {
			seq      uint32
			id       uint64
			reports  bool
			signaled bool
			read     bool
		}
		var posted, unreported []request
		next, failAt := uint64(0), uint64(random.IntN(100))
		var all []told
		failed := false
		for step := 0; step < 60; step++ {
			for r.room() > 0 && random.IntN(3) > 0 {
				q := request{id: next, signaled: random.IntN(2) == 0, read: random.IntN(3) == 0}
				q.reports = q.signaled || iwarp && q.read
				op := rdma.OpWrite
				if q.read {
					op = rdma.OpRead
				}
				q.seq = r.post(q.id, op, q.signaled, q.reports)
				next++
				posted = append(posted, q)
				if q.reports {
					unreported = append(unreported, q)
				}
			}
			if len(unreported) > 0 {
				// Sends and Writes in their order, Reads in theirs.
				at := 0
				if iwarp && random.IntN(2) == 0 {
					for i, q := range unreported {
						if q.read != unreported[0].read {
							at = i
							break
						}
					}
				}
				q := unreported[at]
				status := ok
				if q.id >= failAt {
					status = flushed
				}
				if !r.report(q.seq, status) {
					t.Fatalf("round %d: completion of %d is refused", round, q.id)
				}
				unreported = append(unreported[:at], unreported[at+1:]...)
			}
			got, lost := r.tell(false)
			if lost > 0 {
				t.Fatalf("round %d: %d lost without a flush", round, lost)
			}
			all = append(all, got...)
		}
		rest, _ := r.tell(true)
		all = append(all, rest...)
		at := 0
		for _, q := range posted {
			if at < len(all) && all[at].id == q.id {
				if all[at].status != ok {
					failed = true
				} else if failed {
					t.Fatalf("round %d: %d succeeds behind a failed request", round, q.id)
				}
				if all[at].status == ok && !q.signaled {
					t.Fatalf("round %d: %d is told of and was not signalled", round, q.id)
				}
				at++
			} else if q.signaled || failed {
				t.Fatalf("round %d: %d is not told of: %v", round, q.id, all)
			}
		}
		if at != len(all) {
			t.Fatalf("round %d: told of out of order: %v", round, all)
		}
	}
}

func TestRecvRing(t *testing.T) {
	r := &recvRing{}
	r.init(3)
	r.head.Store(1<<32 - 1)
	r.tail.Store(1<<32 - 1)
	for i := range uint64(3) {
		tail := r.tail.Load()
		r.ids[tail&r.mask] = i
		r.tail.Store(tail + 1)
	}
	if r.room() != 0 || r.outstanding() != 3 {
		t.Errorf("room %d, outstanding %d", r.room(), r.outstanding())
	}
	if !r.has(1<<32-1) || !r.has(1) || r.has(2) || r.has(1<<32-2) {
		t.Error("has is wrong about what is outstanding")
	}
	for i := range uint64(3) {
		if id, ok := r.next(); !ok || id != i {
			t.Fatalf("receive %d: %v, want %d", id, ok, i)
		}
	}
	if _, ok := r.next(); ok {
		t.Error("a receive out of an empty ring")
	}
}
