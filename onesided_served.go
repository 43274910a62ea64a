package verbena

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-data/verbena/internal/fifo"
	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/onesided"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// Operations on a queue pair that no device carries out: files that are read through
// the peer's descriptor, and messages that the peer's runtime answers.

// served is what a shell has to do with such messages. mu of the shell guards it.
type served struct {
	asked   onesided.Asked
	due     fifo.Queue[wire.Operation]
	serving bool          // a goroutine carries out what is due
	room    chan struct{} // one token when an answer may be sent
}

// operationWay tells how an operation is carried out.
type operationWay uint8

const (
	wayDevice operationWay = iota
	wayDescriptor
	wayMessage
)

// servesOperations tells whether both ends have agreed on operations as messages.
func (s *queuePair) servesOperations() bool { return s.e.features.has(hello.FeatureServed) }

// way tells how an operation is carried out, or why it is not.
func (s *operator) way(o *operation) (operationWay, error) {
	asks := s.servesOperations() && s.m.Asks()
	switch {
	case o.token.ways&byDescriptor != 0 && s.reader() != nil:
		return wayDescriptor, nil
	case o.token.ways&byDevice == 0 && !asks:
		return 0, fmt.Errorf("%w: its token is none of this endpoint's", ErrRevoked)
	case o.token.ways&byDevice == 0:
		return wayMessage, nil
	case !o.atomic() || o.token.ways&atomicsByDevice != 0 && s.n.attributes.Has(rdma.CapAtomics):
		return wayDevice, nil
	case !asks:
		return 0, fmt.Errorf("%w: atomic operations, which a device lacks", ErrUnsupported)
	}
	return wayMessage, nil
}

// reader is the queue pair if files can be read through it.
func (s *operator) reader() rdma.FileQueuePair {
	if q, ok := s.qp.(rdma.FileQueuePair); ok && s.servesOperations() && q.SharesFiles() {
		return q
	}
	return nil
}

// files is what the selection says.
func (s *operator) files() string {
	switch {
	case !s.servesOperations():
		return oneSidedUnknown
	case s.reader() != nil:
		return filesByDescriptor
	}
	return filesServed
}

// operateMixed carries out a batch of which not all is the device's: first what is, then
// the rest, then the notification.
func (s *operator) operateMixed(ctx context.Context, b *Batch, ways *[MaxBatch]operationWay) error {
	s.mu.Lock()
	gone := s.m.PeerSaidGoodbye()
	s.mu.Unlock()
	if gone {
		return ErrPeerClosed // its exposures end
	}
	device := s.e.batch()
	defer func() {
		device.reset()
		device.e = nil
		batches.Put(device)
	}()
	for i := range b.ops[:b.count] {
		if ways[i] == wayDevice {
			device.ops[device.count] = b.ops[i]
			device.count++
		}
	}
	if device.count > 0 {
		if err := s.fly(ctx, device); err != nil {
			return err
		}
	}
	var set *onesided.Set
	var err error
	for i := range b.ops[:b.count] {
		o := &b.ops[i]
		if ways[i] == wayDescriptor {
			if err = s.readFile(ctx, o); errors.Is(err, errNoDescriptor) {
				ways[i], err = wayMessage, nil
			}
		}
		if err == nil && ways[i] == wayMessage {
			if set == nil {
				set = onesided.NewSet()
			}
			err = s.ask(ctx, set, o)
		}
		if err != nil {
			break
		}
	}
	if set != nil {
		if waitErr := s.awaitAnswers(ctx, set, err != nil); err == nil {
			err = waitErr
		}
	}
	if err == nil && b.notify {
		if err = s.e.Send(ctx, b.tag, b.message); err != nil {
			err = fmt.Errorf("the notification was not sent: %w", err)
		}
	}
	return err
}

// errNoDescriptor: the peer's runtime has to read the file.
var errNoDescriptor = errors.New("verbena: the file is not to be had")

// readFile reads from the peer's file.
func (s *operator) readFile(ctx context.Context, o *operation) error {
	n, err := s.reader().ReadPeerFile(ctx, o.token.key, o.local, int64(o.token.address)+int64(o.offset))
	switch {
	case n == len(o.local):
		return nil
	case errors.Is(err, rdma.ErrRemoteAccess):
		return ErrRevoked
	case err == nil || err == io.EOF:
		return fmt.Errorf("%w: the file has become shorter", ErrBounds)
	case s.e.over():
		return s.e.err
	case ctx.Err() != nil:
		return err
	case errors.Is(err, rdma.ErrDisconnected) || s.qp.Err() != nil:
		return fmt.Errorf("%w: %w", ErrPeerDied, err)
	}
	return errNoDescriptor
}

