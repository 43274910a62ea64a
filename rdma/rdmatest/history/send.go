package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"

	"github.com/verbena-data/verbena/rdma"
)

// A sent is a request that the queue pair has taken.
type sent struct {
	id       uint64
	op       rdma.Opcode
	signaled bool
	length   int
	broken   bool
}

// completed checks the completion of a request.
func (e *end) completed(c rdma.Completion) error {
	p, list := int(c.ID>>32&0xff), []sent(nil)
	if p < maxPosters {
		list = e.posted[p]
	}
	index := e.done[min(p, maxPosters-1)]
	// A request that is not signalled has no completion of its own unless it fails:
	// the completion of a later one covers it.
	for index < len(list) && list[index].id != c.ID {
		if list[index].signaled || e.failedAt[p] >= 0 {
			return fmt.Errorf("round %d: completion of request %#x (%s); %#x (%s) must come first", e.round, c.ID, c.Status, list[index].id, list[index].op)
		}
		index++
	}
	if index >= len(list) {
		return fmt.Errorf("round %d: completion of request %#x (%s), which is not outstanding", e.round, c.ID, c.Status)
	}
	s := list[index]
	switch {
	case c.QueuePair != e.qp.Number():
		return fmt.Errorf("completion of request %#x is of queue pair %d, not %d", c.ID, c.QueuePair, e.qp.Number())
	case c.Status == rdma.StatusSuccess && e.failedAt[p] >= 0:
		return fmt.Errorf("round %d: request %#x (%s) succeeds behind one that failed", e.round, c.ID, s.op)
	case c.Status == rdma.StatusSuccess && !s.signaled:
		return fmt.Errorf("round %d: request %#x (%s) completes, and nobody asked for that", e.round, c.ID, s.op)
	case c.Status == rdma.StatusSuccess && c.Op != s.op:
		return fmt.Errorf("round %d: request %#x completes as %s, it is a %s", e.round, c.ID, c.Op, s.op)
	case c.Status == rdma.StatusSuccess && fetches(s.op) && int(c.Length) != s.length:
		return fmt.Errorf("round %d: %s %#x of %d bytes completes with %d", e.round, s.op, c.ID, s.length, c.Length)
	case c.Status == rdma.StatusSuccess && s.broken && (fetches(s.op) || e.t.class[e.role] == rdma.ClassInfiniBand):
		return fmt.Errorf("round %d: request %#x (%s), which the peer must refuse, succeeds", e.round, c.ID, s.op)
	case c.Status != rdma.StatusSuccess:
		if e.failedAt[p] < 0 {
			e.failedAt[p] = index
		}
		if c.Status != rdma.StatusFlushed {
			if e.failure != rdma.StatusSuccess {
				return fmt.Errorf("round %d: request %#x completes as %s, after another as %s", e.round, c.ID, c.Status, e.failure)
			}
			if e.failedAt[p] != index {
				return fmt.Errorf("round %d: request %#x completes as %s behind one that failed; it must be flushed", e.round, c.ID, c.Status)
			}
			e.failure = c.Status
		}
		if c.Status == rdma.StatusReceiverNotReady || c.Status == rdma.StatusLocalLength || c.Status == rdma.StatusLocalProtection {
			return fmt.Errorf("round %d: request %#x (%s) completes as %s", e.round, c.ID, s.op, c.Status)
		}
	}
	e.done[p] = index + 1
	return nil
}

// note records a request that the queue pair has taken. It needs mu.
func (e *end) note(p int, s sent) { e.posted[p] = append(e.posted[p], s) }

// post posts the requests of a poster, and waits for room in the send queue.
func (e *end) post(p int, requests []rdma.SendRequest, broken int) error {
	for len(requests) > 0 {
		// The lock keeps completions back until their requests are noted.
		e.mu.Lock()
		outstanding := 0
		for i := range e.posted {
			outstanding += len(e.posted[i]) - e.done[i]
		}
		n, err := e.qp.PostSend(requests)
		for i := range n {
			r := &requests[i]
			length := 0
			for _, sge := range r.SGEs {
				length += sge.Length
			}
			e.note(p, sent{r.ID, r.Op, r.Flags&rdma.Signaled != 0, length, i == broken})
			e.side.Stats.Ops[r.Op].Add(1)
			e.side.Stats.Bytes.Add(uint64(length))
		}
		room := e.out != nil && e.out.count == 1 && outstanding+n < e.t.depth[e.role]
		e.mu.Unlock()
		requests, broken = requests[n:], broken-n
		if len(requests) == 0 {
			return nil
		}
		switch {
		case errors.Is(err, rdma.ErrQueueFull) && room:
			return fmt.Errorf("round %d: PostSend: %w with %d requests outstanding, of %d", e.round, err, outstanding+n, e.t.depth[e.role])
		case errors.Is(err, rdma.ErrQueueFull):
			before := outstanding + n
			if err := e.await("room in the send queue", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				now := 0
				for i := range e.posted {
					now += len(e.posted[i]) - e.done[i]
				}
				return now < before || e.out.count > 1
			}); err != nil {
				return err
			}
			runtime.Gosched()
		case errors.Is(err, rdma.ErrState), errors.Is(err, rdma.ErrClosed) && e.closed.Load():
			return errFailed
		case errors.Is(err, rdma.ErrInvalid) && broken == 0 && e.brokenRefusal() == refuseUnaligned:
			return errUnaligned
		case err == nil:
			return fmt.Errorf("round %d: PostSend takes %d requests fewer and says nothing", e.round, len(requests))
		default:
			return fmt.Errorf("round %d: PostSend of a %s: %w", e.round, requests[0].Op, err)
		}
	}
	return nil
}

