package verbena

import (
	"context"
	"encoding/binary"

	"github.com/verbena-data/verbena/internal/fifo"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/slab"
)

// answerer is what carries out operations of the peer that come as messages. The queue
// pair's mu guards it.
type answerer struct {
	*queuePair
	due     fifo.Queue[wire.Operation]
	serving bool          // a goroutine carries out what is due
	work    func()        // of that goroutine
	word    [8]byte       // that goroutine's
	room    chan struct{} // one token when an answer may be sent
}

// mayGoOn tells the goroutine that waits for room in the send queue. mu is held.
func (s *answerer) mayGoOn() {
	if s.serving {
		notify(s.room)
	}
}

// asked keeps an operation of the peer for the goroutine that serves them. It ends when
// nothing is due. mu is held.
func (s *answerer) asked(o wire.Operation) {
	s.due.Push(o)
	if s.serving || s.life.reached(stageClosing) {
		return
	}
	s.serving = true
	if s.room == nil {
		s.room = make(chan struct{}, 1)
		s.work = func() {
			defer s.wg.Done()
			s.serve()
		}
	}
	s.wg.Add(1)
	go s.work()
}

func (s *answerer) serve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.due.Len() > 0 && !s.life.reached(stageClosing) && !s.e.over() && !s.m.Unanswered() {
		o := s.due.Pop()
		s.mu.Unlock()
		code, memory, data := s.carryOut(o)
		s.mu.Lock()
		for !s.m.MayAnswer() && !s.m.Unanswered() && !s.life.reached(stageClosing) && !s.queue.broken && !s.e.over() {
			s.mu.Unlock()
			select {
			case <-s.room:
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
	s.serving = false
}

// answerFront is where in the memory of an answer its data begins.
const answerFront = wire.HeaderSize + wire.AnswerSize

// carryOut serves an operation of the peer. The data of a Get lies in memory, behind
// room for what goes before it.
func (s *answerer) carryOut(o wire.Operation) (code verdictCode, memory slab.Slab, data []byte) {
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
			data = binary.BigEndian.AppendUint64(s.word[:0], a.value)
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