// ask asks the peer for an operation, in pieces that fit into an answer.
func (s *operator) ask(ctx context.Context, set *onesided.Set, o *operation) error {
	request := wire.Operation{Exposure: o.token.id}
	switch o.kind {
	case opGet:
		request.Code = wire.Get
	case opCompareSwap:
		request.Code, request.A, request.B = wire.CompareSwap, o.operand, o.swap
	case opFetchAdd:
		request.Code, request.A = wire.FetchAdd, o.operand
	default:
		return fmt.Errorf("%w: it is a file", ErrRights)
	}
	// Messages that are waiting to be sent go first, and none passes this.
	select {
	case s.e.sendLock <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.e.done:
		return s.e.err
	}
	defer func() { <-s.e.sendLock }()
	s.messages.setBusy(true)
	defer s.messages.setBusy(false)
	for done := 0; ; {
		q := onesided.Query{Set: set, Want: 8, Number: true, Value: o.result}
		request.Offset = uint64(o.offset + done)
		if o.kind == opGet {
			n := min(len(o.local)-done, s.m.LongestAnswer())
			q = onesided.Query{Set: set, Want: n, Into: o.local[done : done+n]}
			request.A = uint64(n)
			done += n
		}
		if _, err := s.messages.ready(ctx, (*link.Machine[*Message]).MayAsk, nil, nil, 0, parcel{}); err != nil {
			return err
		}
		if s.served.asked.None() {
			s.served.asked = onesided.NewAsked(s.limits.Chunks)
		}
		id := s.m.Ask(request)
		s.served.asked.Add(id, q)
		s.served.asked.Sent(id)
		s.flush()
		err := s.e.Err() // posting may have failed
		s.mu.Unlock()
		if err != nil || o.kind != opGet || done == len(o.local) {
			return err
		}
	}
}

// awaitAnswers waits for the answers to a set. If it fails, or giveUp is set, nobody
// waits for them any more: their memory is the caller's.
func (s *operator) awaitAnswers(ctx context.Context, set *onesided.Set, giveUp bool) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for set.Left() > 0 && !giveUp && err == nil {
		s.mu.Unlock()
		s.w.sleep()
		select {
		case <-set.Done:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-s.e.done:
			s.w.drain() // they may have come all the same
			err = s.e.err
		}
		s.w.awake()
		s.mu.Lock()
	}
	if set.Left() == 0 {
		return set.Err()
	}
	s.served.asked.Forget(set, func(uint32) {}) // the machine has the ids
	return err
}

// answered takes the peer's answer. mu is held, and data is good until this returns.
func (s *operator) answered(answer wire.Answer, data []byte) error {
	asked := &s.served.asked
	code := verdictCode(answer.Verdict)
	if code >= verdictCodes || !asked.Expected(answer.ID, code == verdictDone, len(data)) {
		return fmt.Errorf("%w: an answer %d with %d bytes to operation %d", ErrProtocol, code, len(data), answer.ID)
	}
	if code == verdictDone {
		asked.Take(answer.ID, 0, data)
	}
	asked.Answered(answer.ID, verdictErrors[code])
	return nil
}

// asked keeps an operation of the peer for the goroutine that serves them. It ends when
// nothing is due. mu is held.
func (s *operator) asked(o wire.Operation) {
	v := &s.served
	v.due.Push(o)
	if v.serving || s.life.reached(stageClosing) {
		return
	}
	v.serving = true
	if v.room == nil {
		v.room = make(chan struct{}, 1)
	}
	s.wg.Go(s.serve)
}

func (s *operator) serve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &s.served
	for v.due.Len() > 0 && !s.life.reached(stageClosing) && !s.e.over() && !s.m.Unanswered() {
		o := v.due.Pop()
		s.mu.Unlock()
		code, memory, data := s.carryOut(o)
		s.mu.Lock()
		for !s.m.MayAnswer() && !s.m.Unanswered() && !s.life.reached(stageClosing) && !s.queue.broken && !s.e.over() {
			s.mu.Unlock()
			select {
			case <-v.room:
			case <-s.e.done:
			}
			s.mu.Lock()
		}
		if !s.m.MayAnswer() || s.life.reached(stageClosing) || s.queue.broken || s.e.over() {
			if !memory.None() {
				s.n.sendPool.Put(memory)
			}
			break
		}
		s.queue.payload = slab.Slab{}
		if wire.AnswerSize+len(data) > link.Small {
			s.queue.payload, memory = memory, slab.Slab{}
		}
		s.m.Answer(wire.Answer{ID: o.ID, Verdict: uint8(code)}, data)
		s.flush()
		if !memory.None() {
			s.n.sendPool.Put(memory)
		}
	}
	v.serving = false
}

// answerFront is where in the memory of an answer its data begins.
const answerFront = wire.HeaderSize + wire.AnswerSize

// carryOut serves an operation of the peer. The data of a Get lies in memory, behind
// room for what goes before it.
func (s *operator) carryOut(o wire.Operation) (code verdictCode, memory slab.Slab, data []byte) {
	x := s.e.exposed.find(o.Exposure)
	a := service{memory: x, length: 8}
	switch o.Code {
	case wire.Get:
		a.kind, a.length = opGet, int(o.A)
	case wire.CompareSwap:
		a.kind = opCompareSwap
	default:
		a.kind = opFetchAdd
	}
	if code = judge(x, o.Offset, a.length, operationNeeds[a.kind]); code != verdictDone {
		return code, memory, nil
	}
	a.offset = int(o.Offset)
	if a.kind != opGet {
		if code = a.swap(o.A, o.B); code == verdictDone {
			data = binary.BigEndian.AppendUint64(nil, a.value)
		}
		return code, memory, data
	}
	memory, err := s.take(context.Background(), s.n.sendPool, answerFront+a.length)
	if err != nil {
		return verdictRevoked, slab.Slab{}, nil // the endpoint has ended, and says so
	}
	data = memory.Bytes()[answerFront:][:a.length]
	if code = x.get(data, a.offset); code != verdictDone {
		data = nil
	}
	return code, memory, data
}

// get reads from what is exposed.
func (x *Exposure) get(into []byte, offset int) (code verdictCode) {
	code = verdictRevoked
	x.serve(func(memory []byte) {
		if f, ok := x.memory.(*exposedFile); ok {
			code = f.read(into, offset)
			return
		}
		copy(into, memory[offset:])
		code = verdictDone
	})
	return code
}
