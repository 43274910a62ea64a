package verbena

import (
	"context"
	"fmt"

	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/onesided"
)

// asker is what asks the peer's runtime for operations, by messages, and takes its
// answers. The queue pair's mu guards it.
type asker struct {
	*queuePair
	messages *outbound // operations go out between others
	asked    onesided.Asked
	sets     onesided.Sets
}

// onQueuePair is the one way that there is.
const onQueuePair onesided.Way = 0

// begin returns a set for await to end.
func (s *asker) begin() *onesided.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sets.Take()
}

// ask asks the peer for an operation, in pieces that fit into an answer.
func (s *asker) ask(ctx context.Context, set *onesided.Set, o *operation) error {
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
		if s.asked.None() {
			s.asked = onesided.NewAsked(s.limits.Chunks)
		}
		id := s.m.Ask(request)
		s.asked.Add(id, q)
		s.asked.Sent(id, onQueuePair)
		s.flush()
		err := s.e.Err() // posting may have failed
		s.mu.Unlock()
		if err != nil || o.kind != opGet || done == len(o.local) {
			return err
		}
	}
}

// await waits for the answers to a set. If it fails, or giveUp is set, nobody
// waits for them any more: their memory is the caller's.
func (s *asker) await(ctx context.Context, set *onesided.Set, giveUp bool) (err error) {
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
		err = set.Err()
	}
	s.asked.Forget(set, func(uint32) {}) // the machine has the ids
	s.sets.Put(set)
	return err
}

// answered takes the peer's answer. mu is held, and data is good until this returns.
func (s *asker) answered(answer wire.Answer, data []byte) error {
	asked := &s.asked
	code := verdictCode(answer.Verdict)
	if code >= verdictCodes || !asked.Expected(answer.ID, onQueuePair, code == verdictDone, len(data)) {
		return fmt.Errorf("%w: an answer %d with %d bytes to operation %d", ErrProtocol, code, len(data), answer.ID)
	}
	if code == verdictDone {
		asked.Take(answer.ID, 0, data)
	}
	asked.Answered(answer.ID, verdictErrors[code])
	return nil
}