var errUnaligned = errors.New("the device finds the request wrong by itself")

func (e *end) brokenRefusal() refusal {
	if e.out == nil || e.out.brokenAt < 0 {
		return refuseNothing
	}
	return e.out.posters[0].steps[e.out.brokenAt].refusal
}

// tell sends a control message, which revokes a key of the peer if one is given.
func (e *end) tell(index int, m any, revoke ...uint32) error {
	at := index * 1024
	b, err := binary.Append(nil, binary.LittleEndian, m)
	if err != nil {
		return err
	}
	if err := e.control.write(at, b); err != nil {
		return err
	}
	r := rdma.SendRequest{
		ID: uint64(e.round+1)<<40 | uint64(1<<30+index), Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Solicited | rdma.Fence,
		SGEs: []rdma.SGE{{Region: e.control.region, Offset: at, Length: len(b)}},
	}
	for _, key := range revoke {
		r.Op, r.Remote.Key = rdma.OpSendInvalidate, key
	}
	return e.post(0, []rdma.SendRequest{r}, -1)
}

// request makes the work request of a step.
func (e *end) request(p, index int, s *step, sges []rdma.SGE) (rdma.SendRequest, []rdma.SGE) {
	r := rdma.SendRequest{
		ID: uint64(e.round+1)<<40 | uint64(p)<<32 | uint64(index), Op: s.op, Flags: s.flags, Immediate: s.immediate,
		CompareAdd: s.compareAdd, Swap: s.swap,
	}
	for _, piece := range e.out.spans[s.firstSpan:][:s.spanCount] {
		m, at := e.localPlace(piece)
		sges = append(sges, rdma.SGE{Region: m.region, Offset: at, Length: piece.length()})
	}
	r.SGEs = sges[len(sges)-s.spanCount:]
	if s.op < rdma.OpWrite {
		return r, sges
	}
	key := e.theirs.Exposed[s.part]
	r.Remote = rdma.Remote{Address: key.Address + uint64(s.at-exposedPart(s.part, e.t.area).from), Key: key.Key}
	switch s.refusal {
	case refuseKey:
		r.Remote.Key ^= 1 << (e.t.seed % 32)
	case refuseStale:
		r.Remote = rdma.Remote{Address: e.theirs.Stale.Address, Key: e.theirs.Stale.Key}
	case refuseForeign:
		r.Remote = rdma.Remote{Address: e.theirs.Foreign.Address, Key: e.theirs.Foreign.Key}
	case refuseWrap:
		r.Remote.Address = math.MaxUint64 - 7
	}
	return r, sges
}

const wrongPosts = 9

// postWrong posts a request that PostSend must refuse without harm to the queue pair.
func (e *end) postWrong(which int) error {
	a, m := e.side.attributes, e.local[0]
	r := rdma.SendRequest{ID: 666, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: rdma.Remote{Address: e.theirs.Exposed[0].Address, Key: e.theirs.Exposed[0].Key}}
	one := rdma.SGE{Region: m.region, Offset: 0, Length: 8}
	r.SGEs = []rdma.SGE{one}
	switch which {
	case 0:
		r.SGEs[0].Offset = m.size - 7
	case 1:
		r.SGEs[0].Offset = -1
	case 2:
		r.SGEs[0].Length = math.MaxInt
	case 3:
		r.Op, r.Flags = rdma.OpRead, r.Flags|rdma.Inline
	case 4:
		for range max(a.MaxSendSGE, a.MaxReadSGE) {
			r.SGEs = append(r.SGEs, one)
		}
	case 5:
		r.SGEs[0].Region = e.side.forbidden.region
	case 6:
		r.Op = 200
	case 7:
		if r.Flags |= rdma.Inline; a.MaxInline >= m.size {
			return nil
		}
		r.SGEs[0].Length = a.MaxInline + 1
	case 8:
		r.Op, r.SGEs[0].Length = rdma.OpFetchAdd, 4
	}
	e.mu.Lock()
	n, err := e.qp.PostSend([]rdma.SendRequest{r})
	e.mu.Unlock()
	e.side.Stats.WrongPosts.Add(1)
	switch {
	case n != 0:
		return fmt.Errorf("round %d: wrong post %d is taken", e.round, which)
	case errors.Is(err, rdma.ErrState), errors.Is(err, rdma.ErrClosed) && e.closed.Load():
		return errFailed
	case !errors.Is(err, rdma.ErrInvalid) && !errors.Is(err, rdma.ErrUnsupported) && !errors.Is(err, rdma.ErrQueueFull):
		return fmt.Errorf("round %d: wrong post %d: error %w, want one that wraps ErrInvalid", e.round, which, err)
	}
	return nil
}
