package verbena

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/verbena-data/verbena/internal/onesided"
	"github.com/verbena-data/verbena/rdma"
)

// One-sided operations over TCP are frames that the peer's runtime answers.
// docs/onesided.md has their layout.
const (
	// streamOperations is how many operations an end may have that are not answered.
	streamOperations = 32
	// operationHead is the part of an operation's contents before what is its own, and
	// operands what an atomic operation has of its own at most.
	operationHead, operands = 16, 16
)

// The ways of operations and their answers.
const (
	betweenMessages onesided.Way = iota
	onLane
)

// way is that of the operations which s writes.
func (s *stream) way() onesided.Way {
	if s.aside {
		return onLane
	}
	return betweenMessages
}

// errands are an end's operations that the peer has not answered.
type errands struct {
	mu    sync.Mutex
	asked onesided.Asked
	free  chan uint32 // ids
	sets  onesided.Sets
	lost  error   // of the lane
	word  [8]byte // the serving goroutine's
	begin sync.Once

	operated Operations
	serve    chan service // what the peer has asked for; nil before that
}

func (q *errands) init() {
	q.free = make(chan uint32, streamOperations)
	for id := range uint32(streamOperations) {
		q.free <- id
	}
}

// lose ends what was sent on the lane and has no answer: it has ended, and nothing goes
// there any more. What was sent between messages before there was a lane is answered there.
func (q *errands) lose(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost = err
	q.asked.Lose(onLane, err, q.put)
}

// put gives an id back.
func (q *errands) put(id uint32) { q.free <- id }

func (q *errands) take() *onesided.Set {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.asked.None() {
		q.asked = onesided.NewAsked(streamOperations)
	}
	return q.sets.Take()
}

func (s *stream) operate(ctx context.Context, b *Batch) error {
	s.wantLane(ctx)
	q := &s.errands
	set := q.take()
	asked, err := s.ask(ctx, set, b)
	if err == nil {
		err = s.awaitErrands(ctx, set)
	}
	q.mu.Lock()
	q.asked.Forget(set, q.put)
	if err == nil {
		err = set.Err()
	}
	for i := range b.ops[:asked] {
		if !set.Undone(i) {
			q.operated.add(b.ops[i].kind, b.ops[i].length())
		}
	}
	q.sets.Put(set)
	q.mu.Unlock()
	if err == nil && b.notify {
		// The peer has done it all.
		return s.e.Send(ctx, b.tag, b.message)
	}
	return err
}

// ask sends the operations, each in pieces that fit into a frame. It returns how many were sent whole.
func (s *stream) ask(ctx context.Context, set *onesided.Set, b *Batch) (int, error) {
	for i := range b.ops[:b.count] {
		o := &b.ops[i]
		if o.token.ways != 0 {
			return i, fmt.Errorf("%w: its token is none of this endpoint's", ErrRevoked)
		}
		for done := 0; ; {
			n := 0
			if !o.atomic() {
				n = min(len(o.local)-done, s.fragment)
			}
			if err := s.askPiece(ctx, onesided.Query{Set: set, Of: i}, o, done, n); err != nil {
				return i, err
			}
			if done += n; done >= len(o.local) {
				break
			}
		}
	}
	return b.count, nil
}

// askPiece sends n bytes of an operation from done on; query has its set and its number.
func (s *stream) askPiece(ctx context.Context, query onesided.Query, o *operation, done, n int) error {
	q := &s.errands
	var id uint32
	select {
	case id = <-q.free:
	default:
		select {
		case id = <-q.free:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.e.done:
			return s.e.err
		}
	}
	switch o.kind {
	case opPut:
	case opGet:
		query.Into, query.Want = o.local[done:done+n], n
	default:
		query.Number, query.Value, query.Want = true, o.result, 8
	}
	q.mu.Lock()
	q.asked.Add(id, query)
	q.mu.Unlock()
	// On the lane, or behind messages that are waiting to be sent.
	via, turn := s, s.e.sendLock
	if l := s.lane.Load(); l != nil {
		via, turn = l.stream, l.turn
	}
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.e.done:
		return s.e.err
	}
	defer func() { <-turn }()
	if err := via.waitBacklog(ctx, s.e.done, backlogLimit, &s.wait); err != nil {
		return err
	}
	q.mu.Lock()
	lost := q.lost
	if lost == nil {
		q.asked.Sent(id, via.way())
	}
	q.mu.Unlock()
	if lost != nil {
		return lost
	}
	return via.writeOperation(id, o, done, n)
}

// writeOperation writes n bytes of an operation from done on. The holder of the stream's
// turn calls it.
func (s *stream) writeOperation(id uint32, o *operation, done, n int) error {
	head := binary.BigEndian.AppendUint64(s.head[:0], o.token.id)
	head = binary.BigEndian.AppendUint64(head, uint64(o.offset+done))
	f := frame{kind: frameOperation, flags: uint8(o.kind), tag: id}
	var data []byte
	switch o.kind {
	case opPut:
		data = o.local[done : done+n]
	case opGet:
		f.total = uint32(n)
	case opCompareSwap:
		head = binary.BigEndian.AppendUint64(head, o.operand)
		head = binary.BigEndian.AppendUint64(head, o.swap)
	case opFetchAdd:
		head = binary.BigEndian.AppendUint64(head, o.operand)
	}
	f.length = uint32(len(head) + len(data))
	return s.write(f, parcel{header: head, body: data})
}

func (s *stream) awaitErrands(ctx context.Context, set *onesided.Set) error {
	for {
		s.errands.mu.Lock()
		left := set.Left()
		s.errands.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-set.Done:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.e.done:
			// What had arrived by then counts.
			s.errands.mu.Lock()
			left = set.Left()
			s.errands.mu.Unlock()
			if left > 0 {
				return s.e.err
			}
		}
	}
}

// answered takes the peer's answer to an operation, which has come over via. The reader of
// the other connection may be taking one at the same time.
func (s *stream) answered(r *bufio.Reader, f frame, via *stream) error {
	q := &s.errands
	code := verdictCode(f.flags)
	q.mu.Lock()
	ok := code < verdictCodes && q.asked.Expected(f.tag, via.way(), code == verdictDone, int(f.length))
	whole := ok && q.asked.Number(f.tag)
	q.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: an answer %d of %d bytes to operation %d", ErrProtocol, f.flags, f.length, f.tag)
	}
	for done, want := 0, int(f.length); done < want; {
		least := 1
		if whole {
			least = want
		}
		if _, err := r.Peek(least); err != nil {
			return err
		}
		data, _ := r.Peek(min(r.Buffered(), want-done)) // they are in the buffer
		q.mu.Lock()
		q.asked.Take(f.tag, done, data)
		q.mu.Unlock()
		_, _ = r.Discard(len(data))
		done += len(data)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked.Answered(f.tag, verdictErrors[code])
	q.put(f.tag)
	return nil
}

// prompt implements carrier: over TCP there is a message each.
func (s *stream) prompt(operationKind, rdma.Remote, []byte) bool { return false }
