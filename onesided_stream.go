package verbena

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/onesided"
	"github.com/verbena-data/verbena/internal/race"
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

// A verdictCode is the peer's answer to an operation.
type verdictCode uint8

const (
	verdictDone verdictCode = iota
	verdictRevoked
	verdictBounds
	verdictRights
	verdictCodes // how many there are
)

var verdictErrors = [verdictCodes]error{verdictRevoked: ErrRevoked, verdictBounds: ErrBounds, verdictRights: ErrRights}

// errands are an end's operations that the peer has not answered.
type errands struct {
	mu    sync.Mutex
	asked onesided.Asked
	free  chan uint32 // ids
	idle  []*onesided.Set
	lost  error   // of the lane
	word  [8]byte // the serving goroutine's
	begin sync.Once
	serve chan service // what the peer has asked for; nil before that
}

// A service is an answer that is due.
type service struct {
	id      uint32
	kind    operationKind
	via     *stream // where the answer goes: the stream, or its lane
	verdict verdictCode
	value   uint64    // of an atomic operation
	memory  *Exposure // of a Get
	offset  int
	length  int
}

func (q *errands) init() {
	q.free = make(chan uint32, streamOperations)
	for id := range uint32(streamOperations) {
		q.free <- id
	}
}

// lose ends what was sent and has no answer: the lane has ended, and nothing goes there
// any more.
func (q *errands) lose(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost = err
	q.asked.Lose(err, q.put)
}

// put gives an id back.
func (q *errands) put(id uint32) { q.free <- id }

func (q *errands) take() *onesided.Set {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.asked.None() {
		q.asked = onesided.NewAsked(streamOperations)
	}
	n := len(q.idle)
	if n == 0 {
		return onesided.NewSet()
	}
	set := q.idle[n-1]
	q.idle = q.idle[:n-1]
	return set
}

func (s *stream) operate(ctx context.Context, b *Batch) error {
	s.wantLane(ctx)
	q := &s.errands
	set := q.take()
	err := s.ask(ctx, set, b)
	if err == nil {
		err = s.awaitErrands(ctx, set)
	}
	q.mu.Lock()
	q.asked.Forget(set, q.put)
	if err == nil {
		err = set.Err()
	}
	set.Reset()
	q.idle = append(q.idle, set)
	q.mu.Unlock()
	if err == nil && b.notify {
		// The peer has done it all.
		return s.e.Send(ctx, b.tag, b.message)
	}
	return err
}

// ask sends the operations, each in pieces that fit into a frame.
func (s *stream) ask(ctx context.Context, set *onesided.Set, b *Batch) error {
	for i := range b.ops[:b.count] {
		o := &b.ops[i]
		if o.token.ways != 0 {
			return fmt.Errorf("%w: its token is none of this endpoint's", ErrRevoked)
		}
		for done := 0; ; {
			n := 0
			if !o.atomic() {
				n = min(len(o.local)-done, s.fragment)
			}
			if err := s.askPiece(ctx, set, o, done, n); err != nil {
				return err
			}
			if done += n; done >= len(o.local) {
				break
			}
		}
	}
	return nil
}

func (s *stream) askPiece(ctx context.Context, set *onesided.Set, o *operation, done, n int) error {
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
	query := onesided.Query{Set: set}
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
	if err := via.waitBacklog(ctx, s.e.done, backlogLimit); err != nil {
		return err
	}
	q.mu.Lock()
	lost := q.lost
	if lost == nil {
		q.asked.Sent(id)
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

// answered takes the peer's answer to an operation.
func (s *stream) answered(r *bufio.Reader, f frame) error {
	q := &s.errands
	code := verdictCode(f.flags)
	q.mu.Lock()
	ok := code < verdictCodes && q.asked.Expected(f.tag, code == verdictDone, int(f.length))
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

// asked carries out an operation of the peer. Its answer is sent by another goroutine:
// this one goes on reading.
func (s *stream) asked(r *bufio.Reader, f frame, via *stream) error {
	a := service{id: f.tag, kind: operationKind(f.flags), via: via}
	rest := int(f.length) - operationHead
	head, err := r.Peek(operationHead)
	if err != nil {
		return err
	}
	x := s.e.exposed.find(binary.BigEndian.Uint64(head))
	offset := binary.BigEndian.Uint64(head[8:])
	_, _ = r.Discard(len(head)) // it is in the buffer
	length := rest              // of the memory that is touched
	switch a.kind {
	case opGet:
		length = int(f.total)
	case opCompareSwap, opFetchAdd:
		length = 8
	}
	a.verdict = judge(x, offset, length, operationNeeds[a.kind])
	a.memory, a.offset, a.length = x, int(offset), length
	switch a.kind {
	case opPut:
		err = s.put(r, &a, rest)
	case opGet:
	default:
		var words []byte
		if words, err = r.Peek(rest); err != nil {
			break
		}
		if a.verdict == verdictDone {
			var replacement uint64
			if rest == operands {
				replacement = binary.BigEndian.Uint64(words[8:])
			}
			a.verdict = a.swap(binary.BigEndian.Uint64(words), replacement)
		}
		_, _ = r.Discard(rest) // it is in the buffer
	}
	if err != nil || s.e.closing.Load() {
		return err
	}
	q := &s.errands
	q.begin.Do(func() {
		q.serve = make(chan service, streamOperations)
		s.wg.Go(s.serve)
	})
	select {
	case q.serve <- a:
		return nil
	default:
		return fmt.Errorf("%w: more than %d operations at a time", ErrProtocol, streamOperations)
	}
}

// judge tells whether the peer may do something with memory that it named.
func judge(x *Exposure, offset uint64, length int, needs Rights) verdictCode {
	switch {
	case x == nil:
		return verdictRevoked
	case x.token.rights&needs == 0:
		return verdictRights
	case offset > x.token.length || uint64(length) > x.token.length-offset, needs == MayAtomic && offset%8 != 0:
		return verdictBounds
	}
	return verdictDone
}

// put reads n bytes into the memory of a Put, as they come: nothing is held while the
// peer is waited for.
func (s *stream) put(r *bufio.Reader, a *service, n int) error {
	at := a.offset
	for n > 0 {
		if _, err := r.Peek(1); err != nil {
			return err
		}
		k := min(r.Buffered(), n)
		if a.verdict == verdictDone && !a.memory.serve(func(memory []byte) {
			_, _ = r.Read(memory[at : at+k]) // it is in the buffer
		}) {
			a.verdict = verdictRevoked
		}
		if a.verdict != verdictDone {
			_, _ = r.Discard(k)
		}
		at, n = at+k, n-k
	}
	return nil
}

// swap carries out an atomic operation.
func (a *service) swap(operand, replacement uint64) verdictCode {
	alive := a.memory.serve(func(memory []byte) {
		p := word(memory, a.offset)
		if a.kind == opFetchAdd {
			a.value = atomic.AddUint64(p, operand) - operand
			return
		}
		for {
			a.value = atomic.LoadUint64(p)
			if a.value != operand || atomic.CompareAndSwapUint64(p, operand, replacement) {
				return
			}
		}
	})
	if !alive {
		return verdictRevoked
	}
	return verdictDone
}

// serve answers the peer's operations, in their order.
func (s *stream) serve() {
	for {
		var a service
		select {
		case a = <-s.errands.serve:
		case <-s.readDone:
			return
		case <-s.e.done:
			return
		}
		via := a.via
		if via.waitBacklog(context.Background(), s.e.done, backlogLimit) != nil {
			return
		}
		f := frame{kind: frameAnswer, flags: uint8(a.verdict), tag: a.id}
		var err error
		switch {
		case a.verdict != verdictDone || a.kind == opPut:
			err = via.write(f, parcel{})
		case a.kind == opGet:
			f.length = uint32(a.length)
			if _, ok := a.memory.memory.(*exposedFile); ok || race.Enabled {
				err = s.serveCopy(f, a)
			} else if !a.memory.serve(func(memory []byte) { err = via.write(f, parcel{body: memory[a.offset : a.offset+a.length]}) }) {
				f.flags, f.length = uint8(verdictRevoked), 0
				err = via.write(f, parcel{})
			}
		default:
			f.length = 8
			err = via.write(f, parcel{body: binary.BigEndian.AppendUint64(s.errands.word[:0], a.value)})
		}
		if err != nil {
			return
		}
	}
}

// serveCopy answers a Get of a file. The race detector has all Gets served so: a write's
// end, at which it takes note of what was read, may come after the peer's next Put.
func (s *stream) serveCopy(f frame, a service) error {
	memory := classOf(a.length).take()
	defer memory.free()
	into := memory.data[:a.length]
	if code := a.memory.get(into, a.offset); code != verdictDone {
		f.flags, f.length = uint8(code), 0
		return a.via.write(f, parcel{})
	}
	return a.via.write(f, parcel{body: into})
}

// exposedPages are memory of a process, which no device reaches.
type exposedPages struct {
	env   *environment
	pages []byte
}

func (s *stream) expose(ctx context.Context, c *ExposeConfig) (exposable, error) {
	s.wantLane(ctx)
	env, size := s.e.env, c.Size
	if c.Buffer != nil {
		return s.exposeBuffer(c)
	}
	if c.Memory != nil {
		return s.exposeUser(ctx, c)
	}
	if err := s.e.borrow(ctx, env.exposed, int64(size)); err != nil {
		return nil, err
	}
	pages, err := takePages(size)
	if err != nil {
		env.exposed.give(int64(size))
		return nil, fmt.Errorf("verbena: no memory for %d bytes: %w", size, err)
	}
	return &exposedPages{env: env, pages: pages}, nil
}

func (p *exposedPages) bytes() []byte { return p.pages }

func (p *exposedPages) remote() (rdma.Remote, tokenWays) { return rdma.Remote{}, 0 }

func (p *exposedPages) withdraw() error { return nil } // the runtime asks for it each time

func (p *exposedPages) free() error {
	freePages(p.pages)
	p.env.exposed.give(int64(len(p.pages)))
	p.pages = nil
	return nil
}

// servesOperations tells whether frames of operations may come.
func (s *stream) servesOperations() bool { return s.e.features.has(hello.FeatureOneSided) }
